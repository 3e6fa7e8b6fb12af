"""One driver's part in what holds containers to claims."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from dranode.api.errors import UnreadError
from dranode.driver.claims.answers import NOT_ENFORCED, NotEnforced, needs_enforcing, no_runtime
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored, EnforcementLost, Notify
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record
from dranode.driver.claims.status import DeviceState, prepared_states
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.unsolicited import EnforcementStatus
from dranode.driver.pinning.containers import Pinned
from dranode.driver.pinning.snapshot import PinSnapshot
from dranode.driver.process.threads import Fatal
from dranode.driver.serve.enforcement import ContainerAccess, Enforcement, PinningDriver
from dranode.driver.serve.usage import UsageWatch

# Starts what holds containers to claims once all drivers that pin are there.


class PinningPart(Protocol):
    """One driver's part in it: `dranode.driver.serve.pinning.Pinning`."""

    driver: PinningDriver
    enforcement: Enforcement | None

    def enforcement_of(self, drivers: tuple[PinningDriver, ...]) -> Enforcement:
        """Return what enforces the records of these drivers."""


class PinningTogether:
    """The drivers of a process that pin, until they start together.

    A runtime lists its containers once a connection. The list is judged by all of the records, so nothing
    connects before all of them can be looked up.
    """

    def __init__(self, count: int) -> None:
        """Wait for so many drivers."""
        self._count = count
        self._joined: list[PinningPart] = []

    def join(self, pinning: PinningPart) -> None:
        """Take in one more; with the last one all of them start."""
        self._joined.append(pinning)
        if len(self._joined) == self._count:
            enforcement = pinning.enforcement_of(tuple(each.driver for each in self._joined))
            for each in self._joined:
                each.enforcement = enforcement
            enforcement.start()


# How long a restart of the runtime may take. kubelet calls a runtime down after as long (kubelet.go,
# maxWaitForContainerRuntime).
GRACE_SECONDS: Final = 30.0
# The file in a driver's folder that says that claims were reported as not enforced, and have not been taken back.
REPORTED: Final = "not-enforced"


class Pinning:
    """Enforces one driver's records through NRI, perhaps together with those of others.

    Attributes:
        driver: whose records are enforced.
        socket: the runtime's NRI socket.
        enforcement: what enforces them; None while other drivers are waited for.
        usage: what claims use of the CPUs and the memory that they hold.
    """

    def __init__(
        self,
        node: NodeClaims,
        access: ContainerAccess,
        pod_resources: PodResources,
        fatal: Fatal,
        *,
        together: PinningTogether | None = None,
        reported: bool = False,
        **optional: Any,
    ) -> None:
        """Prepare to pin; `start` connects.

        Args:
            node: whose records are enforced.
            access: how containers are reached.
            pod_resources: kubelet's API that lists which containers have which claims.
            fatal: ends the process with a sentence.
            together: with whom it starts; None if this driver pins alone.
            reported: whether an earlier process has reported that no runtime is connected: it has had its time then.
            optional: as in `PinningDriver`.
        """
        self.driver = PinningDriver(node, **optional)
        self.socket = access.nri_socket
        self.enforcement: Enforcement | None = None
        self._access, self._pod_resources, self._fatal = access, pod_resources, fatal
        self._together = together or PinningTogether(1)
        self._reported = reported
        self.usage = UsageWatch(access.root, self.driver.name, self._running, self._snapshot)

    def enforcement_of(self, drivers: tuple[PinningDriver, ...]) -> Enforcement:
        """Return what enforces the records of these drivers."""
        return Enforcement(drivers, self._access, self._pod_resources, self._fatal)

    def start(self) -> None:
        """Take the records as they are and connect to the runtime, once all that pin together have been started."""
        self._together.join(self)

    def stop(self) -> None:
        """Disconnect; containers keep what they have. Drivers that pin together stop together."""
        if self.enforcement is not None:
            self.enforcement.stop()

    def become_active(self) -> None:
        """Enforce from now on, beginning with a look at what another instance may have left undone."""
        if self.enforcement is not None:
            self.enforcement.become_active()

    @property
    def synchronized(self) -> bool:
        """Return whether the runtime has listed its containers on the connection that is open."""
        return self.enforcement is not None and self.enforcement.client.synchronized

    def not_enforced(self) -> NotEnforced | None:
        """Return that no runtime has been connected for longer than a restart of it takes; None if that is not so."""
        if self.synchronized:
            self._reported = False
        away = 0.0 if self.enforcement is None else self.enforcement.client.away_seconds
        away = math.inf if self._reported else away
        return no_runtime(self.socket, GRACE_SECONDS) if away > GRACE_SECONDS else None

    @property
    def is_first(self) -> bool:
        """Return whether the NRI plug-in is called after this driver, whose figures are then the plug-in's."""
        return self.enforcement is None or self.enforcement.first is self.driver

    def status(self) -> EnforcementStatus:
        """Return how enforcement is doing."""
        return EnforcementStatus() if self.enforcement is None else self.enforcement.enforcer.status()

    def claims_in_use(self) -> frozenset[str] | None:
        """The UIDs of the claims that a container has; None while that is not certain of every container."""
        return self._in_use() if self._complete else None

    def in_use(self, ref: ClaimRef) -> bool | None:
        """Return whether a container has the claim, by the runtime or by kubelet; None if neither can say.

        Only the runtime can say that none has it: a kubelet that has just started does not list every pod that runs.
        """
        # Asked first: a runtime that lists its containers after this moment says nothing about what is known now.
        complete = self._complete
        if ref.uid in self._in_use() or self._pod_resources.in_use(self.driver.name, ref):
            return True
        return False if complete else None

    @property
    def _complete(self) -> bool:
        return self.enforcement is not None and self.enforcement.complete

    def _in_use(self) -> frozenset[str]:
        if self.enforcement is None:
            return frozenset()
        return self.enforcement.own(self.driver.name, self.enforcement.enforcer.claims_in_use())

    def _running(self) -> tuple[Pinned, ...] | None:
        return self.enforcement.enforcer.running() if self.enforcement is not None and self._complete else None

    def _snapshot(self) -> PinSnapshot:
        return PinSnapshot() if self.enforcement is None else self.enforcement.snapshot()


