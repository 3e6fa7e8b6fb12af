"""Keeps a driver that is tried on a captured or synthetic machine from writing to the host.

A driver configures hardware through `Root.write`, which refuses on a captured or made-up machine. One that changes
kernel files by itself would change the host all the same: from here on it is refused as well, in this process. That is
a net with holes (a device that was opened for reading takes an ioctl, another program writes what it likes), not the
way.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from dranode.driver.machine.root import ReadOnlyMachineError

_KERNEL: Final = ("/sys/", "/proc/", "/dev/")
# Kernel files that any process may write, because they configure no hardware: its limits, terminal, shared memory.
_HARMLESS: Final = (
    *("/proc/self/", "/proc/thread-self/", "/sys/fs/cgroup/", "/dev/shm/", "/dev/pts/", "/dev/fd/"),  # noqa: S108 - compared, not used
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/ptmx"),
)
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What changes files, and which arguments of its audit event are their paths. A folder below /sys configures as well:
# resctrl and configfs are driven by mkdir.
_CHANGES: Final = {
    "open": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.link": (1,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
}
# Python cannot remove an audit hook, so the hook checks whether the guard is on.
_hooked: set[str] = set()
_guarding: set[str] = set()


def guard_host() -> None:
    """Refuse to change the kernel's files from now on."""
    _guarding.add("host")
    if not _hooked:
        _hooked.add("host")
        sys.addaudithook(_audit)


def release_host() -> None:
    """Allow it again, for a process that goes on with its own machine, such as a test."""
    _guarding.clear()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _CHANGES or not _guarding:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
        return
    for index in _CHANGES[event]:
        if isinstance(arguments[index], (str, bytes, os.PathLike)):
            _refuse(os.fsdecode(arguments[index]))


def _refuse(path: str) -> None:
    place = os.path.abspath(path)  # noqa: PTH100 - called for every file; Path costs more than the call
    harmless = (*_HARMLESS, f"/proc/{os.getpid()}/")
    if place.startswith(_KERNEL) and not place.startswith(harmless):
        raise ReadOnlyMachineError(place, "--machine names another machine, so the host is not written to")
