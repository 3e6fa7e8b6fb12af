"""Files that are written in place, where a reader could see half of them; by the kernel's events (inotify(7))."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dranode.sanity.breach import Unable

_MODIFY: Final = 0x2
_EVENT: Final = struct.Struct("iIII")


class FolderWrites:
    """The names of files in one folder that were written to under that very name."""

    def __init__(self, handle: int) -> None:
        """Take an inotify descriptor."""
        self._handle = handle

    def names(self) -> list[str]:
        """Those since the last look."""
        found: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                found |= dict.fromkeys(_named(os.read(self._handle, 1 << 16)))
        return list(found)


@contextlib.contextmanager
def folder_writes(folder: Path) -> Iterator[FolderWrites]:
    """Watch a folder.

    Raises:
        Unable: the system has no inotify, or no watch left.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        raise Unable("this system does not tell of writes (inotify)")
    handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0:
        raise Unable("the kernel gives no more inotify instances")
    try:
        if libc.inotify_add_watch(handle, os.fsencode(folder), _MODIFY) < 0:
            raise Unable(f"writes in {folder} cannot be watched")
        yield FolderWrites(handle)
    finally:
        os.close(handle)


def _named(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        length = _EVENT.unpack_from(data, at)[3]
        at += _EVENT.size
        yield os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length
