"""From time to time: names for claims that have none yet, and an end for claims that kubelet will not unprepare.

A claim that was deleted while kubelet or the driver was away is never unprepared by kubelet, and a driver that was
killed while it wrote a CDI spec never comes back to the file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.errors import DranodeError, LedgerError, UnreadError
from dranode.cdi.directory import remove_abandoned
from dranode.driver.claims.events import Notify, OrphanUnprepared, notify_none
from dranode.driver.claims.prepare import Claims
from dranode.driver.claims.reconcile import (
    ORPHAN_SECONDS,
    Attestation,
    Waiting,
    named,
    orphans,
    overlaps,
    refusals,
    unpublished,
    unused,
)
from dranode.driver.claims.record import Record
from dranode.driver.claims.uses import used_claims
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.node.node import NodeClaims

log = logging.getLogger(__name__)


# Who knows of the claims on this node: kubelet, the container runtime and the API server.

# UIDs of the claims that containers have; None while the runtime has not listed its containers.
Running = Callable[[], frozenset[str] | None]


class ClaimLookup(msgspec.Struct, frozen=True):
    """Looks up what kubelet, the container runtime and the API server say of a driver's claims.

    Attributes:
        driver: the driver's name.
        claims: the API server, or a folder in its place.
        pod_resources: kubelet; None if it cannot be asked.
        running: the runtime.
    """

    driver: str
    claims: Claims
    pod_resources: PodResources | None
    running: Running

    def on_node(self, records: Iterable[Record]) -> Attestation:
        """Return what kubelet and the runtime say of these claims."""
        if self.pod_resources is None:
            return Attestation(running=self.running())
        try:
            uses = self.pod_resources.claims(self.driver)
        except PodResourcesError as error:
            log.debug("%s", error)
            return Attestation(running=self.running())
        return Attestation(used_claims(uses, (record.ref for record in records)), self.running())

    def with_cluster(self, attested: Attestation, records: Iterable[Record]) -> Attestation:
        """Return what the API server says of these claims as well, as far as their names are known."""
        refs = (use.ref if (use := attested.use(record.uid)) else record.ref for record in records)
        asked = tuple(ref for ref in refs if ref.name)
        answers = self.claims.get(asked) if asked else {}
        return replace(attested, claims={**attested.claims, **{ref.uid: answer for ref, answer in answers.items()}})


# At start: whose are the CDI specs without a record, and the records without an owner?


def take_over(node: NodeClaims, lookup: ClaimLookup) -> bool:
    """Put on record what was left behind, with the names and pods that others know of it; False if that has to wait.

    Without their answers it is on record all the same and holds what its spec says; it gets its name later.

    Raises:
        DranodeError: another driver's claims lie on the node that cannot be taken over; nothing has been changed.
    """
    try:
        unfinished = node.unfinished.records()
        sentence = unpublished(node.store.book.records(), node.inventory)
        if sentence is not None:
            log.warning("driver=%s: %s", node.plugin.driver, sentence)
        if not unfinished:
            return True
        attested = lookup.with_cluster(lookup.on_node(unfinished), unfinished)
        refused = refusals(unfinished, attested, node.plugin)
        if refused:
            raise DranodeError("; ".join(refused))
        for sentence in overlaps(unfinished, node.store.book.held):
            log.error("driver=%s: %s", node.plugin.driver, sentence)
        put_on_record(node, unfinished, attested)
    except UnreadError:
        return False
    except LedgerError as error:
        # Nothing is handed out while the ledger cannot be read, and then what lies there is held.
        driver = node.plugin.driver
        log.error("driver=%s: what was left behind has to wait: %s", driver, error)  # noqa: TRY400 - no mistake of ours
        return False
    return True


def put_on_record(node: NodeClaims, unfinished: tuple[Record, ...], attested: Attestation) -> tuple[Record, ...]:
    """Put on record what others say of unfinished records; those that have changed come back.

    Raises:
        LedgerError: the ledger cannot be written.
    """
    put = node.unfinished.complete(
        (record, named(record, attested, node.inventory, node.plugin, node.pool)) for record in unfinished
    )
    for record in put:
        log.warning(
            "claim=%s uid=%s driver=%s taken over devices=%s cpus=%s held=%s pods=%s",
            record.ref,
            record.uid,
            node.plugin.driver,
            ",".join(record.devices) or "unknown",
            record.cpus or "-",
            record.held or "-",
            ",".join(map(str, record.pods)) or "unknown",
        )
    return put


LOOK_SECONDS: Final = 60.0
"""How often to look."""


class Orphans(msgspec.Struct):
    """Looks after the claims of one node.

    Attributes:
        node: whose claims.
        lookup: who is asked about them.
        notify: notifies people of the claims that were released.
        clock: seconds, monotonic.
        stopping: set once this instance no longer looks after claims.
        released: how many were released since start.
    """

    node: NodeClaims
    lookup: ClaimLookup
    notify: Notify = notify_none
    clock: Callable[[], float] = time.monotonic
    stopping: threading.Event = msgspec.field(default_factory=threading.Event)
    released: int = 0
    _waiting: Waiting = msgspec.field(default_factory=Waiting)

    def waiting(self) -> int:
        """Return how many orphans there are."""
        return len(self._waiting.since)

    def check(self) -> None:
        """Look once.

        Raises:
            UnreadError: the ledger cannot be used.
        """
        remove_abandoned(self.node.files.specs.directory)
        if self.node.files.metadata is not None:
            remove_abandoned(self.node.files.metadata.folder)
        records = self.node.records()
        attested = self.lookup.on_node(records)
        unfinished = tuple(record for record in records if not record.fingerprint)
        suspects = unused(records, attested)
        # The API server is asked about the few claims that are odd, never about all of them.
        attested = self.lookup.with_cluster(
            attested, {record.uid: record for record in (*unfinished, *suspects)}.values()
        )
        if self.stopping.is_set():
            # The API server may have taken its time.
            return
        named = {record.uid: record for record in put_on_record(self.node, unfinished, attested)}
        self._mind([named.get(record.uid, record) for record in orphans(suspects, attested)])

    def _mind(self, orphaned: list[Record]) -> None:
        now = self.clock()
        before, self._waiting = self._waiting, self._waiting.seen(orphaned, now)
        fresh, due = self._waiting.fresh(before), self._waiting.due(now)
        for record in orphaned:
            if record.uid in fresh:
                log.warning(
                    "claim=%s uid=%s driver=%s is gone and nobody uses it: it is unprepared in %.0f minutes",
                    record.ref,
                    record.uid,
                    self.node.plugin.driver,
                    ORPHAN_SECONDS / 60,
                )
        if due:
            self._release([record for record in orphaned if record.uid in due])

    def _release(self, due: list[Record]) -> None:
        answers = self.node.release(due)
        for record in due:
            # A claim that was prepared again meanwhile has no answer, and one that failed is tried again.
            if record.uid not in answers or answers[record.uid] is not None:
                continue
            self.released += 1
            message = (
                f"claim {record.ref} was unprepared, because it does not exist any more and neither kubelet nor a "
                f"container has used it for {ORPHAN_SECONDS / 60:.0f} minutes"
            )
            log.warning("claim=%s uid=%s driver=%s: %s", record.ref, record.uid, self.node.plugin.driver, message)
            self.notify(OrphanUnprepared(record.ref, message))
