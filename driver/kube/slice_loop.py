"""Keeps one driver's slices as desired. `slices.plan` decides what to change; this loop carries it out.

A new inventory is published at once. A change by somebody else is repaired soon the first time, and more slowly each
time it is repeated. After a failed write, the loop lists again and makes a new plan. If nothing differs, it writes
nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.resource import ResourceSlice
from dranode.driver.claims.plugin import Inventory
from dranode.driver.kube.client import Client
from dranode.driver.kube.errors import ApiError, Backoff
from dranode.driver.kube.slice_requests import SliceWatch, SliceWriter, list_slices
from dranode.driver.process.threads import Fatal, OwnedThread
from dranode.driver.slices.plan import (
    CreateSlice,
    DeleteSlice,
    PublisherStatus,
    SliceChange,
    UpdateSlice,
    plan,
    published_specs,
)
from dranode.driver.slices.storable import CONSUMABLE, DesiredSlices, dropped_fields
from dranode.driver.slices.view import SliceView

log = logging.getLogger(__name__)

_RETRY: Final = Backoff(first=0.5, most=30.0)
_JOIN_SECONDS: Final = 5.0
# How often the driver tries whether the server can store devices that had to be withdrawn, in seconds.
_PROBE_SECONDS: Final = 300.0
_REPAIR: Final = Backoff(first=1.0, most=30.0)
# A fight over slices is over after this many seconds without a repair.
_QUIET: Final = 300.0


class Pace(msgspec.Struct, frozen=True):
    """How soon slices that somebody else changed are repaired: soon at first, and more slowly while it goes on.

    Attributes:
        repairs: the number of repairs in a row.
        last: the time of the last one, in seconds.
    """

    repairs: int = 0
    last: float = 0.0

    def delay(self, now: float) -> float:
        """Return the seconds until the next repair."""
        return _REPAIR.delay(self._row(now), 0.5)

    def repaired(self, now: float) -> Pace:
        """Return the pace after a repair."""
        return Pace(self._row(now) + 1, now)

    def _row(self, now: float) -> int:
        return self.repairs if self.repairs and now - self.last < _QUIET else 0


class SliceLoop:
    """Publishes one driver's slices on one node, with two threads: one watches slices, one writes them."""

    def __init__(self, client: Client, desired: DesiredSlices, fatal: Fatal) -> None:
        """Set the threads up to publish what is desired; `start` starts them."""
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
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop both threads; the slices stay in the API server."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
        self._watch.stop()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def want(self, inventory: Inventory) -> None:
        """Publish this inventory instead of the one before."""
        with self._lock:
            # Drivers read their hardware regularly, and the same inventory must cause no request.
            if inventory == self._desired.inventory:
                return
            self._desired = self._desired.of(inventory)
            self._settled = False
            self.status = replace(self.status, published=False)
            self._is_due(0)

    # --- reported by the watch ---

    def newest(self) -> int:
        """Return the newest known resource version."""
        with self._lock:
            return self._view.newest

    def listed(self, slices: tuple[ResourceSlice, ...], version: str, asked: int) -> None:
        """Replace the view of the slices in the API server."""
        with self._lock:
            self._apply(slices, version, asked)
            # After an interruption the server may be another version, with other feature gates.
            back = self._listed and not self._listens
            first, self._listed, self._listens = not self._listed, True, True
            self._probe = self._probe or back
            self._is_due(0 if first or back else self._repair_delay())

    def changed(self, changed: ResourceSlice) -> None:
        """Note a slice that was added or modified, and repair it soon if somebody else did it."""
        with self._lock:
            # The view knows what this driver has written, so that its own writes, which come back as events, are not
            # repaired.
            if self._view.changed(changed):
                self._is_due(self._repair_delay())

    def gone(self, changed: ResourceSlice) -> None:
        """Note a slice that was deleted, and create it again soon if somebody else did it."""
        with self._lock:
            if self._view.gone(changed):
                self._is_due(self._repair_delay())

    def lost(self) -> None:
        """Note that changes may be missed until the next list."""
        with self._lock:
            self._listens = False

    def failed(self, error: ApiError) -> None:
        """Note why the server cannot be listed or watched."""
        with self._lock:
            self._report(str(error))

    def _apply(self, slices: tuple[ResourceSlice, ...], version: str, asked: int) -> None:
        if self._view.listed(slices, version, asked):
            log.warning(
                "slices driver=%s: the API server went back from version %d to %s, as after a restore from a backup",
                self._desired.driver,
                asked,
                version,
            )

    def _repair_delay(self) -> float:
        return self._pace.delay(self._client.timing.clock())

    def _is_due(self, delay: float) -> None:
        # The earlier time wins: a new inventory does not wait for a repair that is delayed because of a fight over the
        # slices.
        at = self._client.timing.clock() + delay
        self._due = at if self._due is None else min(self._due, at)
        self._lock.notify_all()

    def _report(self, problem: str | None) -> None:
        """Set the problem of the status, and log it once."""
        if problem != self.status.problem:
            if problem is not None:
                log.warning("slices driver=%s: %s", self._desired.driver, problem)
            elif self.status.problem is not None:
                log.info("slices driver=%s: published as desired again", self._desired.driver)
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
                    self._report(str(error))
                    self._is_due(_RETRY.delay(self._failures, timing.dice(), error.retry_after))
                    self._failures += 1
            else:
                self._failures = 0

    def _wait(self) -> bool:
        """Wait until a sync is due; returns False if the loop has to stop."""
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
        """Make the published slices equal to the desired ones.

        Raises:
            ApiError: a request failed; the changes made before it stay.
        """
        # After a failure the view may be wrong: a request that got no answer may have been carried out.
        if self._relist:
            asked = self.newest()
            listed = list_slices(self._client, self._desired.driver, self._desired.node_name)
            with self._lock:
                self._apply(listed.slices, listed.version, asked)
                self._relist = False
        if self._probe:
            self._probe_gates()
        with self._lock:
            desired, published = self._desired, tuple(self._view.slices.values())
            is_repair = self._settled
        specs = desired.specs(published_specs(published, desired.node_name))
        changes = plan(specs, published)
        # The Node's UID is needed only for new slices, so it is read only then.
        if any(isinstance(change, CreateSlice) for change in changes):
            changes = plan(specs, published, self._writer.owner())
        for change in changes:
            # When this loop stops, another instance may be publishing these slices already.
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
                self._report(desired.problem)
                if desired.withdrawn:
                    self._probe = True
                    self._is_due(_PROBE_SECONDS)

    def _carry_out(self, desired: DesiredSlices, change: SliceChange) -> bool:
        """Make one change; returns False if a new plan is necessary, because the server dropped fields."""
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
        # The name begins with the slice's number (`slices.plan`).
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

    def _probe_gates(self) -> None:
        """Find out, without writing, whether devices that were withdrawn can be published now."""
        with self._lock:
            self._probe = False
            desired = self._desired
            if not desired.withdrawn:
                return
            published = tuple(self._view.slices.values())
            specs = desired.again().specs(published_specs(published, desired.node_name))
            updates = [change for change in plan(specs, published) if isinstance(change, UpdateSlice)]
        # A dry run passes the feature gates as a real request does, and is not stored. One slice is enough to see it.
        for change in updates[:1]:
            returned = self._writer.update(change, dry_run=True)
            if CONSUMABLE not in dropped_fields(change.slice.spec, returned.spec):
                with self._lock:
                    self._desired = desired.again()
                    self._settled = False
                    self.status = replace(self.status, dropped=frozenset())
