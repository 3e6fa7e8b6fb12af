"""The operators of CEL's standard library, and the functions of lists and sets.

Sources: cel-go (common/types, ext/lists.go, ext/sets.go), k8s.io/apiserver/pkg/cel/library/lists.go.
"""

import math
from collections.abc import Callable
from functools import cache, cmp_to_key, partial
from itertools import pairwise
from typing import Any, Final

from dranode.sim.cel import kubernetes, strings
from dranode.sim.cel.costs import LIMIT
from dranode.sim.cel.declarations import FORMATS, KnownToCEL
from dranode.sim.cel.kubernetes import can_read
from dranode.sim.cel.syntax import CELCancelledError, check_elements, check_length
from dranode.sim.cel.values import (
    CONVERSIONS,
    GETTERS,
    INT64,
    MISSING,
    NONE,
    UINT64,
    CIDRValue,
    Duration,
    FormatValue,
    IPValue,
    MessageValue,
    MutableList,
    MutableMap,
    OptionalValue,
    QuantityValue,
    SemverValue,
    Timestamp,
    UInt,
    URLValue,
    are_equal,
    compare,
    duration,
    map_key,
    map_value,
    no_overload,
    size,
    time_between,
    timestamp,
    type_name,
    wrapped,
)


def add(left: Any, right: Any) -> Any:
    """Return `left + right`."""
    if isinstance(left, list) and isinstance(right, list):
        return _joined(left, right)
    if isinstance(left, (Timestamp, Duration)) and isinstance(right, (Timestamp, Duration)):
        return _added_times(left, right)
    if type(left) is not type(right):
        raise no_overload("_+_", left, right)
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
        raise no_overload("_+_", left, right)
    total = left.nanoseconds + right.nanoseconds
    for operand in (left, right):
        if isinstance(operand, Timestamp):
            return timestamp(total, operand.offset)
    return duration(total)


def subtract(left: Any, right: Any) -> Any:
    """Return `left - right`."""
    if isinstance(left, Timestamp) and isinstance(right, Duration):
        return timestamp(left.nanoseconds + duration(-right.nanoseconds).nanoseconds, left.offset)
    if type(left) is not type(right):
        raise no_overload("_-_", left, right)
    if isinstance(left, Timestamp):
        return time_between(left, right)
    if isinstance(left, Duration):
        return duration(left.nanoseconds - right.nanoseconds)
    return _number("_-_", left, lambda: left - right)


def multiply(left: Any, right: Any) -> Any:
    """Return `left * right`."""
    if type(left) is not type(right):
        raise no_overload("_*_", left, right)
    return _number("_*_", left, lambda: left * right)


def divide(left: Any, right: Any) -> Any:
    """Return `left / right`, truncated for integers."""
    if type(left) is not type(right):
        raise no_overload("_/_", left, right)
    if type(left) is float:
        if right == 0:
            return (
                math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
            )
        return left / right
    return _number("_/_", left, lambda: _quotient(left, right, "divide"))


def modulo(left: Any, right: Any) -> Any:
    """Return `left % right`, with the sign of `left`."""
    if type(left) is not type(right) or type(left) is float:
        raise no_overload("_%_", left, right)
    if right == -1:
        negate(left)  # the least integer has no quotient, and therefore no remainder either
    return _number("_%_", left, lambda: left - right * _quotient(left, right, "modulus"))


