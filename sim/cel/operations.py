"""The operators of CEL's standard library (cel-go: common/types); `dranode.sim.cel.conversions` has its conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from dranode.sim.cel.bounds import check_elements, check_length
from dranode.sim.cel.times import duration, time_between, timestamp
from dranode.sim.cel.values import (
    INT64,
    MISSING,
    UINT64,
    CIDRValue,
    Duration,
    IPValue,
    MutableList,
    MutableMap,
    Timestamp,
    UInt,
    are_equal,
    compare,
    map_key,
    map_value,
    size,
    type_name,
)


def add(left: Any, right: Any) -> Any:
    """`left + right`."""
    if isinstance(left, list) and isinstance(right, list):
        return _joined(left, right)
    if isinstance(left, (Timestamp, Duration)) and isinstance(right, (Timestamp, Duration)):
        return _added_times(left, right)
    if type(left) is not type(right):
        raise _no_overload("_+_", left, right)
    if isinstance(left, (str, bytes)):
        check_length(len(left) + len(right))
        return left + right
    return _number("_+_", left, lambda: left + right)


def _joined(left: list[Any], right: list[Any]) -> list[Any]:
    check_elements(len(left) + len(right))
    if type(left) is MutableList:
        left.extend(right)
        return left
    if not left or not right:
        return left or right
    return [*left, *right]


def _added_times(left: Timestamp | Duration, right: Timestamp | Duration) -> Timestamp | Duration:
    if isinstance(left, Timestamp) and isinstance(right, Timestamp):
        raise _no_overload("_+_", left, right)
    total = left.nanoseconds + right.nanoseconds
    for one in (left, right):
        if isinstance(one, Timestamp):
            return timestamp(total, one.offset)
    return duration(total)


def subtract(left: Any, right: Any) -> Any:
    """`left - right`."""
    if isinstance(left, Timestamp) and isinstance(right, Duration):
        return timestamp(left.nanoseconds + duration(-right.nanoseconds).nanoseconds, left.offset)
    if type(left) is not type(right):
        raise _no_overload("_-_", left, right)
    if isinstance(left, Timestamp):
        return time_between(left, right)
    if isinstance(left, Duration):
        return duration(left.nanoseconds - right.nanoseconds)
    return _number("_-_", left, lambda: left - right)


def multiply(left: Any, right: Any) -> Any:
    """`left * right`."""
    if type(left) is not type(right):
        raise _no_overload("_*_", left, right)
    return _number("_*_", left, lambda: left * right)


def divide(left: Any, right: Any) -> Any:
    """`left / right`, of integers without the fraction."""
    if type(left) is not type(right):
        raise _no_overload("_/_", left, right)
    if type(left) is float:
        if right == 0:
            return (
                math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
            )
        return left / right
    return _number("_/_", left, lambda: _quotient(left, right, "divide"))


def modulo(left: Any, right: Any) -> Any:
    """`left % right`, with the sign of `left`."""
    if type(left) is not type(right) or type(left) is float:
        raise _no_overload("_%_", left, right)
    return _number("_%_", left, lambda: left - right * _quotient(left, right, "modulus"))


def _quotient(left: int, right: int, verb: str) -> int:
    if right == 0:
        raise ValueError(f"{verb} by zero" if verb == "modulus" else "division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _number(name: str, like: Any, compute: Callable[[], Any]) -> Any:
    """The result as a number of the type of `like`."""
    kind = type(like)
    if kind is float:
        try:
            return compute()
        except OverflowError:
            return math.inf
    if kind not in (int, UInt):
        raise _no_overload(name, like)
    result = compute()
    if result not in (INT64 if kind is int else UINT64):
        raise ValueError("integer overflow" if kind is int else "unsigned integer overflow")
    return kind(result)


def negate(value: Any) -> Any:
    """`-value`."""
    if type(value) is UInt:
        raise _no_overload("-_", value)
    return _number("-_", value, lambda: -value)


def negation(value: Any) -> bool:
    """`!value`."""
    if type(value) is not bool:
        raise _no_overload("!_", value)
    return not value


def is_in(value: Any, container: Any) -> bool:
    """`value in container`."""
    if isinstance(container, list):
        return any(are_equal(value, one) for one in container)
    if isinstance(container, dict):
        return map_value(container, value) is not MISSING
    raise _no_overload("@in", value, container)


def size_of(value: Any) -> int:
    """`size(value)`."""
    known = None if isinstance(value, (IPValue, CIDRValue)) else size(value)
    if known is None:
        raise _no_overload("size", value)
    return known


def inserted(entries: dict[Any, Any], key: Any, value: Any = MISSING) -> dict[Any, Any]:
    """A map with one more entry, or with those of another map, none of which is there."""
    target = entries if type(entries) is MutableMap else dict(entries)
    new = key.items() if value is MISSING else [(map_key(key), value)]
    for one, given in new:
        if one in target:
            raise ValueError(f"insert failed: key {one} already exists")
        target[one] = given
    return target


def _ordering(accepts: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: accepts(compare(left, right))


def _no_overload(name: str, *values: Any) -> ValueError:
    return ValueError(f"no such overload: {name}({', '.join(map(type_name, values))})")


OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "-_": negate,
    "!_": negation,
    "_<_": _ordering(lambda order: order < 0),
    "_<=_": _ordering(lambda order: order <= 0),
    "_>_": _ordering(lambda order: order > 0),
    "_>=_": _ordering(lambda order: order >= 0),
    "@in": is_in,
    "size": size_of,
    "cel.@mapInsert": inserted,
}
