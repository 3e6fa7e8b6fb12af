"""The machine that the process runs on, through the kernel's own files."""

# ruff: noqa: D102 - the methods are documented in the protocol Root

import errno
import os
import stat
from typing import Final

from dranode.cdi.regular_file import read_regular

HOST: Final = "host"
"""The value of `--machine` that stands for the machine that the process runs on."""


class HostRoot:
    """The real `/sys`, `/proc` and `/dev`; the kernel follows the links.

    Args:
        prefix: where they are mounted: `/`, or a folder of a pod such as `/host`.
    """

    def __init__(self, prefix: str = "/") -> None:
        self._prefix = prefix.rstrip("/")

    def _place(self, path: str) -> str:
        if "\0" in path:  # from a damaged file; Python would raise a ValueError
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return f"{self._prefix}/{path}"

    def read_bytes(self, path: str) -> bytes:
        return read_regular(self._place(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._place(path)))  # noqa: PTH208 - names alone, without an object for each

    def readlink(self, path: str) -> str:
        return os.readlink(self._place(path))  # noqa: PTH115 - the target as written; Path would normalize it

    def resolve(self, path: str) -> str:
        return os.path.realpath(self._place(path), strict=True)[len(self._prefix) + 1 :]

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{self._prefix}/{path}")  # noqa: PTH110 - asked for every device; Path costs more than the call

    def device_number(self, path: str) -> tuple[str, int, int]:
        return _device(self._place(path))

    def write(self, path: str, content: str) -> None:
        place = self._place(path)
        try:
            handle = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
        except PermissionError as error:
            if _is_read_only(place):
                # A process with CAP_DAC_OVERRIDE gets this error from the write instead.
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), place) from error
            raise
        try:
            # In one call, because the kernel takes each write for a whole value.
            os.write(handle, content.encode())
        finally:
            os.close(handle)


def _is_read_only(place: str) -> bool:
    """Return whether the file's mode has no permission to write."""
    try:
        return not os.stat(place).st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)  # noqa: PTH116 - as above
    except OSError:
        return False


def _device(place: str) -> tuple[str, int, int]:
    status = os.stat(place)  # noqa: PTH116 - beside the other system calls
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    if not kind:
        raise OSError(errno.ENODEV, "is not a device node", place)
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)
