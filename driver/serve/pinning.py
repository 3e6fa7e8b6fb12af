"""One driver's part in the enforcement of claims, and the reports when claims are not enforced."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from dranode.api.errors import UnreadError
from dranode.driver.claims.answers import NOT_ENFORCED, NotEnforced, needs_enforcing, no_runtime
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored, EnforcementLost, Notify
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record
from dranode.driver.claims.status import DeviceState, prepared_states
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.state import EnforcementStatus
from dranode.driver.pinning.containers import Pinned
from dranode.driver.pinning.snapshot import PinSnapshot
from dranode.driver.process.threads import Fatal
from dranode.driver.serve.nri_plugin import ContainerAccess, Enforcement, PinningDriver
from dranode.driver.serve.usage import UsageWatch

log = logging.getLogger(__name__)


class PinningTogether:
    """The drivers of a process that pin; they start enforcement together.

    A runtime lists its containers once in each connection, and the list has to be compared with the records of all
    drivers. So the connection is made only when all drivers are ready.
    """

    def __init__(self, count: int) -> None:
        """Wait for this number of drivers."""
        self._count = count
        self._joined: list[Pinning] = []

    def join(self, pinning: Pinning) -> None:
        """Add a driver; the last one starts the enforcement of all."""
        self._joined.append(pinning)
        if len(self._joined) == self._count:
            enforcement = pinning.enforcement_of(tuple(part.driver for part in self._joined))
            for part in self._joined:
                part.enforcement = enforcement
            enforcement.start()


# How long a restart of the runtime may take, in seconds. kubelet too reports a runtime as down after 30 s (kubelet.go,
# maxWaitForContainerRuntime).
GRACE_SECONDS: Final = 30.0
# This file in a driver's folder says that claims were reported as not enforced, and not yet as enforced again.
REPORTED: Final = "not-enforced"


class Pinning:
    """Enforces one driver's records through NRI, perhaps together with those of others.

    Attributes:
        driver: the driver whose records are enforced.
        socket: the runtime's NRI socket.
        enforcement: enforces them; None until all drivers are ready.
        usage: reads how much of their CPUs and memory claims use.
    """

    def __init__(
        self,
        driver: PinningDriver,
        access: ContainerAccess,
        pod_resources: PodResources,
        fatal: Fatal,
        *,
        together: PinningTogether | None = None,
        reported: bool = False,
    ) -> None:
        """Set pinning up; `start` connects.

        Args:
            driver: the driver whose records are enforced.
            access: how to reach containers.
            pod_resources: kubelet's API that lists which containers have which claims.
            fatal: ends the process with a sentence.
            together: the drivers that start together; None if this driver pins alone.
            reported: whether an earlier process has reported that no runtime is connected, so that the grace period is
                over.
        """
        self.driver = driver
        self.socket = access.nri_socket
        self.enforcement: Enforcement | None = None
        self._access, self._pod_resources, self._fatal = access, pod_resources, fatal
        self._together = together or PinningTogether(1)
        self._reported = reported
        self.usage = UsageWatch(access.root, self.driver.name, self._running, self._snapshot)

    def enforcement_of(self, drivers: tuple[PinningDriver, ...]) -> Enforcement:
        """Return the enforcement of the records of these drivers."""
        return Enforcement(drivers, self._access, self._pod_resources, self._fatal)

    def start(self) -> None:
        """Read the records and connect to the runtime, once all drivers that pin together were started."""
        self._together.join(self)

    def stop(self) -> None:
        """Disconnect; containers keep what they have. Drivers that pin together stop together."""
        if self.enforcement is not None:
            self.enforcement.stop()

    def become_active(self) -> None:
        """Enforce from now on, beginning with what another instance may have left undone."""
        if self.enforcement is not None:
            self.enforcement.become_active()

    @property
    def synchronized(self) -> bool:
        """Return whether the runtime has listed its containers in the present connection."""
        return self.enforcement is not None and self.enforcement.client.synchronized

    def not_enforced(self) -> NotEnforced | None:
        """Return why claims are not enforced: no runtime was connected for longer than its restart takes; else None."""
        if self.synchronized:
            self._reported = False
        away = 0.0 if self.enforcement is None else self.enforcement.client.away_seconds
        # A driver that is restarted while the runtime is away gets no second grace period.
        away = math.inf if self._reported else away
        return no_runtime(self.socket, GRACE_SECONDS) if away > GRACE_SECONDS else None

    @property
    def is_first(self) -> bool:
        """Return whether the NRI plug-in has the name of this driver, whose metrics then include the plug-in's."""
        return self.enforcement is None or self.enforcement.first is self.driver

    def status(self) -> EnforcementStatus:
        """Return the state of enforcement."""
        return EnforcementStatus() if self.enforcement is None else self.enforcement.enforcer.status()

    def claims_in_use(self) -> frozenset[str] | None:
        """Return the UIDs of the claims that containers have; None while that is not certain for every container."""
        return self._in_use() if self._certain else None

    def in_use(self, ref: ClaimRef) -> bool | None:
        """Return whether a container has the claim, according to the runtime or kubelet; None if neither knows.

        Only the runtime can say that no container has it: a kubelet that has just started does not list all pods yet.
        """
        # Read first: if the runtime lists its containers only after this line, what follows may lack some of them.
        certain = self._certain
        if ref.uid in self._in_use() or self._pod_resources.in_use(self.driver.name, ref):
            return True
        return False if certain else None

    @property
    def _certain(self) -> bool:
        return self.enforcement is not None and self.enforcement.certain

    def _in_use(self) -> frozenset[str]:
        if self.enforcement is None:
            return frozenset()
        return self.enforcement.own(self.driver.name, self.enforcement.enforcer.claims_in_use())

    def _running(self) -> tuple[Pinned, ...] | None:
        return self.enforcement.enforcer.running() if self.enforcement is not None and self._certain else None

    def _snapshot(self) -> PinSnapshot:
        return PinSnapshot() if self.enforcement is None else self.enforcement.snapshot()


