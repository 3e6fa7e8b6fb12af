"""The values of CEL and of Kubernetes' extensions; lists, strings, bytes, booleans, numbers and null are Python's.

A map is a dictionary whose keys are as `map_key` makes them. A failure is a ValueError: CEL's error values, which `&&`
and `||` can absorb. Sources: cel-go (common/types), k8s.io/apiserver/pkg/cel.
"""

import ipaddress
import math
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dranode.sim.cel.syntax import CELCancelledError

INT64: Final = range(-(1 << 63), 1 << 63)
UINT64: Final = range(1 << 64)
SECOND: Final = 1_000_000_000

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

# Nested lists that share elements could be compared or converted to JSON for ever, as Kubernetes counts only the outer
# length.
_MAX_SEEN: Final = 1_000_000
_seen: Final[ContextVar[int]] = ContextVar("seen", default=0)


class UInt(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time, in nanoseconds that fit into 64 bits."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time in UTC, in nanoseconds since 1970; `offset` is that of its time zone, in seconds."""

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
    """A version; `key` is its order, without the build metadata."""

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
    """An absolute URI or path in its parts; `text` is its normalized form."""

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
    """A message without another CEL value."""

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
    """A list or map as a key, which is only equal to itself."""

    value: Any


def type_name(value: Any) -> str:
    """Return the name of the value's type."""
    return value.name if type(value) is MessageValue else _NAMES.get(type(value), "map")


def no_overload(name: str, *values: Any) -> ValueError:
    """Return the error of a function that does not take values of these types."""
    return ValueError(f"no such overload: {name}({', '.join(map(type_name, values))})")


def begin() -> None:
    """Start an evaluation, whose comparisons are limited."""
    _seen.set(0)


def map_key(value: Any) -> Any:
    """Return what a map has in the place of that key: strings as they are, everything else with its type."""
    kind = type(value)
    if kind is str:
        return value
    return kind, _Itself(value) if isinstance(value, (list, dict)) else value


def key_value(key: Any) -> Any:
    """Return the value of a key in a map."""
    if type(key) is str:
        return key
    value = key[1]
    return value.value if type(value) is _Itself else value


def map_value(entries: dict[Any, Any], key: Any) -> Any:
    """Return the value of the key, or MISSING; numbers are equal across types."""
    entry = entries.get(map_key(key), MISSING)
    if entry is not MISSING or type(key) not in _NUMBERS:
        return entry
    for kind in _NUMBERS:
        if kind is not type(key) and (other := _converted(key, kind)) is not None:
            value = entries.get((kind, other), MISSING)
            if value is not MISSING:
                return value
    return MISSING


def _converted(number: Any, kind: type) -> Any:
    """Return the same number in another type; None if that type cannot represent it."""
    if isinstance(number, float) and not number.is_integer():
        return None
    if kind is float:
        return float(number) if int(float(number)) == number else None
    whole = int(number)
    return kind(whole) if whole in (UINT64 if kind is UInt else INT64) else None


class _Missing:
    """No value."""


MISSING: Final = _Missing()


def equal(left: Any, right: Any) -> bool:
    """Return `left == right`.

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
        left, right = _alike(left, right)
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


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two numbers as cel-go compares them: an integer beside a double becomes a double, which may round it."""
    return (float(left), float(right)) if float in (type(left), type(right)) else (left, right)


def look_at(count: int) -> None:
    """Count compared elements, of which Kubernetes counts fewer.

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
    """Return -1, 0 or 1.

    Raises:
        ValueError: they have no order.
    """
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if left != left or right != right:  # noqa: PLR0124 - not a number
            raise ValueError("NaN values cannot be ordered")
        left, right = _alike(left, right)
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


# Conversions, also of durations and timestamps (cel-go: common/types; Go's package time).


_UNITS: Final = {
    "ns": 1,
    "us": 1000,
    "\u00b5s": 1000,
    "\u03bcs": 1000,
    "ms": 1_000_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PART: Final = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_MOMENT: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_FIRST: Final = -62135596800 * SECOND
_AFTER_LAST: Final = 253402300800 * SECOND
_DAY: Final = 86400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_OFFSET: Final = 365 * 24 * 60  # minutes; Go goes on to where its nanoseconds wrap
# Python has the calendar of these years in every time zone.
_EARLY: Final = _FIRST // SECOND + 366 * _DAY
_LATE: Final = _AFTER_LAST // SECOND - 366 * _DAY
# Go's calendar begins this many seconds before 1970.
_GO_YEARS: Final = (292277022400 * 3652425 // 10000 + 306) * _DAY - _FIRST // SECOND
_CYCLE_YEARS: Final = 400
_CYCLE: Final = 146097 * _DAY


def duration(nanoseconds: int) -> Duration:
    """Return a duration.

    Raises:
        ValueError: it is too long.
    """
    if nanoseconds not in INT64:
        raise ValueError("duration overflow")
    return Duration(nanoseconds)


def timestamp(nanoseconds: int, offset: int = 0) -> Timestamp:
    """Return a timestamp.

    Raises:
        ValueError: it lies before the year 1 or after the year 9999.
    """
    if not _FIRST <= nanoseconds < _AFTER_LAST:
        raise ValueError("timestamp overflow")
    return Timestamp(nanoseconds, offset)


def duration_from(text: str) -> Duration:
    """Return the duration for a text such as `1h30m` or `-1.5s`, as Go's ParseDuration does.

    Raises:
        ValueError: there is none.
    """
    unsigned = text[1:] if text[:1] in ("-", "+") else text
    total, at = 0, 0
    while at < len(unsigned) and unsigned != "0":
        part = _PART.match(unsigned, at)
        if part is None or not (part[1] or part[3]):
            break
        unit = _UNITS[part[4]]
        total += int(part[1] or "0") * unit + (int(Fraction(f"0.{part[3]}") * unit) if part[3] else 0)
        at = part.end()
    if not unsigned or (at < len(unsigned) and unsigned != "0"):
        raise ValueError(f'type conversion error from "{text}" to google.protobuf.Duration')
    return duration(-total if text[0] == "-" else total)


def timestamp_from(text: str) -> Timestamp:
    """Return the time for a text of RFC 3339.

    Raises:
        ValueError: there is none.
    """
    parts = _MOMENT.fullmatch(text)
    # Go takes offsets of up to 24 hours and 59 minutes.
    if parts is None or int(parts[9] or 0) > 24 or int(parts[10] or 0) > 59:  # noqa: PLR2004
        raise _no_moment(text)
    year, month, day, hour, minute, second = (int(number) for number in parts.groups()[:6])
    try:
        local = datetime(year or 1, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise _no_moment(text) from error
    offset = 0
    if parts[8]:
        offset = (int(parts[9]) * 3600 + int(parts[10]) * 60) * (-1 if parts[8] == "-" else 1)
    if not year:
        raise ValueError("timestamp overflow")
    seconds = (local - _EPOCH) // timedelta(seconds=1) - offset
    return timestamp(seconds * SECOND + int((parts[7] or "0")[:9].ljust(9, "0")), offset)


def _no_moment(text: str) -> ValueError:
    return ValueError(f'type conversion error from "{text}" to google.protobuf.Timestamp')


def duration_text(value: Duration) -> str:
    """Return a duration as CEL writes it: seconds with a fraction."""
    seconds = value.nanoseconds / SECOND
    return f"{_plain(seconds)}s"


def _plain(number: float) -> str:
    """Return the shortest decimal without an exponent."""
    text = repr(number)
    if "e" in text:
        text = f"{Fraction(text).numerator / Fraction(text).denominator:.20f}".rstrip("0")
    return text.removesuffix(".0").removesuffix(".")


def timestamp_text(value: Timestamp) -> str:
    """Return the time in RFC 3339, in its own time zone, with as many digits as necessary."""
    local, year = _local(value, timezone(timedelta(seconds=value.offset)))
    fraction = f".{value.nanoseconds % SECOND:09d}".rstrip("0").rstrip(".")
    offset = abs(value.offset) // 60
    sign = "-" if value.offset < 0 else "+"
    zone = f"{sign}{offset // 60:02d}:{offset % 60:02d}" if value.offset else "Z"
    written = f"{year:05d}" if year < 0 else f"{year:04d}"
    return f"{written}{local:-%m-%dT%H:%M:%S}{fraction}{zone}"


def any_moment(nanoseconds: int) -> Timestamp:
    """Any moment, also one that no text can say; Go counts its seconds since the year 1, in 64 bits."""
    seconds, rest = divmod(nanoseconds, SECOND)
    first = _FIRST // SECOND
    return Timestamp((wrapped(seconds - first) + first) * SECOND + rest)


def unix_seconds(value: Timestamp) -> int:
    """Return the seconds since 1970, in 64 bits."""
    return wrapped(value.nanoseconds // SECOND)


def wrapped(number: int) -> int:
    """Return the number as Go's `int64` holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def time_between(left: Timestamp, right: Timestamp) -> Duration:
    """Return the duration between two times.

    Raises:
        ValueError: it is too long.
    """
    seconds = unix_seconds(left) - unix_seconds(right)
    fraction = left.nanoseconds % SECOND - right.nanoseconds % SECOND
    return duration(duration(seconds * SECOND).nanoseconds + fraction)


def _local(value: Timestamp, zone: Any) -> tuple[datetime, int]:
    """The moment in that zone, and its year. The calendar comes again every 400 years, so that any year can be had."""
    seconds = (unix_seconds(value) + _GO_YEARS) % (1 << 64) - _GO_YEARS
    cycles = 0
    if seconds < _EARLY:
        cycles = (seconds - _EARLY) // _CYCLE
    elif seconds >= _LATE:
        cycles = (seconds - _LATE) // _CYCLE + 1
    local = _EPOCH + timedelta(seconds=seconds - cycles * _CYCLE)
    local = local + zone if isinstance(zone, timedelta) else local.astimezone(zone)
    return local, local.year + cycles * _CYCLE_YEARS


def _zone(text: str) -> Any:
    """Return a time zone by its name, or its offset, such as `+02:00`, of which Go allows any number of hours."""
    hours, colon, minutes = text.partition(":")
    if not colon:
        try:
            return UTC if text in ("", "UTC", "Local") else ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"unknown time zone {text}") from error
    if not re.fullmatch(r"[+-]?[0-9]+", hours) or not re.fullmatch(r"[+-]?[0-9]+", minutes):
        raise ValueError(f"unknown time zone {text}")
    offset = abs(int(hours)) * 60 + int(minutes)
    if offset > _MAX_OFFSET:
        raise ValueError(f"unknown time zone {text}")
    return timedelta(minutes=-offset if int(hours) < 0 else offset)


