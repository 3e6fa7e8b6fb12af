"""The node's file tree: this machine's, or one that is mounted somewhere, as `kubectl debug node/...` does at /host."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.diagnosis.facts import PathState
from dranode.driver.machine.confined import ConfinedRoot
from dranode.driver.machine.folder import FolderFiles, HostRoot
from dranode.driver.machine.root import Root

_ANSWER_SECONDS: Final = 0.5


class HostError(DranodeError):
    """Something could not be looked at; the text says what and why."""


@dataclass(frozen=True, slots=True)
class NodeHost:
    """A node's files; paths are absolute as on the node.

    Attributes:
        prefix: where the node's root lies here.
        files: the same for reading.
    """

    prefix: Path
    files: Root

    @classmethod
    def at(cls, folder: str) -> NodeHost:
        """The node whose root lies at `folder`; `/` for this machine."""
        return cls(Path(folder), HostRoot() if folder == "/" else ConfinedRoot(FolderFiles(folder)))

    def place(self, path: str) -> Path:
        """Where a path of the node lies here; links are the node's, as far as the path exists."""
        inner = path.strip("/")
        missing: list[str] = []
        while inner:
            with contextlib.suppress(OSError):
                return self.prefix.joinpath(self.files.resolve(inner), *missing)
            inner, _, last = inner.rpartition("/")
            missing.insert(0, last)
        return self.prefix.joinpath(*missing)

    def text(self, path: str) -> str:
        """A file's text.

        Raises:
            OSError: it is not there or cannot be read.
        """
        return self.files.read_bytes(path.strip("/")).decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        """The names in a folder; none if it is not there or cannot be read.

        Raises:
            PermissionError: it may not be looked into.
        """
        try:
            return self.files.listdir(path.strip("/"))
        except PermissionError:
            raise
        except OSError:
            return []

    def folder_state(self, path: str) -> PathState:
        """Whether a folder is there and can be written.

        Raises:
            PermissionError: a folder on the way may not be looked into.
        """
        place = self.place(path)
        if not place.exists():
            return PathState.MISSING
        if not place.is_dir():
            return PathState.WRONG
        return PathState.THERE if os.access(place, os.W_OK | os.X_OK) else PathState.UNUSABLE

    def socket_state(self, path: str) -> PathState:
        """Whether a socket is there and somebody answers it.

        Raises:
            PermissionError: it may not be dialled.
        """
        place = self.place(path)
        try:
            if not stat.S_ISSOCK(place.stat().st_mode):
                return PathState.WRONG
            return PathState.THERE if _answers(place) else PathState.UNUSABLE
        except FileNotFoundError:
            return PathState.MISSING
        except NotADirectoryError:
            return PathState.WRONG


def _answers(place: Path) -> bool:
    # A folder's handle keeps the address short: a node that is mounted deep down has long paths.
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialled:
            dialled.settimeout(_ANSWER_SECONDS)
            dialled.connect(f"/proc/self/fd/{folder}/{place.name}")
            return True
    except PermissionError:
        raise
    except (BlockingIOError, TimeoutError):
        return True  # somebody listens and has many callers
    except OSError:
        return False
    finally:
        os.close(folder)
