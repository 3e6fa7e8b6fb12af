"""Keeps one driver's slices as they are desired: a pure plan, and this loop around it.

What is desired is published at once. What others change is mended soon the first time and ever later if they insist; a
write that fails is tried again from a fresh list. While everything is as desired nothing is written.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from msgspec.structs import replace

from dranode.driver.core.api.resource import ResourceSlice
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.slices.dropped_fields import dropped_fields
from dranode.driver.core.slices.plan import CreateSlice, DeleteSlice, SliceChange, UpdateSlice, plan, published_specs
from dranode.driver.core.slices.publication import PublisherStatus
from dranode.driver.core.slices.storable import CONSUMABLE, DesiredSlices
from dranode.driver.core.slices.view import SliceView
from dranode.driver.kube.client import Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.retry import Backoff, Pace
from dranode.driver.kube.slice_writer import SliceWriter
from dranode.driver.kube.watch import SliceWatch, list_slices
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)

_RETRY: Final = Backoff(first=0.5, most=30.0)
_JOIN_SECONDS: Final = 5.0
# How often the server is asked whether it can keep devices now that were withdrawn.
_PROBE_SECONDS: Final = 300.0


class SliceLoop:
    """One driver's slices on one node, kept by two threads: one listens, one writes."""

    def __init__(self, client: Client, desired: DesiredSlices, fatal: Fatal) -> None:
        """Keep what is desired; `start` begins."""
        self.status = PublisherStatus()
        self._client = client
        self._desired = desired
        self._writer = SliceWriter(client, desired.node_name)
        self._watch = SliceWatch(client, desired.driver, desired.node_name, self)
        self._lock = threading.Condition()
        self._view = SliceView()
        self._listed = False
        self._listens = False
        self._relist = False
        self._probe = False
        self._settled = False
        self._stopped = False
        self._due: float | None = client.timing.clock()
        self._pace = Pace()
        self._failures = 0
        self._threads = (
            OwnedThread(f"{desired.driver}-watch", self._watch.run, fatal),
            OwnedThread(f"{desired.driver}-slices", self._run, fatal),
        )

    def start(self) -> None:
        """Begin to listen and to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both; slices stay."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
        self._watch.stop()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def want(self, inventory: Inventory) -> None:
        """Publish this inventory from now on."""
        with self._lock:
            if inventory == self._desired.inventory:
                return
            self._desired = self._desired.of(inventory)
            self._settled = False
            self.status = replace(self.status, published=False)
            self._is_due(0)

    # --- reported by the watch ---

    def listed(self, slices: tuple[ResourceSlice, ...], version: str) -> None:
        """Take note of everything there is."""
        with self._lock:
            self._view.listed(slices, version)
            # After a time without connection the server may be another one, with other feature gates.
            back = self._listed and not self._listens
            first, self._listed, self._listens = not self._listed, True, True
            self._probe = self._probe or back
            self._is_due(0 if first or back else self._repair_delay())

    def changed(self, changed: ResourceSlice) -> None:
        """Take note of a slice that was added or modified."""
        with self._lock:
            if self._view.changed(changed):
                self._is_due(self._repair_delay())

    def gone(self, changed: ResourceSlice) -> None:
        """Take note of a slice that was deleted."""
        with self._lock:
            if self._view.gone(changed):
                self._is_due(self._repair_delay())

    def lost(self) -> None:
        """Take note that changes may be missed."""
        with self._lock:
            self._listens = False

    def failed(self, error: ApiError) -> None:
        """Take note that the server cannot be listened to."""
        with self._lock:
            self._say(str(error))

    def _repair_delay(self) -> float:
        return self._pace.delay(self._client.timing.clock())

    def _is_due(self, delay: float) -> None:
        at = self._client.timing.clock() + delay
        self._due = at if self._due is None else min(self._due, at)
        self._lock.notify_all()

    def _say(self, problem: str | None) -> None:
        """Enter the problem into the status, and say it once."""
        if problem != self.status.problem:
            if problem is not None:
                log.warning("slices driver=%s: %s", self._desired.driver, problem)
            elif self.status.problem is not None:
                log.info("slices driver=%s: all is well again", self._desired.driver)
            self.status = replace(self.status, problem=problem)

    # --- the loop ---

    def _run(self) -> None:
        while self._wait():
            try:
                self._sync()
            except ApiError as error:
                with self._lock:
                    timing = self._client.timing
                    self._relist = True
                    self._say(str(error))
                    self._is_due(_RETRY.delay(self._failures, timing.dice(), error.retry_after))
                    self._failures += 1
            else:
                self._failures = 0

    def _wait(self) -> bool:
        """Wait until there is something to do; False if that is to stop."""
        with self._lock:
            while not self._stopped:
                if self._listed and self._due is not None:
                    left = self._due - self._client.timing.clock()
                    if left <= 0:
                        self._due = None
                        return True
                    self._lock.wait(left)
                else:
                    self._lock.wait()
            return False

    def _sync(self) -> None:
        """Bring what is published to what is desired.

        Raises:
            ApiError: something fails; what was done stays done.
        """
        if self._relist:
            listed = list_slices(self._client, self._desired.driver, self._desired.node_name)
            with self._lock:
                self._view.listed(listed.slices, listed.version)
                self._relist = False
        if self._probe:
            self._look_for_gates()
        with self._lock:
            desired, published = self._desired, tuple(self._view.slices.values())
            is_repair = self._settled
        specs = desired.specs(published_specs(published, desired.node_name))
        changes = plan(specs, published)
        if any(isinstance(change, CreateSlice) for change in changes):
            changes = plan(specs, published, self._writer.owner())
        for change in changes:
            # A stopped loop has another instance beside it, whose slices these may be by now.
            if self._stopped or not self._carry_out(desired, change):
                return
        if is_repair and changes:
            self._repaired(desired, wiped=not published)
        self._done(desired)

    def _repaired(self, desired: DesiredSlices, *, wiped: bool) -> None:
        with self._lock:
            self._pace = self._pace.repaired(self._client.timing.clock())
            self.status = replace(self.status, repairs=self.status.repairs + 1)
        if wiped:
            log.info(
                "slices driver=%s: all were deleted, as kubelet does when it starts; published again", desired.driver
            )
        else:
            log.warning("slices driver=%s: undid changes that somebody else made", desired.driver)

    def _done(self, desired: DesiredSlices) -> None:
        with self._lock:
            if self._desired is desired:
                self._settled = True
                self.status = replace(self.status, published=not desired.withdrawn)
                self._say(desired.problem)
                if desired.withdrawn:
                    self._probe = True
                    self._is_due(_PROBE_SECONDS)

    def _carry_out(self, desired: DesiredSlices, change: SliceChange) -> bool:
        """Make one change; False if the plan has to be made anew, because the server keeps less than it was sent."""
        match change:
            case DeleteSlice(name=name):
                self._writer.delete(change)
                with self._lock:
                    self._view.deleted(name)
                    self.status = replace(self.status, deleted=self.status.deleted + 1)
                return True
            case UpdateSlice(slice=sent):
                returned = self._writer.update(change)
                with self._lock:
                    self._view.wrote(returned)
                    self.status = replace(self.status, updated=self.status.updated + 1)
            case CreateSlice(slice=sent):
                returned = self._writer.create(change)
                with self._lock:
                    self._view.wrote(returned)
                    self.status = replace(self.status, created=self.status.created + 1)
        log.info("slices driver=%s slice=%s written", desired.driver, returned.metadata.name)
        gates = dropped_fields(sent.spec, returned.spec)
        if gates:
            self._dropped(desired, returned, gates)
        return not gates

    def _dropped(self, desired: DesiredSlices, returned: ResourceSlice, gates: tuple[str, ...]) -> None:
        index = int(returned.metadata.name.partition("-")[0], 16)
        with self._lock:
            new = frozenset(gates) - self.status.dropped
            if new:
                log.warning(
                    "slices driver=%s: the API server drops fields that need the feature gates %s",
                    desired.driver,
                    ", ".join(sorted(new)),
                )
                self.status = replace(self.status, dropped=self.status.dropped | new)
            if self._desired is desired:
                self._desired = desired.after_drop(index, returned.spec, gates)
                self._settled = False
            self._is_due(0)

    def _look_for_gates(self) -> None:
        """Ask, without writing, whether devices that were withdrawn can be published now."""
        with self._lock:
            self._probe = False
            desired = self._desired
            if not desired.withdrawn:
                return
            published = tuple(self._view.slices.values())
            specs = desired.again().specs(published_specs(published, desired.node_name))
            updates = [change for change in plan(specs, published) if isinstance(change, UpdateSlice)]
        for change in updates[:1]:
            returned = self._writer.update(change, dry_run=True)
            if CONSUMABLE not in dropped_fields(change.slice.spec, returned.spec):
                with self._lock:
                    self._desired = desired.again()
                    self._settled = False
                    self.status = replace(self.status, dropped=frozenset())
