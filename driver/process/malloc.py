"""glibc's allocator, set for a daemon that is small on every node (mallopt(3))."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_ARENA_MAX: Final = -8
_TRIM_FROM: Final = 128 * 1024


def stay_small() -> None:
    """Make all threads share one arena, and return memory to the kernel after a burst (a large LIST takes tens of MiB).

    Call it before the first thread starts. It does nothing with other C libraries, which have no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM)
