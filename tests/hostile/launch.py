"""Runs `dranode serve` with a wall clock that can be set while it runs: `launch.py CLOCK serve ...`.

The file CLOCK holds the offset in seconds (eight bytes, a double). All programs of a machine share its wall clock, so
the clock is set in this process only. Hardware is checked every half second, since a made-up machine sends no kernel
events. A Prepare waits only briefly for another claim's Unprepare, since one caller sends both.
"""

import mmap
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from grpc import _channel, _server
from grpc._cython import cygrpc

from dranode.driver.claims import plugin
from dranode.driver.node import node

CLOCK: Final = struct.Struct("d")
_wall = time.time
_ahead: bytes | mmap.mmap = CLOCK.pack(0.0)


def set_up() -> None:
    """Use the node's clock and short waits; call it before another module imports `time`."""
    time.time = lambda: _wall() + CLOCK.unpack_from(_ahead)[0]
    # gRPC's C library keeps its deadlines by the machine's real clock.
    for module in (_channel, _server, cygrpc):
        module.time = SimpleNamespace(**{**vars(time), "time": _wall})
    plugin.RESCAN_SECONDS = 0.5  # type: ignore[misc]
    node.CONFLICT_WAIT = 0.1  # type: ignore[misc]


def follow(clock: Path) -> None:
    """Map the node's clock file."""
    global _ahead  # noqa: PLW0603 - replaces the machine's clock
    with clock.open("rb") as file:
        _ahead = mmap.mmap(file.fileno(), CLOCK.size, prot=mmap.PROT_READ)


if __name__ == "__main__":
    set_up()
    follow(Path(sys.argv.pop(1)))
    from dranode.driver.cli import main

    main()
