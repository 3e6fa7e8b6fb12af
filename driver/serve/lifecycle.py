"""The background work of an active driver: it follows hardware changes, checks CDI specs, and finds orphans."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from dranode.api.errors import DranodeError, UnreadError
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored, Notify, notify_none
from dranode.driver.claims.plugin import Impairment, Stop
from dranode.driver.claims.status import prepared_states
from dranode.driver.node.node import NodeClaims
from dranode.driver.process.threads import Fatal, OwnedThread
from dranode.driver.serve import orphans
from dranode.driver.serve.orphans import ClaimLookup, Orphans
from dranode.driver.serve.spec_watch import SpecWatch

log = logging.getLogger(__name__)

# How long to wait for the end of a thread that does not wait for other programs, in seconds.
_GRACE: Final = 2.0


class LifecycleStatus(msgspec.Struct, frozen=True):
    """The state that metrics show; numbers are since the start.

    Attributes:
        impaired: the claims that have less at the moment than they were given, by UID.
        hardware_changes: how often the hardware has changed.
        specs_rewritten: how many CDI specs had been removed or changed by others.
        orphans: how many claims are on record although they were deleted and no container uses them.
        orphans_unprepared: how many of these were unprepared.
    """

    impaired: Mapping[str, Impairment] = msgspec.field(default_factory=dict)
    hardware_changes: int = 0
    specs_rewritten: int = 0
    orphans: int = 0
    orphans_unprepared: int = 0


class Lifecycle:
    """Runs the threads that look after claims and hardware while a driver is active."""

    def __init__(
        self,
        node: NodeClaims,
        lookup: ClaimLookup,
        *,
        publish: Callable[[], None],
        report: Callable[[], None],
        notify: Notify,
        fatal: Fatal,
    ) -> None:
        """Set the threads up; `start` starts them.

        Args:
            node: the claims and the hardware of the node.
            lookup: finds out whether claims still exist and are in use.
            publish: publishes slices and reports health.
            report: reports health to kubelet.
            notify: reports to people what happens to claims.
            fatal: ends the process with a sentence.
        """
        self._node = node
        self._stopping = threading.Event()
        self._hardware = Hardware(node, publish, report, notify)
        self._specs = SpecWatch(node)
        self._orphans = Orphans(node, lookup, notify, stopping=self._stopping)
        name = node.plugin.driver
        # Checking specs never waits for another program, so `stop` can wait for its end. The others may wait for
        # kubelet, the API server or a driver's library.
        self._quick = OwnedThread(f"{name}-specs", self._every(self._specs.rest, self._specs.check), fatal)
        self._slow = (
            OwnedThread(f"{name}-orphans", self._every(_until_orphans, self._orphans.check), fatal),
            OwnedThread(f"{name}-hardware", lambda: self._hardware.follow(self._stopping), fatal),
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in (self._quick, *self._slow):
            thread.start()

    def stop(self) -> None:
        """Stop the threads. A thread that waits for another program ends later, and changes nothing any more."""
        self._stopping.set()
        self._specs.wake()
        self._quick.join(_GRACE)
        self._specs.stop()

    def status(self) -> LifecycleStatus:
        """Return the current state."""
        return LifecycleStatus(
            impaired=self._hardware.impaired,
            hardware_changes=self._hardware.changes,
            specs_rewritten=self._specs.rewritten,
            orphans=self._orphans.waiting(),
            orphans_unprepared=self._orphans.released,
        )

    def _every(self, rest: Callable[[threading.Event], bool], check: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            trouble = ""
            while not rest(self._stopping):
                try:
                    check()
                except UnreadError:
                    # Logged by the lock on decisions.
                    continue
                except DranodeError as error:
                    # Logged once, and not at all if the impediment says the same.
                    if str(error) not in (trouble, self._node.impediment):
                        driver = self._node.plugin.driver
                        log.error("driver=%s: %s", driver, error)  # noqa: TRY400 - a traceback would add nothing
                    trouble = str(error)
                else:
                    trouble = ""

        return work


def _until_orphans(stopping: threading.Event) -> bool:
    return stopping.wait(orphans.CHECK_SECONDS)


def keep_up(node: NodeClaims, stop: Stop) -> None:
    """Read the hardware again whenever it changes, until `stop` is set, without publishing it.

    An instance that is not active answers kubelet too, so it has to know which devices exist.
    """
    for _ in node.plugin.watch(stop):
        if stop.is_set():
            return
        with contextlib.suppress(DranodeError):
            # The failure was logged. If the options did not fit the hardware, the first reading would have ended the
            # process.
            node.rescan()


class Hardware(msgspec.Struct):
    """Follows the hardware of one node.

    Attributes:
        node: the node.
        publish: publishes slices and reports health.
        report: reports health.
        notify: reports to people which claims have lost something.
        impaired: the claims that have less than they were given, by UID; any thread may read it.
        changes: how often the hardware has changed since the start.
    """

    node: NodeClaims
    publish: Callable[[], None]
    report: Callable[[], None]
    notify: Notify = notify_none
    impaired: dict[str, Impairment] = msgspec.field(default_factory=dict)
    changes: int = 0
    _unpublished: bool = False
    _troubles: tuple[str, ...] = ()

    def follow(self, stop: Stop) -> None:
        """Check whenever the driver's `watch` says so, until `stop` is set."""
        # The hardware may have changed since it was read at the start, before anything watched it.
        self.check()
        for _ in self.node.plugin.watch(stop):
            if stop.is_set():
                return
            self.check()

    def check(self) -> None:
        """Check once. A step that fails is logged and tried again at the next check; the other steps still run."""
        troubles: list[str] = []
        # First the claims, then the slices: a smaller slice tells nobody that a running pod has lost a device.
        for step in (self._rescan, self._check_claims, self._announce):
            try:
                step()
            except UnreadError:
                # Logged by the reading.
                continue
            except (DranodeError, OSError) as error:
                # A driver's hook may read the hardware, and raise the OSError itself.
                troubles.append(str(error))
        for sentence in troubles:
            if sentence not in self._troubles:
                log.error("driver=%s: %s", self.node.plugin.driver, sentence)
        self._troubles = tuple(troubles)

    def _rescan(self) -> None:
        before = self.node.discovery.known
        try:
            self.node.rescan()
        finally:
            # The hardware has changed even if a watcher that the node notifies has failed.
            if self.node.discovery.known is not before:
                self.changes += 1
                self._unpublished = True
                log.info("driver=%s the hardware has changed", self.node.plugin.driver)

    def _announce(self) -> None:
        if self._unpublished:
            # If this fails, the next check publishes.
            self.publish()
            self._unpublished = False
        else:
            self.report()

    def _check_claims(self) -> None:
        plugin, inventory, not_enforced = self.node.plugin, self.node.inventory, self.node.not_enforced()
        records = {record.uid: record for record in self.node.records()}
        before = self.impaired
        now = {impairment.claim.uid: impairment for impairment in plugin.impairments(inventory, records.values())}
        # A claim that has lost more since is reported again.
        lost = [records[uid] for uid, impairment in now.items() if before.get(uid) != impairment]
        restored = [records[uid] for uid in (before.keys() - now.keys()) & records.keys()]
        # Everything that may fail comes before `impaired` is set, so that nothing counts as reported too early. It is
        # replaced as a whole, because other threads read it.
        states = {record.uid: prepared_states(plugin, record, inventory, not_enforced) for record in (*lost, *restored)}
        self.impaired = now
        for record in lost:
            impairment = now[record.uid]
            reason, message = impairment.reason, impairment.message
            log.warning("claim=%s uid=%s driver=%s: %s", impairment.claim, record.uid, plugin.driver, message)
            self.notify(ClaimImpaired(record.ref, record.pods, reason, message, states[record.uid]))
        for record in restored:
            log.info("claim=%s uid=%s driver=%s has everything again", record.ref, record.uid, plugin.driver)
            self.notify(ClaimRestored(record.ref, states[record.uid]))
