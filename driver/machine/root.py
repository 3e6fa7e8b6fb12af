"""The file tree of a machine: `sys/`, and often `proc/` and `dev/`. Only the running machine can be written to.

Paths are relative to the root, without a leading slash: `sys/devices/system/cpu/online`.
"""

from __future__ import annotations

from typing import Final, Protocol

BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
"""Where the kernel says which boot this is."""


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
            OSError: the kernel refuses, or there is no such file. It is EROFS for a captured or synthetic machine, so
                that a driver which is tried on one does not change the host; EPERM for a file that nobody may write,
                as of an interrupt that the kernel places itself; EACCES where this process lacks the right.
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
