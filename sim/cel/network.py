"""Addresses, networks and URLs, as Go's net/netip and net/url read them (k8s.io/apiserver/pkg/cel/library)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from dranode.sim.cel.values import Address, CIDRValue, IPValue, URLValue

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
    """An address without a zone that is no IPv4 address in IPv6 clothes.

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
    """A network with a prefix length; bits beyond it may be set.

    Raises:
        ValueError: `text` is none.
    """
    host, slash, length = text.partition("/")
    if not slash or not _PREFIX.fullmatch(length):
        raise ValueError(f'"{text}" is not a network such as 10.0.0.0/8')
    return CIDRValue(ipaddress.ip_interface(f"{_address(host)}/{length}"))


def is_ip(text: str) -> bool:
    """Return whether the text is an address."""
    return _is(ip_from, text)


def is_cidr(text: str) -> bool:
    """Return whether the text is a network."""
    return _is(cidr_from, text)


def _is(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def is_canonical(text: str) -> bool:
    """Return whether an address is written in the one way in which Go writes it."""
    return str(ip_from(text).address) == text


def address_of(value: str | CIDRValue) -> IPValue:
    """`ip(text)` or the address of a network."""
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
    """The network without the bits beyond its prefix."""
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
    """The parts of an absolute URI or an absolute path.

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
    """The path as Go writes it: as it is if that is one way to write it."""
    if _VALID_PATH.fullmatch(path):
        return path
    return "".join(chr(one) if one in _PLAIN else f"%{one:02X}" for one in _unescaped(path))


def _unescaped(text: str) -> bytes:
    """The bytes of a text in which `%41` stands for A."""
    parts = _ESCAPE.split(text)
    return b"".join(bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(parts))


def is_url(text: str) -> bool:
    """Return whether the text is an absolute URI or path."""
    return _is(url_from, text)


def hostname(url: URLValue) -> str:
    """The host without port and brackets."""
    return _split_host(url.host)[0]


def port(url: URLValue) -> str:
    """The port, "" if there is none."""
    return _split_host(url.host)[1]


def _split_host(host: str) -> tuple[str, str]:
    name, colon, digits = host.rpartition(":")
    if not colon or "]" in digits:
        name, digits = host, ""
    return (name[1:-1] if name.startswith("[") and name.endswith("]") else name), digits


def query(url: URLValue) -> dict[str, list[str]]:
    """The values of each key; what cannot be read is left out."""
    values: dict[str, list[str]] = {}
    for part in url.query.split("&"):
        if not part or ";" in part or _BAD_ESCAPE.search(part):
            continue
        key, _, value = part.partition("=")
        values.setdefault(_query_text(key), []).append(_query_text(value))
    return values


def _query_text(text: str) -> str:
    return _unescaped(text.replace("+", " ")).decode(errors="replace")
