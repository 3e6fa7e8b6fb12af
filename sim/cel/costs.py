"""Counts the cost of an evaluation, call by call, as Kubernetes does to stop at 1,000,000.

Sources: cel-go (interpreter/runtimecost.go, ext/lists.go, ext/sets.go), k8s.io/apiserver/pkg/cel/library/cost.go.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from dranode.sim.cel.declarations import KnownToCEL
from dranode.sim.cel.syntax import CELCancelledError
from dranode.sim.cel.values import (
    CIDRValue,
    FormatValue,
    IPValue,
    OptionalValue,
    QuantityValue,
    SemverValue,
    URLValue,
    key_value,
    size,
)

LIMIT: Final = 1_000_000
LIST: Final = 10
MAP: Final = 30
STRUCT: Final = 40
TRAVERSAL: Final = 0.1
REGEX: Final = 0.25

ORDERED_KINDS: Final = (
    "int",
    "uint",
    "double",
    "bool",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "string",
    "bytes",
)
"""The element types of lists that cel-go can sort, as written in the names of its overloads."""

Cost: TypeAlias = Callable[[Sequence[Any], Any], int]
"""Computes the cost of a call from its arguments and its result; None stands for one that failed."""

_OF_ONE_VALUE: Final = (QuantityValue, IPValue, CIDRValue, FormatValue, URLValue, SemverValue)


def cost_of(function: str, overload: str, known: KnownToCEL) -> Cost | int:
    """Return what a call costs; `overload` is empty if only its arguments tell which one it is."""
    if overload in _OVERLOADS:
        return _OVERLOADS[overload]
    if function == "includes" and known.cel_go_29:
        return _traversal
    if function in _FUNCTIONS:
        return _FUNCTIONS[function]
    if overload in ("starts_with_string", "ends_with_string") and known.cel_go_29:
        return _in_proportion(1)
    if overload == "matches" and known.cel_go_29:
        return _regex
    return _STANDARD.get(overload, 1)


def equality(left: Any, right: Any) -> int:
    """Return what it costs to compare two values."""
    if isinstance(left, _OF_ONE_VALUE):
        return 1
    return inequality(left, right)


def inequality(left: Any, right: Any) -> int:
    """Return what it costs to find two values different."""
    return _scaled(min(actual_size(left), actual_size(right)), TRAVERSAL)


def actual_size(value: Any) -> int:
    """Return the size that cel-go counts; a value without a size counts 1."""
    return actual_size(value.value) if type(value) is OptionalValue and value.present else _size(value)


def _size(value: Any) -> int:
    """Return the size that Kubernetes' own libraries count, which do not look into optional values."""
    known = size(value)
    return 1 if known is None else known


def _scaled(number: int, factor: float) -> int:
    return math.ceil(float(number) * factor)


def _first(arguments: Sequence[Any], _: Any) -> int:
    return _scaled(_size(arguments[0]), TRAVERSAL)


def _in_proportion(number: int, factor: float = TRAVERSAL) -> Cost:
    """Return a cost that is proportional to the size of one argument."""
    return lambda arguments, _: _scaled(actual_size(arguments[number]), factor)


def _smaller(arguments: Sequence[Any], _: Any) -> int:
    return _scaled(min(map(actual_size, arguments)), TRAVERSAL)


def _regex(arguments: Sequence[Any], _: Any) -> int:
    return _scaled(actual_size(arguments[0]) + 1, TRAVERSAL) * _scaled(actual_size(arguments[1]), REGEX)


def _validation(arguments: Sequence[Any], _: Any) -> int:
    named_format, text = arguments
    if not isinstance(named_format, FormatValue):
        return 1
    return _scaled(_size(text) + 1, TRAVERSAL) * _scaled(named_format.regex_size, REGEX)


def _address(arguments: Sequence[Any], _: Any) -> int:
    return 1 if isinstance(arguments[0], CIDRValue) else _first(arguments, None)


def _contains_ip(arguments: Sequence[Any], _: Any) -> int:
    return _scaled(2 * _size(arguments[0]), TRAVERSAL)


