"""The file tree of a machine: `sys/`, and often `proc/` and `dev/`. Only a few of them can be written to.

Paths are relative to the root, without a leading slash: `sys/devices/system/cpu/online`.
"""

from __future__ import annotations

import errno
from typing import Final, Protocol

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError

BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
"""Where the kernel says which boot this is."""


class ReadOnlyMachineError(OSError):
    """A machine was to be written to that is neither the running one nor a scratch machine; EROFS."""

    def __init__(self, path: str, reason: str = "a captured or made-up machine is not written to") -> None:
        super().__init__(errno.EROFS, reason, path)


class Root(Protocol):
    """A machine's files. Every method but `exists` raises OSError as the kernel would."""

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read (some sysfs files answer EIO or EINVAL).
        """

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; links are followed.

        Raises:
            FileNotFoundError: there is no such folder.
        """

    def readlink(self, path: str) -> str:
        """Return the target of a symbolic link as it is written.

        Raises:
            OSError: the path is not a link (EINVAL) or does not exist.
        """

    def resolve(self, path: str) -> str:
        """Follow every link in a path, and return the result relative to the root.

        Raises:
            FileNotFoundError: the path leads nowhere or out of the tree.
        """

    def exists(self, path: str) -> bool:
        """Return whether the path exists, with its links followed."""

    def device_number(self, path: str) -> tuple[str, int, int]:
        """Return type (`c` or `b`), major and minor of a device node.

        Raises:
            FileNotFoundError: there is no such node.
            OSError: the file is not a device node.
        """

    def write(self, path: str, content: str) -> None:
        """Write to an existing kernel file with a single write; drivers configure hardware in this way.

        Raises:
            ReadOnlyMachineError: it is a captured or made-up machine: a driver that is tried does not change the host.
            OSError: the kernel refuses, or there is no such file. It is EPERM for a file that nobody may write, as of
                an interrupt that the kernel places itself; EACCES where this process lacks the right.
        """


def read_text(root: Root, path: str) -> str:
    """Return a file's text without surrounding white space, and without the NULs that some kernels append.

    Raises:
        OSError: the file cannot be read.
    """
    return root.read_bytes(path).decode("utf-8", "replace").strip("\0 \t\r\n")


def boot_id(root: Root) -> str:
    """Return which boot of the kernel this is, as a UUID; empty if it does not say (proc(5), `random/boot_id`)."""
    try:
        return read_text(root, BOOT_ID)
    except OSError:
        return ""


# Files of which any may be missing or fail to read: a value, or None for what is unknown.  Where it is this process
# that can open nothing, nothing follows about the machine: that is a `MachineError`.

_INT64_BITS: Final = 63
_OUR_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# ENODEV: a device that goes while its files are read, or what is there is no device node.
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV})


def read_attribute(root: Root, path: str) -> str | None:
    """A file's text without white space around it; None if it cannot be read."""
    try:
        return read_text(root, path)
    except OSError as error:
        _refuse_our_own(path, error)
        return None


def attribute_if_there(root: Root, path: str) -> str | None:
    """A file's text without white space around it; None if there is no such file.

    Raises:
        MachineError: there is one, and it cannot be read.
    """
    try:
        return read_text(root, path)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unreadable(path, error) from error


def why_unread(root: Root, path: str) -> str:
    """Return why a file that is there cannot be read; empty if it can, or if there is no such file.

    Raises:
        MachineError: this process can open no file.
    """
    try:
        root.read_bytes(path)
    except OSError as error:
        _refuse_our_own(path, error)
        return "" if error.errno in _GONE else str(_unreadable(path, error))
    return ""


def number(root: Root, path: str, base: int = 0) -> int | None:
    """A file's number (`0x10de`, `16`); None if it cannot be read or is none."""
    return integer(read_attribute(root, path) or "", base)


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
        return CPUSet.parse_mask(read_attribute(root, path) or "0")
    except ValueError:
        return CPUSet()


def names(root: Root, path: str) -> list[str]:
    """The names in a folder; none if it cannot be read."""
    try:
        return root.listdir(path)
    except OSError as error:
        _refuse_our_own(path, error)
        return []


def all_names(root: Root, path: str) -> list[str]:
    """The names in a folder; none if there is no such folder.

    Raises:
        MachineError: there is one, and it cannot be read.
    """
    try:
        return root.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(path, error) from error


def link_name(root: Root, path: str) -> str | None:
    """The last part of a link's target: a driver's name, a PCI address, an IOMMU group; None if there is no link.

    Raises:
        MachineError: whether there is one cannot be seen.
    """
    try:
        return root.readlink(path).rstrip("/").rpartition("/")[2] or None
    except OSError as error:
        if error.errno in _GONE or error.errno == errno.EINVAL:  # EINVAL: what is there is no link
            return None
        raise _unreadable(path, error) from error


def device_if_there(root: Root, path: str) -> tuple[str, int, int] | None:
    """Type, major and minor of a device node, as `Root.device_number`; None if there is no such node.

    Raises:
        MachineError: whether there is one cannot be seen.
    """
    try:
        return root.device_number(path)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unreadable(path, error) from error


def _refuse_our_own(path: str, error: OSError) -> None:
    if error.errno in _OUR_OWN:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> MachineError:
    return MachineError(f"/{path} cannot be read: {error.strerror or error}")
