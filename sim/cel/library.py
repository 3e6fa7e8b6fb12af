"""The functions that Kubernetes adds to CEL for selectors, as a table of typed overloads with their Python code.

Source: the libraries of k8s.io/apiserver/pkg/cel/library (quantity, semver, ip, cidr, lists) and `includes` of
KEP-5491.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from cel_expr_python.cel import Type

from dranode.driver.core.api.quantity import Quantity
from dranode.proto import cel_values_pb2 as messages
from dranode.sim.cel.overloads import Code, Overload
from dranode.sim.cel.values import (
    Address,
    Network,
    normalized_semver,
    parse_cidr,
    parse_ip,
    quantity_message,
    quantity_value,
    semver_key,
    semver_message,
)

QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
IP: Final = Type("kubernetes.IP")
CIDR: Final = Type("kubernetes.CIDR")

_INT64: Final = range(-(1 << 63), 1 << 63)
# KEP-5491: `includes` looks at no more values than a device can have.
_MAX_INCLUDES: Final = 48


# --- quantity ---


def _number(quantity: messages.Quantity) -> Fraction:
    return quantity_value(quantity.canonical_text)


def _quantity(text: str) -> messages.Quantity:
    return quantity_message(Quantity(text))


def _is_quantity(text: str) -> bool:
    return _succeeds(_quantity, text)


def _from_number(number: Fraction) -> messages.Quantity:
    return messages.Quantity(canonical_text=f"{number.numerator}/{number.denominator}")


def _as_integer(quantity: messages.Quantity) -> int:
    if not _is_integer(quantity):
        raise ValueError("cannot convert value to integer")
    return int(_number(quantity))


def _is_integer(quantity: messages.Quantity) -> bool:
    number = _number(quantity)
    return number.denominator == 1 and number.numerator in _INT64


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


# --- semver ---


def _version(semver: messages.Semver) -> Any:
    return semver_key(semver.canonical_text)


def _semver(text: str, normalize: bool = False) -> messages.Semver:  # noqa: FBT001, FBT002 - CEL's positional argument
    return semver_message(normalized_semver(text) if normalize else text)


def _is_semver(text: str, normalize: bool = False) -> bool:  # noqa: FBT001, FBT002 - CEL's positional argument
    return _succeeds(_semver, text, normalize)


# --- ip, cidr ---


def _address(ip: messages.IP) -> Address:
    return parse_ip(ip.canonical_text)


def _network(cidr: messages.CIDR) -> Network:
    return parse_cidr(cidr.canonical_text)


def _ip(text: str) -> messages.IP:
    return messages.IP(canonical_text=str(parse_ip(text)))


def _is_global_unicast(ip: messages.IP) -> bool:
    address = _address(ip)
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or str(address) == "255.255.255.255"
    )


def _link_local(ip: messages.IP, *, multicast: bool) -> bool:
    address = _address(ip)
    if not multicast:
        return address.is_link_local
    first = int.from_bytes(address.packed[: 4 if address.version == 4 else 2], "big")  # noqa: PLR2004 - IP versions
    # 224.0.0.0/24, and ff02::/16 with any flags
    return first >> 8 == 0xE00000 if address.version == 4 else first & 0xFF0F == 0xFF02  # noqa: PLR2004 - RFC 5771, RFC 4291


def _cidr(text: str) -> messages.CIDR:
    return messages.CIDR(canonical_text=str(parse_cidr(text)))


def _contains(cidr: messages.CIDR, other: Address | Network) -> bool:
    network = _network(cidr).network
    if other.version != network.version:
        return False
    inner = other.network if hasattr(other, "network") else None
    if inner is None:
        return other in network
    return inner.prefixlen >= network.prefixlen and inner.network_address in network


# --- lists ---


def _ordered(values: Sequence[Any]) -> Sequence[Any]:
    if len({type(value) for value in values}) > 1 or any(
        not isinstance(value, (bool, int, float, str, bytes, bytearray)) for value in values
    ):
        raise ValueError("no such overload: the values of the list cannot be compared")
    return values


def _is_sorted(values: Sequence[Any]) -> bool:
    return all(left <= right for left, right in pairwise(_ordered(values)))


def _extreme(pick: Callable[[Iterable[Any]], Any]) -> Code:
    def extreme(values: Sequence[Any]) -> Any:
        if not values:
            raise ValueError(f"{pick.__name__} called on empty list")
        return pick(_ordered(values))

    return extreme


def _sum(values: Sequence[Any]) -> Any:
    total = sum(values)
    if isinstance(total, int) and total not in _INT64:
        raise ValueError("integer overflow")
    return total


def _same(left: Any, right: Any) -> bool:
    """CEL's equality: numbers by value, other types never mix."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _index_of(values: Sequence[Any], value: Any) -> int:
    return next((index for index, item in enumerate(values) if _same(item, value)), -1)


def _last_index_of(values: Sequence[Any], value: Any) -> int:
    return max((index for index, item in enumerate(values) if _same(item, value)), default=-1)


def _includes(target: Any, value: Any) -> bool:
    if not isinstance(target, list):
        return _same(target, value)
    index = _index_of(target[:_MAX_INCLUDES], value)
    if index < 0 and len(target) > _MAX_INCLUDES:
        raise ValueError(f"'includes' function cannot be applied to lists longer than {_MAX_INCLUDES} values")
    return index >= 0


def _succeeds(code: Code, *arguments: Any) -> bool:
    try:
        code(*arguments)
    except ValueError:
        return False
    return True


# --- the table ---

_S, _B, _I, _D, _DYN = Type.STRING, Type.BOOL, Type.INT, Type.DOUBLE, Type.DYN
_LIST: Final = Type.List(Type.DYN)
_COMPARABLE: Final = (Type.INT, Type.UINT, Type.DOUBLE, Type.BOOL, Type.STRING, Type.BYTES)
_SUMMABLE: Final = (Type.INT, Type.UINT, Type.DOUBLE)


