"""The rules for names in Kubernetes: labels, subdomains, qualified names, versions.

Source: apimachinery's `util/validation` (RFC 1123) and the validation of `resource.k8s.io/v1`.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

T = TypeVar("T")

# A C identifier of at most 32 characters.
_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)
# Compiled at the first use, since a start does not need it.
_LABEL_VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"


def is_dns_label(name: str) -> bool:
    """Return whether `name` is a DNS label (RFC 1123), the form of names of devices, counters and requests."""
    return _LABEL.fullmatch(name) is not None


def is_dns_subdomain(name: str, longest: int = 253) -> bool:
    """Return whether `name` is a DNS subdomain of at most `longest` characters."""
    return len(name) <= longest and _SUBDOMAIN.fullmatch(name) is not None


def is_qualified_name(name: str) -> bool:
    """Return whether `name` is `[<domain>/]<C identifier>`, the form of names of attributes and capacities."""
    # Without a domain, the name belongs to the driver that publishes it.
    domain, slash, identifier = name.rpartition("/")
    return _ID.fullmatch(identifier) is not None and (not slash or is_dns_subdomain(domain, 63))


def qualified(name: str, driver: str) -> str:
    """Return the name of an attribute or capacity with its domain; a name without one has the driver's."""
    return name if "/" in name else f"{driver}/{name}"


def named_value(values: Mapping[str, T], name: str, driver: str) -> T | None:
    """Look up an attribute or capacity of a driver by its name, with or without the driver's domain.

    Kubernetes promises neither form. So far it keeps the names of a slice as the driver wrote them, but it may shorten
    them. If both forms are present, the requested one counts.
    """
    if name in values:
        return values[name]
    wanted = qualified(name, driver)
    return next((value for other, value in values.items() if qualified(other, driver) == wanted), None)


def is_label_value(value: str) -> bool:
    """Return whether `value` is a label value: empty, or up to 63 of letters, digits, `-_.`, with alphanumeric ends."""
    return re.fullmatch(_LABEL_VALUE, value, re.ASCII) is not None


def is_label_name(name: str) -> bool:
    """Return whether `name` is a label key: `[<DNS subdomain>/]<label value that is not empty>`."""
    domain, slash, rest = name.rpartition("/")
    return bool(rest) and is_label_value(rest) and (not slash or is_dns_subdomain(domain))
