"""`dranode serve` on a node whose clock is set while it runs: `launch.py CLOCK serve ...`.

The file CLOCK says by how many seconds (eight bytes, a double). The wall clock is shared by all programs of a machine,
so it is set for this one alone. Hardware is looked at every half second, since a made-up machine sends no kernel
events, and a Prepare waits for another claim's Unprepare for a moment alone, since one caller sends both.
"""

from __future__ import annotations

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
    """Have the process look at its node's clock, and wait briefly; call it before another module takes the first."""
    time.time = lambda: _wall() + CLOCK.unpack_from(_ahead)[0]
    # gRPC's deadlines are kept by its library, in C, which knows the machine's clock alone.
    for module in (_channel, _server, cygrpc):
        module.time = SimpleNamespace(**{**vars(time), "time": _wall})
    plugin.RESCAN_SECONDS = 0.5  # type: ignore[misc]
    node.CONFLICT_WAIT = 0.1  # type: ignore[misc]


def follow(clock: Path) -> None:
    """Name the node's clock."""
    global _ahead  # noqa: PLW0603 - what stands for the machine's own
    with clock.open("rb") as file:
        _ahead = mmap.mmap(file.fileno(), CLOCK.size, prot=mmap.PROT_READ)


if __name__ == "__main__":
    set_up()
    follow(Path(sys.argv.pop(1)))
    from dranode.driver.cli import main

    main()
