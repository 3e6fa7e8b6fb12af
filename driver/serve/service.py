"""One running driver: its node, its slices, its containers; started and stopped in order.

The sockets listen first, because kubelet waits for them; then hardware and ledger are read. On stop, calls in flight
end first, then the sockets are closed; the slices stay.

An instance that is alone is active from the start. During a rolling update there may be two: both answer kubelet, and
the active one publishes, verifies and pins (`authority`).
"""

import contextlib
import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from dranode.api.errors import DranodeError, UnreadError, UsageError
from dranode.driver.claims.answers import BY_OPTION, NotEnforced
from dranode.driver.claims.events import MetadataMissing, Occurrence, RecordQuarantined
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Tunes, was_tuned
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.state import ALONE
from dranode.driver.pinning.snapshot import Pins, PinSnapshot
from dranode.driver.process.threads import OwnedThread
from dranode.driver.serve.announcer import Announcer, Cluster
from dranode.driver.serve.authority import Authority
from dranode.driver.serve.lifecycle import Lifecycle, keep_up
from dranode.driver.serve.nri_plugin import ContainerAccess, PinningDriver
from dranode.driver.serve.orphans import ClaimLookup, take_over
from dranode.driver.serve.pinning import REPORTED, Pinning, PinningTogether, UnenforcedClaims, unmet_needs
from dranode.driver.slices.plan import PublisherStatus

# How often a ledger or hardware that could not be used is checked, in seconds.
_AGAIN_SECONDS: Final = 1.0
# How often health is checked otherwise: well within the time after which kubelet calls a device's health unknown.
_HEALTH_SECONDS: Final = 10.0
log = logging.getLogger(__name__)


class ServiceCounters(Protocol):
    """Counts what a driver does, for metrics. A process without an HTTP server has no counters."""

    def answered(self, call: str, succeeded: bool, seconds: float) -> None:  # noqa: FBT001 - see kubelet.service.Observe
        """Count the answer for one claim of a call, `prepare` or `unprepare`."""

    def granted(self, record: Record) -> None:
        """Count a claim that was prepared for the first time."""

    def nri_answered(self, request: str, seconds: float) -> None:
        """Count an answer to the container runtime."""


