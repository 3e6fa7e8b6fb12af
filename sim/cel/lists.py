"""The functions of lists and sets (cel-go: ext/lists.go, ext/sets.go; k8s.io/apiserver/pkg/cel/library/lists.go)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, Final

from dranode.sim.cel.bounds import check_elements
from dranode.sim.cel.costs import LIMIT
from dranode.sim.cel.errors import CELCancelledError
from dranode.sim.cel.known import KnownToCEL
from dranode.sim.cel.operations import add
from dranode.sim.cel.values import Duration, UInt, are_equal, compare, type_name

_MAX_RANGE: Final = 1_000_000
_ZEROES: Final[dict[str, Any]] = {"int": 0, "uint": UInt(0), "double": 0.0, "google.protobuf.Duration": Duration(0)}


def contains(values: list[Any], value: Any) -> bool:
    """Return whether the value is in the list."""
    return any(are_equal(value, one) for one in values)


def is_sorted(values: list[Any]) -> bool:
    """Return whether no value is greater than the next."""
    return all(compare(left, right) <= 0 for left, right in pairwise(_ordered(values)))


def _ordered(values: list[Any]) -> list[Any]:
    """Values that can be compared at all."""
    for value in values:
        if type_name(value) not in ("int", "uint", "double"):
            compare(value, value)
    return values


def greatest(values: list[Any]) -> Any:
    """The first of the greatest values."""
    return _extreme("max", values, 1)


def least(values: list[Any]) -> Any:
    """The first of the least values."""
    return _extreme("min", values, -1)


def _extreme(name: str, values: list[Any], better: int) -> Any:
    if not values:
        raise ValueError(f"{name} called on empty list")
    best, *others = _ordered(values)
    for value in others:
        try:
            best = value if compare(value, best) == better else best
        except ValueError:
            continue  # an error is no preference
    return best


def total(values: list[Any]) -> Any:
    """The sum, of nothing 0."""
    if not values:
        return 0
    result = _ZEROES[type_name(values[0])]
    for value in values:
        result = add(result, value)
    return result


def first_index(values: list[Any], value: Any) -> int:
    """Return where the value is first, -1 if nowhere."""
    return next((index for index, one in enumerate(values) if are_equal(one, value)), -1)


def last_index(values: list[Any], value: Any) -> int:
    """Return where the value is last, -1 if nowhere."""
    return next((index for index in range(len(values) - 1, -1, -1) if are_equal(values[index], value)), -1)


def includes(target: Any, value: Any) -> bool:
    """Return whether the target is the value, or a list with it (KEP-5491)."""
    return any(are_equal(one, value) for one in target) if isinstance(target, list) else are_equal(target, value)


def includes_bounded(target: Any, value: Any) -> bool:
    """The same, in 1.36: of no list that is longer than an attribute can be."""
    values = target if isinstance(target, list) else [target]
    for index, one in enumerate(values):
        if index >= _MAX_INCLUDES:
            raise ValueError(f"'includes' function cannot be applied to lists longer than {_MAX_INCLUDES} values")
        if are_equal(one, value):
            return True
    return False


_MAX_INCLUDES: Final = 48
_COMPARED: Final = cmp_to_key(compare)


def slice_of(values: list[Any], start: int, end: int) -> list[Any]:
    """The elements from `start` to before `end`."""
    if start < 0 or end < 0:
        raise ValueError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise ValueError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(values) < end:
        raise ValueError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def flatten(values: list[Any], depth: int = 1) -> list[Any]:
    """The elements of lists in lists, to this depth."""
    if depth < 0:
        raise ValueError("level must be non-negative")
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list) and depth:
            flat += flatten(value, depth - 1)
        else:
            flat.append(value)
        check_elements(len(flat))
    return flat


def sort(values: list[Any]) -> list[Any]:
    """The values in order."""
    return sort_by(values, values)


def sort_by(values: list[Any], keys: list[Any]) -> list[Any]:
    """The values in the order of their keys."""
    if len(values) != len(keys):
        raise ValueError(
            f"expected a list of the same size as the keys, but got {len(values)} and {len(keys)} elements"
        )
    if not values:
        return values
    if type_name(keys[0]) not in ("int", "uint", "double"):
        compare(keys[0], keys[0])
    if len(values) > 1 and len({type_name(key) for key in keys}) > 1:
        raise ValueError("list elements must have the same type")
    order = sorted(range(len(values)), key=lambda index: _COMPARED(keys[index]))
    return [values[index] for index in order]


def distinct(values: list[Any]) -> list[Any]:
    """The values without those that were there before."""
    _check_pairs(2 * len(values) ** 2)
    unique: list[Any] = []
    for value in values:
        if not any(are_equal(value, one) for one in unique):
            unique.append(value)
    return unique


def range_of(count: int, *, bounded: bool) -> list[int]:
    """The numbers from 0 to before `count`.

    Raises:
        ValueError: the count is negative or too large, where that is `bounded`.
    """
    if bounded and count < 0:
        raise ValueError(f"lists.range: size must be non-negative, got {count}")
    if bounded and count > _MAX_RANGE:
        raise ValueError(f"lists.range: size {count} exceeds maximum allowed ({_MAX_RANGE})")
    if count > _MAX_RANGE:
        raise CELCancelledError("operation cancelled: actual cost limit exceeded")
    return list(range(count))


def _check_pairs(count: int) -> None:
    """Refuse before it is done what Kubernetes refuses after: to compare so many elements with each other."""
    if count > LIMIT:
        raise CELCancelledError("operation cancelled: actual cost limit exceeded")


def set_contains(values: list[Any], others: list[Any]) -> bool:
    """Return whether all others are in the list."""
    _check_pairs(len(values) * len(others))
    return all(contains(values, one) for one in others)


def set_equivalent(values: list[Any], others: list[Any]) -> bool:
    """Return whether each is in the other list."""
    return set_contains(values, others) and set_contains(others, values)


def set_intersects(values: list[Any], others: list[Any]) -> bool:
    """Return whether one is in both lists."""
    _check_pairs(len(values) * len(others))
    return any(contains(others, one) for one in values)


def list_functions(known: KnownToCEL) -> dict[str, Callable[..., Any]]:
    """The functions that releases have in two kinds."""
    return {
        "includes": includes if known.cel_go_29 else includes_bounded,
        "lists.range": lambda count: range_of(count, bounded=known.cel_go_29),
    }
