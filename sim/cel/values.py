"""The values of CEL and of what Kubernetes adds to it; lists, strings, bytes, booleans, numbers and null are Python's.

A map is a dictionary whose keys are as `map_key` makes them. A failure is a ValueError: CEL's error values, which `&&`
and `||` can absorb. Sources: cel-go (common/types), k8s.io/apiserver/pkg/cel.
"""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, TypeAlias

from dranode.sim.cel.errors import CELCancelledError

INT64: Final = range(-(1 << 63), 1 << 63)
UINT64: Final = range(1 << 64)
SECOND: Final = 1_000_000_000

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

# Two lists that share theirs can be compared, or become JSON, for ever; Kubernetes counts only the outermost length.
_MAX_SEEN: Final = 1_000_000
_seen: Final[ContextVar[int]] = ContextVar("seen", default=0)


class UInt(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time, in nanoseconds that fit into 64 bits."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment in UTC, in nanoseconds since 1970; `offset` in seconds is that of the zone that it is written in."""

    nanoseconds: int
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """A value that may be missing."""

    value: Any = None
    present: bool = False


NONE: Final = OptionalValue()


@dataclass(frozen=True, slots=True)
class QuantityValue:
    """A quantity.

    Attributes:
        scale: the power of ten in whose units Kubernetes keeps it; None if it keeps it as a decimal.
        computed: Kubernetes compares nothing with the result of a sum.
    """

    number: Fraction
    scale: int | None = field(default=None, compare=False)
    computed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class SemverValue:
    """A version; `key` orders it and leaves out what was built from."""

    text: str = field(compare=False)
    key: Any


@dataclass(frozen=True, slots=True)
class IPValue:
    """An address."""

    address: Address


@dataclass(frozen=True, slots=True)
class CIDRValue:
    """A network and an address in it."""

    network: Network


@dataclass(frozen=True, slots=True)
class URLValue:
    """An absolute URI or path, in its parts; `text` is how it is written again."""

    text: str
    scheme: str
    host: str
    path: str
    query: str


@dataclass(frozen=True, slots=True)
class FormatValue:
    """A format that strings can be validated against.

    Attributes:
        regex_size: what the cost of a validation grows with.
    """

    name: str
    regex_size: int


@dataclass(frozen=True, slots=True)
class MessageValue:
    """A message that stands for no other value."""

    name: str


class MutableList(list[Any]):
    """A list that a loop collects: adding to it changes it."""


class MutableMap(dict[Any, Any]):
    """A map that a loop collects."""


_ALIKE_ONLY: Final = (QuantityValue, SemverValue, IPValue, CIDRValue, URLValue, FormatValue)
_NUMBERS: Final = (int, UInt, float)
_NAMES: Final[dict[type, str]] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    MutableList: "list",
    dict: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    TypeValue: "type",
    OptionalValue: "optional_type",
    QuantityValue: "kubernetes.Quantity",
    SemverValue: "kubernetes.Semver",
    IPValue: "net.IP",
    CIDRValue: "net.CIDR",
    URLValue: "kubernetes.URL",
    FormatValue: "kubernetes.NamedFormat",
}


@dataclass(frozen=True, slots=True, eq=False)
class _Itself:
    """A list or map as a key, which only itself finds."""

    value: Any


def type_name(value: Any) -> str:
    """The name of the value's type."""
    return value.name if type(value) is MessageValue else _NAMES.get(type(value), "map")


def begin() -> None:
    """Start an evaluation: what it looks at is bounded."""
    _seen.set(0)


def map_key(value: Any) -> Any:
    """Return what a map has in the place of that key: strings as they are, everything else with its type."""
    kind = type(value)
    if kind is str:
        return value
    return kind, _Itself(value) if isinstance(value, (list, dict)) else value


def key_value(key: Any) -> Any:
    """The value of a map's key."""
    if type(key) is str:
        return key
    value = key[1]
    return value.value if type(value) is _Itself else value


def map_value(entries: dict[Any, Any], key: Any) -> Any:
    """The value of the key, or MISSING; numbers find equal ones of other types."""
    own = entries.get(map_key(key), MISSING)
    if own is not MISSING or type(key) not in _NUMBERS:
        return own
    for kind in _NUMBERS:
        if kind is not type(key) and (other := _converted(key, kind)) is not None:
            value = entries.get((kind, other), MISSING)
            if value is not MISSING:
                return value
    return MISSING


def _converted(number: Any, kind: type) -> Any:
    """The same number of the other type, if there is one."""
    if isinstance(number, float) and not number.is_integer():
        return None
    if kind is float:
        return float(number)
    whole = int(number)
    return kind(whole) if whole in (UINT64 if kind is UInt else INT64) else None


class _Missing:
    """No value."""


MISSING: Final = _Missing()


def equal(left: Any, right: Any) -> bool:
    """`left == right`.

    Raises:
        ValueError: Kubernetes compares a value like `left` with its like alone.
    """
    if left is None or right is None:
        return left is right
    return _equal(left, right)


def are_equal(left: Any, right: Any) -> bool:
    """Return whether the values are equal; what cannot be compared is not."""
    try:
        return _equal(left, right)
    except ValueError:
        return False


def _equal(left: Any, right: Any) -> bool:  # noqa: PLR0911 - one for each kind
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        return bool(left == right)
    if isinstance(left, _ALIKE_ONLY):
        if kind is not other or (kind is QuantityValue and right.computed):
            raise ValueError(f"no such overload: {type_name(left)} == {type_name(right)}")
        return bool(left == right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and _all_equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and _maps_equal(left, right)
    if kind is not other:
        return False
    if kind is OptionalValue:
        return left.present == right.present and (not left.present or equal(left.value, right.value))
    return bool(left == right)


def look_at(count: int) -> None:
    """Count elements that are looked at beyond what Kubernetes counts.

    Raises:
        CELCancelledError: an evaluation looks at more than it may here.
    """
    seen = _seen.get() + count
    _seen.set(seen)
    if seen > _MAX_SEEN:
        raise CELCancelledError(f"operation cancelled: it looks at more than {_MAX_SEEN:,} elements of lists")


def _all_equal(left: list[Any], right: list[Any]) -> bool:
    look_at(len(left))
    return not any(map(_differ, left, right))


def _differ(left: Any, right: Any) -> bool:
    """Return whether elements are known to be unequal: an error says nothing."""
    try:
        return not equal(left, right)
    except ValueError:
        return False


def _maps_equal(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    for key, value in left.items():
        other = map_value(right, key_value(key))
        if other is MISSING or not _all_equal([value], [other]):
            return False
    return True


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1.

    Raises:
        ValueError: they have no order.
    """
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if left != left or right != right:  # noqa: PLR0124 - not a number
            raise ValueError("NaN values cannot be ordered")
    elif kind is not other or kind not in (bool, str, bytes, Duration, Timestamp):
        raise ValueError(f"no such overload: {type_name(left)} and {type_name(right)} have no order")
    if isinstance(left, (Duration, Timestamp)):
        left, right = left.nanoseconds, right.nanoseconds
    return int(left > right) - int(left < right)


def size(value: Any) -> int | None:
    """Return how large the value is, None if it has no size: characters, bytes, elements, bytes of an address."""
    kind = type(value)
    if kind is str or isinstance(value, (bytes, list, dict)):
        return len(value)
    if kind is IPValue:
        return int(value.address.max_prefixlen) // 8
    if kind is CIDRValue:
        return -(-int(value.network.network.prefixlen) // 8)
    return None
