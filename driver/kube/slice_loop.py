"""Keeps one driver's slices as desired. `slices.plan` decides what to change; this loop lists, watches and writes.

A new inventory is published at once. A change by somebody else is repaired soon the first time, and more slowly each
time it is repeated. After a failed write, the loop lists again and makes a new plan. If nothing differs, it writes
nothing.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from dranode.api.documents import API_GROUP, decode, encode, to_v1
from dranode.api.errors import DocumentError, in_words
from dranode.api.resource import Node, OwnerReference, ResourceSlice
from dranode.driver.claims.plugin import Inventory
from dranode.driver.kube.client import APIRequest, Client, from_v1
from dranode.driver.kube.connection import APIResponse
from dranode.driver.kube.errors import NO_UID, ApiError, Backoff, BrokenStreamError
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


# For `generateName`, k8s.io/apiserver cuts the given beginning to 58 bytes and appends 5 letters or digits.
_BEGINNING: Final = 58
_MADE_UP: Final = "[a-z0-9]{5}"

_DRY_RUN: Final = {"dryRun": "All"}


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


class SliceWriter:
    """Writes slices of one node: one request for each change, with the preconditions of the plan."""

    def __init__(self, client: Client, node_name: str) -> None:
        """Write through `client` for the node of that name."""
        self._client = client
        self._node_name = node_name

    def owner(self) -> OwnerReference:
        """Return the Node as the owner of its slices, so that they are deleted with it.

        The Node is read whenever slices are created. If it was deleted and created again, it has another UID, and the
        garbage collector deletes slices whose owner does not exist.

        Raises:
            ApiError: the Node cannot be read.
        """
        try:
            request = APIRequest("GET", f"/api/v1/nodes/{self._node_name}", "get nodes")
            uid = _uid_of(self._client.send(request, patient=False))
        except DocumentError as error:
            raise ApiError(f"node {self._node_name} in the API server's answer cannot be read: {error}") from error
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise ApiError(
                    f"the cluster has no node {self._node_name}; name this one with --node-name", error.status
                ) from error
            raise
        return OwnerReference(api_version="v1", kind="Node", name=self._node_name, uid=uid, controller=True)

    def delete(self, change: DeleteSlice) -> None:
        """Delete a slice; it is fine if the slice is gone already.

        Raises:
            ApiError: the request failed, or somebody else has changed the slice meanwhile (409).
        """
        # The resource version as a precondition: somebody may have changed the slice since the plan was made, and then
        # the plan has to be made again.
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": change.uid, "resourceVersion": change.resource_version},
        }
        try:
            self._client.resource(
                lambda root, _: APIRequest(
                    "DELETE", f"{root}/resourceslices/{change.name}", "delete resourceslices", {}, body
                )
            )
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def update(self, change: UpdateSlice, *, dry_run: bool = False) -> ResourceSlice:
        """Replace a slice; returns the slice as the server has stored it, or would store it if this is a dry run.

        Raises:
            ApiError: the request failed, or somebody else has changed the slice meanwhile (409).
        """
        tail = f"resourceslices/{change.slice.metadata.name}"
        return self._write("PUT", tail, "update resourceslices", change.slice, _DRY_RUN if dry_run else {})

    def create(self, change: CreateSlice) -> ResourceSlice:
        """Create a slice; returns the slice as the server has stored it.

        Raises:
            ApiError: the request failed.
        """
        try:
            return self._write("POST", "resourceslices", "create resourceslices", change.slice, {})
        except ApiError as error:
            raise _of_every_try(error, change.slice.metadata.generate_name) from error

    def _write(
        self, method: str, tail: str, what: str, written: ResourceSlice, query: Mapping[str, str]
    ) -> ResourceSlice:
        # The model has no `kind`, because the items of a list come without it.
        document: dict[str, Any] = {**encode(written), "kind": "ResourceSlice"}

        def request(root: str, version: str) -> APIRequest:
            return APIRequest(method, f"{root}/{tail}", what, query, from_v1(document, version))

        try:
            return decode(ResourceSlice, self._client.resource(request))
        except DocumentError as error:
            raise ApiError(f"the API server's answer to {what} cannot be read: {error}") from error


def _uid_of(node: Any) -> str:
    uid = decode(Node, node).metadata.uid
    if not uid:
        raise DocumentError(NO_UID)
    return uid


def _of_every_try(error: ApiError, generate_name: str) -> ApiError:
    """Return the error without the generated name, which differs at every attempt, so that it is logged only once."""
    beginning = generate_name[:_BEGINNING]
    message = re.sub(re.escape(beginning) + _MADE_UP, lambda _: beginning, str(error))
    return ApiError(message, error.status, retry_after=error.retry_after, of_object=error.of_object)


# List and watch: all slices once, then the changes. Bookmarks keep the resource version fresh while nothing changes.
#
# - The watch ends normally: watch on from the last resource version.
# - 410 Gone: the server has forgotten the resource version, so list again.
# - The connection breaks or falls silent: list again. A server that was restored from a backup accepts a resource
#   version that it has not reached yet, and sends nothing until it has.

# A watch is asked to end after five to ten minutes, at random, so that nodes do not reconnect at the same time. The
# server sends a bookmark about once a minute, so a longer silence means that the connection is dead.
_WATCH_SECONDS: Final = 300
_SILENCE_SECONDS: Final = 150.0
_BACKOFF: Final = Backoff(first=0.5, most=30.0)
_PAUSE: Final = 1.0


class SliceListener(Protocol):
    """Receives the results of list and watch."""

    def newest(self) -> int:
        """Return the newest known resource version."""

    def listed(self, slices: tuple[ResourceSlice, ...], version: str, asked: int) -> None:
        """Receive all slices as of a resource version; `asked` is what `newest` returned before the request."""

    def changed(self, changed: ResourceSlice) -> None:
        """Receive a slice that was added or modified."""

    def gone(self, changed: ResourceSlice) -> None:
        """Receive a slice that was deleted."""

    def lost(self) -> None:
        """Note that changes may be missed until the next `listed`."""

    def failed(self, error: ApiError) -> None:
        """Note why the server cannot be listed or watched at the moment."""


class Listed(msgspec.Struct, frozen=True):
    """Slices as of a resource version."""

    slices: tuple[ResourceSlice, ...]
    version: str


def selector(driver: str, node_name: str) -> str:
    """Return the field selector for a driver's slices on a node."""
    return f"spec.driver={driver},spec.nodeName={node_name}"


