"""Names: vendor, class, device, kind, qualified device name, spec file name (SPEC.md, and what the Go library checks).

The library checks characters, but not lengths. SPEC.md also requires the vendor to be a DNS subdomain, and limits the
lengths of vendor and class. Writers follow these rules too (`written_kind_problem`); readers do not check them.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from dranode.cdi.errors import CDIError, shown

VENDOR_LIMIT: Final = 253
CLASS_LIMIT: Final = 63

_PART: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


class QualifiedName(NamedTuple):
    """The name by which a container requests a device: `vendor/class=device`."""

    vendor: str
    device_class: str
    device: str

    def __str__(self) -> str:
        return f"{self.vendor}/{self.device_class}={self.device}"


def split_kind(kind: str) -> tuple[str, str]:
    """Split a kind at its first slash into vendor and class; both are empty if one of them is missing."""
    vendor, _, device_class = kind.partition("/")
    return (vendor, device_class) if vendor and device_class else ("", "")


@lru_cache(maxsize=64)
def kind_problem(kind: str) -> str | None:
    """Return why the Go library refuses a kind, or None if it accepts it."""
    vendor, device_class = split_kind(kind)
    if not vendor:
        return f"{shown(kind)} is not a vendor and a class such as example.com/cpu"
    for what, name in (("vendor", vendor), ("class", device_class)):
        if not _PART.fullmatch(name):
            return (
                f"{what} {shown(name)} must start with a letter, end with a letter or a digit, "
                "and have only letters, digits, _, - and . between"
            )
    return None


@lru_cache(maxsize=64)
def written_kind_problem(kind: str) -> str | None:
    """Return why a kind breaks a rule of SPEC.md or of the library, or None if it may be written."""
    if problem := kind_problem(kind):
        return problem
    vendor, device_class = split_kind(kind)
    if len(vendor) > VENDOR_LIMIT:
        return f"the vendor has {len(vendor)} characters and may have {VENDOR_LIMIT}"
    if not _DNS_SUBDOMAIN.fullmatch(vendor):
        return f"vendor {shown(vendor)} is not a DNS subdomain in lower case"
    if len(device_class) > CLASS_LIMIT:
        return f"the class has {len(device_class)} characters and may have {CLASS_LIMIT}"
    # A vendor or class of one character crashes the library up to v1.1.0, and the runtime with it.
    for what, name in (("vendor", vendor), ("class", device_class)):
        if len(name) == 1:
            return f"{what} {shown(name)} has one character, which crashes older runtimes"
    return None


def device_problem(name: str) -> str | None:
    """Return why a device name is refused, or None if it is accepted."""
    if not name:
        return "is empty"
    if not _DEVICE.fullmatch(name):
        return (
            f"{shown(name)} must have only letters, digits, _, -, . and :, and start and end with a letter or a digit"
        )
    return None


def qualified_name(kind: str, device: str) -> str:
    """Return the name by which a container requests a device of a spec."""
    return f"{kind}={device}"


def parse_qualified_name(text: str) -> QualifiedName:
    """Split `vendor/class=device` into its parts.

    Raises:
        CDIError: the text is not a qualified device name.
    """
    kind, _, device = text.partition("=")
    problem = "the device name after = is missing" if not device else kind_problem(kind) or device_problem(device)
    if problem:
        raise CDIError(f"{shown(text)} is not a qualified device name such as example.com/cpu=cpu0: {problem}")
    return QualifiedName(*split_kind(kind), device)


def spec_file_name(kind: str, transient_id: str = "") -> str:
    """Return the file name of a kind's spec, or of a transient spec of that kind (for example one per claim).

    Raises:
        CDIError: the kind has no vendor and class.
    """
    vendor, device_class = split_kind(kind)
    if not vendor:
        raise CDIError(f"{shown(kind)} is not a vendor and a class such as example.com/cpu")
    # A slash would name a folder, and runtimes do not read folders below the directory.
    suffix = f"_{transient_id.replace('/', '_')}" if transient_id else ""
    return f"{vendor}-{device_class.replace('/', '_')}{suffix}.json"