def unmet_needs(listener: Listener, pinning: Pinning | None, impediment: str | None) -> Iterator[str]:
    """Yield what an instance still lacks to be ready, one sentence each.

    What only blocks new claims blocks them for both instances, so it must not keep one from becoming active: somebody
    has to pin containers in any case. Therefore the caller decides which impediment counts.

    Args:
        listener: its sockets, and what kubelet has asked there.
        pinning: its connection to the container runtime; None if it pins no containers.
        impediment: why its node cannot prepare claims; None if it can, or if the reason does not count.
    """
    if not listener.calls.ready.is_set():
        yield "hardware and ledger have not been read yet"
    elif impediment is not None:
        yield impediment
    registration = listener.registration
    if not registration.asked.is_set():
        yield f"kubelet has not asked for the driver at {listener.sockets.registration}"
    elif not registration.registered:
        yield "kubelet has asked for the driver, but has not registered it"
    # After the grace period the impediment says this already.
    if pinning is not None and not pinning.synchronized and (impediment is None or not pinning.not_enforced()):
        yield f"the container runtime has not listed its containers yet over NRI at {pinning.socket}"


class UnenforcedClaims:
    """Reports claims as not enforced while no container runtime is connected, and as enforced again afterwards."""

    def __init__(self, node: NodeClaims, data: Path, notify: Notify, connected: Callable[[], bool]) -> None:
        """Continue from what an earlier process has reported.

        Args:
            node: the node.
            data: the driver's folder, where a file says that claims were reported.
            notify: reports to people.
            connected: returns whether a runtime is connected now; while the grace period runs, nothing is reported.
        """
        self._connected = connected
        self._node = node
        self._note = data / REPORTED
        self._notify = notify
        # None if an earlier process has reported claims: which ones is not known.
        self._reported: frozenset[str] | None = None if self._note.exists() else frozenset()
        self._lost = False

    def check(self) -> None:
        """Report what has changed since the last check. If the ledger cannot be read now, the next check does it."""
        why = self._node.not_enforced()
        lost = why is not None and not why.chosen
        reported = self._lost or self._reported != frozenset()
        # That nothing is lost now is not enough for an all-clear: after a restart it may be the grace period. Either a
        # runtime is connected, or the options say that nothing is enforced.
        settled = lost or (reported and (why is not None or self._connected()))
        if not settled:
            return
        try:
            records = [record for record in self._node.records() if needs_enforcing(record)]
            self._report_lost(records, why) if why is not None and lost else self._report_again(records, why)
        except UnreadError:
            return
        self._lost = lost

    def _report_lost(self, records: Iterable[Record], why: NotEnforced) -> None:
        driver = self._node.plugin.driver
        if not self._lost:
            log.error("driver=%s: %s", driver, why.message)
            self._notify(EnforcementLost(why.message))
            # Survives a restart of the driver, which otherwise would never take the reports back.
            self._note.touch()
        before = self._reported or frozenset()
        for record in records:
            if record.uid not in before:
                states = self._states(record, why)
                self._notify(ClaimImpaired(record.ref, record.pods, NOT_ENFORCED, why.message, states))
        self._reported = frozenset(record.uid for record in records)

    def _report_again(self, records: Iterable[Record], why: NotEnforced | None) -> None:
        log.warning("driver=%s: the container runtime is connected, so claims are enforced", self._node.plugin.driver)
        for record in records:
            # After a restart it is unknown which claims were reported, so all are.
            if self._reported is None or record.uid in self._reported:
                self._notify(ClaimRestored(record.ref, self._states(record, why)))
        # Last, so that after a crash in between all claims are reported again.
        self._note.unlink(missing_ok=True)
        self._reported = frozenset()

    def _states(self, record: Record, why: NotEnforced | None) -> tuple[DeviceState, ...]:
        return prepared_states(self._node.plugin, record, self._node.inventory, why)