def list_slices(client: Client, driver: str, node_name: str) -> Listed:
    """Return the driver's slices on the node as they are now.

    Raises:
        ApiError: the list cannot be read.
    """

    def request(root: str, version: str) -> APIRequest:
        del version
        query = {"fieldSelector": selector(driver, node_name)}
        return APIRequest("GET", f"{root}/resourceslices", "list resourceslices", query)

    document = client.resource(request, patient=False)
    try:
        version = str(document["metadata"]["resourceVersion"])
        kind = {"apiVersion": document["apiVersion"], "kind": "ResourceSlice"}
        # Go encodes an empty list as null. An answer without the field is not a list, and must not count as an empty
        # one.
        return Listed(tuple(_slice({**kind, **item}) for item in document["items"] or ()), version)
    except (KeyError, TypeError, AttributeError, DocumentError) as error:
        raise ApiError(
            f"the API server's list of {API_GROUP} resourceslices cannot be read: {in_words(error)}"
        ) from error


class SliceWatch:
    """Follows the slices; `run` is a thread's work."""

    def __init__(self, client: Client, driver: str, node_name: str, listener: SliceListener) -> None:
        """Follow `driver`'s slices on `node_name` for `listener`."""
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._listener = listener
        self._stopped = threading.Event()
        self._response: APIResponse | None = None

    def stop(self) -> None:
        """End `run` soon, from another thread."""
        # The thread may be waiting for the next event of the watch, which can take minutes. Ending the connection wakes
        # it.
        self._stopped.set()
        response = self._response
        if response is not None:
            response.shutdown()

    def run(self) -> None:
        """List, watch, and list again when necessary, until stopped."""
        attempt = 0
        while not self._stopped.is_set():
            tried = self._client.timing.clock()
            try:
                asked = self._listener.newest()
                listed = list_slices(self._client, self._driver, self._node_name)
                self._listener.listed(listed.slices, listed.version, asked)
                version = listed.version
                while not self._stopped.is_set():
                    began = self._client.timing.clock()
                    version = self._watch(version)
                    attempt = 0
                    # A server or proxy may end every watch at once; do not reconnect in a tight loop.
                    if self._client.timing.clock() - began < _PAUSE:
                        self._stopped.wait(_PAUSE)
            except ApiError as error:
                if self._stopped.is_set():
                    return
                # Events are missed until the next list. Slices that it lacks were deleted meanwhile.
                self._listener.lost()
                # Both belong to normal operation (etcd is compacted, the API server is restarted), so they are no
                # problem to report.
                if error.status != HTTPStatus.GONE and not isinstance(error, BrokenStreamError):
                    self._listener.failed(error)
                # If the watch worked for a while before it broke, as behind a proxy with an idle timeout, the next
                # delay starts from the beginning.
                if self._client.timing.clock() - tried > _BACKOFF.most:
                    attempt = 0
                self._stopped.wait(_BACKOFF.delay(attempt, self._client.timing.dice(), error.retry_after))
                attempt += 1

    def _watch(self, version: str) -> str:
        """Watch from a resource version until the server ends the watch; returns the last resource version."""
        # Bookmarks are asked for because a node's slices seldom change: without them the resource version would soon be
        # older than what the server remembers, and every watch would end with 410.
        seconds = _WATCH_SECONDS * (1 + self._client.timing.dice())
        query = {
            "fieldSelector": selector(self._driver, self._node_name),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{seconds:.0f}",
        }
        path = f"/apis/{API_GROUP}/{self._client.version(patient=False)}/resourceslices"
        request = APIRequest("GET", path, "watch resourceslices", query)
        for event in self._client.stream(request, _SILENCE_SECONDS, self._opened):
            version = self._passed_on(event) or version
            if self._stopped.is_set():
                break
        return version

    def _opened(self, response: APIResponse) -> None:
        self._response = response
        if self._stopped.is_set():
            raise ApiError("the watch was stopped")

    def _passed_on(self, event: Any) -> str | None:
        try:
            # An ERROR has a Status as its object, and the answer's own HTTP status was 200. A BOOKMARK has only a
            # resource version.
            kind, document = event["type"], event["object"]
            if kind == "ERROR":
                raise ApiError(str(document.get("message")), int(document.get("code") or 0), of_object=True)
            if kind != "BOOKMARK":
                (self._listener.gone if kind == "DELETED" else self._listener.changed)(_slice(document))
            return str(document["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError, AttributeError, DocumentError) as error:
            raise ApiError(f"an event of the API server's watch cannot be read: {in_words(error)}") from error


def _slice(document: Any) -> ResourceSlice:
    return decode(ResourceSlice, to_v1(document))


_RETRY: Final = Backoff(first=0.5, most=30.0)
_JOIN_SECONDS: Final = 5.0
# How often the driver tries whether the server can store devices that had to be withdrawn, in seconds.
_PROBE_SECONDS: Final = 300.0


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
