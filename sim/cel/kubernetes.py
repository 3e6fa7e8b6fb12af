"""The CEL functions of Kubernetes: quantities, versions, addresses, networks, URLs, and formats of strings.

Sources: k8s.io/apimachinery/pkg/api/resource, blang/semver, k8s.io/apiserver/pkg/cel/library, Go's net/netip
(addresses) and net/url.
"""

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dranode.api.quantity import Quantity
from dranode.api.semver import is_semver, semver_from_tolerant, version_key
from dranode.sim.cel.declarations import FORMATS
from dranode.sim.cel.values import (
    INT64,
    NONE,
    Address,
    CIDRValue,
    FormatValue,
    IPValue,
    OptionalValue,
    QuantityValue,
    SemverValue,
    URLValue,
)

_PARTS: Final = re.compile(r"[+-]?0*([0-9]*)(?:\.([0-9]*))?([A-Za-z]*[+-]?[0-9]*)", re.ASCII)
_DECIMALS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARIES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FACTORS: Final = 18
_NANO: Final = -9
_LARGEST: Final = (1 << 63) - 1
_UINT64: Final = 1 << 64


@lru_cache(maxsize=4096)
def quantity_from(text: str) -> QuantityValue:
    """The quantity; it knows in which of its two forms Kubernetes keeps it, as that tells what is an integer.

    Raises:
        ValueError: `text` is none.
    """
    parts = _PARTS.fullmatch(text)
    if parts is None or not text:
        raise ValueError(f'"{text}" is not a quantity such as 4, 500m or 16Gi')
    # Kubernetes reads a suffix without a number as 0.
    bare = _is_suffix(parts[3]) and not set(text.removesuffix(parts[3])) & set("0123456789")
    number = Fraction(Quantity(f"0{parts[3]}" if bare else text).value)
    whole, part, suffix = parts[1] or "0", parts[2] or "", parts[3]
    scale = _scale(whole, part, suffix)
    if scale is not None and abs(int(whole + part)) in INT64 and _unscaled(number, scale) is not None:
        return QuantityValue(number, scale)
    rounded = Fraction(math.ceil(abs(number) * 10**9), 10**9)
    if suffix in _BINARIES:
        rounded = min(rounded, Fraction(_LARGEST))
    return QuantityValue(-rounded if number < 0 else rounded, None)


def _is_suffix(text: str) -> bool:
    return text in _DECIMALS or text in _BINARIES or re.fullmatch(r"[eE][+-]?[0-9]{1,3}", text) is not None


def _scale(whole: str, part: str, suffix: str) -> int | None:
    """Return the power of ten of the short form; None if there is only the long form."""
    if suffix in _BINARIES:
        exponent = _BINARIES[suffix]
        short = not part and 15 - len(whole) - int(exponent * 3 / 10) - 1 >= 0
        return 0 if short else None
    exponent = _DECIMALS[suffix] if suffix in _DECIMALS else int(suffix[1:])
    scale = exponent - len(part)
    return scale if len(whole) + len(part) <= _FACTORS and scale >= _NANO else None


def _unscaled(number: Fraction, scale: int) -> int | None:
    """Return the number in units of that power of ten, if it is whole and fits."""
    units = number / Fraction(10) ** scale
    return units.numerator if units.denominator == 1 and units.numerator in INT64 else None


def is_integer(quantity: QuantityValue) -> bool:
    """Return whether Kubernetes knows that it is a whole number of 64 bits."""
    return quantity.scale is not None and quantity.scale >= 0 and quantity.number.numerator in INT64


def as_integer(quantity: QuantityValue) -> int:
    """Return the quantity as an integer."""
    if not is_integer(quantity):
        raise ValueError("cannot convert value to integer")
    return quantity.number.numerator


def as_float(quantity: QuantityValue) -> float:
    """Return the quantity as a double, with the rounding error of Go's multiplication."""
    scale = _NANO if quantity.scale is None else quantity.scale
    return float(int(quantity.number / Fraction(10) ** scale)) * 10.0**scale if scale else float(quantity.number)


def sign(quantity: QuantityValue) -> int:
    """Return -1, 0 or 1."""
    return (quantity.number > 0) - (quantity.number < 0)


