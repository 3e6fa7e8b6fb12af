"""How tests wait for other threads and processes: until a condition holds, however busy the machine is."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# The seconds after which a condition will never hold. Only a failing test waits this long, so the limit is generous
# enough for a machine with twenty programs on every CPU.
PATIENCE: Final = 180.0


def eventually(holds: Callable[[], T], otherwise: Callable[[], object] = str) -> T:
    """Return the value of `holds` as soon as it is true; `otherwise` adds a reason if it never is."""
    ends = time.monotonic() + PATIENCE
    while not (seen := holds()):
        assert time.monotonic() < ends, f"it did not come about within {PATIENCE:.0f} s: {otherwise()}"
        time.sleep(0.005)
    return seen
