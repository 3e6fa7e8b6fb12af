"""The claims of one driver on this node: decides under the lock, commits, and carries the effects out.

Calls may come from any thread, and from a second instance of the driver during a rolling update, so a decision and its
effects happen under one lock (`DecisionLock`). The decision and its record are one transaction of the ledger, which is
committed before anything else is done: after a crash at any point, the record says what may have been given out.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from dranode.api.errors import ClaimConflictError, DranodeError, UnreadError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import (
    Answer,
    Changed,
    ClaimOutcome,
    Commit,
    Conflict,
    NotEnforced,
    Prepared,
    Refused,
    WriteFiles,
    refused_by_error,
)
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Disturbance, Tunes, tuning_claims, was_tuned
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.prepare import (
    Awaited,
    Circumstances,
    always,
    decide_claim,
    duplicate_uids,
    prepare_decision,
    unprepare_decision,
)
from dranode.driver.claims.record import Record
from dranode.driver.node.claim_files import ClaimFiles
from dranode.driver.node.decision_lock import DecisionLock
from dranode.driver.node.discovery import Discovery
from dranode.driver.node.interpreter import Interpreter
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.pin_view import PinView, Watcher
from dranode.driver.node.record_store import LedgerNotes, RecordStore
from dranode.driver.node.specs import Specs
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)


# How long a Prepare waits, in seconds, until another claim that holds its devices is unprepared. A refusal is
# expensive: SyncPod in kuberuntime_manager.go ends without an error if a claim cannot be prepared, so kubelet tries
# again only at the pod's next resync, 60 to 90 s later (`completeWork` in pkg/kubelet/pod_workers.go, 1.37). kubelet
# ends a call after 45 s, and fetching the claims may take 25 s of these.
CONFLICT_WAIT: Final = 15.0
# How often a waiting Prepare checks, in seconds: the other instance may be the one that unprepares.
_CONFLICT_POLL: Final = 0.1
# How many calls may wait at a time. The server has one more thread, for the Unprepare that they wait for.
MAX_WAITING: Final = 3

InUse = Callable[[ClaimRef], bool | None]


def use_unknown(claim: ClaimRef) -> bool | None:
    """Return None, because without NRI and pod-resources it is unknown whether a container uses a claim."""
    del claim
    return None


class NodeClaims:
    """The claims of one driver on one node.

    Attributes:
        discovery: what the driver has read of the hardware.
        store: the records, to be used under the lock on decisions; any thread may read its book.
        files: the claims' CDI specs and device metadata.
        interpreter: carries effects out.
        granted: called with the record of every claim that is prepared for the first time.
        settings_changed: called when settings have changed, so that `tune` has to notify other processes.
        not_enforced: returns why containers are not held to claims; None if they are, or need not be. It never waits.
        conflict_wait: how long a Prepare waits until another claim that holds its devices is unprepared, in seconds.
    """

    def __init__(
        self,
        plugin: Plugin,
        data: Path,
        cdi: Path,
        *,
        pool: str | None = None,
        in_use: InUse = use_unknown,
        metadata: DeviceMetadata | None = None,
        boot_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the driver up; nothing is read or written yet.

        Args:
            plugin: the driver.
            data: the driver's folder, `<kubelet root>/plugins/<driver>`, with the ledger and the locks.
            cdi: the CDI directory.
            pool: the name of the pool in which the devices are published; None if claims may come from any pool.
            in_use: returns whether a container uses a claim, None if that is not known.
            metadata: the device metadata of containers; None if they get none.
            boot_id: the id of this boot of the machine, if `open` is not called with it; the ledger's copy needs it.
            clock: returns seconds and never goes back.
        """
        self.plugin = plugin
        self.pool = pool
        self.granted: Callable[[Record], None] = lambda _record: None
        self.settings_changed: Callable[[], None] = lambda: None
        self.not_enforced: Callable[[], NotEnforced | None] = lambda: None
        self.conflict_wait = CONFLICT_WAIT
        self.discovery = Discovery(plugin)
        specs = Specs(cdi, plugin.claim_kind)
        self.store = RecordStore(plugin, data / "ledger.db", specs)
        self.store.recovery.boot_id = boot_id
        self.files = ClaimFiles(plugin, self.store.book, specs, self.discovery, metadata)
        self.interpreter = Interpreter(plugin, self.store, self.files)
        self._in_use = in_use
        self._clock = clock
        self._view = PinView(plugin, self.store, self.discovery)
        self._lock = DecisionLock(self.store, data / "serialize.lock", self._view.notify)
        self._waiting_calls = threading.BoundedSemaphore(MAX_WAITING)

    def open(self, boot_id: str = "", *, snapshot: bool = True) -> None:
        """Read hardware and ledger, and write missing CDI specs.

        If hardware or ledger cannot be read, that is logged and tried again later; the driver starts all the same,
        because kubelet must be able to reach it.

        Args:
            boot_id: the id of this boot of the machine.
            snapshot: whether to make the snapshot now; otherwise `follow` makes it.

        Raises:
            UsageError: the driver's options do not fit the hardware.
        """
        self._view.put_off = not snapshot
        self._lock.note_boot(boot_id)
        with contextlib.suppress(UnreadError):
            self.discovery.read()
        self._write_unwritten()

    def _write_unwritten(self) -> None:
        try:
            with self._lock.held():
                self.interpreter.carry_out(map(WriteFiles, self.files.unwritten()))
        except UnreadError:
            pass
        except DranodeError as error:
            log.error("driver=%s: %s", self.plugin.driver, error)  # noqa: TRY400 - a traceback would add nothing

    @property
    def inventory(self) -> Inventory:
        """Return the hardware as it was last read.

        Raises:
            UnreadError: the hardware was never read.
        """
        return self.discovery.inventory

    def close(self) -> None:
        """Close the ledger."""
        with self._lock.among_threads():
            self.store.close()

    def rescan(self) -> bool:
        """Read the hardware again; returns whether it has changed.

        Raises:
            UnreadError: the hardware cannot be read; what was read before stays known.
            UsageError: the hardware is read for the first time, and the driver's options do not fit it.
        """
        # The watcher needs to know both that hardware has changed and that it cannot be read any more.
        before, unread = self.discovery.known, self.discovery.unread
        try:
            self.discovery.read()
        finally:
            if (self.discovery.known, self.discovery.unread) != (before, unread):
                with self._lock.among_threads():
                    self._lock.notify()
        if before is None:
            self._write_unwritten()
        return self.discovery.known is not before

    def follow(self) -> None:
        """Build the snapshot, if `open` did not, and keep it up to date from now on."""
        with self._lock.among_threads():
            self._view.put_off = False
            self._lock.notify()

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with the snapshot now and after every change, before the call that made it is answered.

        A change is also that ledger or hardware cannot be read any more, or can be read again. The watcher is called
        under the lock on decisions, so it has to return quickly. It gets None from a driver that pins no containers.
        """
        with self._lock.among_threads():
            self._view.watcher = watcher
            self._lock.notify()

    def snapshot(self) -> PinSnapshot | None:
        """Return the records as enforcement sees them, without waiting; None for a driver that pins no containers."""
        return self._view.snapshot

    @property
    def impediment(self) -> str | None:
        """Return why no new claim can be prepared, without waiting; None if new claims can be prepared.

        This is known from the last use of ledger, hardware and CDI specs, and from whether containers are held to
        claims.
        """
        why = self.not_enforced()
        return self.unusable or self._lock.blocked or (why.message if why is not None and not why.chosen else None)

    @property
    def unusable(self) -> str | None:
        """Return why ledger, hardware or CDI specs could not be used the last time; None if they could. Never waits."""
        return self._lock.unread or self.discovery.unread or self._lock.unwritten or self.files.problem

    def check(self) -> None:
        """Check whether ledger, hardware and CDI specs can be used, which sets `impediment` and notifies watchers.

        The hardware is only read if the last reading failed.

        Raises:
            UsageError: the hardware is read for the first time, and the driver's options do not fit it.
        """
        if self.discovery.unread is not None:
            with contextlib.suppress(UnreadError):
                self.rescan()
        self._lock.check()
        self.files.check()

    def tune(self) -> None:
        """Change the machine's settings to what the claims on record need; does nothing if none needs any.

        Raises:
            DranodeError: a setting cannot be changed; says what to do.
        """
        plugin = self.plugin
        if not isinstance(plugin, Tunes) or not self.tunes():
            return
        with self._lock.held():
            self.interpreter.tune(plugin, preparing=False)
        # Not under the lock: other processes, such as irqbalance, may take long to answer, and no call has to wait for
        # them.
        if plugin.notify(lambda: self._tuning(plugin)):
            with self._lock.held():
                self.interpreter.tune(plugin, preparing=False)

    def _notify_of_settings(self) -> None:
        if isinstance(self.plugin, Tunes) and self.plugin.must_notify:
            self.settings_changed()

    def tunes(self) -> bool:
        """Return whether claims change, or have changed, the machine's settings; never waits."""
        plugin = self.plugin
        if not isinstance(plugin, Tunes):
            return False
        return bool(self.store.recovery.notes) or any(was_tuned(plugin, record) for record in self.store.book.known())

    @contextlib.contextmanager
    def _tuning(self, plugin: Tunes) -> Iterator[tuple[Collection[Record], LedgerNotes]]:
        with self._lock.held():
            yield tuning_claims(plugin, self.store.book.known(), preparing=False), LedgerNotes(self.store)

    def disturbances(self) -> tuple[Disturbance, ...]:
        """Return what has disturbed the claims on record since they were prepared; never waits."""
        plugin = self.plugin
        if not isinstance(plugin, Tunes) or not self.store.recovery.notes:
            return ()
        return tuple(plugin.disturbances(self.store.book.known(), LedgerNotes(self.store).read()))

    def record(self, uid: str) -> Record | None:
        """Return a claim's record as of the last reading of the ledger, without waiting; None if it has none."""
        return self.store.book.record(uid)

    def records(self, seconds: float | None = None) -> tuple[Record, ...]:
        """Return the records of all claims; `seconds` is how long to wait for another decision.

        Raises:
            UnreadError: the ledger cannot be read, or not in time.
        """
        with self._lock.held(seconds):
            return self.store.book.records()

    def unfinished(self) -> tuple[Record, ...]:
        """Return the claims about which only their devices are known, or not even those.

        There are such claims after a takeover, and after the ledger or a row of it was lost.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            return tuple(record for record in self.store.book.records() if not record.fingerprint)

    def finish(self, pairs: Iterable[tuple[Record, Record]]) -> tuple[Record, ...]:
        """Commit what was learned about unfinished claims, and write their files; returns the committed records.

        Args:
            pairs: each record as it was and as it should be. A record that has changed meanwhile is left unchanged.

        Raises:
            LedgerError: the ledger cannot be written; nothing is on record then.
        """
        with self._lock.held():
            # kubelet may have unprepared the claim, or prepared it again, since the caller read its record.
            put = tuple(after for before, after in pairs if self._is_incomplete(before, after))
            if put:
                with self.store.transaction():
                    self.store.commit(Commit(put=put))
            self.interpreter.carry_out(map(WriteFiles, filter(self.files.writable, put)))
            return put

    def _is_incomplete(self, before: Record, after: Record) -> bool:
        entry = self.store.book.entry(before.uid)
        return entry is not None and entry.on_record == before and (after != before or not entry.on_file)

    def missing(self) -> tuple[str, ...]:
        """Return why no new claims are prepared since the ledger or a row of it was lost, a sentence for each reason.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            return self.store.missing()

    def forget_missing(self) -> tuple[str, ...]:
        """Allow new claims again; returns the reasons that are dismissed. Claims with a CDI spec keep their devices.

        Raises:
            UnreadError: the ledger cannot be read.
            LedgerError: the ledger cannot be written.
        """
        with self._lock.held():
            missing = self.store.missing()
            if missing:
                self.store.forget_missing()
            return missing

    def mend_files(self, uids: Iterable[str]) -> dict[str, Refused | None]:
        """Rewrite the files of these claims that are not as they should be; see `ClaimFiles.mend`.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            return self.files.mend(uids)

    def sweep(self) -> None:
        """Remove the metadata of unknown claims, and files of an earlier version that are not needed any more.

        Nothing is removed while claims may be missing in the ledger, because the files may be theirs.

        Raises:
            UnreadError: the ledger cannot be read.
            DranodeError: the metadata cannot be listed or removed.
        """
        if self.files.has_strays():
            with self._lock.held():
                if self.store.blocked() is None:
                    self.files.sweep()

    def prepare(
        self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError], awaited: Awaited = always
    ) -> dict[str, Answer]:
        """Prepare the claims of one call.

        Args:
            claims: the claims of the call; an error for each that could not be fetched.
            awaited: returns whether the caller still waits for the answer. If not, nothing is done any more.

        Returns:
            An answer for every claim, by UID.
        """
        answers: dict[str, Answer] = {
            ref.uid: Refused(str(claim)) for ref, claim in claims.items() if isinstance(claim, DranodeError)
        }
        answers |= duplicate_uids(claims)
        pending = {
            ref: claim for ref, claim in claims.items() if isinstance(claim, ResourceClaim) and ref.uid not in answers
        }
        deadline = self._clock() + self.conflict_wait
        waiting = False
        try:
            while pending:
                try:
                    outcomes = self._prepare_once(pending, awaited)
                except DranodeError as error:
                    return answers | dict.fromkeys((ref.uid for ref in pending), Refused(str(error)))
                retry: dict[ClaimRef, ResourceClaim] = {}
                conflicts: dict[ClaimRef, ResourceClaim] = {}
                for ref, claim in pending.items():
                    outcome = outcomes[ref.uid]
                    if isinstance(outcome, Changed):
                        # Prepared for another allocation: that is undone first, then the claim is decided again.
                        refusal = self._unprepare_unused(ref, outcome.record)
                        if refusal is None:
                            retry[ref] = claim
                        else:
                            answers[ref.uid] = refusal
                        continue
                    answers[ref.uid] = outcome
                    if isinstance(outcome, Conflict):
                        conflicts[ref] = claim
                # Claims in conflict wait here with all locks released, so that the Unprepare they need can be carried
                # out. If too many calls wait already, the refusal stands.
                if conflicts and self._clock() < deadline:
                    waiting = waiting or self._waiting_calls.acquire(blocking=False)
                    if waiting:
                        with self._lock.freed:
                            self._lock.freed.wait(_CONFLICT_POLL)
                        retry |= conflicts
                pending = retry
        finally:
            if waiting:
                self._waiting_calls.release()
        return answers

    def _prepare_once(self, claims: Mapping[ClaimRef, ResourceClaim], awaited: Awaited) -> dict[str, ClaimOutcome]:
        """Decide the claims, commit the decision, and carry it out; returns the outcomes by UID.

        Raises:
            DranodeError: no claim could be decided or committed.
        """
        with self._lock.held():
            # While this call waited for the lock, kubelet may have given it up.
            _check_awaited(awaited)
            self.discovery.check()
            store, book = self.store, self.store.book
            known = book.known_of(ref.uid for ref in claims)
            outcomes: dict[str, ClaimOutcome] = {}
            records: dict[str, Record] = {}
            with store.transaction():
                given = Circumstances(
                    self.plugin, self.inventory, book.held, self.pool, store.blocked(), self.not_enforced()
                )
                for ref, claim in claims.items():
                    decided = self._decide(ref, claim, known.get(ref.uid), given)
                    if not isinstance(decided, Record):
                        outcomes[ref.uid] = decided
                    elif decided.grants:
                        # The next claims of this call must not get the same devices.
                        store.reserve(decided)
                        records[ref.uid] = decided
                    else:
                        # A claim without devices of this driver holds nothing and needs no record.
                        outcomes[ref.uid] = Prepared()
                decision = prepare_decision(records.values(), book.record)
                if decision.commit:
                    store.commit(decision.commit)
            # From here on the records are durable. Whatever fails or crashes now is repeated or undone from them.
            failures = self.interpreter.carry_out(decision.effects)
            self._notify_of_settings()
            for uid, record in records.items():
                if uid in failures:
                    outcomes[uid] = failures[uid]
                    continue
                # `granted` counts a claim once, also if kubelet prepares it again after a restart.
                outcomes[uid] = Prepared(self.files.devices(record), new=uid not in known)
                if uid not in known:
                    self.granted(record)
            return outcomes

    def _decide(
        self, ref: ClaimRef, claim: ResourceClaim, record: Record | None, given: Circumstances
    ) -> Record | Refused | Conflict | Changed:
        """Decide one claim. Errors become values too, so that one claim's error does not fail the others."""
        try:
            self.store.refuse_damaged(ref)
            return decide_claim(ref, claim, record, given)
        except ClaimConflictError as error:
            # A claim that was recreated has the name of the one that it waits for.
            namesakes = given.held.namesakes(ref)
            others = "".join(f"; the claim {ref} on record is another one, with UID {other.uid}" for other in namesakes)
            return Conflict(f"{error}{others}")
        except DranodeError as error:
            return Refused(str(error))
        except Exception as error:
            driver = self.plugin.driver
            log.exception("claim=%s uid=%s driver=%s: no decision", ref, ref.uid, driver)
            return refused_by_error(ref, driver, error)

    def _unprepare_unused(self, ref: ClaimRef, record: Record) -> Refused | None:
        """Unprepare a claim that was allocated again since it was prepared; refused if a container may still use it."""
        used = self._in_use(ref)
        if used is False:
            # Nothing is undone if another call has prepared the claim again meanwhile.
            try:
                return self.release((record,)).get(ref.uid)
            except DranodeError as error:
                return Refused(str(error))
        reason = (
            "a container still uses it"
            if used
            else "neither NRI nor kubelet's pod-resources can say whether a container still uses it"
        )
        return Refused(
            f"claim {ref} is prepared for another allocation than it has now, and {reason}; "
            "delete the pods that name the claim, this one too, and kubelet unprepares it"
        )

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> dict[str, Refused | None]:
        """Unprepare the claims of one call.

        Args:
            refs: the claims.
            awaited: returns whether the caller still waits for the answer. If not, nothing is done any more.

        Returns:
            For each claim, by UID, None or why it cannot be unprepared. An unknown claim counts as unprepared.
        """
        try:
            with self._lock.held():
                _check_awaited(awaited)
                return self._undo(refs)
        except DranodeError as error:
            return dict.fromkeys((ref.uid for ref in refs), Refused(str(error)))

    def release(self, records: Iterable[Record]) -> dict[str, Refused | None]:
        """Unprepare claims for which kubelet will not call Unprepare, unless their records have changed meanwhile.

        Returns:
            For each claim whose record has not changed, by UID, None or why it cannot be unprepared.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self._lock.held():
            # The caller found out without the lock that the claim is not needed. It may have been prepared again since.
            entries = ((record, self.store.book.entry(record.uid)) for record in records)
            unchanged = (record.ref for record, entry in entries if entry is not None and entry.record == record)
            return self._undo(tuple(unchanged))

    def _undo(self, refs: tuple[ClaimRef, ...]) -> dict[str, Refused | None]:
        """Undo claims under the lock: mark them as started, restore hardware, remove files, delete their records."""
        # The record goes last. If a step fails, the claim keeps its devices, and kubelet calls again.
        book, uids = self.store.book, [ref.uid for ref in refs]
        decision = unprepare_decision(refs, book.known_of(uids), book.unreadable(uids), self.plugin)
        failures = self.interpreter.carry_out((decision.commit, *decision.effects))
        self._notify_of_settings()
        self._lock.freed.notify_all()
        return {ref.uid: failures.get(ref.uid) for ref in refs}


def _check_awaited(awaited: Awaited) -> None:
    """Check, under the lock, that the caller still waits.

    Raises:
        DranodeError: the caller has given up. Its next call, perhaps the opposite one, may be done already.
    """
    if not awaited():
        raise DranodeError("the caller gave up before its turn came, so nothing was done")
