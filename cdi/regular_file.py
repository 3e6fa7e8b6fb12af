"""Reads files without being blocked by something else in their place.

Opening a named pipe waits for a writer, and a device such as `/dev/zero` has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, BinaryIO, Final

_CHUNK: Final = 1 << 20
# More than any file that is read as a whole. The dump of a cluster with 5,000 nodes is the largest.
_MOST: Final = 1 << 30


def read_to_end(file: IO[bytes]) -> bytes:
    """Return the rest of an open file or stream.

    Raises:
        OSError: it cannot be read, or does not end within 1 GiB.
    """
    parts = [file.read(_CHUNK)]
    while parts[-1]:
        if len(parts) * _CHUNK > _MOST:
            raise OSError(errno.EFBIG, f"it does not end within {_MOST >> 30} GiB")
        parts.append(file.read(_CHUNK))
    return b"".join(parts)


def read_regular(path: str | Path, most: int = -1) -> bytes:
    """Return the content of a regular file, or its first bytes; do not block on a named pipe.

    Args:
        path: the file.
        most: how many bytes to read at most; -1 for all.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger than 1 GiB.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    # The open file is checked and not the path, which may lead elsewhere by now.
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if most < 0 and status.st_size > _MOST:
            raise OSError(errno.EFBIG, f"it is larger than {_MOST >> 30} GiB", str(path))
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return read_to_end(file) if most < 0 else file.read(most)
    finally:
        os.close(handle)


def open_given(path: str | Path) -> BinaryIO:
    """Open a file that a user named: a regular file, a device, or a pipe without a name.

    Such a pipe is `/dev/stdin` after a `|`, or what a shell passes for `<(command)`. It always has a writer.

    Raises:
        OSError: the file cannot be opened, or it is a folder or a named pipe.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_named_pipe(handle, path)
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def _refuse_named_pipe(handle: int, path: str | Path) -> None:
    if not stat.S_ISFIFO(os.fstat(handle).st_mode):
        return
    try:
        # Linux shows a pipe without a name as `pipe:[<inode>]`, and a named one by its path.
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
    except FileNotFoundError:
        return  # another system, where the two cannot be told apart
    if not name.startswith("pipe:"):
        raise OSError(errno.EINVAL, "it is a named pipe; name a file, or pipe into /dev/stdin", str(path))


def read_given(path: str | Path) -> bytes:
    """Return the content of a file that a user named, as `open_given` opens it.

    Raises:
        OSError: the file cannot be opened or read, is a folder or a named pipe, or does not end within 1 GiB.
    """
    with open_given(path) as file:
        return read_to_end(file)