def _of_moment(read: Callable[[datetime, int], int], read_duration: Callable[[int], int] | None = None) -> Any:
    def part(value: Any, zone: str = "UTC") -> int:
        if isinstance(value, Duration):
            if read_duration is None:
                raise ValueError("no such overload")
            return read_duration(value.nanoseconds)
        return read(*_local(value, _zone(zone)))

    return part


def _milliseconds(value: Any, zone: str = "UTC") -> int:
    if isinstance(value, Duration):
        return _whole(value.nanoseconds, 1_000_000)
    _zone(zone)
    return int(value.nanoseconds % SECOND // 1_000_000)


def _whole(number: int, unit: int) -> int:
    """Return the quotient truncated toward zero."""
    return -(-number // unit) if number < 0 else number // unit


GETTERS: Final[dict[str, Callable[..., int]]] = {
    "getFullYear": _of_moment(lambda _, year: year),
    "getMonth": _of_moment(lambda moment, _: moment.month - 1),
    "getDayOfYear": _of_moment(lambda moment, _: moment.timetuple().tm_yday - 1),
    "getDayOfMonth": _of_moment(lambda moment, _: moment.day - 1),
    "getDate": _of_moment(lambda moment, _: moment.day),
    "getDayOfWeek": _of_moment(lambda moment, _: moment.isoweekday() % 7),
    "getHours": _of_moment(lambda moment, _: moment.hour, lambda length: _whole(length, 3600 * SECOND)),
    "getMinutes": _of_moment(lambda moment, _: moment.minute, lambda length: _whole(length, 60 * SECOND)),
    "getSeconds": _of_moment(lambda moment, _: moment.second, lambda length: _whole(length, SECOND)),
    "getMilliseconds": _milliseconds,
}


_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_UNSIGNED: Final = re.compile(r"[0-9]+", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:(?:D\.?(?:D)?|\.D)(?:[eE][+-]?D)?|(?i:inf|infinity|nan))".replace("D", "[0-9]+(?:_[0-9]+)*"), re.ASCII
)
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0x(?:_?H\.?(?:H)?|\.H)p[+-]?H".replace("H", "[0-9a-f]+(?:_[0-9a-f]+)*"), re.ASCII | re.IGNORECASE
)
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")
_EXPONENTS: Final = range(-4, 6)


