"""`dranode serve` on a node whose clock is set while it runs: `launch.py CLOCK serve ...`.

The file CLOCK says by how many seconds. The wall clock is shared by all programs of a machine, so it is set for this
one alone. Hardware is looked at every half second, since a made-up machine sends no kernel events, and a Prepare waits
for another claim's Unprepare for a moment alone, since one caller sends both.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from dranode.driver.core.claims import plugin
from dranode.driver.node import patience

_wall = time.time


def set_up(clock: Path) -> None:
    """Have the process see the node's clock."""

    def now() -> float:
        with contextlib.suppress(OSError, ValueError):
            return _wall() + float(clock.read_text())
        return _wall()

    time.time = now
    # Before another module takes the first.
    plugin.RESCAN_SECONDS = 0.5  # type: ignore[misc]
    patience.CONFLICT_WAIT = 0.1  # type: ignore[misc]


if __name__ == "__main__":
    set_up(Path(sys.argv.pop(1)))
    from dranode.driver.cli import main

    main()
