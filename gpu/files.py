"""Files of which any may be missing or fail to read: a value, or None for what is not told."""

from __future__ import annotations

from typing import Final

from dranode.driver.core.cpuset import CPUSet
from dranode.driver.machine.root import Root, read_text

_INT64_BITS: Final = 63


def text(root: Root, path: str) -> str | None:
    """A file's text without white space around it; None if it cannot be read."""
    try:
        return read_text(root, path)
    except OSError:
        return None


def number(root: Root, path: str, base: int = 0) -> int | None:
    """A file's number (`0x10de`, `16`); None if it cannot be read or is none."""
    return integer(text(root, path) or "", base)


def integer(digits: str, base: int = 0) -> int | None:
    """The number that is written; None if it is none, or none that an attribute could hold."""
    try:
        value = int(digits, base)
    except ValueError:
        return None
    return value if value.bit_length() <= _INT64_BITS else None


def cpu_mask(root: Root, path: str) -> CPUSet:
    """A file's CPU mask; no CPUs if it cannot be read or is none."""
    try:
        return CPUSet.parse_mask(text(root, path) or "0")
    except ValueError:
        return CPUSet()


def names(root: Root, path: str) -> list[str]:
    """The names in a folder; none if it cannot be read."""
    try:
        return root.listdir(path)
    except OSError:
        return []


def link_name(root: Root, path: str) -> str | None:
    """The last part of a link's target: a driver's name, a PCI address, an IOMMU group; None if there is no link."""
    try:
        return root.readlink(path).rstrip("/").rpartition("/")[2] or None
    except OSError:
        return None
