"""The containers that are enforced: what is known of them, what they were sent, and the figures of both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.core.pinning.container_index import ContainerChange, Containers
from dranode.driver.core.pinning.containers import ContainerUpdate
from dranode.driver.core.pinning.corrections import Drift, drifted
from dranode.driver.core.pinning.enforcement import Allowed
from dranode.driver.nri.enforcement_status import EnforcementStatus

log = logging.getLogger(__name__)

# Seconds that a runtime may take for the masks that it was sent, which it applies one after another, unless it says
# something before.
_SETTLING: Final = 10.0


class Enforced(msgspec.Struct):
    """The containers of one runtime. The thread that owns the connection changes them.

    Attributes:
        clock: seconds, monotonic.
        containers: those that are known.
        status: the figures so far.
        drifts: what the verifier, another thread, found since it was last looked at.
        silent: whether another instance answers what is decided now, and counts it.
        elsewhere: whether another instance may have moved containers since this one knew where they are.
        out_of_turn: whether updates are on their way that answer no request.
        resized: the container that the last request was to update, whose own update comes last.
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
        """Return the containers, with what the kernel was found to say of them since the last decision."""
        drifts, self.drifts = self.drifts, ()
        if drifts:
            self.containers.carry_out(drifted(self.containers, drifts))
        return self.containers

    def carry_out(self, allowed: Allowed) -> tuple[ContainerUpdate, ...]:
        """Take note of a decision, and return the updates that are to be sent."""
        for warning in allowed.warnings:
            log.warning("%s", warning)
        self.containers.carry_out(allowed.change)
        if allowed.updates and not self.silent:
            self.status = replace(self.status, updates=self.status.updates + len(allowed.updates))
        if allowed.updates:
            now = self.clock()
            self._sent_at = {**self.moving(), **{update.container_id: now for update in allowed.updates}}
        return allowed.updates

    def take_back(self, ids: Iterable[str]) -> None:
        """Take note that updates were decided and did not arrive: these containers may have other resources."""
        late = map(self.containers.get, ids)
        self.containers.carry_out(ContainerChange(tuple(each.in_doubt() for each in late if each)))

    def called(self) -> None:
        """Take note that the runtime calls: it has done, or failed to do, what its last calls were answered with.

        Runtimes call for one thing after another and hold their lock until its answer is carried out.
        """
        if not self.out_of_turn:
            self._sent_at = {key: at for key, at in self._sent_at.items() if key == self.resized}
        self.resized = ""

    def moving(self) -> dict[str, float]:
        """Return the ids of containers that were sent a mask a moment ago, with the time at which it was sent."""
        now = self.clock()
        return {key: at for key, at in self._sent_at.items() if now - at < _SETTLING}
