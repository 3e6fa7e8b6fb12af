"""Reads what only the running machine can say beyond its files: who owns a device node."""

from __future__ import annotations

import os
from typing import Protocol


class Live(Protocol):
    """A machine that runs. Paths are relative to its root, without a leading slash, as in `Root`."""

    def group(self, path: str) -> int | None:
        """The group that owns a file; None if there is no such file."""


class GPUHost:
    """The machine that we run on."""

    def group(self, path: str) -> int | None:
        """The group that owns a file; None if there is no such file."""
        try:
            return os.stat(f"/{path}").st_gid  # noqa: PTH116 - one system call, no object
        except OSError:
            return None
