"""Finds the owners of claims that were left behind, and unprepares claims for which kubelet will not call Unprepare.

kubelet never unprepares a claim that was deleted while kubelet or the driver was not running. Also removes temporary
files of a driver that was killed while it wrote a CDI spec.
"""

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
from dranode.driver.claims.users import used_claims
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.node.node import NodeClaims

log = logging.getLogger(__name__)


# Returns the UIDs of the claims that containers have; None while the runtime has not listed its containers.
Running = Callable[[], frozenset[str] | None]


class ClaimLookup(msgspec.Struct, frozen=True):
    """Asks kubelet, the container runtime and the API server about a driver's claims.

    Attributes:
        driver: the driver's name.
        claims: fetches claims from the API server, or from a folder.
        pod_resources: kubelet's API; None if kubelet cannot be asked.
        running: asks the runtime.
    """

    driver: str
    claims: Claims
    pod_resources: PodResources | None
    running: Running

    def on_node(self, records: Iterable[Record]) -> Attestation:
        """Return what kubelet and the runtime say about these claims."""
        if self.pod_resources is None:
            return Attestation(running=self.running())
        try:
            uses = self.pod_resources.claims(self.driver)
        except PodResourcesError as error:
            # Without an answer, not with an empty one: a missing answer releases nothing.
            log.debug("%s", error)
            return Attestation(running=self.running())
        return Attestation(used_claims(uses, (record.ref for record in records)), self.running())

    def with_cluster(self, attested: Attestation, records: Iterable[Record]) -> Attestation:
        """Add what the API server says about these claims, as far as their names are known."""
        # The API server needs a claim's name. A recovered record has none, but kubelet may know it.
        refs = (use.ref if (use := attested.use(record.uid)) else record.ref for record in records)
        named_refs = tuple(ref for ref in refs if ref.name)
        answers = self.claims.get(named_refs) if named_refs else {}
        return replace(attested, claims={**attested.claims, **{ref.uid: answer for ref, answer in answers.items()}})


def take_over(node: NodeClaims, lookup: ClaimLookup) -> bool:
    """Complete the records of claims that are only known from CDI specs; returns False if that has to wait.

    Their names and pods come from kubelet, the runtime and the API server. Without these answers, such a claim holds
    what its spec says, and its name is added later.

    Raises:
        DranodeError: another driver has left claims that cannot be taken over; nothing was changed.
    """
    try:
        unfinished = node.unfinished()
        sentence = unpublished(node.store.book.records(), node.inventory)
        if sentence is not None:
            log.warning("driver=%s: %s", node.plugin.driver, sentence)
        if not unfinished:
            return True
        attested = lookup.with_cluster(lookup.on_node(unfinished), unfinished)
        # Before anything is written, so that the other driver can still drain the node.
        refused = refusals(unfinished, attested, node.plugin)
        if refused:
            raise DranodeError("; ".join(refused))
        for sentence in overlaps(unfinished, node.store.book.held):
            log.error("driver=%s: %s", node.plugin.driver, sentence)
        put_on_record(node, unfinished, attested)
    except UnreadError:
        # Logged by the lock on decisions or by the reading of the hardware.
        return False
    except LedgerError as error:
        # This can wait: while the ledger cannot be written, nothing is handed out.
        driver = node.plugin.driver
        log.error("driver=%s: claims that were left behind are not on record yet: %s", driver, error)  # noqa: TRY400
        return False
    return True


def put_on_record(node: NodeClaims, unfinished: tuple[Record, ...], attested: Attestation) -> tuple[Record, ...]:
    """Complete unfinished records with what others say about them; returns the records that have changed.

    Raises:
        LedgerError: the ledger cannot be written.
    """
    put = node.finish(
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


CHECK_SECONDS: Final = 60.0
"""How often to check, in seconds."""


class Orphans(msgspec.Struct):
    """Finds and unprepares the orphaned claims of one node.

    Attributes:
        node: the node.
        lookup: asks others about the claims.
        notify: reports to people which claims were released.
        clock: returns seconds, monotonic.
        stopping: set when this instance is not active any more.
        released: the number of claims that were released since the start.
    """

    node: NodeClaims
    lookup: ClaimLookup
    notify: Notify = notify_none
    clock: Callable[[], float] = time.monotonic
    stopping: threading.Event = msgspec.field(default_factory=threading.Event)
    released: int = 0
    _waiting: Waiting = msgspec.field(default_factory=Waiting)

    def waiting(self) -> int:
        """Return the number of orphans."""
        return len(self._waiting.since)

    def check(self) -> None:
        """Check once.

        Raises:
            UnreadError: the ledger cannot be used.
        """
        remove_abandoned(self.node.files.specs.directory)
        if self.node.files.metadata is not None:
            remove_abandoned(self.node.files.metadata.folder)
        # The records first: a claim that is prepared after this line is not judged in this check.
        records = self.node.records()
        attested = self.lookup.on_node(records)
        unfinished = tuple(record for record in records if not record.fingerprint)
        suspects = unused(records, attested)
        # The API server is asked only about the few suspicious claims, never about all of them.
        attested = self.lookup.with_cluster(
            attested, {record.uid: record for record in (*unfinished, *suspects)}.values()
        )
        if self.stopping.is_set():
            # Another instance may have become active while the API server was asked.
            return
        named = {record.uid: record for record in put_on_record(self.node, unfinished, attested)}
        self._follow([named.get(record.uid, record) for record in orphans(suspects, attested)])

    def _follow(self, orphaned: list[Record]) -> None:
        """Release the orphans that were found long enough ago, and log the new ones."""
        now = self.clock()
        before, self._waiting = self._waiting, self._waiting.seen(orphaned, now)
        new, due = self._waiting.new_since(before), self._waiting.due(now)
        for record in orphaned:
            if record.uid in new:
                log.warning(
                    "claim=%s uid=%s driver=%s was deleted and is not in use: it will be unprepared in %.0f minutes",
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
