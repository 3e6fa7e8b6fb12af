"""Sizes of huge pages as cgroups and the OCI runtime specification write them: `64KB`, `2MB`, `1GB`.

Source: opencontainers/runtime-spec, config-linux.md, "Huge page limits": a number and a unit prefix, counted in 1,024s.
"""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = ("", "K", "M", "G", "T")
_NAME: Final = re.compile(r"([0-9]{1,9})([KMGT]?)B", re.ASCII)


def page_size_name(size: int) -> str:
    """Return what cgroups call pages of so many bytes: `2MB`."""
    unit = 0
    while size % 1024 == 0 and unit + 1 < len(_UNITS):
        size, unit = size // 1024, unit + 1
    return f"{size}{_UNITS[unit]}B"


def page_size_of(name: str) -> int | None:
    """Return the bytes of a page size such as `2MB`; None if it is none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) * 1024 ** _UNITS.index(match[2]) or None if match else None
