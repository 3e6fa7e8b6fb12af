"""The values that Kubernetes adds to CEL (Quantity, Semver, IP, CIDR), as messages that the evaluator can carry.

cel-expr-python takes plain values and protobuf messages as data, nothing else; a message is also the one kind that no
operator or function of CEL does anything with, as it is with these types in Kubernetes.
"""

from __future__ import annotations

import ipaddress
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

from dranode.driver.core.api.names import is_semver
from dranode.driver.core.api.quantity import Quantity
from dranode.proto import cel_values_pb2 as messages

SemverKey: TypeAlias = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_SHORT_VERSION_PARTS: Final = 3


def quantity_message(quantity: Quantity) -> messages.Quantity:
    """The message of a quantity."""
    value = Fraction(quantity.value)
    return messages.Quantity(canonical_text=f"{value.numerator}/{value.denominator}")


@lru_cache(maxsize=4096)
def quantity_value(text: str) -> Fraction:
    """The exact number of a canonical text."""
    return Fraction(text)


def semver_message(text: str) -> messages.Semver:
    """The message of a version.

    Raises:
        ValueError: `text` is not a semantic version 2.0.0.
    """
    if not is_semver(text):
        raise ValueError(f'"{text}" is not a semantic version such as 1.10.0')
    return messages.Semver(canonical_text=text.partition("+")[0])


def normalized_semver(text: str) -> str:
    """A loosely written version in the strict form: no leading `v`, no leading zeros, three numbers.

    Raises:
        ValueError: a short version carries prerelease or build metadata.
    """
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_leading_zeros(part) for part in parts]
    if len(parts) < _SHORT_VERSION_PARTS:
        if set(parts[-1]) & {"+", "-"}:
            raise ValueError(f'the short version "{text}" cannot have a prerelease or build metadata')
        parts += ["0"] * (_SHORT_VERSION_PARTS - len(parts))
    return ".".join(parts)


def _without_leading_zeros(part: str) -> str:
    stripped = part.lstrip("0") if len(part) > 1 else part
    return stripped if stripped == part or stripped[:1].isdigit() else f"0{stripped}"


@lru_cache(maxsize=4096)
def semver_key(text: str) -> SemverKey:
    """What orders canonical versions (semver.org, section 11)."""
    numbers, _, pre = text.partition("-")
    major, minor, patch = map(int, numbers.split("."))
    identifiers = tuple(
        (False, int(part), "") if part.isdigit() else (True, 0, part) for part in (pre.split(".") if pre else ())
    )
    return major, minor, patch, not pre, identifiers


def parse_ip(text: str) -> Address:
    """An address as Kubernetes takes it: no zone, no IPv4 address in IPv6 clothes.

    Raises:
        ValueError: `text` is not such an address.
    """
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise ValueError(f'"{text}" is an address with a zone or an IPv4-mapped one, which Kubernetes refuses')
    return address


def parse_cidr(text: str) -> Network:
    """A network with a prefix length; bits beyond it may be set.

    Raises:
        ValueError: `text` is not such a network.
    """
    host, slash, length = text.partition("/")
    if not slash or not re.fullmatch(r"0|[1-9][0-9]{0,2}", length, re.ASCII):
        raise ValueError(f'"{text}" is not a network such as 10.0.0.0/8')
    return ipaddress.ip_interface(f"{parse_ip(host)}/{length}")