def quantity_sum(quantity: QuantityValue, other: QuantityValue | int) -> QuantityValue:
    """Return the sum."""
    operand = other if isinstance(other, QuantityValue) else QuantityValue(Fraction(other), 0)
    total = quantity.number + operand.number
    if quantity.scale is None or operand.scale is None:
        return QuantityValue(total, None, computed=True)
    if not quantity.number or not operand.number:
        unchanged = quantity if not operand.number else operand
        return replace(unchanged, computed=True)
    scale = min(quantity.scale, operand.scale)
    fits = all(_unscaled(amount, scale) is not None for amount in (quantity.number, operand.number, total))
    return QuantityValue(total, scale if fits else None, computed=True)


def quantity_difference(quantity: QuantityValue, other: QuantityValue | int) -> QuantityValue:
    """Return the difference."""
    operand = other if isinstance(other, QuantityValue) else QuantityValue(Fraction(other), 0)
    return quantity_sum(quantity, replace(operand, number=-operand.number))


@lru_cache(maxsize=4096)
def semver_from(text: str, normalize: bool = False) -> SemverValue:  # noqa: FBT001, FBT002 - CEL's positional argument
    """Return a version such as 2.0.0; with `normalize`, also one that is written loosely.

    Raises:
        ValueError: `text` is none.
    """
    text = semver_from_tolerant(text) if normalize else text
    if not is_semver(text):
        raise ValueError(f'"{text}" is not a semantic version such as 1.10.0')
    key = version_key(text)
    if max(key[:3]) >= _UINT64:
        raise ValueError(f'"{text}" has a number of more than 64 bits')
    return SemverValue(text, key)


def order(left: QuantityValue | SemverValue, right: QuantityValue | SemverValue) -> int:
    """Return -1, 0 or 1 for two quantities or two versions."""
    first = left.number if isinstance(left, QuantityValue) else left.key
    second = right.number if isinstance(right, QuantityValue) else right.key
    return int(first > second) - int(first < second)


def can_read(read: Callable[..., object]) -> Callable[..., bool]:
    """Return a function that says whether its arguments can be read as a value."""

    def can(*arguments: object) -> bool:
        try:
            read(*arguments)
        except ValueError:
            return False
        return True

    return can


_PREFIX: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_ESCAPE: Final = re.compile(r"%([0-9a-fA-F]{2})")
_HOST_ESCAPE: Final = re.compile(r"%(?:[0-7][0-9a-fA-F])")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"]|%[89a-fA-F][0-9a-fA-F]|[^\x00-\x7f])*")
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_PORT: Final = re.compile(r"(?::[0-9]*)?")
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@")
_VALID_PATH: Final = re.compile(r"[A-Za-z0-9\-_.~$&+,/:;=@!'()*\[\]%]*")


def ip_from(text: str) -> IPValue:
    """Return an address. It must have no zone and not be an IPv4-mapped IPv6 address.

    Raises:
        ValueError: `text` is none.
    """
    return IPValue(_address(text))


def _address(text: str) -> Address:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and ("%" in text or address.ipv4_mapped):
        raise ValueError(f'"{text}" is an address with a zone or an IPv4-mapped one, which Kubernetes refuses')
    return address


def cidr_from(text: str) -> CIDRValue:
    """Return a network with a prefix length; bits beyond it may be set.

    Raises:
        ValueError: `text` is none.
    """
    host, slash, length = text.partition("/")
    if not slash or not _PREFIX.fullmatch(length):
        raise ValueError(f'"{text}" is not a network such as 10.0.0.0/8')
    return CIDRValue(ipaddress.ip_interface(f"{_address(host)}/{length}"))


def is_canonical(text: str) -> bool:
    """Return whether an address is written in the one way in which Go writes it."""
    return str(ip_from(text).address) == text


def address_of(value: str | CIDRValue) -> IPValue:
    """Return `ip(text)`, or the address of a network."""
    return IPValue(value.network.ip) if isinstance(value, CIDRValue) else ip_from(value)


def contains_ip(cidr: CIDRValue, other: IPValue | str) -> bool:
    """Return whether the address is in the network."""
    address = (ip_from(other) if isinstance(other, str) else other).address
    network = cidr.network.network
    return address.version == network.version and address in network


def contains_cidr(cidr: CIDRValue, other: CIDRValue | str) -> bool:
    """Return whether all of the other network is in this one."""
    inner = (cidr_from(other) if isinstance(other, str) else other).network.network
    network = cidr.network.network
    return (
        inner.version == network.version and inner.prefixlen >= network.prefixlen and inner.network_address in network
    )