# The things that a serving instance has to hear before it may be active, besides its own ledger and hardware.


def unmet_needs(listener: Listener, pinning: Pinning | None, impediment: str | None) -> Iterator[str]:
    """Yield what an instance still lacks to be ready, one sentence each.

    What blocks new claims alone blocks them for both of two instances, so it keeps neither from becoming active: who
    pins has to be settled whatever is handed out. Therefore the caller says what counts.

    Args:
        listener: its sockets, and what kubelet has asked there.
        pinning: its connection to the container runtime; None if it pins no containers.
        impediment: what is in the way of its node's claims; None if nothing is, or if it does not count.
    """
    if not listener.calls.ready.is_set():
        yield "hardware and ledger have not been read yet"
    elif impediment is not None:
        yield impediment
    registration = listener.registration
    if not registration.asked.is_set():
        yield f"kubelet has not asked for the driver at {listener.sockets.registration}"
    elif not registration.registered:
        yield "kubelet has asked for the driver and not registered it"
    # An impediment that says so is this one, after a while.
    if pinning is not None and not pinning.synchronized and (impediment is None or not pinning.not_enforced()):
        yield f"the container runtime has not listed its containers yet over NRI at {pinning.socket}"


# Reports that containers are not held to claims because no container runtime is connected, and when they are again.


log = logging.getLogger(__name__)


class UnenforcedClaims:
    """The claims of one node that are reported as not enforced."""

    def __init__(self, node: NodeClaims, data: Path, notify: Notify, connected: Callable[[], bool]) -> None:
        """Go on from what an earlier process has reported.

        Args:
            node: whose claims.
            data: the driver's folder, where a file says that claims were reported.
            notify: makes it known.
            connected: whether a runtime is connected now; while one may be about to be, neither is reported.
        """
        self._connected = connected
        self._node = node
        self._note = data / REPORTED
        self._notify = notify
        # Of claims that another process has reported it is not known which.
        self._reported: frozenset[str] | None = None if self._note.exists() else frozenset()
        self._lost = False

    def check(self) -> None:
        """Report what has changed since the last look; what cannot be read now is left to the next one."""
        why = self._node.not_enforced()
        lost = why is not None and not why.chosen
        reported = self._lost or self._reported != frozenset()
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
            if self._reported is None or record.uid in self._reported:
                self._notify(ClaimRestored(record.ref, self._states(record, why)))
        self._note.unlink(missing_ok=True)
        self._reported = frozenset()

    def _states(self, record: Record, why: NotEnforced | None) -> tuple[DeviceState, ...]:
        return prepared_states(self._node.plugin, record, self._node.inventory, why)
