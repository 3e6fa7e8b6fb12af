"""Estimates the greatest cost of a call and the size of its result, by the sizes of its arguments.

Sources: cel-go (checker/cost.go, ext/lists.go, ext/sets.go), k8s.io/apiserver/pkg/cel/library/cost.go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dranode.sim.cel.costs import LIST, ORDERED_KINDS, REGEX, TRAVERSAL
from dranode.sim.cel.declarations import KnownToCEL
from dranode.sim.cel.types import CIDR, FORMAT, IP, QUANTITY, SEMVER, URL, CELType, TypeKind

MOST: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """From `least` to `most`: of a size, or of a cost."""

    least: int
    most: int

    def __add__(self, other: Extent) -> Extent:
        """The bounds of a sum."""
        return Extent(min(self.least + other.least, MOST), min(self.most + other.most, MOST))

    def __mul__(self, other: Extent) -> Extent:
        """The bounds of a product."""
        return Extent(min(self.least * other.least, MOST), min(self.most * other.most, MOST))

    def __or__(self, other: Extent) -> Extent:
        """The bounds of either."""
        return Extent(min(self.least, other.least), max(self.most, other.most))

    def scaled(self, factor: float) -> Extent:
        """The bounds of a multiple, rounded up."""
        return Extent(_scaled(self.least, factor), _scaled(self.most, factor))


def _scaled(number: int, factor: float) -> int:
    product = math.ceil(float(number) * factor) if number and factor else 0
    return min(product, MOST)


def exactly(number: int) -> Extent:
    """One number."""
    return Extent(number, number)


UNKNOWN: Final = Extent(0, MOST)
NOTHING: Final = Extent(0, 0)
ONE: Final = Extent(1, 1)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bounds of a cost, and of the size of the result if that is known."""

    cost: Extent
    size: Extent | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument.

    Attributes:
        path: where it is in a device; empty if it is in none.
        literal: its value if it is written out.
        size_of_path: the sizes of what is in a device.
    """

    type: CELType
    size: Extent | None
    path: tuple[str, ...]
    literal: Any
    size_of_path: Callable[[tuple[str, ...]], Extent | None]

    @property
    def known_size(self) -> Extent:
        """Its size, which can be anything if nothing is known."""
        if self.size is not None:
            return self.size
        return (self.size_of_path(self.path) if self.path else None) or UNKNOWN

    @property
    def element(self) -> Operand | None:
        """Return what stands for an element of it."""
        if not self.type.parameters:
            return None
        path = (*self.path, "@items") if self.path else ()
        return Operand(self.type.parameters[0], None, path, None, self.size_of_path)

    def number(self, otherwise: int) -> int:
        """The literal number, of negative ones 0."""
        if type(self.literal) is not int:
            return otherwise
        return max(self.literal, 0)


EstimateRule: TypeAlias = Callable[[Operand | None, Sequence[Operand]], Estimate | None]


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


_MAX_FORMAT: Final = 64
_MAX_FORMAT_REGEX: Final = 128
_MAX_INCLUDES: Final = 48
_ADDRESS: Final = Extent(4, 16)


def of_call(
    function: str, overload: str, target: Operand | None, arguments: Sequence[Operand], known: KnownToCEL
) -> Estimate:
    """Return what the call itself costs, without its arguments."""
    rule = _OVERLOADS.get(overload) or _FUNCTIONS.get(function) or _STANDARD.get(overload)
    if function == "includes" and not known.cel_go_29:
        return Estimate(Extent(0, _MAX_INCLUDES))
    if overload == "matches":
        rule = _matches_global if known.cel_go_29 else None
    estimate = rule(target, arguments) if rule else None
    if estimate is None and function == "_==_":
        estimate = _compared(target, arguments)
    return estimate or Estimate(ONE)


def _fixed(_: Operand | None, __: Sequence[Operand]) -> Estimate:
    return Estimate(ONE)


def _check(_: Operand | None, __: Sequence[Operand]) -> Estimate:
    return Estimate(exactly(350_000))


def _traversed(target: Operand | None, _: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    size, element = target.known_size, target.element
    if element is None:
        return Estimate(size.scaled(TRAVERSAL))
    cost = ONE
    if element.type.kind in (TypeKind.STRING, TypeKind.BYTES):
        cost += element.known_size.scaled(TRAVERSAL)
    return Estimate(size * cost)


def _includes(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None or target.element is not None:
        return _traversed(target, arguments)
    return Estimate(target.known_size * ONE)


def _url(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    size = arguments[0].known_size
    return Estimate(size.scaled(TRAVERSAL), size)


def _transformed(target: Operand | None, _: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    return Estimate(target.known_size.scaled(TRAVERSAL), target.known_size)


def _replaced(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    size, old, new = target.known_size, arguments[0].known_size, arguments[1].known_size
    kept_most = kept_least = 0
    if old.least == 0:
        most, kept_most = min(size.most + 1, MOST), size.most
    elif new.most <= old.least:
        most, kept_most = 0, size.most
    else:
        most = math.ceil(float(size.most) / float(old.least))
    if old.most == 0:
        least, kept_least = min(size.least + 1, MOST), size.least
    elif old.most <= new.least:
        least, kept_least = 0, size.least
    else:
        least = math.ceil(float(size.least) / float(old.most))
    result = Extent(least, min(most, MOST)) * new + Extent(kept_least, kept_most)
    return Estimate(size.scaled(2 * TRAVERSAL), result)


def _split(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    size = target.known_size
    most = size.most
    if len(arguments) > 1 and type(arguments[1].literal) is int:
        most = arguments[1].literal % (MOST + 1)
    return Estimate(size.scaled(2 * TRAVERSAL), Extent(0, most))


def _joined(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    count, element = target.known_size, target.element
    size = NOTHING if element is None else count * element.known_size
    if arguments:
        between = Extent(max(count.least - 1, 0), max(count.most - 1, 0))
        size += arguments[0].known_size * between
    return Estimate(size.scaled(TRAVERSAL), size)


def _searched(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    cost = _regex(target, arguments[0])
    return Estimate(cost, Extent(0, target.known_size.most))


def _regex(text: Operand, pattern: Operand) -> Extent:
    return (text.known_size + ONE).scaled(TRAVERSAL) * pattern.known_size.scaled(REGEX)


def _matches(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    return None if target is None else Estimate(_regex(target, arguments[0]))


def _matches_global(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(_regex(*arguments))


def _parsed(_: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    return Estimate(arguments[0].known_size.scaled(TRAVERSAL)) if arguments else None


def _parsed_twice(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(arguments[0].known_size.scaled(2 * TRAVERSAL))


def _contains_ip(_: Operand | None, __: Sequence[Operand]) -> Estimate:
    return Estimate((_ADDRESS + _ADDRESS).scaled(TRAVERSAL))


def _contains_ip_text(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate((_ADDRESS + _ADDRESS).scaled(TRAVERSAL) + arguments[0].known_size.scaled(TRAVERSAL))


def _contains_cidr(_: Operand | None, __: Sequence[Operand]) -> Estimate:
    return Estimate((_ADDRESS + _ADDRESS).scaled(TRAVERSAL) + _ADDRESS.scaled(TRAVERSAL) + ONE)


def _contains_cidr_text(target: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(_contains_cidr(target, arguments).cost + arguments[0].known_size.scaled(TRAVERSAL))


def _validated(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(arguments[0].known_size.scaled(TRAVERSAL).scaled(_MAX_FORMAT_REGEX * REGEX))


def _compared(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    left, right = arguments
    if left.type.name == right.type.name:
        if left.type in (IP, CIDR, QUANTITY, SEMVER):
            return Estimate(ONE)
        if left.type == FORMAT:
            return Estimate(Extent(1, _MAX_FORMAT).scaled(TRAVERSAL))
        if left.type == URL:
            return Estimate(Extent(1, right.size.most if right.size else 1).scaled(TRAVERSAL))
    return _smaller(None, arguments)


def _smaller(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    most = min(one.size.most if one.size else MOST for one in arguments)
    return Estimate(Extent(1 if most else 0, most).scaled(TRAVERSAL))


def _size(operand: Operand) -> Extent:
    return operand.size or UNKNOWN


def _format(target: Operand | None, _: Sequence[Operand]) -> Estimate | None:
    return None if target is None else Estimate(_size(target).scaled(TRAVERSAL))


def _to_bytes(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    size = _size(arguments[0])
    return Estimate(size.scaled(TRAVERSAL), Extent(size.least, size.most * 4 % (MOST + 1)))


def _to_string(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    size = _size(arguments[0])
    return Estimate(size.scaled(TRAVERSAL), Extent(size.least // 4, size.most))


def _quoted(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    size = _size(arguments[0])
    most = (size.most * 2 + 2) % (MOST + 1)
    return Estimate(size.scaled(TRAVERSAL), Extent(size.least + 2, most))


def _first(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(_size(arguments[0]).scaled(TRAVERSAL))


def _in_list(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(_size(arguments[1]).scaled(1))


def _contains(target: Operand | None, arguments: Sequence[Operand]) -> Estimate | None:
    if target is None:
        return None
    return Estimate(_size(target).scaled(TRAVERSAL) * _size(arguments[0]).scaled(TRAVERSAL))


def _added(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    size = _size(arguments[0]) + _size(arguments[1])
    return Estimate(size.scaled(TRAVERSAL), size)


def _added_lists(_: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    return Estimate(ONE, _size(arguments[0]) + _size(arguments[1]))


_OVERLOADS: Final[dict[str, EstimateRule]] = {
    **LIST_ESTIMATES,
    "cidr_ip": _fixed,
    "cidr_contains_ip_string": _contains_ip_text,
    "cidr_contains_cidr_string": _contains_cidr_text,
}
_FUNCTIONS: Final[dict[str, EstimateRule]] = {
    "check": _check,
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversed),
    "includes": _includes,
    "url": _url,
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _transformed),
    "replace": _replaced,
    "split": _split,
    "join": _joined,
    **dict.fromkeys(("find", "findAll"), _searched),
    **dict.fromkeys(("cidr", "ip", "isIP", "isCIDR"), _parsed),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _parsed),
    "ip.isCanonical": _parsed_twice,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validated,
}
_ORDERED: Final = [f"{order}{kind}" for order in ("less", "greater") for kind in ("_string", "_bytes")]
_STANDARD: Final[dict[str, EstimateRule]] = {
    "string_format": _format,
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _to_string,
    "strings_quote": _quoted,
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _first),
    "in_list": _in_list,
    "matches_string": _matches,
    "contains_string": _contains,
    **dict.fromkeys(("add_string", "add_bytes"), _added),
    "add_list": _added_lists,
    **dict.fromkeys(_ORDERED, _smaller),
    **dict.fromkeys([one.replace("_", "_equals_", 1) for one in _ORDERED], _smaller),
    "equals": _compared,
    "not_equals": _smaller,
}
