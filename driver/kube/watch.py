"""List and watch of one driver's slices on one node: everything once, then what changes, through every interruption.

Bookmarks keep the place while nothing happens. A place that the server has forgotten (410) means listing again; a
connection that ends or falls silent means watching on from the place.
"""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from dranode.driver.core.api.documents import API_GROUP, decode, to_v1
from dranode.driver.core.api.errors import DocumentError, in_words
from dranode.driver.core.api.resource import ResourceSlice
from dranode.driver.kube.client import ANSWER_SECONDS, APIRequest, Client
from dranode.driver.kube.connection import APIResponse
from dranode.driver.kube.errors import ApiError, BrokenStreamError
from dranode.driver.kube.retry import Backoff

log = logging.getLogger(__name__)

# The server ends a watch after five to ten minutes, spread, so that nodes do not come back in step. It sends a bookmark
# about once a minute: a silence of several says that the connection is dead.
_WATCH_SECONDS: Final = 300
_SILENCE_SECONDS: Final = 150.0
_BACKOFF: Final = Backoff(first=0.5, most=30.0)
_PAUSE: Final = 1.0


class SliceListener(Protocol):
    """Follows slices."""

    def listed(self, slices: tuple[ResourceSlice, ...], version: str) -> None:
        """All there are, as of a resource version."""

    def changed(self, changed: ResourceSlice) -> None:
        """A slice was added or modified."""

    def gone(self, changed: ResourceSlice) -> None:
        """A slice was deleted."""

    def lost(self) -> None:
        """Changes may be missed until the next `listed`."""

    def failed(self, error: ApiError) -> None:
        """The server cannot be listened to for now."""


class Listed(msgspec.Struct, frozen=True):
    """Slices as of a resource version."""

    slices: tuple[ResourceSlice, ...]
    version: str


def selector(driver: str, node_name: str) -> str:
    """The field selector for a driver's slices on a node."""
    return f"spec.driver={driver},spec.nodeName={node_name}"


def list_slices(client: Client, driver: str, node_name: str) -> Listed:
    """The driver's slices on the node now.

    Raises:
        ApiError: they cannot be had.
    """

    def request(root: str, version: str) -> APIRequest:
        del version
        query = {"fieldSelector": selector(driver, node_name)}
        return APIRequest("GET", f"{root}/resourceslices", "list resourceslices", query)

    document = client.resource(request, seconds=ANSWER_SECONDS, patient=False)
    try:
        version = str(document["metadata"]["resourceVersion"])
        kind = {"apiVersion": document["apiVersion"], "kind": "ResourceSlice"}
        # Go writes an empty list as null; an answer without the field is none, and is not taken for an empty list.
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
        self._stopped.set()
        response = self._response
        if response is not None:
            response.shutdown()

    def run(self) -> None:
        """List, watch, and begin again where that is needed, until stopped."""
        attempt = 0
        while not self._stopped.is_set():
            tried = self._client.timing.clock()
            try:
                listed = list_slices(self._client, self._driver, self._node_name)
                self._listener.listed(listed.slices, listed.version)
                version = listed.version
                while not self._stopped.is_set():
                    began = self._client.timing.clock()
                    version = self._watch(version)
                    attempt = 0
                    # A server or proxy that ends every watch at once is not to be asked in a tight loop.
                    if self._client.timing.clock() - began < _PAUSE:
                        self._stopped.wait(_PAUSE)
            except ApiError as error:
                if self._stopped.is_set():
                    return
                self._listener.lost()
                if error.status != HTTPStatus.GONE and not isinstance(error, BrokenStreamError):
                    self._listener.failed(error)
                # A watch that lived and then broke, as behind a proxy that ends what is idle, is no failure in a row.
                if self._client.timing.clock() - tried > _BACKOFF.most:
                    attempt = 0
                self._stopped.wait(_BACKOFF.delay(attempt, self._client.timing.dice(), error.retry_after))
                attempt += 1

    def _watch(self, version: str) -> str:
        """Follow from a version until the server ends it; the version reached."""
        seconds = _WATCH_SECONDS * (1 + self._client.timing.dice())
        query = {
            "fieldSelector": selector(self._driver, self._node_name),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{seconds:.0f}",
        }
        path = f"/apis/{API_GROUP}/{self._client.version(ANSWER_SECONDS, patient=False)}/resourceslices"
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
            kind, document = event["type"], event["object"]
            if kind == "ERROR":
                raise ApiError(str(document.get("message")), int(document.get("code") or 0), of_object=True)
            if kind != "BOOKMARK":
                one = _slice(document)
                (self._listener.gone if kind == "DELETED" else self._listener.changed)(one)
            return str(document["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError, AttributeError, DocumentError) as error:
            raise ApiError(f"an event of the API server's watch cannot be read: {in_words(error)}") from error


def _slice(document: Any) -> ResourceSlice:
    return decode(ResourceSlice, to_v1(document))
