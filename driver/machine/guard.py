"""What keeps a driver that is tried on a machine that is not ours from writing to the one that is.

A driver configures hardware through `Root.write`, which refuses on a captured or made-up machine. One that opens kernel
files by itself would change the host all the same: from here on it is refused as well, in this process.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Final

_KERNEL: Final = ("/sys/", "/proc/", "/dev/")
# What a process writes to that configures no hardware: its own limits, its terminal, memory that it shares, cgroups.
_HARMLESS: Final = (
    *("/proc/self/", "/proc/thread-self/", "/sys/fs/cgroup/", "/dev/shm/", "/dev/pts/", "/dev/fd/"),  # noqa: S108 - compared, not used
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/ptmx"),
)
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Python takes no audit hook back, so the one that was added looks whether it is to guard.
_hooked: set[str] = set()
_guarding: set[str] = set()


def guard_host() -> None:
    """Refuse to open the kernel's files for writing from now on."""
    _guarding.add("host")
    if not _hooked:
        _hooked.add("host")
        sys.addaudithook(_look)


def release_host() -> None:
    """Let them be opened again, for a process that goes on with its own machine: a test's."""
    _guarding.clear()


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _guarding:
        return
    path, _, flags = arguments
    if not isinstance(path, (str, bytes)) or not isinstance(flags, int) or not flags & _WRITES:
        return
    place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called for every file; Path costs more than the call
    harmless = (*_HARMLESS, f"/proc/{os.getpid()}/")
    if place.startswith(_KERNEL) and not place.startswith(harmless):
        raise OSError(errno.EROFS, "--machine names another machine, so the host is not written to", place)
