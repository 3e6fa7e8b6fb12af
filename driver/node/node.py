"""One driver on this node: decides under the locks and has the effects carried out.

Calls may come from any thread, and from a second instance of the driver during a rolling update. A decision and its
effects happen under one lock in the process and `serialize.lock` between processes; the decision and its record are one
transaction of the ledger, committed before any other effect.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import assert_never

from dranode.driver.core.api.errors import ClaimConflictError, DranodeError, UnreadError, in_words
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.admission import twins
from dranode.driver.core.claims.answers import Answer, Changed, ClaimOutcome, Conflict, Prepared, Refused
from dranode.driver.core.claims.effects import Commit, WriteMetadata, WriteSpec
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.metadata import with_metadata
from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.prepare import Circumstances, decide_claim, prepared, unprepared
from dranode.driver.core.claims.record import PreparedDevice, Record, prepared_devices, spec_file
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.node.decision_lock import DecisionLock
from dranode.driver.node.discovery import Discovery
from dranode.driver.node.held_view import HeldView
from dranode.driver.node.interpreter import Interpreter
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.patience import MAX_WAITING, Patience
from dranode.driver.node.record_store import Holders
from dranode.driver.node.specs import Marks, Specs

log = logging.getLogger(__name__)

Watcher = Callable[[HeldSnapshot | None], None]
InUse = Callable[[ClaimRef], bool | None]
OnGranted = Callable[[Record], None]


def nobody_to_ask(claim: ClaimRef) -> bool | None:
    """The answer to "does a container use this claim?" where neither NRI nor kubelet's pod-resources is at hand."""
    del claim
    return None