def _contains_cidr(arguments: Sequence[Any], _: Any) -> int:
    return _contains_ip(arguments, None) + _first(arguments, None) + 1


def _parsed_too(cost: Cost) -> Cost:
    """Return the cost of a call whose second argument is text that has to be parsed first."""
    return lambda arguments, _: cost(arguments, None) + _scaled(_size(arguments[1]), TRAVERSAL)


def _traversal(arguments: Sequence[Any], _: Any) -> int:
    return _traversed(arguments[0], 0)


def _traversed(value: Any, before: int) -> int:
    """Return the cost of visiting a whole value. Lists may be shared in it, so the count stops above the limit."""
    if before > LIMIT:
        raise CELCancelledError("operation cancelled: actual cost limit exceeded")
    if isinstance(value, str):
        return before + int(len(value.encode()) * TRAVERSAL)
    if isinstance(value, bytes):
        return before + int(len(value) * TRAVERSAL)
    if isinstance(value, list):
        for element in value:
            before = _traversed(element, before)
        return before
    if isinstance(value, dict):
        for key, entry in value.items():
            before = _traversed(entry, _traversed(key_value(key), before))
        return before
    return before + 1


def _allocating(factor: float, count: int) -> int:
    return int(float(count) * factor) + 1 + LIST


def _result_list(_: Sequence[Any], result: Any) -> int:
    return _allocating(1, actual_size(result))


def _flattened(arguments: Sequence[Any], _: Any) -> int:
    depth = float(arguments[1]) if len(arguments) > 1 and isinstance(arguments[1], int) else 1.0
    return _allocating(depth, actual_size(arguments[0]))


def _compared_pairs(number: int) -> Cost:
    """Return the cost of comparing each element of a list with every other one."""

    def cost(arguments: Sequence[Any], _: Any) -> int:
        values = arguments[number]
        if not isinstance(values, list) or not values:
            return _allocating(2, 0)
        factor = 2 + TRAVERSAL if isinstance(values[0], (str, bytes)) else 2.0
        return _allocating(factor, len(values) * len(values))

    return cost


def _sets(factor: float) -> Cost:
    return lambda arguments, _: 1 + int(float(math.prod(map(actual_size, arguments))) * factor)


def _of_kinds(name: str, cost: Cost) -> dict[str, Cost]:
    return {f"list_{kind}_{name}": cost for kind in ORDERED_KINDS}


_OVERLOADS: Final[dict[str, Cost]] = {
    "list_slice": _result_list,
    "lists_range": _result_list,
    "list_reverse": _result_list,
    "list_flatten": _flattened,
    "list_flatten_int": _flattened,
    "list_distinct": _compared_pairs(0),
    **_of_kinds("sort", _compared_pairs(0)),
    **_of_kinds("sortByAssociatedKeys", _compared_pairs(1)),
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "cidr_contains_ip_string": _parsed_too(_contains_ip),
    "cidr_contains_cidr_string": _parsed_too(_contains_cidr),
}
_FUNCTIONS: Final[dict[str, Cost | int]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _first),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"), _first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), lambda args, _: _scaled(_size(args[0]), 2 * TRAVERSAL)),
    "join": lambda _, result: _scaled(_size(result), 2 * TRAVERSAL),
    **dict.fromkeys(("find", "findAll"), _regex),
    "ip": _address,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validation,
    "check": 350_000,
}
_COMPARED: Final = [f"{order}{kind}" for order in ("less", "greater") for kind in ("_string", "_bytes")]
_STANDARD: Final[dict[str, Cost]] = {
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _in_proportion(0)),
    **dict.fromkeys(("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _in_proportion(0)),
    "in_list": _in_proportion(1, 1),
    **dict.fromkeys(_COMPARED, _smaller),
    **dict.fromkeys([name.replace("_", "_equals_", 1) for name in _COMPARED], _smaller),
    **dict.fromkeys(("add_string", "add_bytes"), lambda args, _: _scaled(sum(map(actual_size, args)), TRAVERSAL)),
    "matches_string": _regex,
    "contains_string": lambda args, _: math.prod(_scaled(actual_size(part), TRAVERSAL) for part in args),
}
