"""Estimates the greatest cost of a call of cel-go's lists and sets, and the size of its result.

Sources: cel-go (ext/lists.go, ext/sets.go).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dranode.sim.cel.costs import LIST, ORDERED_KINDS, TRAVERSAL
from dranode.sim.cel.extent import MOST, ONE, Extent, exactly
from dranode.sim.cel.operands import Estimate, EstimateRule, Operand


def _allocating(factor: float, size: Extent) -> Estimate:
    return Estimate(size.scaled(factor) + ONE + exactly(LIST), size)


def _sliced(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    start, end = arguments[0].number(0), arguments[1].number(target.known_size.most)
    return _allocating(1, exactly((end - start) % (MOST + 1)))


def _ranged(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return _allocating(1, exactly(arguments[0].number(MOST)))


def _reversed(target: Operand | None, _: Sequence[Operand]) -> Estimate | None:
    return None if target is None else _allocating(1, target.known_size)


def _flattened(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    depth = arguments[0].number(MOST) if arguments else 1
    return _allocating(float(depth), target.known_size)


def _distinct(target: Operand | None, _: Sequence[Operand]) -> Estimate | None:
    return None if target is None else _allocating(2, target.known_size * target.known_size)


def _sorted(factor: float) -> EstimateRule:
    def rule(target: Operand | None, _: Sequence[Operand]) -> Estimate | None:
        return None if target is None else _allocating(factor, target.known_size * target.known_size)

    return rule


def _sorted_by(factor: float) -> EstimateRule:
    def rule(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
        return _allocating(factor, arguments[0].known_size * arguments[0].known_size)

    return rule


def _sets(factor: float) -> EstimateRule:
    def rule(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
        return Estimate((arguments[0].known_size * arguments[1].known_size).scaled(factor) + ONE)

    return rule


def _orders() -> dict[str, EstimateRule]:
    rules: dict[str, EstimateRule] = {}
    for kind in ORDERED_KINDS:
        factor = 2 + TRAVERSAL if kind in ("string", "bytes") else 2.0
        rules[f"list_{kind}_sort"] = _sorted(factor)
        rules[f"list_{kind}_sortByAssociatedKeys"] = _sorted_by(factor)
    return rules


LIST_ESTIMATES: Final[dict[str, EstimateRule]] = {
    "list_slice": _sliced,
    "lists_range": _ranged,
    "list_reverse": _reversed,
    "list_flatten": _flattened,
    "list_flatten_int": _flattened,
    "list_distinct": _distinct,
    **_orders(),
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
}
