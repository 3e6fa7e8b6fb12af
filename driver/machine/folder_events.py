"""The kernel's events about changes in one folder (inotify(7)), so that callers need not read every file.

No thread is needed: events wait in the kernel until they are read. A write to an existing file also makes an event,
through any bind mount of the folder.
"""

import ctypes
import os
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# <sys/inotify.h>: MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF, ONLYDIR.
_ASKED: Final = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x0100_0000
# DELETE_SELF, MOVE_SELF, UNMOUNT, Q_OVERFLOW, IGNORED: events may be missing after these.
_LOST: Final = 0x400 | 0x800 | 0x2000 | 0x4000 | 0x8000
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 1 << 16


class FolderEvents:
    """The events of a folder, which need not exist yet and may be replaced by another one."""

    def __init__(self, folder: Path) -> None:
        """Watch nothing until the first call of `names`."""
        self._folder = folder
        self._close: weakref.finalize[[int], FolderEvents] | None = None
        self._handle = -1
        self._identity: tuple[int, int] | None = None

    def names(self) -> frozenset[str] | None:
        """Return the names that had events since the last call.

        None means that anything may have changed: on the first call, after lost events, and always on a system without
        inotify.
        """
        # A watch belongs to the folder, not to its path, so a new folder at this path needs a new watch.
        identity = self._identify()
        if self._close is None or identity != self._identity:
            # The watch begins before the caller reads the folder, so no change in between is missed.
            self._open(identity)
            return None
        names: set[str] = set()
        try:
            while True:
                for mask, name in _events(os.read(self._handle, _BUFFER)):
                    if mask & _LOST:
                        self.close()
                        return None
                    names.add(name)
        except BlockingIOError:
            return frozenset(names)

    @property
    def fileno(self) -> int | None:
        """Return the file descriptor that is readable while events wait; None while nothing is watched."""
        return None if self._close is None else self._handle

    def close(self) -> None:
        """Stop watching until the next call of `names`."""
        if self._close is not None:
            self._close()
            self._close = None

    def _identify(self) -> tuple[int, int] | None:
        try:
            status = self._folder.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open(self, identity: tuple[int, int] | None) -> None:
        self.close()
        if identity is None:
            return
        # Python's standard library has no inotify.
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "inotify_init1"):
            return
        handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        # The user's limit of inotify instances or the process's limit of open files is reached.
        if handle < 0:
            return
        # The folder is gone, is not a folder, or the user's limit of watches is reached.
        if libc.inotify_add_watch(handle, os.fsencode(self._folder), ctypes.c_uint32(_ASKED)) < 0:
            os.close(handle)
            return
        self._handle, self._identity = handle, identity
        self._close = weakref.finalize(self, os.close, handle)


def _events(data: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))  # the kernel pads names with NULs
        at += length
