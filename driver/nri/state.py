"""The state of one runtime's containers, and whether this instance of the driver answers for them."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.nri.events import RuntimePeer
from dranode.driver.pinning.container_index import ContainerChange, Containers
from dranode.driver.pinning.containers import ContainerUpdate
from dranode.driver.pinning.drift import Drift, drifted
from dranode.driver.pinning.enforcement import Allowed

log = logging.getLogger(__name__)


class EnforcementStatus(msgspec.Struct, frozen=True):
    """The state of enforcement, for metrics, health and `doctor`. All counters begin at the start of the process.

    Attributes:
        runtime: the runtime that is connected; None while there is none.
        containers: the number of known containers.
        waiting: the number of containers that do not have the right mask yet.
        lag: for how many seconds the first of them has been waiting.
        refused: the number of container creations that were refused.
        updates: the number of masks that were sent to existing containers.
        drifts: the number of containers that were found on other CPUs than they should have.
        unpinned: the number of containers that were found without a CPU set when a runtime connected.
        reconnections: the number of reconnections to correct masks.
        connections: the number of connections to a runtime.
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


# How long a runtime may take to apply the masks that it was sent, one after another, in seconds. A call from it ends
# that time earlier.
_SETTLING: Final = 10.0


class RuntimeState(msgspec.Struct):
    """The containers of one runtime, and what they were sent. The thread that owns the connection changes them.

    Attributes:
        clock: returns seconds, monotonic.
        containers: the known containers.
        status: the counters.
        drifts: what the verifier, another thread, has found since the last decision.
        silent: whether another instance answers the present request, and counts it.
        elsewhere: whether another instance may have moved containers since this one knew their masks.
        out_of_turn: whether unsolicited updates have not been answered yet.
        resized: the container that the last request was to update; its own update comes last.
    """

    clock: Callable[[], float]
    containers: Containers = msgspec.field(default_factory=Containers)
    status: EnforcementStatus = msgspec.field(default_factory=EnforcementStatus)
    drifts: tuple[Drift, ...] = ()
    silent: bool = False
    elsewhere: bool = False
    out_of_turn: bool = False
    resized: str = ""
    # When containers were last sent a mask.
    _sent_at: Mapping[str, float] = msgspec.field(default_factory=dict)

    def mended(self) -> Containers:
        """Return the containers, after noting the drifts that were found in the kernel since the last decision."""
        drifts, self.drifts = self.drifts, ()
        if drifts:
            self.containers.apply(drifted(self.containers, drifts))
        return self.containers

    def note(self, allowed: Allowed) -> tuple[ContainerUpdate, ...]:
        """Note a decision, and return the updates to send."""
        for warning in allowed.warnings:
            log.warning("%s", warning)
        self.containers.apply(allowed.change)
        if allowed.updates and not self.silent:
            self.status = replace(self.status, updates=self.status.updates + len(allowed.updates))
        if allowed.updates:
            now = self.clock()
            self._sent_at = {**self.moving(), **{update.container_id: now for update in allowed.updates}}
        return allowed.updates

    def take_back(self, ids: Iterable[str]) -> None:
        """Note that updates were decided but did not arrive, so that these containers may have other resources."""
        late = map(self.containers.get, ids)
        self.containers.apply(ContainerChange(tuple(pinned.with_unknown_mask() for pinned in late if pinned)))

    def called(self) -> None:
        """Note that the runtime calls: it has applied, or failed to apply, the updates of earlier answers.

        A runtime makes one call after another, and holds its lock until the answer has been carried out.
        """
        # Unsolicited updates are applied outside the runtime's calls, so a call says nothing about them.
        if not self.out_of_turn:
            self._sent_at = {key: at for key, at in self._sent_at.items() if key == self.resized}
        self.resized = ""

    def moving(self) -> dict[str, float]:
        """Return the ids of containers that were sent a mask a moment ago, with the time at which it was sent."""
        now = self.clock()
        return {key: at for key, at in self._sent_at.items() if now - at < _SETTLING}


class Instance:
    """The role of this instance of the driver: alone, as here, or one of two during a rolling update (`Authority`).

    The runtime calls both instances. Both decide everything, so that either can continue alone, but only one answers.
    """

    @property
    def active(self) -> bool:
        """Return whether this instance sends unsolicited updates."""
        return True

    @property
    def speaks(self) -> bool:
        """Return whether this instance, and not the other one, may change containers when the runtime asks.

        That is the active instance, or another one as long as the active one is not connected to the runtime.
        """
        return True

    def adjusts(self, request: str) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether this instance answers the request with changes."""
        return True

    def connected(self) -> None:
        """Note that a runtime sends requests to this instance from now on."""

    def disconnected(self) -> None:
        """Note that no runtime sends requests to this instance any more."""


ALONE: Final = Instance()
"""The only instance: it answers everything."""
