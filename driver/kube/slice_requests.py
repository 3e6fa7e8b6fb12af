"""Requests about one driver's slices on one node: list, watch, create, update and delete.

All slices are listed once, and then the changes are watched. Bookmarks keep the resource version fresh while nothing
changes.

- The watch ends normally: watch on from the last resource version.
- 410 Gone: the server has forgotten the resource version, so list again.
- The watch ends at once, or the connection breaks or falls silent: list again. A server that was restored from a backup
  accepts a resource version that it has not reached yet, and sends nothing until it has.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from dranode.api.documents import API_GROUP, decode, encode, to_v1
from dranode.api.errors import DocumentError, in_words
from dranode.api.resource import Node, OwnerReference, ResourceSlice
from dranode.driver.kube.client import APIRequest, Client, from_v1
from dranode.driver.kube.connection import APIResponse
from dranode.driver.kube.errors import NO_UID, ApiError, Backoff, BrokenStreamError
from dranode.driver.slices.plan import CreateSlice, DeleteSlice, UpdateSlice

# For `generateName`, k8s.io/apiserver cuts the given beginning to 58 bytes and appends 5 letters or digits.
_BEGINNING: Final = 58
_MADE_UP: Final = "[a-z0-9]{5}"

_DRY_RUN: Final = {"dryRun": "All"}

# A watch is asked to end after five to ten minutes, at random, so that nodes do not reconnect at the same time. The
# server sends a bookmark about once a minute, so a longer silence means that the connection is dead.
_WATCH_SECONDS: Final = 300
_SILENCE_SECONDS: Final = 150.0
_BACKOFF: Final = Backoff(first=0.5, most=30.0)
_PAUSE: Final = 1.0


class Listed(msgspec.Struct, frozen=True):
    """Slices as of a resource version."""

    slices: tuple[ResourceSlice, ...]
    version: str


def _selector(driver: str, node_name: str) -> str:
    return f"spec.driver={driver},spec.nodeName={node_name}"


def list_slices(client: Client, driver: str, node_name: str) -> Listed:
    """Return the driver's slices on the node as they are now.

    Raises:
        ApiError: the list cannot be read.
    """

    def request(root: str, version: str) -> APIRequest:
        del version
        query = {"fieldSelector": _selector(driver, node_name)}
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


def _slice(document: Any) -> ResourceSlice:
    return decode(ResourceSlice, to_v1(document))


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
            "fieldSelector": _selector(self._driver, self._node_name),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{seconds:.0f}",
        }
        path = f"/apis/{API_GROUP}/{self._client.version(patient=False)}/resourceslices"
        request = APIRequest("GET", path, "watch resourceslices", query)
        began, events = self._client.timing.clock(), 0
        for event in self._client.stream(request, _SILENCE_SECONDS, self._opened):
            version = self._passed_on(event) or version
            events += 1
            if self._stopped.is_set():
                break
        # Some servers end a watch that begins too far back at once, instead of answering 410.
        if not events and self._client.timing.clock() - began < _PAUSE:
            raise BrokenStreamError("the API server ended the watch at once")
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