def _quotient(left: int, right: int, verb: str) -> int:
    if right == 0:
        raise ValueError(f"{verb} by zero" if verb == "modulus" else "division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _number(name: str, like: Any, compute: Callable[[], Any]) -> Any:
    """Return the result as a number of the type of `like`."""
    kind = type(like)
    if kind is float:
        try:
            return compute()
        except OverflowError:
            return math.inf
    if kind not in (int, UInt):
        raise no_overload(name, like)
    result = compute()
    if result not in (INT64 if kind is int else UINT64):
        raise ValueError("integer overflow" if kind is int else "unsigned integer overflow")
    return kind(result)


def negate(value: Any) -> Any:
    """Return `-value`."""
    if type(value) is UInt:
        raise no_overload("-_", value)
    return _number("-_", value, lambda: -value)


def negation(value: Any) -> bool:
    """Return `!value`."""
    if type(value) is not bool:
        raise no_overload("!_", value)
    return not value


def is_in(value: Any, container: Any) -> bool:
    """Return `value in container`."""
    if isinstance(container, list):
        return any(are_equal(value, element) for element in container)
    if isinstance(container, dict):
        return map_value(container, value) is not MISSING
    raise no_overload("@in", value, container)


def size_of(value: Any) -> int:
    """Return `size(value)`."""
    known = None if isinstance(value, (IPValue, CIDRValue)) else size(value)
    if known is None:
        raise no_overload("size", value)
    return known


def inserted(entries: dict[Any, Any], key: Any, value: Any = MISSING) -> dict[Any, Any]:
    """Return a map with one more entry, or with those of another map. No key may exist already."""
    target = entries if type(entries) is MutableMap else dict(entries)
    new = key.items() if value is MISSING else [(map_key(key), value)]
    for new_key, new_value in new:
        if new_key in target:
            raise ValueError(f"insert failed: key {new_key} already exists")
        target[new_key] = new_value
    return target


def _ordering(accepts: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: accepts(compare(left, right))


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


_MAX_RANGE: Final = 1_000_000
_ZEROES: Final[dict[str, Any]] = {"int": 0, "uint": UInt(0), "double": 0.0, "google.protobuf.Duration": Duration(0)}


def contains(values: list[Any], value: Any) -> bool:
    """Return whether the value is in the list."""
    return any(are_equal(value, element) for element in values)


def is_sorted(values: list[Any]) -> bool:
    """Return whether no value is greater than the next."""
    return all(compare(left, right) <= 0 for left, right in pairwise(_ordered(values)))


def _ordered(values: list[Any]) -> list[Any]:
    """Return the values after checking that they can be compared."""
    for value in values:
        if type_name(value) not in ("int", "uint", "double"):
            compare(value, value)
    return values


def greatest(values: list[Any]) -> Any:
    """Return the first of the greatest values."""
    return _extreme("max", values, 1)


def least(values: list[Any]) -> Any:
    """Return the first of the least values."""
    return _extreme("min", values, -1)


def _extreme(name: str, values: list[Any], better: int) -> Any:
    if not values:
        raise ValueError(f"{name} called on empty list")
    best, *others = _ordered(values)
    for value in others:
        try:
            best = value if compare(value, best) == better else best
        except ValueError:
            continue  # values that cannot be compared do not change the result
    return best


def total(values: list[Any]) -> Any:
    """Return the sum; 0 for an empty list."""
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
    return (
        any(are_equal(element, value) for element in target) if isinstance(target, list) else are_equal(target, value)
    )


def includes_bounded(target: Any, value: Any) -> bool:
    """Do the same in 1.36, which refuses lists longer than an attribute can be."""
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
    """Return the elements from `start` to before `end`."""
    if start < 0 or end < 0:
        raise ValueError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise ValueError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(values) < end:
        raise ValueError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def flatten(values: list[Any], depth: int = 1) -> list[Any]:
    """Return the elements of nested lists, to a depth."""
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


def sort_by(values: list[Any], keys: list[Any]) -> list[Any]:
    """Return the values in the order of their keys."""
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
    """Return the values without duplicates."""
    _check_pairs(2 * len(values) ** 2)
    unique: list[Any] = []
    for value in values:
        if not any(are_equal(value, kept) for kept in unique):
            unique.append(value)
    return unique


def range_of(count: int, *, bounded: bool) -> list[int]:
    """Return the numbers from 0 to before `count`.

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
    """Refuse to compare too many elements with each other, before it is done; Kubernetes refuses it afterwards."""
    if count > LIMIT:
        raise CELCancelledError("operation cancelled: actual cost limit exceeded")


def set_contains(values: list[Any], others: list[Any]) -> bool:
    """Return whether all others are in the list."""
    _check_pairs(len(values) * len(others))
    return all(contains(values, element) for element in others)


def set_equivalent(values: list[Any], others: list[Any]) -> bool:
    """Return whether each is in the other list."""
    return set_contains(values, others) and set_contains(others, values)


def set_intersects(values: list[Any], others: list[Any]) -> bool:
    """Return whether one is in both lists."""
    _check_pairs(len(values) * len(others))
    return any(contains(others, element) for element in values)


# The functions by name. The checker has checked the types of their arguments.


Code = Callable[..., Any]


def refused(*_: Any) -> Any:
    """The functions of an authorizer, which no selector can have."""
    raise ValueError("no such overload")


def _present(value: Any) -> OptionalValue:
    return OptionalValue(value, present=True)


def _of_non_zero(value: Any) -> OptionalValue:
    zero = value is None or (type(value) not in _NEVER_ZERO and not _truth(value))
    return NONE if zero else _present(value)


def _truth(value: Any) -> bool:
    if isinstance(value, OptionalValue):
        return value.present and _of_non_zero(value.value).present
    return not isinstance(value, MessageValue) and bool(getattr(value, "nanoseconds", value))


def _value(optional: OptionalValue) -> Any:
    if not optional.present:
        raise ValueError("optional.none() dereference")
    return optional.value


def _unwrapped(values: list[Any]) -> list[Any]:
    if not all(isinstance(element, OptionalValue) for element in values):
        raise ValueError("a value of the list is not optional")
    return [element.value for element in values if element.present]


def _by_kind(of_text: Code, of_list: Code) -> Code:
    return lambda target, *others: (of_text if isinstance(target, str) else of_list)(target, *others)


_NEVER_ZERO: Final = (QuantityValue, SemverValue, IPValue, CIDRValue, URLValue, FormatValue)
_FUNCTIONS: Final[dict[str, Code]] = {
    **OPERATORS,
    **CONVERSIONS,
    **GETTERS,
    # optional values
    "optional.of": _present,
    "optional.ofNonZeroValue": _of_non_zero,
    "optional.none": lambda: NONE,
    "optional.unwrap": _unwrapped,
    "unwrapOpt": _unwrapped,
    "hasValue": lambda optional: optional.present,
    "value": _value,
    "first": lambda values: _present(values[0]) if values else NONE,
    "last": lambda values: _present(values[-1]) if values else NONE,
    # strings
    "charAt": strings.char_at,
    "contains": lambda text, part: part in text,
    "endsWith": str.endswith,
    "format": strings.formatted,
    "join": strings.join,
    "lowerAscii": lambda text: text.translate(strings.TO_LOWER),
    "replace": strings.replace,
    "split": strings.split,
    "startsWith": str.startswith,
    "strings.quote": strings.quote,
    "substring": strings.substring,
    "trim": strings.trim,
    "upperAscii": lambda text: text.translate(strings.TO_UPPER),
    "find": strings.first_match,
    "findAll": strings.all_matches,
    "matches": strings.has_match,
    # lists
    "@sortByAssociatedKeys": sort_by,
    "distinct": distinct,
    "flatten": flatten,
    "isSorted": is_sorted,
    "max": greatest,
    "min": least,
    "reverse": lambda values: values[::-1],
    "sets.contains": set_contains,
    "sets.equivalent": set_equivalent,
    "sets.intersects": set_intersects,
    "slice": slice_of,
    "sort": lambda values: sort_by(values, values),
    "sum": total,
    # quantities and versions
    "add": kubernetes.quantity_sum,
    "asApproximateFloat": kubernetes.as_float,
    "asInteger": kubernetes.as_integer,
    "compareTo": kubernetes.order,
    "isGreaterThan": lambda left, right: kubernetes.order(left, right) > 0,
    "isInteger": kubernetes.is_integer,
    "isLessThan": lambda left, right: kubernetes.order(left, right) < 0,
    "isQuantity": can_read(kubernetes.quantity_from),
    "isSemver": can_read(kubernetes.semver_from),
    "major": lambda version: wrapped(version.key[0]),
    "minor": lambda version: wrapped(version.key[1]),
    "patch": lambda version: wrapped(version.key[2]),
    "quantity": kubernetes.quantity_from,
    "semver": kubernetes.semver_from,
    "sign": kubernetes.sign,
    "sub": kubernetes.quantity_difference,
    # addresses and URLs
    "cidr": kubernetes.cidr_from,
    "containsCIDR": kubernetes.contains_cidr,
    "containsIP": kubernetes.contains_ip,
    "family": lambda ip: ip.address.version,
    "getEscapedPath": lambda url: url.path,
    "getHost": lambda url: url.host,
    "getHostname": lambda url: kubernetes.host_and_port(url)[0],
    "getPort": lambda url: kubernetes.host_and_port(url)[1],
    "getQuery": kubernetes.query,
    "getScheme": lambda url: url.scheme,
    "ip": kubernetes.address_of,
    "ip.isCanonical": kubernetes.is_canonical,
    "isCIDR": can_read(kubernetes.cidr_from),
    "isGlobalUnicast": kubernetes.is_global_unicast,
    "isIP": can_read(kubernetes.ip_from),
    "isLinkLocalMulticast": kubernetes.is_link_local_multicast,
    "isLinkLocalUnicast": lambda ip: ip.address.is_link_local,
    "isLoopback": lambda ip: ip.address.is_loopback,
    "isURL": can_read(kubernetes.url_from),
    "isUnspecified": lambda ip: ip.address.is_unspecified,
    "masked": kubernetes.masked,
    "prefixLength": lambda cidr: cidr.network.network.prefixlen,
    "url": kubernetes.url_from,
    # formats
    "format.named": kubernetes.format_named,
    "validate": kubernetes.problems_of,
}
# Operators and conversions check the types of their values themselves.
UNGUARDED: Final = frozenset({*OPERATORS, *CONVERSIONS, "includes"} - {"cel.@mapInsert"})


@cache
def implementations(known: KnownToCEL) -> dict[str, Code]:
    """Return what each function of the environment does."""
    newer = known.cel_go_29
    index_of, last_index_of = (partial(search, clamped=newer) for search in (strings.index_of, strings.last_index_of))
    return {
        **_FUNCTIONS,
        "includes": includes if newer else includes_bounded,
        "lists.range": partial(range_of, bounded=newer),
        "indexOf": _by_kind(index_of, first_index),
        "lastIndexOf": _by_kind(last_index_of, last_index),
        **{f"format.{name}": _constant(kubernetes.format_of(name)) for name in FORMATS},
    }


def _constant(value: Any) -> Code:
    return lambda: value
