"""CDI specs that vanish or are altered while the driver runs are written again.

kubelet remembers what was prepared and does not ask again, so no other process would notice. The kernel reports which
files were touched; where it cannot, every look is at all of them, as one is from time to time in any case. What lies
there since before this process began is looked into as well, a few claims at a time.
"""

from __future__ import annotations

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

# How soon after an event to look, so that a spec is back within a second and a call's files are looked at once.
LOOK_SECONDS: Final = 0.5
# How often to look without an event: there is none when another folder is mounted over this one.
_IDLE_SECONDS: Final = 5.0
_ALL_SECONDS: Final = 60.0
# In place of the stamp of a spec that was looked into: whatever lies there at the next look is compared once more.
_MENDED: Final[Stamp] = (0, 0, 0)
# Looking into a claim's files takes a millisecond, under the lock on decisions.
_AT_ONCE: Final = 20


class SpecWatch:
    """Watches the specs of one node's claims.

    Attributes:
        node: whose specs.
        clock: seconds, monotonic.
        rewritten: how many were written again since start.
    """

    def __init__(self, node: NodeClaims, clock: Callable[[], float] = time.monotonic) -> None:
        self.node = node
        self.clock = clock
        self.rewritten = 0
        self._events = FolderEvents(node.files.specs.directory)
        self._all_due = 0.0
        self._sweep_due = False
        # The files of claims that this process did not leave so, as they were when they were last seen; None: missing.
        self._seen: dict[str, Stamp | None] = {}
        # Claims whose files are to be mended now; False: they were never there since this process began.
        self._due: dict[str, bool] = {}
        # Those that are still to be looked into.
        self._unknown: dict[str, None] = {}
        self._failing: dict[str, str] = {}
        self._wake = Wake()
        self._ending = threading.Event()

    def check(self) -> None:
        """Look once.

        Raises:
            UnreadError: the ledger cannot be read.
            DranodeError: metadata that nobody needs cannot be removed.
        """
        named, now = self._events.names(), self.clock()
        if named is None or now >= self._all_due:
            self._look_at_all()
            self._all_due = now + _ALL_SECONDS
            self._sweep_due = True
        else:
            book, touched = self.node.store.book, self.node.files.specs.uids_of(named)
            uids = (uid for uid in touched if book.record(uid) is not None and not self._is_as_left(uid))
            self._due |= dict.fromkeys(uids, True)
        known = itertools.islice(self._unknown, _AT_ONCE)
        self._due |= dict.fromkeys((*self._failing, *known), True)
        self._mend_due()
        if self._sweep_due:
            self._sweep_due = False
            self.node.sweep()

    def _mend_due(self) -> None:
        """Mend what is due, a few claims at a time: calls that wait for the lock on decisions come in between."""
        while batch := tuple(itertools.islice(self._due, _AT_ONCE)):
            began = self.clock()
            self._mend(batch)
            for uid in batch:
                self._seen[uid] = _MENDED
                self._due.pop(uid, None)
                self._unknown.pop(uid, None)
            if self._due and self._ending.wait(self.clock() - began):
                return

    def rest(self, stopping: threading.Event) -> bool:
        """Wait until there may be something to look at; whether to stop instead."""
        events = self._events.fileno
        if events is None or self._due or self._unknown or self._failing:
            return stopping.wait(LOOK_SECONDS)
        poll = select.poll()
        poll.register(events, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if poll.poll(_IDLE_SECONDS * 1000):
            return stopping.wait(LOOK_SECONDS)
        return stopping.is_set()

    def wake(self) -> None:
        """Let no `rest` and no `look` wait any longer."""
        self._ending.set()
        self._wake.up()

    def stop(self) -> None:
        """Close the watch; `look` is not called after that."""
        self._events.close()
        self._wake.close()

    def _is_as_left(self, uid: str) -> bool:
        left = self.node.files.written.get(uid)
        return left is not None and self.node.files.specs.stamp(uid) == left

    def _look_at_all(self) -> None:
        """Find the claims whose files are others than they were; those that lay there before wait for their turn.

        So do all where the live machine has a say in them: device nodes get other numbers when a kernel driver is
        loaded again, and a container that starts again would have nodes of no device or of another.
        """
        stamps = self.node.files.specs.stamps()
        seen: dict[str, Stamp | None] = {}
        for uid in stamps.keys() | self.node.store.book.uids():
            stamp, left = stamps.get(uid), self.node.files.written.get(uid)
            if stamp is not None and stamp == left:
                if self.node.plugin.completes():
                    self._unknown[uid] = None
                continue
            seen[uid] = stamp
            new = uid not in self._seen and left is None
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