class DriverService:
    """One running driver.

    Attributes:
        counters: counts what it does, from `start` on; None for no counters.
    """

    def __init__(
        self,
        plugin: Plugin,
        cluster: Cluster,
        listener: Listener,
        *,
        cdi: Path,
        pod_resources: PodResources | None = None,
        containers: ContainerAccess | None = None,
        together: PinningTogether | None = None,
        taints: bool = False,
    ) -> None:
        """Set the driver up; nothing is opened yet.

        Args:
            plugin: the driver.
            cluster: reads claims, and writes slices, status and Events.
            listener: its folder and its sockets; `start` starts it if it does not listen yet.
            cdi: the CDI directory.
            pod_resources: kubelet's API that lists which containers have which claims; None if there is none.
            containers: how to reach containers; None if they should not be pinned.
            together: the drivers of this process that pin, if there are several.
            taints: whether unhealthy devices are tainted.
        """
        self.plugin = plugin
        metadata = DeviceMetadata.of(plugin.driver, listener.data, cdi)
        self.node = NodeClaims(
            plugin, listener.data, cdi, pool=listener.node_name, in_use=self._in_use, metadata=metadata
        )
        self.node.not_enforced = self._not_enforced
        self.pinning: Pinning | None = None
        self.lifecycle: Lifecycle | None = None
        self._unenforced: UnenforcedClaims | None = None
        self.listener = listener
        self._cluster = cluster
        self._pod_resources = pod_resources
        self._containers = containers
        self._together = together
        self._fatal = listener.fatal
        self._announcer = Announcer(self.node, listener.health, cluster, taints=taints)
        self._authority: Authority | None = None
        self.counters: ServiceCounters | None = None
        self._lookup: ClaimLookup | None = None
        self._taken_over = False
        # Set when this instance becomes active, which ends the thread that only reads the hardware until then.
        self._aside = threading.Event()
        # Why settings could not be changed the last time, so that it is logged only once.
        self._untuned = ""
        self._started = False
        self._stopping = threading.Event()
        # Set when the machine's settings have to be checked, for example because a container of a quiet claim starts.
        self._settings_due = threading.Event()
        self._stops = contextlib.ExitStack()

    def start(self, boot_id: str = "") -> None:
        """Start the driver: listen, read hardware and ledger, answer kubelet, pin containers, publish slices.

        Raises:
            UsageError: another process serves this driver here, or its options do not fit the hardware.
            DranodeError: a folder or a socket cannot be used, or another driver has to drain the node first.
        """
        try:
            # Listen first: a pod may be waiting for its claims. A call that comes now waits until `answer_with`.
            self.listener.start()
            # They run in reverse order: end calls first, then close the ledger, then release the folder.
            for stop in (self._leave, self.node.close, self.listener.close):
                self._stops.callback(stop)
            if self.counters is not None:
                self.listener.calls.observe = self.counters.answered
                self.node.granted = self.counters.granted
            self.node.files.undescribed = self._undescribed
            # Read hardware and ledger, and write missing CDI specs. Failures are logged and tried again later.
            self.node.open(boot_id, snapshot=False)
            # Before the first answer, complete the claims that another driver has left, or refuse to start.
            self._lookup = self._take_over()
            if self.listener.rolling:
                self._create_authority()
            # From here on kubelet gets answers. A container that is created before the runtime is connected is pinned
            # by the answer to Synchronize.
            self.listener.calls.answer_with(self._cluster, self.node, self._cluster.reporter(self.node))
            self.node.follow()
            self._pin()
            self._announcer.report()
            # Publish last: the scheduler must not send pods before their claims can be prepared and enforced.
            self._become_active()
            self._started = True
        # KeyboardInterrupt and SystemExit too: a failed start must not leave a socket that kubelet would find.
        except BaseException:
            self.stop()
            raise
        if isinstance(self.plugin, Tunes):
            self.node.settings_changed = self._settings_due.set
            OwnedThread(f"{self.plugin.driver}-settings", self._keep_tuned, self._fatal).start()
        OwnedThread(f"{self.plugin.driver}-health", self._watch_health, self._fatal).start()

    def _leave(self) -> None:
        if self._started:
            self.listener.release()
        else:
            # A failed start leaves no folder behind.
            self.listener.undo()

    def _become_active(self) -> None:
        """Become active at once if this instance is alone, otherwise when the older one hands over."""
        if self._authority is not None:
            self._stops.callback(self._authority.stop)
            self._authority.start()
            self._keep_up()
        else:
            self._stops.callback(self._end)
            self._begin()

    def _begin(self) -> None:
        """Become active: publish, verify and pin from now on."""
        self._aside.set()
        self._announcer.begin()
        if self.pinning is not None:
            self.pinning.become_active()
        self._look_after()
        # Each time, because Kubernetes keeps Events only for a while.
        for uid, row in self.node.store.book.damaged.items():
            self._notify(RecordQuarantined(uid, row.reason))

    def _end(self) -> None:
        """Stop being active; another instance may take over."""
        if self.lifecycle is not None:
            self.lifecycle.stop()
            self.lifecycle = self._unenforced = None
        if self._authority is not None:
            self._announcer.pause()
            self._aside = threading.Event()
            self._keep_up()

    def _keep_up(self) -> None:
        """While another instance is active, read hardware changes without publishing: kubelet may call this one."""
        aside = self._aside
        if not (aside.is_set() or self._stopping.is_set()):
            name = f"{self.plugin.driver}-hardware-aside"
            self._stops.callback(aside.set)
            OwnedThread(name, lambda: keep_up(self.node, aside), self._fatal).start()

    def _create_authority(self) -> None:
        self._authority = Authority(
            self.listener.data,
            self.plugin.driver,
            prepared=lambda: not any(unmet_needs(self.listener, self.pinning, self.node.unusable)),
            able=lambda: self.node.unusable is None,
            begin=self._begin,
            end=self._end,
            # Reads the other instance's commits, because the runtime may ask before kubelet's next call does.
            follow=self.node.check,
            fatal=self._fatal,
        )
        self._stops.callback(self._authority.close)

    def _watch_health(self) -> None:
        while not self._stopping.wait(_HEALTH_SECONDS if self.node.impediment is None else _AGAIN_SECONDS):
            if (removed := self.listener.removed()) is not None:
                self._fatal(
                    f"the socket {removed} was removed or replaced, and kubelet needs it; the next start creates it "
                    "again"
                )
                return
            try:
                self.node.check()
            except UsageError as error:
                self._fatal(str(error))
                return
            if not self._finish_taking_over():
                return
            # Other programs may have changed the settings since.
            if self.node.tunes():
                self._settings_due.set()
            if self._unenforced is not None:
                self._unenforced.check()
            try:
                self._announcer.report()
            except DranodeError as error:
                log.error("driver=%s: %s", self.plugin.driver, error)  # noqa: TRY400 - a traceback would add nothing

    def _keep_tuned(self) -> None:
        """Check settings on demand, in a thread of its own, because other processes may take long to answer."""
        while not self._stopping.is_set():
            self._settings_due.wait()
            self._settings_due.clear()
            if not self._stopping.is_set():
                self._tune()

    def _container_starts(self, uids: Collection[str]) -> None:
        records = filter(None, map(self.node.record, uids))
        if isinstance(self.plugin, Tunes) and any(was_tuned(self.plugin, record) for record in records):
            self._settings_due.set()

    def _tune(self) -> None:
        """Restore settings that others have changed, and change those of new hardware as claims need it."""
        # The active instance does it for both.
        if not self.active:
            return
        problem = ""
        try:
            self.node.tune()
        except UnreadError:
            # Logged by the lock on decisions; the next check tries again.
            return
        except DranodeError as error:
            problem = str(error)
            if problem != self._untuned:
                log.error("driver=%s: %s", self.plugin.driver, error)  # noqa: TRY400 - a traceback would add nothing
        self._untuned = problem

    def _pin(self) -> None:
        if self._containers is None or self._pod_resources is None or not isinstance(self.plugin, Pins):
            return
        driver = PinningDriver(self.node, self._authority or ALONE, notify=self._notify, starts=self._container_starts)
        if self.counters is not None:
            driver = replace(driver, answered=self.counters.nri_answered)
        self.pinning = Pinning(
            driver,
            self._containers,
            self._pod_resources,
            self._fatal,
            together=self._together,
            reported=(self.listener.data / REPORTED).exists(),
        )
        self.pinning.start()
        self._stops.callback(self.pinning.stop)

    def _take_over(self) -> ClaimLookup:
        lookup = ClaimLookup(self.plugin.driver, self._cluster, self._pod_resources, self._running)
        self._taken_over = take_over(self.node, lookup)
        return lookup

    def _finish_taking_over(self) -> bool:
        """Take over claims that had to wait for the ledger; False if that is refused, which ends the process."""
        if self._taken_over or self._lookup is None or self.node.unusable is not None:
            return True
        try:
            self._taken_over = take_over(self.node, self._lookup)
        except DranodeError as error:
            self._fatal(str(error))
            return False
        return True

    def _running(self) -> frozenset[str] | None:
        # Without enforcement only kubelet knows which containers run.
        return frozenset() if self.pinning is None else self.pinning.claims_in_use()

    def _look_after(self) -> None:
        if self._lookup is None:
            return
        self.lifecycle = Lifecycle(
            self.node,
            self._lookup,
            publish=self._announcer.publish,
            report=self._announcer.report,
            notify=self._notify,
            fatal=self._fatal,
        )
        self.lifecycle.start()
        if isinstance(self.plugin, Pins):
            self._unenforced = UnenforcedClaims(
                self.node,
                self.listener.data,
                self._notify,
                connected=lambda: self.pinning is not None and self.pinning.synchronized,
            )

    def _not_enforced(self) -> NotEnforced | None:
        if not isinstance(self.plugin, Pins):
            return None
        if self._containers is None:
            return BY_OPTION
        return None if self.pinning is None else self.pinning.not_enforced()

    def _notify(self, occurrence: Occurrence) -> None:
        self._cluster.notify(self.plugin.driver, occurrence)

    def _undescribed(self, claim: ClaimRef, reason: str) -> None:
        self._notify(MetadataMissing(claim, reason))

    def _in_use(self, ref: ClaimRef) -> bool | None:
        if self.pinning is not None:
            return self.pinning.in_use(ref)
        # Without a connection to the runtime, only kubelet knows, and its answer needs the claim's pods.
        record = self.node.record(ref.uid)
        if self._pod_resources is None or record is None:
            return None
        return self._pod_resources.in_use(self.plugin.driver, ref, record.pods)

    # --- what probes and metrics show ---

    @property
    def active(self) -> bool:
        """Return whether this instance publishes, verifies and pins."""
        return self.listener.calls.ready.is_set() and (self._authority is None or self._authority.active)

    def missing(self) -> tuple[str, ...]:
        """Return what is missing for the driver to be ready, in one sentence each."""
        missing = list(unmet_needs(self.listener, self.pinning, self.node.impediment))
        if self._authority is not None and not self._authority.active:
            # A retired instance has nothing left to do, so it counts as ready until it is ended.
            if not self._authority.retired:
                missing.append(
                    "an older instance still publishes and pins, and hands over once nothing else is missing"
                )
        elif not self.published().published:
            missing.append(self.published().problem or "nothing was published yet")
        return tuple(f"{self.plugin.driver}: {sentence}" for sentence in missing)

    def published(self) -> PublisherStatus:
        """Return the state of the published slices."""
        return self._announcer.status()

    def snapshot(self) -> PinSnapshot | None:
        """Return which CPUs are held, reserved and online; None for a driver that pins no containers."""
        return self.node.snapshot()

    def stop(self) -> None:
        """End calls in flight, close the sockets and the ledger; the slices stay."""
        self._stopping.set()
        # Ends the thread that waits for it.
        self._settings_due.set()
        self._stops.close()
