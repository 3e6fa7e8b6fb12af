"""Reads what only the running machine can say beyond its files: who owns a device node."""

from __future__ import annotations

import os
from typing import Protocol

from dranode.driver.core.api.errors import MachineError


class Live(Protocol):
    """A machine that runs. Paths are relative to its root, without a leading slash, as in `Root`."""

    def group(self, path: str) -> int | None:
        """The group that owns a file; None if there is no such file.

        Raises:
            MachineError: it cannot be looked at.
        """


class GPUHost:
    """The machine that we run on."""

    def group(self, path: str) -> int | None:
        """The group that owns a file; None if there is no such file.

        Raises:
            MachineError: it cannot be looked at.
        """
        try:
            return os.stat(f"/{path}").st_gid  # noqa: PTH116 - one system call, no object
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(f"the group of /{path} cannot be read: {error.strerror}") from error
