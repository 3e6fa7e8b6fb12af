"""Reads files in whose place somebody may have put something that is none."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: str | Path, most: int = -1) -> bytes:
    """Return the content of a regular file, or its first bytes; whoever opens a named pipe would wait for a writer.

    Args:
        path: the file.
        most: how many bytes to read at most; -1 for all.

    Raises:
        OSError: the file cannot be read, or it is none.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return file.read(most)
    finally:
        os.close(handle)