class NodeClaims:
    """The claims of one driver on one node."""

    def __init__(
        self,
        plugin: Plugin,
        data: Path,
        cdi: Path,
        *,
        pool: str | None = None,
        in_use: InUse = nobody_to_ask,
        metadata: DeviceMetadata | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to serve; nothing is read or written yet.

        Args:
            plugin: the driver.
            data: the driver's folder, `<kubelet root>/plugins/<driver>`; holds the ledger and the locks.
            cdi: the CDI directory.
            pool: the name of the pool in which the devices are published; None if claims may come from any.
            in_use: whether a container uses a claim; None if there is nobody to ask.
            metadata: where workloads are told of their devices; None if they are not.
            clock: seconds, never going back.
        """
        self.plugin = plugin
        self.pool = pool
        self.metadata = metadata
        # Told of every claim that is given something for the first time.
        self.granted: OnGranted = lambda _record: None
        self.specs = Specs(cdi, plugin.cdi_kind or f"{plugin.driver}/claim")
        self.discovery = Discovery(plugin)
        self.holders = Holders(plugin, data / "ledger.db", self.specs)
        self.interpreter = Interpreter(plugin, self.holders, self.specs, metadata, self.discovery)
        self._in_use = in_use
        self._clock = clock
        self._view = HeldView(plugin, self.holders)
        self._watcher: Watcher | None = None
        # Why CDI specs cannot be written or listed; None if they can, as far as is known.
        self._no_specs: str | None = None
        self._lock = DecisionLock(self.holders, data / "serialize.lock", self._tell)
        self._places = threading.BoundedSemaphore(MAX_WAITING)

    def open(self, boot_id: str = "") -> None:
        """Read hardware and ledger, and make again every CDI spec that is missing, at the price of those.

        Hardware and a ledger that cannot be used are reported and tried again: the driver starts all the same.

        Raises:
            UsageError: the driver's options do not fit the hardware.
        """
        self._lock.note_boot(boot_id)
        with contextlib.suppress(UnreadError):
            self.discovery.read()
        self._write_missing()

    def _write_missing(self) -> None:
        try:
            with self._lock.held():
                # What workloads are told of their devices is read from the hardware.
                if self.discovery.known is None:
                    return
                for record in filter(self._unwritten(), filter(self._writable, self.holders.records.values())):
                    self.interpreter.carry_out((WriteSpec(record), WriteMetadata(record)))
        except UnreadError:
            pass
        except DranodeError as error:
            log.error("driver=%s: %s", self.plugin.driver, error)  # noqa: TRY400 - the sentence says it all

    @property
    def inventory(self) -> Inventory:
        """The hardware as it was last read.

        Raises:
            UnreadError: it was never read.
        """
        return self.discovery.inventory

    def _unwritten(self) -> Callable[[Record], bool]:
        """Which claims need their specs written before anybody is answered; of others the files are there.

        Whether those say what they should is looked into later, a few at a time (`SpecWatch`), unless they depend on
        the live machine.
        """
        if self.plugin.completes():
            return lambda _: True
        there = self.specs.names()
        metadata = self.metadata

        def unwritten(record: Record) -> bool:
            names = {spec_file(self.specs.kind, record.uid), *(metadata.spec_names(record) if metadata else ())}
            return not names <= there

        return unwritten

    def _writable(self, record: Record) -> bool:
        # Of a lost record nothing is known that could be written, and a spec that lies there is in use. What another
        # driver wrote is left alone until it is clear whose claim it is.
        told = record.fingerprint or record.edits or record.grants
        return bool(told) and record.uid not in self.holders.leftovers

    def close(self) -> None:
        """Let go of the ledger."""
        with self._lock.among_threads():
            self.holders.close()

    def rescan(self) -> bool:
        """Read the hardware again; True if it has changed.

        Raises:
            UnreadError: the hardware cannot be read; what was read before stays known.
            UsageError: it is read for the first time, and the driver's options do not fit it.
        """
        before, unread = self.discovery.known, self.discovery.unread
        try:
            self.discovery.read()
        finally:
            if (self.discovery.known, self.discovery.unread) != (before, unread):
                with self._lock.among_threads():
                    self._lock.tell()
        if before is None:
            self._write_missing()
        return self.discovery.known is not before

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` now and whenever a record has changed, before the call that changed it is answered.

        So it is when ledger or hardware cannot be read any more, and when they can again.

        It is told what containers run on, None by a driver that pins none, under the lock on decisions; it has to be
        quick.
        """
        with self._lock.among_threads():
            self._watcher = watcher
            self._lock.tell()

    def _tell(self) -> None:
        if not self.discovery.tried:
            # Code that only undoes claims reads no hardware, and nothing watches it.
            return
        snapshot = self._view.follow(self.discovery.known, self._unread())
        if self._watcher is not None:
            self._watcher(snapshot)

    def _unread(self) -> Unread | None:
        if self._lock.unread is not None:
            return self.holders.unread(self._lock.unread)
        if self.discovery.unread is not None:
            return Unread(self.discovery.unread, tuple(self.holders.told()))
        return None

    def snapshot(self) -> HeldSnapshot | None:
        """What is on record as enforcement sees it; None for a driver that pins no containers. Waits for nobody."""
        return self._view.snapshot

    @property
    def impediment(self) -> str | None:
        """Why no new claim can be prepared, by the last use of ledger, hardware and CDI specs; None if one can.

        Waits for nobody.
        """
        return self.unusable or self._lock.blocked

    @property
    def unusable(self) -> str | None:
        """Why ledger, hardware or CDI specs cannot be used, by the last time they were; None if they can.

        Waits for nobody.
        """
        return self._lock.unread or self.discovery.unread or self._lock.unwritten or self._no_specs

    def look(self) -> None:
        """See whether ledger, hardware and CDI specs can be used; `impediment` says if not, and watchers are notified.

        Hardware is read only if it could not be read the last time.

        Raises:
            UsageError: the hardware is read for the first time, and the driver's options do not fit it.
        """
        if self.discovery.unread is not None:
            with contextlib.suppress(UnreadError):
                self.rescan()
        self._lock.look()
        problem = None
        try:
            self.specs.check()
        except DranodeError as error:
            problem = str(error)
        if problem != self._no_specs:
            if problem is None:
                log.warning("driver=%s: CDI specs can be written again", self.plugin.driver)
            else:
                log.error("driver=%s: %s", self.plugin.driver, problem)
        self._no_specs = problem

    def on_record(self) -> frozenset[str]:
        """The UIDs of the claims on record at the last look at the ledger; costs nothing."""
        return frozenset(self.holders.records)

    def spec_files(self, uid: str) -> tuple[Path, ...]:
        """The CDI specs of a claim that are there: its own, and those that mount its metadata."""
        own = self.specs.path(uid)
        record = self.holders.records.get(uid)
        metadata = () if record is None or self.metadata is None else self.metadata.spec_files(record)
        return (*((own,) if own.exists() else ()), *metadata)

    def left_as(self, uid: str) -> Marks | None:
        """The claim's CDI specs as this process left them; None if it did not write them all. Waits for nobody."""
        return self.interpreter.left.get(uid)

    def record(self, uid: str) -> Record | None:
        """What is on record of a claim at the last look at the ledger; waits for nobody."""
        return self.holders.records.get(uid)

    def recorded(self) -> tuple[Record, ...]:
        """The claims on record at the last look at the ledger; waits for nobody."""
        return tuple(self.holders.records.values())

    def ledger_bytes(self) -> int:
        """The size of the ledger with its journal."""
        return self.holders.size()

    def records(self) -> tuple[Record, ...]:
        """Every claim on record.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            return tuple(self.holders.records.values())

    def unfinished(self) -> tuple[Record, ...]:
        """The claims of which only what they hold is known, or not even that.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        return tuple(record for record in self.records() if not record.fingerprint)

    def missing(self) -> tuple[str, ...]:
        """What keeps new claims from being prepared since the ledger or a row of it was lost: a sentence for each.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            return self.holders.missing()

    def forget_missing(self) -> tuple[str, ...]:
        """Prepare new claims again; what kept them back comes back. Claims with a CDI spec stay held.

        Raises:
            UnreadError: the ledger cannot be read.
            LedgerError: it cannot be written.
        """
        with self._lock.held():
            missing = self.holders.missing()
            if missing:
                self.holders.forget_missing()
            return missing

    def take_in(self, found: Iterable[tuple[Record, Record]]) -> tuple[Record, ...]:
        """Put on record what was found out of unfinished records, as pairs of before and after, and write their specs.

        A record that has changed meanwhile stays as it is; what was put on record comes back.

        Raises:
            LedgerError: the ledger cannot be written; nothing of it is on record then.
        """
        with self._lock.held():
            holders = self.holders
            put = tuple(
                after
                for before, after in found
                if holders.records.get(before.uid) == before and (after != before or before.uid in holders.leftovers)
            )
            if put:
                with holders.transaction():
                    holders.commit(Commit(put=put))
            self.interpreter.carry_out(map(WriteSpec, filter(self._writable, put)))
            return put

    def mend_specs(self, uids: Iterable[str]) -> dict[str, Refused | None]:
        """Write again the specs of these claims that are not as they should be; those claims, with what went wrong.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        mended: dict[str, Refused | None] = {}
        with self._lock.held():
            if self.discovery.known is None:
                return {}
            records = (self.holders.records.get(uid) for uid in uids)
            for record in (each for each in records if each is not None and self._writable(each)):
                try:
                    if self.interpreter.write(record):
                        mended[record.uid] = None
                    self.interpreter.describe(record)
                    self.interpreter.note(record)
                except DranodeError as error:
                    mended[record.uid] = Refused(str(error))
                except Exception as error:  # noqa: BLE001 - told by whoever looks, once and not at every look
                    mended[record.uid] = Refused(
                        f"the CDI spec of claim {record.ref} cannot be written again, because {self.plugin.driver} met "
                        f"an error inside it: {in_words(error)}"
                    )
        return mended

    def prepare(self, asked: Mapping[ClaimRef, ResourceClaim | DranodeError]) -> dict[str, Answer]:
        """Prepare the claims of one call; an answer for every claim, by UID."""
        with contextlib.closing(Patience(self._places, self._clock)) as patience:
            return self._prepare_all(asked, patience)

    def _prepare_all(
        self, asked: Mapping[ClaimRef, ResourceClaim | DranodeError], patience: Patience
    ) -> dict[str, Answer]:
        answers: dict[str, Answer] = {
            ref.uid: Refused(str(claim)) for ref, claim in asked.items() if isinstance(claim, DranodeError)
        }
        answers |= twins(asked)
        pending = {
            ref: claim for ref, claim in asked.items() if isinstance(claim, ResourceClaim) and ref.uid not in answers
        }
        while pending:
            try:
                with self._lock.held():
                    self.discovery.check()
                    outcomes = self._prepare(pending)
            except DranodeError as error:
                return answers | dict.fromkeys((ref.uid for ref in pending), Refused(str(error)))
            again: set[ClaimRef] = set()
            waiting: set[ClaimRef] = set()
            for ref in pending:
                answer = self._settled(outcomes[ref.uid])
                if answer is None:
                    again.add(ref)
                    continue
                answers[ref.uid] = answer
                if isinstance(answer, Conflict):
                    waiting.add(ref)
            if waiting and patience.wait(self._lock.freed):
                again |= waiting
            pending = {ref: claim for ref, claim in pending.items() if ref in again}
        return answers

    def _settled(self, outcome: ClaimOutcome) -> Answer | None:
        """The answer that an attempt came to; None if nothing is in the way of another attempt any more."""
        match outcome:
            case Changed(claim):
                return self._forget_unused(claim)
            case Prepared() | Refused() | Conflict():
                return outcome
            case _:
                assert_never(outcome)

    def _prepare(self, asked: Mapping[ClaimRef, ResourceClaim]) -> dict[str, ClaimOutcome]:
        outcomes: dict[str, ClaimOutcome] = {}
        decided: dict[str, Record] = {}
        before = self.holders.known(asked)
        with self.holders.transaction():
            holders = self.holders
            given = Circumstances(self.plugin, self.inventory, holders.held, self.pool, holders.blocked())
            for ref, claim in asked.items():
                found = self._decided(ref, claim, before.get(ref.uid), given)
                if not isinstance(found, Record):
                    outcomes[ref.uid] = found
                elif found.grants:
                    decided[ref.uid] = found
                    holders.reserve(found)
                else:
                    # A claim of which nothing is this driver's holds nothing and leaves no record.
                    outcomes[ref.uid] = Prepared()
            decision = prepared(decided.values(), holders.records)
            if decision.commit:
                holders.commit(decision.commit)
        failures = self.interpreter.carry_out(decision.effects)
        outcomes.update((uid, Prepared(self._devices(record))) for uid, record in decided.items())
        for uid, record in decided.items():
            if uid not in before and uid not in failures:
                self.granted(record)
        return outcomes | failures

    def _devices(self, record: Record) -> tuple[PreparedDevice, ...]:
        devices = prepared_devices(self.specs.kind, record)
        if self.metadata is None:
            return devices
        return with_metadata(devices, self.metadata.ids(record, there=self.left_as(record.uid) is not None))

    def _decided(
        self, ref: ClaimRef, claim: ResourceClaim, record: Record | None, given: Circumstances
    ) -> Record | Refused | Conflict | Changed:
        """The decision of a claim as a value, whatever it meets."""
        try:
            self.holders.refuse_damaged(ref)
            return decide_claim(ref, claim, record, given)
        except ClaimConflictError as error:
            return Conflict(str(error), error.holders)
        except DranodeError as error:
            return Refused(str(error))
        except Exception as error:
            log.exception("claim=%s uid=%s driver=%s: no decision", ref, ref.uid, self.plugin.driver)
            return Refused(f"claim {ref} met an error inside {self.plugin.driver}: {in_words(error)}")

    def _forget_unused(self, ref: ClaimRef) -> Refused | None:
        """Unprepare a claim whose allocation has changed under its record; refused if a container may still use it."""
        used = self._in_use(ref)
        if used is False:
            return self.unprepare((ref,))[ref.uid]
        reason = (
            "a container still uses it"
            if used
            else "neither NRI nor kubelet's pod-resources can say whether a container still uses it"
        )
        return Refused(f"claim {ref} is prepared for another allocation than it has now, and {reason}; delete its pods")

    def unprepare(self, refs: tuple[ClaimRef, ...]) -> dict[str, Refused | None]:
        """Undo the claims of one call; for each, by UID, None or why it is not undone. An unknown claim is undone."""
        try:
            with self._lock.held():
                return self._undo(refs)
        except DranodeError as error:
            return dict.fromkeys((ref.uid for ref in refs), Refused(str(error)))

    def release(self, records: Iterable[Record]) -> dict[str, Refused | None]:
        """Undo claims that nobody will ask to undo, if their records are still these; an answer for each that is.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            return self._undo(tuple(each.ref for each in records if self.holders.records.get(each.uid) == each))

    def _undo(self, refs: tuple[ClaimRef, ...]) -> dict[str, Refused | None]:
        decision = unprepared(refs, self.holders.known(refs), self.holders.damaged_among(refs), self.plugin)
        failures = self.interpreter.execute(decision)
        self._lock.freed.notify_all()
        return {ref.uid: failures.get(ref.uid) for ref in refs}