def to_bool(value: Any) -> bool:
    """Return `bool(value)`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in (*_TRUE, *_FALSE):
        return value in _TRUE
    raise _no_conversion(value, "bool")


def to_bytes(value: Any) -> bytes:
    """Return `bytes(value)`."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise _no_conversion(value, "bytes")


def to_double(value: Any) -> float:
    """Return `double(value)`."""
    if type(value) in (int, UInt, float):
        return float(value)
    if isinstance(value, str):
        if _HEX_DOUBLE.fullmatch(value):
            with suppress(OverflowError, ValueError):
                return float.fromhex(value.replace("_", ""))
        elif _DOUBLE.fullmatch(value):
            number = float(value)
            if not (math.isinf(number) and value.strip("+-")[0].isdigit()):
                return number
    raise _no_conversion(value, "double")


def to_int(value: Any) -> int:
    """Return `int(value)`."""
    match value:
        case bool():
            raise _no_conversion(value, "int")
        case UInt() | int():
            return _within(int(value), INT64)
        case float():
            return _from_double(value, -(2.0**63), 2.0**63, above=False)
        case str() if _INTEGER.fullmatch(value) and int(value) in INT64:
            return int(value)
        case Duration():
            return value.nanoseconds
        case Timestamp():
            return unix_seconds(value)
    raise _no_conversion(value, "int")