def _function(name: str, parameters: tuple[Type, ...], result: Type, code: Code) -> Overload:
    return Overload(name, member=False, parameters=parameters, result=result, code=code)


def _method(name: str, parameters: tuple[Type, ...], result: Type, code: Code) -> Overload:
    return Overload(name, member=True, parameters=parameters, result=result, code=code)


OVERLOADS: Final = (
    _function("quantity", (_S,), QUANTITY, _quantity),
    _function("isQuantity", (_S,), _B, _is_quantity),
    _function("sign", (QUANTITY,), _I, lambda q: _compare(_number(q), 0)),
    _method("isInteger", (QUANTITY,), _B, _is_integer),
    _method("asInteger", (QUANTITY,), _I, _as_integer),
    _method("asApproximateFloat", (QUANTITY,), _D, lambda q: float(_number(q))),
    _method("isGreaterThan", (QUANTITY, QUANTITY), _B, lambda q, r: _number(q) > _number(r)),
    _method("isLessThan", (QUANTITY, QUANTITY), _B, lambda q, r: _number(q) < _number(r)),
    _method("compareTo", (QUANTITY, QUANTITY), _I, lambda q, r: _compare(_number(q), _number(r))),
    _method("add", (QUANTITY, QUANTITY), QUANTITY, lambda q, r: _from_number(_number(q) + _number(r))),
    _method("add", (QUANTITY, _I), QUANTITY, lambda q, n: _from_number(_number(q) + n)),
    _method("sub", (QUANTITY, QUANTITY), QUANTITY, lambda q, r: _from_number(_number(q) - _number(r))),
    _method("sub", (QUANTITY, _I), QUANTITY, lambda q, n: _from_number(_number(q) - n)),
    _function("semver", (_S,), SEMVER, _semver),
    _function("semver", (_S, _B), SEMVER, _semver),
    _function("isSemver", (_S,), _B, _is_semver),
    _function("isSemver", (_S, _B), _B, _is_semver),
    _method("major", (SEMVER,), _I, lambda v: _version(v)[0]),
    _method("minor", (SEMVER,), _I, lambda v: _version(v)[1]),
    _method("patch", (SEMVER,), _I, lambda v: _version(v)[2]),
    _method("isGreaterThan", (SEMVER, SEMVER), _B, lambda v, w: _version(v) > _version(w)),
    _method("isLessThan", (SEMVER, SEMVER), _B, lambda v, w: _version(v) < _version(w)),
    _method("compareTo", (SEMVER, SEMVER), _I, lambda v, w: _compare(_version(v), _version(w))),
    _function("ip", (_S,), IP, _ip),
    _function("isIP", (_S,), _B, lambda text: _succeeds(parse_ip, text)),
    _function("ip.isCanonical", (_S,), _B, lambda text: str(parse_ip(text)) == text),
    _function("string", (IP,), _S, lambda ip: ip.canonical_text),
    _method("family", (IP,), _I, lambda ip: _address(ip).version),
    _method("isUnspecified", (IP,), _B, lambda ip: _address(ip).is_unspecified),
    _method("isLoopback", (IP,), _B, lambda ip: _address(ip).is_loopback),
    _method("isLinkLocalMulticast", (IP,), _B, lambda ip: _link_local(ip, multicast=True)),
    _method("isLinkLocalUnicast", (IP,), _B, lambda ip: _link_local(ip, multicast=False)),
    _method("isGlobalUnicast", (IP,), _B, _is_global_unicast),
    _function("cidr", (_S,), CIDR, _cidr),
    _function("isCIDR", (_S,), _B, lambda text: _succeeds(parse_cidr, text)),
    _function("string", (CIDR,), _S, lambda cidr: cidr.canonical_text),
    _method("containsIP", (CIDR, IP), _B, lambda cidr, ip: _contains(cidr, _address(ip))),
    _method("containsIP", (CIDR, _S), _B, lambda cidr, text: _contains(cidr, parse_ip(text))),
    _method("containsCIDR", (CIDR, CIDR), _B, lambda cidr, other: _contains(cidr, _network(other))),
    _method("containsCIDR", (CIDR, _S), _B, lambda cidr, text: _contains(cidr, parse_cidr(text))),
    _method("ip", (CIDR,), IP, lambda cidr: messages.IP(canonical_text=str(_network(cidr).ip))),
    _method("masked", (CIDR,), CIDR, lambda cidr: messages.CIDR(canonical_text=str(_network(cidr).network))),
    _method("prefixLength", (CIDR,), _I, lambda cidr: _network(cidr).network.prefixlen),
    *(_method("isSorted", (Type.List(kind),), _B, _is_sorted) for kind in _COMPARABLE),
    *(_method("min", (Type.List(kind),), kind, _extreme(min)) for kind in _COMPARABLE),
    *(_method("max", (Type.List(kind),), kind, _extreme(max)) for kind in _COMPARABLE),
    *(_method("sum", (Type.List(kind),), kind, _sum) for kind in _SUMMABLE),
    _method("indexOf", (_LIST, _DYN), _I, _index_of),
    _method("lastIndexOf", (_LIST, _DYN), _I, _last_index_of),
    _method("includes", (_DYN, _DYN), _B, _includes),
)

# What Kubernetes has and this program has not; a selector that uses one is refused by name.
MISSING: Final = frozenset(
    {"find", "findAll", "authorizer", "transformMap", "transformMapEntry"}
    | {"url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery"}
    | {"format", "format.named", "validate"}
    | {"image", "isImage", "registry", "repository", "tag", "digest"}
)
