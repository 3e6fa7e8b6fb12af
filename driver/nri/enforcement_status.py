"""The state of enforcement, for metrics, health and `doctor`."""

from __future__ import annotations

import msgspec

from dranode.driver.nri.events import RuntimePeer


class EnforcementStatus(msgspec.Struct, frozen=True):
    """The state of enforcement that metrics, health and `doctor` show.

    Attributes:
        runtime: the runtime at the other end; None while there is none.
        containers: how many are known.
        waiting: how many have a mask that is not (yet) the right one.
        lag: for how many seconds the first of them has been waiting.
        refused: container creations that were refused, since start.
        updates: masks that were sent to containers that existed, since start.
        drifts: containers that were found on other CPUs than they should have, since start.
        unpinned: containers that were found without a CPU set when a runtime connected, since start.
        reconnections: those made to mend masks, since start.
        connections: connections to a runtime, since start.
    """

    runtime: RuntimePeer | None = None
    containers: int = 0
    waiting: int = 0
    lag: float = 0.0
    refused: int = 0
    updates: int = 0
    drifts: int = 0
    unpinned: int = 0
    reconnections: int = 0
    connections: int = 0
