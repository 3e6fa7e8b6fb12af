"""glibc's allocator, set for a daemon that is small on every node (mallopt(3))."""

from __future__ import annotations

import os
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_ARENA_MAX: Final = -8
_TRIM_FROM: Final = 128 * 1024
# The same settings, as glibc reads them before the program begins (mallopt(3)).
_ENVIRONMENT: Final = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_")


def stay_small() -> None:
    """Make all threads share one arena, and return memory to the kernel after a burst (a large LIST takes tens of MiB).

    Call it before the first thread starts. It does nothing with other C libraries, which have no such settings, and
    where the environment has made them, as it has in the image: loading `ctypes` takes 3 ms of a start.
    """
    if all(name in os.environ for name in _ENVIRONMENT):
        return
    import ctypes  # noqa: PLC0415 - see above

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM)
