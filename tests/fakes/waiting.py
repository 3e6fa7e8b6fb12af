"""How tests wait for what other threads and processes do: until it has come about, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# Seconds after which something that a test awaits will not come. A test waits so long only before it fails, so that
# even a machine with twenty programs on every CPU is given enough.
PATIENCE: Final = 180.0


def eventually(holds: Callable[[], T], otherwise: Callable[[], object] = str) -> T:
    """What `holds` gives as soon as it is true; `otherwise` says more if it never is."""
    ends = time.monotonic() + PATIENCE
    while not (seen := holds()):
        assert time.monotonic() < ends, f"it did not come about within {PATIENCE:.0f} s: {otherwise()}"
        time.sleep(0.005)
    return seen
