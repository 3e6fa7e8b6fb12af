"""Sizes of huge pages, and what the kernel, Kubernetes and the driver call them."""

from __future__ import annotations

import re
from typing import Final

from dranode.api import Quantity

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# The kernel's folder of a size (Documentation/admin-guide/mm/hugetlbpage.rst).
_FOLDER: Final = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
_RESOURCE: Final = "hugepages-"
_UNITS: Final = ("", "k", "m", "g", "t")


def size_of_folder(name: str) -> int | None:
    """Return the page size in bytes of a folder `hugepages-2048kB`; None if that is no such folder."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) * KIB or None if match else None


def folder_of(size: int) -> str:
    """Return the kernel's folder of a page size: `hugepages-2048kB`."""
    return f"{_RESOURCE}{size // KIB}kB"


def short_name(size: int) -> str:
    """Return a page size as devices and classes name it: `2m`, `1g`."""
    unit = 0
    while size % KIB == 0 and unit + 1 < len(_UNITS):
        size, unit = size // KIB, unit + 1
    return f"{size}{_UNITS[unit]}"


def kind_name(size: int) -> str:
    """Return what devices of memory in pages of this size begin with: `memory`, or `hugepages-2m`; 0 is ordinary."""
    return f"{_RESOURCE}{short_name(size)}" if size else "memory"


def resource_name(size: int) -> str:
    """Return what Kubernetes calls pages of this size in requests and limits: `hugepages-2Mi`."""
    return f"{_RESOURCE}{Quantity.binary(size)}"


def size_of_resource(name: str) -> int | None:
    """Return the page size of `hugepages-2Mi`; None if that is no such resource."""
    if not name.startswith(_RESOURCE):
        return None
    try:
        size = Quantity(name.removeprefix(_RESOURCE)).value
    except ValueError:
        return None
    return size if isinstance(size, int) and size > 0 else None
