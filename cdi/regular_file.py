"""Reads files without being blocked by something else in their place.

Opening a named pipe waits for a writer, and a device such as `/dev/zero` has no end.
"""

import errno
import os
import stat
from pathlib import Path
from typing import IO, BinaryIO, Final

_CHUNK: Final = 1 << 16
# In bytes. No file of a kernel, a driver or a configuration is as large as the first: `/proc/interrupts` has 18 MiB
# with 768 CPUs and 2,200 interrupts. The second is for ledgers and for documents, such as the dump of a cluster with
# 5,000 nodes.
MOST: Final = 64 << 20
LARGEST: Final = 1 << 30
_NULL: Final = os.makedev(1, 3)


def read_to_end(file: IO[bytes], most: int = MOST) -> bytes:
    """Return the rest of an open file or stream.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes.
    """
    parts: list[bytes] = []
    size = 0
    while part := file.read(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
    return b"".join(parts)


def read_regular(path: str | Path, most: int = MOST, *, first: int = 0) -> bytes:
    """Return the content of a regular file, or its first bytes; do not block on a named pipe.

    Args:
        path: the file.
        most: how many bytes it may have.
        first: read so many bytes alone, of a file of any size; 0 for all.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is too large.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    # The open file is checked and not the path, which may lead elsewhere by now.
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if first:
            return os.read(handle, first)
        # Plain system calls: a machine with 512 CPUs has thousands of files. One of the kernel may return less than was
        # asked for, so only an empty read is its end, and its status does not have its size.
        parts: list[bytes] = []
        size = 0
        while part := os.read(handle, _CHUNK):
            parts.append(part)
            size += len(part)
            if max(size, status.st_size) > most:
                raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
        return b"".join(parts)
    finally:
        os.close(handle)


def open_given(path: str | Path) -> BinaryIO:
    """Open a file that a user named: a regular file, a terminal, `/dev/null`, or a pipe without a name.

    Such a pipe is `/dev/stdin` after a `|`, or what a shell passes for `<(command)`. It always has a writer.

    Raises:
        OSError: the file cannot be opened, or it is a folder, a named pipe or a device, which may never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_others(handle, path)
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def _refuse_others(handle: int, path: str | Path) -> None:
    status = os.fstat(handle)
    device = stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and status.st_rdev != _NULL)
    if device and not os.isatty(handle):
        raise OSError(errno.EINVAL, "it is a device; name a file, or pipe into /dev/stdin", str(path))
    if not stat.S_ISFIFO(status.st_mode):
        return
    try:
        # Linux shows a pipe without a name as `pipe:[<inode>]`, and a named one by its path.
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
    except FileNotFoundError:
        return  # another system, where the two cannot be told apart
    if not name.startswith("pipe:"):
        raise OSError(errno.EINVAL, "it is a named pipe; name a file, or pipe into /dev/stdin", str(path))


def read_given(path: str | Path, most: int = MOST) -> bytes:
    """Return the content of a file that a user named, as `open_given` opens it.

    Raises:
        OSError: the file cannot be opened or read, is none that `open_given` opens, or has more than `most` bytes.
    """
    with open_given(path) as file:
        return read_to_end(file, most)
