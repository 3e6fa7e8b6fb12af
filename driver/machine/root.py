"""A file tree that holds `sys/`, and often `proc/` and `dev/`; only the machine that runs us can be written to.

Paths are relative to the root, without a leading slash: `sys/devices/system/cpu/online`.
"""

from __future__ import annotations

from typing import Protocol


class Root(Protocol):
    """A machine's files. Every method but `exists` raises OSError as the kernel would."""

    def read_bytes(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read (some sysfs files answer EIO or EINVAL).
        """

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted; links are followed.

        Raises:
            FileNotFoundError: there is no such folder.
        """

    def readlink(self, path: str) -> str:
        """The target of a symbolic link, as it stands.

        Raises:
            OSError: the path is no link (EINVAL) or does not exist.
        """

    def resolve(self, path: str) -> str:
        """The path with every link in it followed, relative to the root.

        Raises:
            FileNotFoundError: the path leads nowhere or out of the tree.
        """

    def exists(self, path: str) -> bool:
        """Whether the path leads somewhere."""

    def device_number(self, path: str) -> tuple[str, int, int]:
        """Type (`c` or `b`), major and minor of a device node.

        Raises:
            FileNotFoundError: there is no such node.
            OSError: it is no device node.
        """

    def write(self, path: str, content: str) -> None:
        """Write to a kernel file that is there, in one piece: the way in which a driver configures hardware.

        Raises:
            OSError: the kernel refuses, or there is no such file; EROFS where the machine is captured or made up, so
                that a driver which is tried on one leaves alone what it runs on.
        """


def read_text(root: Root, path: str) -> str:
    """A file's text without the surrounding white space and the NULs that some kernels leave at the end.

    Raises:
        OSError: the file cannot be read.
    """
    return root.read_bytes(path).decode("utf-8", "replace").strip("\0 \t\r\n")
