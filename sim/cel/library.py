"""The functions of the table, by name; the types of their arguments are checked before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from dranode.sim.cel import kubernetes, operations, strings
from dranode.sim.cel.conversions import CONVERSIONS, GETTERS
from dranode.sim.cel.declarations import FORMATS, KnownToCEL
from dranode.sim.cel.operations import OPERATORS
from dranode.sim.cel.values import (
    NONE,
    CIDRValue,
    FormatValue,
    IPValue,
    MessageValue,
    OptionalValue,
    QuantityValue,
    SemverValue,
    URLValue,
)

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
    if not all(isinstance(one, OptionalValue) for one in values):
        raise ValueError("a value of the list is not optional")
    return [one.value for one in values if one.present]


def _last(values: list[Any]) -> OptionalValue:
    return _present(values[-1]) if values else NONE


def _first(values: list[Any]) -> OptionalValue:
    return _present(values[0]) if values else NONE


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
    "first": _first,
    "last": _last,
    # strings
    "charAt": strings.char_at,
    "contains": lambda text, part: part in text,
    "endsWith": str.endswith,
    "format": strings.formatted,
    "join": strings.join,
    "lowerAscii": strings.lower,
    "replace": strings.replace,
    "split": strings.split,
    "startsWith": str.startswith,
    "strings.quote": strings.quote,
    "substring": strings.substring,
    "trim": strings.trim,
    "upperAscii": strings.upper,
    "find": strings.first_match,
    "findAll": strings.all_matches,
    "matches": strings.has_match,
    # lists
    "@sortByAssociatedKeys": operations.sort_by,
    "distinct": operations.distinct,
    "flatten": operations.flatten,
    "isSorted": operations.is_sorted,
    "max": operations.greatest,
    "min": operations.least,
    "reverse": lambda values: values[::-1],
    "sets.contains": operations.set_contains,
    "sets.equivalent": operations.set_equivalent,
    "sets.intersects": operations.set_intersects,
    "slice": operations.slice_of,
    "sort": operations.sort,
    "sum": operations.total,
    # quantities and versions
    "add": kubernetes.quantity_sum,
    "asApproximateFloat": kubernetes.as_float,
    "asInteger": kubernetes.as_integer,
    "compareTo": kubernetes.order,
    "isGreaterThan": lambda left, right: kubernetes.order(left, right) > 0,
    "isInteger": kubernetes.is_integer,
    "isLessThan": lambda left, right: kubernetes.order(left, right) < 0,
    "isQuantity": kubernetes.is_quantity,
    "isSemver": kubernetes.is_semantic_version,
    "major": lambda version: version.key[0],
    "minor": lambda version: version.key[1],
    "patch": lambda version: version.key[2],
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
    "getHostname": kubernetes.hostname,
    "getPort": kubernetes.port,
    "getQuery": kubernetes.query,
    "getScheme": lambda url: url.scheme,
    "ip": kubernetes.address_of,
    "ip.isCanonical": kubernetes.is_canonical,
    "isCIDR": kubernetes.is_cidr,
    "isGlobalUnicast": kubernetes.is_global_unicast,
    "isIP": kubernetes.is_ip,
    "isLinkLocalMulticast": kubernetes.is_link_local_multicast,
    "isLinkLocalUnicast": lambda ip: ip.address.is_link_local,
    "isLoopback": lambda ip: ip.address.is_loopback,
    "isURL": kubernetes.is_url,
    "isUnspecified": lambda ip: ip.address.is_unspecified,
    "masked": kubernetes.masked,
    "prefixLength": lambda cidr: cidr.network.network.prefixlen,
    "url": kubernetes.url_from,
    # formats
    "format.named": kubernetes.format_named,
    "validate": kubernetes.problems_of,
}
# Operators and conversions say themselves which values they take.
UNGUARDED: Final = frozenset({*OPERATORS, *CONVERSIONS, "includes"} - {"cel.@mapInsert"})


@cache
def implementations(known: KnownToCEL) -> dict[str, Code]:
    """Return what each function of the environment does."""
    of_text, of_list = strings.string_searches(known), operations.list_functions(known)
    return {
        **_FUNCTIONS,
        **of_list,
        "indexOf": _by_kind(of_text["indexOf"], operations.first_index),
        "lastIndexOf": _by_kind(of_text["lastIndexOf"], operations.last_index),
        **{f"format.{name}": _constant(kubernetes.format_of(name)) for name in FORMATS},
    }


def _constant(value: Any) -> Code:
    return lambda: value