def masked(cidr: CIDRValue) -> CIDRValue:
    """Return the network without the bits beyond its prefix."""
    network = cidr.network.network
    return CIDRValue(ipaddress.ip_interface(str(network)))


def is_global_unicast(ip: IPValue) -> bool:
    """Return whether it is an address that can be routed to one host."""
    address = ip.address
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and str(address) != "255.255.255.255"


def is_link_local_multicast(ip: IPValue) -> bool:
    """Return whether it is in 224.0.0.0/24 or ff02::/16 with any flags (RFC 5771, RFC 4291)."""
    packed = ip.address.packed
    return packed[:3] == b"\xe0\x00\x00" if len(packed) == 4 else packed[0] == 0xFF and packed[1] & 0xF == 2  # noqa: PLR2004


def url_from(text: str) -> URLValue:
    """Return the parts of an absolute URI or an absolute path.

    Raises:
        ValueError: `text` is none.
    """
    if _CONTROL.search(text):
        raise ValueError(f"parse {text!r}: net/url: invalid control character in URL")
    scheme, rest = _scheme(text)
    path, question, query = rest.partition("?")
    if not path.startswith("/"):
        if not scheme and path != "*":
            raise ValueError(f"parse {text!r}: invalid URI for request" if text else 'parse "": empty url')
        return URLValue(text, scheme, "", "" if scheme else path, query)
    host = ""
    if scheme and path.startswith("//"):
        authority, slash, after = path[2:].partition("/")
        path = slash + after
        host = _host(text, authority)
    if _BAD_ESCAPE.search(path):
        raise ValueError(f"parse {text!r}: invalid URL escape")
    shown = f"{scheme}:{'//' if host else ''}{host}{_escaped(path)}{question}{query}"
    return URLValue(shown, scheme, host, _escaped(path), query)


def _scheme(text: str) -> tuple[str, str]:
    before, colon, after = text.partition(":")
    if colon and not before:
        raise ValueError(f"parse {text!r}: missing protocol scheme")
    if colon and _SCHEME.fullmatch(before):
        return before.lower(), after
    return "", text


def _host(text: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        raise ValueError(f"parse {text!r}: net/url: invalid userinfo")
    name, port = _name_and_port(text, host)
    if name.startswith("["):
        zone = name.find("%25")
        name = name if zone < 0 else name[:zone] + _unescaped(name[zone:]).decode("latin-1")
        return name + port
    if _BAD_ESCAPE.search(name) or _HOST_ESCAPE.search(name) or not _HOST.fullmatch(name):
        raise ValueError(f"parse {text!r}: invalid character in host name")
    return _unescaped(name).decode(errors="surrogateescape") + port


def _name_and_port(text: str, host: str) -> tuple[str, str]:
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            raise ValueError(f"parse {text!r}: missing ']' in host")
        name, port = host[: end + 1], host[end + 1 :]
    else:
        name, colon, digits = host.partition(":") if host.count(":") == 1 else host.rpartition(":")
        name, port = (name, colon + digits) if colon else (host, "")
    if not _PORT.fullmatch(port):
        raise ValueError(f'parse {text!r}: invalid port "{port}" after host')
    return name, port


def _escaped(path: str) -> str:
    """Return the escaped path as Go does: unchanged if it is a valid encoding."""
    if _VALID_PATH.fullmatch(path):
        return path
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in _unescaped(path))


def _unescaped(text: str) -> bytes:
    """Return the bytes of a text, decoding escapes such as `%41` for A."""
    parts = _ESCAPE.split(text)
    return b"".join(bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(parts))


def host_and_port(url: URLValue) -> tuple[str, str]:
    """Return the host without brackets, and the port, empty if there is none."""
    name, colon, digits = url.host.rpartition(":")
    if not colon or "]" in digits:
        name, digits = url.host, ""
    return (name[1:-1] if name.startswith("[") and name.endswith("]") else name), digits


def query(url: URLValue) -> dict[str, list[str]]:
    """Return the values of each key; invalid pairs are left out."""
    values: dict[str, list[str]] = {}
    for part in url.query.split("&"):
        if not part or ";" in part or _BAD_ESCAPE.search(part):
            continue
        key, _, value = part.partition("=")
        values.setdefault(_query_text(key), []).append(_query_text(value))
    return values