def to_uint(value: Any) -> UInt:
    """Return `uint(value)`."""
    match value:
        case bool():
            raise _no_conversion(value, "uint")
        case int():
            return UInt(_within(int(value), UINT64))
        case float():
            return UInt(_from_double(value, 0.0, 2.0**64, above=True))
        case str() if _UNSIGNED.fullmatch(value) and int(value) in UINT64:
            return UInt(value)
    raise _no_conversion(value, "uint")


def _within(number: int, numbers: range) -> int:
    if number not in numbers:
        raise ValueError("integer overflow")
    return number


def _from_double(number: float, least: float, most: float, *, above: bool) -> int:
    if not math.isfinite(number) or number >= most or number < least or (number == least and not above):
        raise ValueError("integer overflow")
    return int(number)


def to_string(value: Any) -> str:  # noqa: C901, PLR0911 - one for each kind
    """Return `string(value)`."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return str(int(value))
        case float():
            return double_text(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise ValueError("invalid UTF-8 in bytes, cannot convert to string") from error
        case Duration():
            return duration_text(value)
        case Timestamp():
            return timestamp_text(value)
        case IPValue():
            return str(value.address)
        case CIDRValue():
            return str(value.network)
    raise _no_conversion(value, "string")


def double_text(number: float) -> str:
    """Return the shortest text of a double, as Go's `%g` does."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    digits, _, exponent = f"{number!r}".partition("e")
    mantissa = digits.lstrip("-").replace(".", "")
    point = len(digits.lstrip("-").partition(".")[0]) + int(exponent or 0)
    stripped = mantissa.lstrip("0")
    point -= len(mantissa) - len(stripped)
    stripped = stripped.rstrip("0")
    sign = "-" if struct.pack(">d", number)[0] & 0x80 else ""
    if not stripped:
        return f"{sign}0"
    if point - 1 not in _EXPONENTS:
        fraction = f".{stripped[1:]}" if len(stripped) > 1 else ""
        return f"{sign}{stripped[0]}{fraction}e{'-' if point < 1 else '+'}{abs(point - 1):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{stripped}"
    whole = stripped[:point].ljust(point, "0")
    return f"{sign}{whole}.{stripped[point:]}" if stripped[point:] else f"{sign}{whole}"


def to_duration(value: Any) -> Duration:
    """Return `duration(value)`; integers cannot be converted, although some releases declare it."""
    match value:
        case Duration():
            return value
        case str():
            return duration_from(value)
    raise _no_conversion(value, "google.protobuf.Duration")


def to_timestamp(value: Any) -> Timestamp:
    """Return `timestamp(value)`."""
    match value:
        case Timestamp():
            return value
        case str():
            return timestamp_from(value)
        case bool():
            raise _no_conversion(value, "google.protobuf.Timestamp")
        case int():
            return timestamp(int(value) * SECOND)
    raise _no_conversion(value, "google.protobuf.Timestamp")


def _no_conversion(value: Any, kind: str) -> ValueError:
    return ValueError(f"type conversion error from '{type_name(value)}' to '{kind}'")


CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "bool": to_bool,
    "bytes": to_bytes,
    "double": to_double,
    "duration": to_duration,
    "dyn": lambda value: value,
    "int": to_int,
    "string": to_string,
    "timestamp": to_timestamp,
    "type": lambda value: TypeValue(type_name(value)),
    "uint": to_uint,
}
