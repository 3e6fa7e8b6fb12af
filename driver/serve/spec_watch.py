"""Writes CDI specs again that were removed or changed while the driver runs.

kubelet remembers which claims were prepared and does not ask again, so nothing else would notice. The kernel reports
which files were touched. If it cannot (no inotify), and once a minute in any case, all files are checked. Files from
before this process started are checked too, a few claims at a time.
"""

import itertools
import logging
import select
import threading
import time
from collections.abc import Callable
from typing import Final

from dranode.driver.claims.held import ClaimRef
from dranode.driver.machine.folder_events import FolderEvents
from dranode.driver.node.node import NodeClaims
from dranode.driver.node.specs import Stamp
from dranode.driver.process.threads import Wake

log = logging.getLogger(__name__)

# How long after an event to check, in seconds, so that a spec is back within a second, and the files of one call are
# checked together.
CHECK_SECONDS: Final = 0.5
# How often to check without an event, in seconds: there is none if another folder is mounted over this one.
_IDLE_SECONDS: Final = 5.0
_ALL_SECONDS: Final = 60.0
# Instead of the stamp of a spec that was just repaired, so that the next check compares it once more.
_MENDED: Final[Stamp] = (0, 0, 0)
# Checking a claim's files takes a millisecond, during which the lock on decisions is held.
_AT_ONCE: Final = 20


class SpecWatch:
    """Watches the specs of one node's claims.

    Attributes:
        node: the node.
        clock: returns seconds, monotonic.
        rewritten: the number of specs that were written again since the start.
    """

    def __init__(self, node: NodeClaims, clock: Callable[[], float] = time.monotonic) -> None:
        self.node = node
        self.clock = clock
        self.rewritten = 0
        self._events = FolderEvents(node.files.specs.directory)
        self._all_due = 0.0
        self._sweep_due = False
        # The stamps at the last check of files that this process did not write; None for a missing file.
        self._seen: dict[str, Stamp | None] = {}
        # The claims whose files have to be repaired now; False if they have been missing since this process started.
        self._due: dict[str, bool] = {}
        # The claims whose files still have to be compared with the record.
        self._unknown: dict[str, None] = {}
        self._failing: dict[str, str] = {}
        self._wake = Wake()
        self._ending = threading.Event()

    def check(self) -> None:
        """Check once.

        Raises:
            UnreadError: the ledger cannot be read.
            DranodeError: metadata that is not needed any more cannot be removed.
        """
        named, now = self._events.names(), self.clock()
        if named is None or now >= self._all_due:
            self._check_all()
            self._all_due = now + _ALL_SECONDS
            self._sweep_due = True
        else:
            book, touched = self.node.store.book, self.node.files.specs.uids_of(named)
            # Writing a spec causes events too, so specs that are as this process wrote them are left out.
            uids = (uid for uid in touched if book.record(uid) is not None and not self._is_unchanged(uid))
            self._due |= dict.fromkeys(uids, True)
        known = itertools.islice(self._unknown, _AT_ONCE)
        self._due |= dict.fromkeys((*self._failing, *known), True)
        self._mend_due()
        if self._sweep_due:
            self._sweep_due = False
            self.node.sweep()

    def _mend_due(self) -> None:
        """Repair what is due, a few claims at a time, so that calls of kubelet get the lock on decisions in between."""
        while batch := tuple(itertools.islice(self._due, _AT_ONCE)):
            began = self.clock()
            self._mend(batch)
            for uid in batch:
                self._seen[uid] = _MENDED
                self._due.pop(uid, None)
                self._unknown.pop(uid, None)
            # A pause as long as the repair: the lock on decisions is held for half of the time at most.
            if self._due and self._ending.wait(self.clock() - began):
                return

    def rest(self, stopping: threading.Event) -> bool:
        """Wait until there may be something to check; returns whether to stop instead."""
        events = self._events.fileno
        if events is None or self._due or self._unknown or self._failing:
            return stopping.wait(CHECK_SECONDS)
        poll = select.poll()
        poll.register(events, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if poll.poll(_IDLE_SECONDS * 1000):
            return stopping.wait(CHECK_SECONDS)
        return stopping.is_set()

    def wake(self) -> None:
        """End the waiting in `rest` and `check`."""
        self._ending.set()
        self._wake.set()

    def stop(self) -> None:
        """Close the watch; `check` must not be called after that."""
        self._events.close()
        self._wake.close()

    def _is_unchanged(self, uid: str) -> bool:
        written = self.node.files.written.get(uid)
        return written is not None and self.node.files.specs.stamp(uid) == written

    def _check_all(self) -> None:
        """Find the claims whose files have changed; files from before this process started wait for their turn.

        If the driver's specs depend on the running machine, all files are compared: device nodes get other numbers when
        a kernel driver is loaded again, and a container that is restarted would get the nodes of another device.
        """
        stamps = self.node.files.specs.stamps()
        seen: dict[str, Stamp | None] = {}
        for uid in stamps.keys() | self.node.store.book.uids():
            stamp, written = stamps.get(uid), self.node.files.written.get(uid)
            if stamp is not None and stamp == written:
                if self.node.plugin.completes():
                    self._unknown[uid] = None
                continue
            seen[uid] = stamp
            new = uid not in self._seen and written is None
            if new and stamp is not None:
                self._unknown[uid] = None
            elif uid not in self._seen or self._seen[uid] != stamp:
                self._due[uid] = not new
        self._seen = seen

    def _mend(self, uids: tuple[str, ...]) -> None:
        answers = self.node.mend_files(uids)
        failing = {uid: refusal.reason for uid, refusal in answers.items() if refusal is not None}
        for uid, reason in failing.items():
            if self._failing.get(uid) != reason:
                log.error("claim=%s uid=%s driver=%s: %s", self._claim(uid), uid, self.node.plugin.driver, reason)
        self._failing = {uid: reason for uid, reason in self._failing.items() if uid not in uids} | failing
        for uid in answers.keys() - failing.keys():
            if not self._due[uid]:
                continue
            self.rewritten += 1
            claim, driver = self._claim(uid), self.node.plugin.driver
            log.warning("claim=%s uid=%s driver=%s wrote its CDI spec again", claim, uid, driver)

    def _claim(self, uid: str) -> ClaimRef:
        record = self.node.record(uid)
        return ClaimRef("", "", uid) if record is None else record.ref
