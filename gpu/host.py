"""What only the machine that runs us can do beyond being read: be written to, and tell who owns a device node."""

from __future__ import annotations

import os
from typing import Protocol

from dranode.driver.machine.folder import HostRoot


class Live(Protocol):
    """A machine that runs. Paths are relative to its root, without a leading slash, as in `Root`."""

    def write(self, path: str, content: str) -> None:
        """Write to a kernel file, in one piece.

        Raises:
            OSError: the kernel refuses, or there is no such file.
        """

    def group(self, path: str) -> int | None:
        """The group that owns a file; None if there is no such file."""


class GPUHost:
    """The machine that we run on."""

    def write(self, path: str, content: str) -> None:
        """Write to a kernel file, in one piece."""
        HostRoot().write(path, content)

    def group(self, path: str) -> int | None:
        """The group that owns a file; None if there is no such file."""
        try:
            return os.stat(f"/{path}").st_gid  # noqa: PTH116 - one system call, no object
        except OSError:
            return None
