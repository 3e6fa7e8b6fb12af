"""Python's collector of cycles, kept from going through what a command reads and keeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def values_that_stay() -> Iterator[None]:
    """Make values that are kept until the process ends: no search for cycles goes through them, now or later.

    It is for commands that read much once and end; cycles among what is made here are never found.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