def _query_text(text: str) -> str:
    return _unescaped(text.replace("+", " ")).decode(errors="replace")


_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))")

_LABEL_PROBLEM: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    f" an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_PROBLEM: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    f" end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_1035_PROBLEM: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    f" '{_LABEL_1035}')"
)
_QUALIFIED_PROBLEM: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}')"
)
_VALUE_PROBLEM: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '({_QUALIFIED})?')"
)
_TWO_PARTS_PROBLEM: Final = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_MAX_LABEL: Final = 63
_MAX_SUBDOMAIN: Final = 253


def format_named(name: str) -> OptionalValue:
    """Return the format with a name, if there is one."""
    return OptionalValue(format_of(name), present=True) if name in FORMATS else NONE


def format_of(name: str) -> FormatValue:
    """Return a format for the table."""
    return FormatValue(name, FORMATS[name][1])


def problems_of(form: FormatValue, text: str) -> OptionalValue:
    """Return what is wrong with the text; nothing if it is in the format."""
    problems = _VALIDATORS[form.name](text)
    return OptionalValue(problems, present=True) if problems else NONE


def _matched(pattern: str, longest: int, problem: str) -> Callable[[str], list[str]]:
    compiled = re.compile(pattern)

    def problems(text: str) -> list[str]:
        matches = compiled.fullmatch(text) is not None
        return [*_too_long(text, longest), *([] if matches else [problem])]

    return problems


def _too_long(text: str, longest: int) -> list[str]:
    return [f"must be no more than {longest} bytes"] if len(text.encode()) > longest else []


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return the same check for a name prefix, which may end in a dash."""

    def problems(text: str) -> list[str]:
        return check(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)

    return problems


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if text.count("/") > 1:
        return [_TWO_PARTS_PROBLEM]
    problems: list[str] = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += (f"prefix part {problem}" for problem in _subdomain(prefix))
    if not name:
        return [*problems, "name part must be non-empty", _QUALIFIED_PROBLEM]
    of_name = _matched(_QUALIFIED, _MAX_LABEL, _QUALIFIED_PROBLEM)(name)
    return problems + [problem if problem == _QUALIFIED_PROBLEM else f"name part {problem}" for problem in of_name]


def _uri(text: str) -> list[str]:
    try:
        url_from(text)
    except ValueError as error:
        return [str(error)]
    return []


def _is_date(text: str) -> bool:
    try:
        return re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return text.startswith("0000-") and _is_date(f"2000{text[4:]}")


def _is_datetime(text: str) -> bool:
    day, letter, rest = text.lower().partition("t")
    time = _TIME.fullmatch(rest)
    return (
        bool(letter) and _is_date(day) and time is not None and time[1] <= "23" and time[2] <= "59" and time[3] <= "59"
    )


def _valid(holds: Callable[[str], bool], problem: str) -> Callable[[str], list[str]]:
    return lambda text: [] if holds(text) else [problem]


_label: Final = _matched(_LABEL, _MAX_LABEL, _LABEL_PROBLEM)
_subdomain: Final = _matched(_SUBDOMAIN, _MAX_SUBDOMAIN, _SUBDOMAIN_PROBLEM)
_label_1035: Final = _matched(_LABEL_1035, _MAX_LABEL, _LABEL_1035_PROBLEM)
_VALIDATORS: Final[dict[str, Callable[[str], list[str]]]] = {
    "dns1123Label": _label,
    "dns1123LabelPrefix": _prefix(_label),
    "dns1123Subdomain": _subdomain,
    "dns1123SubdomainPrefix": _prefix(_subdomain),
    "dns1035Label": _label_1035,
    "dns1035LabelPrefix": _prefix(_label_1035),
    "qualifiedName": _qualified_name,
    "labelValue": _matched(f"({_QUALIFIED})?", _MAX_LABEL, _VALUE_PROBLEM),
    "uri": _uri,
    "uuid": _valid(lambda text: _UUID.fullmatch(text) is not None, "does not match the UUID format"),
    "byte": _valid(lambda text: _BASE64.fullmatch(text) is not None, "invalid base64"),
    "date": _valid(_is_date, "invalid date"),
    "datetime": _valid(_is_datetime, "invalid datetime"),
}
