"""Hands what one driver has read of a claim to the next one of the process, so that a claim over three costs one GET.

For a pod kubelet reads its claims and then calls their drivers one after the other: `Manager.prepareResources`
(`pkg/kubelet/cm/dra/manager.go`, 1.34 to 1.37) begins with a loop over the pod's claims (`ResourceClaims(...).Get`) and
ends with one over the drivers (`for plugin, claims := range batches`, in any order), which waits for each answer and is
left at the first error. What the first of them reads is therefore younger than kubelet's own read for this pod, and
as good for the drivers that follow.

What holds:

- A read is offered once the driver that made it, or took it, has answered `Prepared` for every claim of its call to a
  caller who still waits: any other answer ends kubelet's loop. It is offered to the drivers of this process that have
  devices in that allocation, to each once, for the claim of that namespace, name and UID. Errors are not offered.
- An Unprepare of the claim by any driver of this process ends the offer before anything is undone, also that of a
  driver which has not answered yet; a newer read replaces it; and a second after the read was begun it is over.
- A driver without an offer asks the API server, and waits for no other.

What the second is for. kubelet may leave its loop without this process seeing it (a driver of another process fails,
kubelet is killed), read the claim for another try or another pod, and call the driver that comes next first. That
driver then takes a read that is older than kubelet's, by a second at most. It has the same allocation nevertheless: the
API server lets nobody change `status.allocation` while it is set, nor remove it while `reservedFor` has an entry
(`validateResourceClaimStatusUpdate`), and the pod of the first try keeps its entry until kubelet has unprepared the
claim, because the pod is not finished for kubelet before (`PodMightNeedToUnprepareResources`). A pod that is deleted
by force can lose its entry sooner; then its claim would have to be allocated anew and its next pod be called for,
all within that second and without the Unprepare that kubelet owes the first.

What else is read of a claim: `reservedFor` goes on record as the pods that may use it, where a pod that comes after the
Prepare is missing either way; `status.devices` says what need not be written, and `kube.status` knows what it has
removed since.

Another instance of the driver (a rolling update) has a table of its own. An offer here is taken by the driver here, or
ended by its Unprepare here; what kubelet calls at the other instance asks the API server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.allocation import drivers_of
from dranode.driver.core.claims.calls import Claims
from dranode.driver.core.claims.held import ClaimRef

log = logging.getLogger(__name__)

# From before the request, so that what is handed over is never older, however long the answers take.
_SECONDS: Final = 1.0
# Far more than are on their way at a time. What no driver comes for goes with the next read.
_CAPACITY: Final = 256


class ClaimRead(msgspec.Struct, eq=False):
    """The read of a claim that is under way, or is kept for other drivers.

    Attributes:
        ref: the claim that was asked for.
        began: when, in seconds of the clock.
        had: the drivers that have had it.
        claim: what was read; None until then.
        drivers: those that have devices in its allocation.
        offered: whether it may be taken.
    """

    ref: ClaimRef
    began: float
    had: set[str]
    claim: ResourceClaim | None = None
    drivers: frozenset[str] = frozenset()
    offered: bool = False


class Handover:
    """The reads that drivers of one process may take from one another. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep nothing yet; `clock` gives seconds and never goes back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._drivers: frozenset[str] = frozenset()
        # By UID, in the order in which they were begun.
        self._reads: OrderedDict[str, ClaimRead] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reads)

    def join(self, driver: str) -> None:
        """Count a driver among those that read and take."""
        with self._lock:
            self._drivers |= {driver}

    @property
    def needless(self) -> bool:
        """Return whether there is nobody to hand anything to."""
        return len(self._drivers) < 2  # noqa: PLR2004 - one alone

    def begin(self, driver: str, refs: Iterable[ClaimRef]) -> tuple[dict[ClaimRef, ResourceClaim], list[ClaimRead]]:
        """Return the claims that a driver takes herewith, and the reads of the rest, which it has to make."""
        with self._lock:
            now = self._clock()
            taken: dict[ClaimRef, ResourceClaim] = {}
            reads: list[ClaimRead] = []
            for ref in dict.fromkeys(refs):
                claim = self._take(driver, ref, now)
                if claim is not None:
                    taken[ref] = claim
                    continue
                read = ClaimRead(ref, now, {driver})
                self._reads.pop(ref.uid, None)
                self._reads[ref.uid] = read
                reads.append(read)
            self._forget(now)
            return taken, reads

    def _take(self, driver: str, ref: ClaimRef, now: float) -> ResourceClaim | None:
        read = self._reads.get(ref.uid)
        if read is None or not read.offered or read.ref != ref or now - read.began > _SECONDS:
            return None
        if driver in read.had or driver not in read.drivers:
            return None
        read.had.add(driver)
        # Until this driver has answered: its refusal ends kubelet's loop.
        read.offered = False
        return read.claim

    def _forget(self, now: float) -> None:
        while self._reads:
            oldest = next(iter(self._reads.values()))
            if len(self._reads) <= _CAPACITY and now - oldest.began <= _SECONDS:
                return
            del self._reads[oldest.ref.uid]

    def end(self, reads: Iterable[ClaimRead], answers: Mapping[ClaimRef, ResourceClaim | DranodeError]) -> None:
        """Keep what came of reads; nobody may take it yet."""
        with self._lock:
            for read in reads:
                claim = answers.get(read.ref)
                if isinstance(claim, ResourceClaim):
                    read.claim, read.drivers = claim, drivers_of(claim.status.allocation)
                elif self._reads.get(read.ref.uid) is read:
                    del self._reads[read.ref.uid]

    def answered(self, asked: Mapping[ClaimRef, ResourceClaim | DranodeError], *, prepared: bool) -> None:
        """Offer the claims of a call to other drivers if all were prepared; else end what is offered of them."""
        with self._lock:
            for ref, claim in asked.items():
                read = self._reads.get(ref.uid)
                # Otherwise it was unprepared meanwhile, or is read again.
                if read is not None and read.claim is claim:
                    read.offered = prepared
                    if not prepared or not (read.drivers & self._drivers) - read.had:
                        del self._reads[ref.uid]

    def drop(self, refs: Iterable[ClaimRef]) -> None:
        """End what is offered of claims, and what is being read of them: it has a past now."""
        with self._lock:
            for ref in refs:
                self._reads.pop(ref.uid, None)


class HandedClaims(msgspec.Struct, frozen=True):
    """The claims as the calls of one driver get them: from another driver of the process, else from their source.

    Attributes:
        driver: the driver.
        source: where claims come from.
        handover: what drivers take from one another.
    """

    driver: str
    source: Claims
    handover: Handover

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Each claim as it is now or was when the call before this one read it, or the reason why it cannot be had."""
        if self.handover.needless:
            return self.source.get(refs)
        taken, reads = self.handover.begin(self.driver, refs)
        if taken:
            log.debug("driver=%s claims=%s: as another driver has read them", self.driver, ", ".join(map(str, taken)))
        fetched = self.source.get(tuple(read.ref for read in reads))
        self.handover.end(reads, fetched)
        return {**taken, **fetched}
