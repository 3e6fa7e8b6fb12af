"""The file tree of a machine: `sys/`, and often `proc/` and `dev/`.

Paths are relative to the root, without a leading slash: `sys/devices/system/cpu/online`.
"""

import errno
from typing import Final, Protocol

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError

BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
"""The kernel's id of the current boot."""


class ReadOnlyMachineError(OSError):
    """A write to a machine that is neither the running one nor a scratch machine; EROFS."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EROFS, "a captured or made-up machine cannot be written to", path)


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
            ReadOnlyMachineError: the machine is captured or made up, so that a driver on trial never changes the host.
            OSError: the kernel refuses, or there is no such file. EPERM means that nobody may write the file, for
                example because the kernel places this interrupt itself. EACCES means that this process may not.
        """


def read_text(root: Root, path: str) -> str:
    """Return a file's text without surrounding white space, and without the NULs that some kernels append.

    Raises:
        OSError: the file cannot be read.
    """
    return root.read_bytes(path).decode("utf-8", "replace").strip("\0 \t\r\n")


def boot_id(root: Root) -> str:
    """Return the UUID of the current boot; empty if the machine has none (proc(5), `random/boot_id`)."""
    try:
        return read_text(root, BOOT_ID)
    except OSError:
        return ""


# Any file of a machine may be missing or unreadable. These functions return a value, or None if it is unknown. But if
# this process cannot open any file, that says nothing about the machine, so they raise `MachineError`.

# An integer attribute of a device is an int64 in the API.
_INT64_BITS: Final = 63
# The process or the system is out of file descriptors or memory.
_OUR_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV})
"""The kernel's errors for what does not exist. ENODEV: a device or cgroup that was removed during a read, no device."""


def read_attribute(root: Root, path: str) -> str | None:
    """Return a file's text without white space around it; None if it cannot be read."""
    try:
        return read_text(root, path)
    except OSError as error:
        _refuse_our_own(path, error)
        return None


def attribute_if_there(root: Root, path: str) -> str | None:
    """Return a file's text without white space around it; None if there is no such file.

    Raises:
        MachineError: the file exists and cannot be read.
    """
    try:
        return read_text(root, path)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise _unreadable(path, error) from error


def why_unread(root: Root, path: str) -> str:
    """Return why an existing file cannot be read; empty if it can, or if there is no such file.

    Raises:
        MachineError: this process cannot open any file.
    """
    try:
        root.read_bytes(path)
    except OSError as error:
        _refuse_our_own(path, error)
        return "" if error.errno in GONE else str(_unreadable(path, error))
    return ""


def number(root: Root, path: str, base: int = 0) -> int | None:
    """Return the number in a file (`0x10de`, `16`); None if the file cannot be read or contains something else."""
    return integer(read_attribute(root, path) or "", base)


def integer(digits: str, base: int = 0) -> int | None:
    """Parse a number; None if it is not a number, or too large for an attribute."""
    try:
        value = int(digits, base)
    except ValueError:
        return None
    return value if value.bit_length() <= _INT64_BITS else None


def cpu_mask(root: Root, path: str) -> CPUSet:
    """Return the CPU mask in a file; no CPUs if the file cannot be read or contains something else."""
    try:
        return CPUSet.parse_mask(read_attribute(root, path) or "0")
    except ValueError:
        return CPUSet()


def names(root: Root, path: str) -> list[str]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return root.listdir(path)
    except OSError as error:
        _refuse_our_own(path, error)
        return []


def all_names(root: Root, path: str) -> list[str]:
    """Return the names in a folder; none if there is no such folder.

    Raises:
        MachineError: the folder exists and cannot be read.
    """
    try:
        return root.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(path, error) from error


def link_name(root: Root, path: str) -> str | None:
    """Return the last part of a link's target (a driver, a PCI address, an IOMMU group); None if there is no link.

    Raises:
        MachineError: it cannot be determined whether there is one.
    """
    try:
        return root.readlink(path).rstrip("/").rpartition("/")[2] or None
    except OSError as error:
        if error.errno in GONE or error.errno == errno.EINVAL:  # EINVAL: it exists, but is not a link
            return None
        raise _unreadable(path, error) from error


def device_if_there(root: Root, path: str) -> tuple[str, int, int] | None:
    """Return type, major and minor of a device node, as `Root.device_number`; None if there is no such node.

    Raises:
        MachineError: it cannot be determined whether there is one.
    """
    try:
        return root.device_number(path)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise _unreadable(path, error) from error


def _refuse_our_own(path: str, error: OSError) -> None:
    if error.errno in _OUR_OWN:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> MachineError:
    return MachineError(f"/{path} cannot be read: {error.strerror or error}")
