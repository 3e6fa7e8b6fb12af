"""Requests to the API server: plain documents in and out, with time limits, retries and the API version that there is.

For a driver a request that only reads is sent again as long as its time allows while the server is away, overloaded or
slow; one that writes only where the server says that it did nothing (429). A command sends each request once: whoever
waits for it can call it again. Everything else is for the caller to judge.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from dranode.api.documents import API_GROUP, to_v1
from dranode.api.errors import DocumentError
from dranode.driver.kube.errors import UNTOUCHED, ApiError, Backoff, BrokenStreamError, error_of
from dranode.driver.kube.http1 import MAX_BODY, Begins, BrokenError, Outgoing, Wire
from dranode.driver.kube.server import UnreachableError, UnusableCredentialsError

log = logging.getLogger(__name__)


# The versions of `resource.k8s.io` that a server may offer, and our documents in each of them.

# Newest first. v1beta1 ends with Kubernetes 1.38, v1beta2 with 1.39.
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")


def best_version(offered: Iterable[str]) -> str | None:
    """The newest version that both sides know; None if there is none."""
    served = frozenset(offered)
    return next((version for version in VERSIONS if version in served), None)


def from_v1(document: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A ResourceSlice, or the status of a ResourceClaim, in the form of `version`.

    Only v1beta1 is another form: it keeps a device's fields under `basic`.
    """
    converted = {**document, "apiVersion": f"{API_GROUP}/{version}"}
    spec = document.get("spec")
    if version == "v1beta1" and document.get("kind") == "ResourceSlice" and isinstance(spec, Mapping):
        converted["spec"] = {**spec, "devices": [_basic(device) for device in spec.get("devices", ())]}
    return converted


def _basic(device: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}


JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
# How long the first answer may take where a request is sent again, and how long a request in all.
_ANSWER_SECONDS: Final = 5.0
TOTAL_SECONDS: Final = 20.0
_BACKOFF: Final = Backoff(first=0.1, most=5.0)
# 204 has no object, and a redirection leads elsewhere.
_SUCCESS: Final = frozenset({200, 201, 202})


class Timing(msgspec.Struct, frozen=True):
    """Clock, dice and patience.

    Attributes:
        clock: seconds, never going back.
        dice: a number in [0, 1).
        idle: how long nothing may have been said of claims before their status is written, in seconds.
        delay: the longest that a claim's status may wait for that.
        stopped: set when the driver stops; waiting ends then.
    """

    clock: Callable[[], float] = time.monotonic
    dice: Callable[[], float] = random.random
    idle: float = 1.0
    delay: float = 3.0
    stopped: threading.Event = msgspec.field(default_factory=threading.Event)


class APIRequest(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        method: the HTTP method.
        path: without the server.
        what: the same in words that follow "does not let this account": `get resourceclaims in namespace default`.
        query: parameters.
        body: a plain document; None for none.
        kind: the media type of the body.
        most: how large the answer may be, in bytes.
    """

    method: str
    path: str
    what: str
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: Any = None
    kind: str = JSON
    most: int = MAX_BODY


class Client:
    """An API server's resources as plain documents."""

    def __init__(
        self, wire: Wire, agent: str = "dranode", timing: Timing | None = None, *, retries: bool = False
    ) -> None:
        """Nothing is sent yet.

        Args:
            wire: carries the requests.
            agent: what audit logs show.
            timing: clock, dice and patience.
            retries: send a request again where that is of use, as a driver does.
        """
        self.timing = timing or Timing()
        # For whoever shows what is waited for: entered with `APIRequest.what` while an answer is.
        self.asking: Callable[[str], AbstractContextManager[object]] = nullcontext
        self._retries = retries
        self._wire = wire
        self._headers = {"Accept": JSON, "User-Agent": agent}
        self._version: str | None = None
        self._discovering = threading.Lock()

    # --- resource.k8s.io, in the version that the server has ---

    def version(self, seconds: float = TOTAL_SECONDS, *, patient: bool = True) -> str:
        """The newest version of `resource.k8s.io` on both sides, found out once; see `send`.

        Raises:
            ApiError: the server cannot be asked, or offers none.
        """
        version = self._version
        if version is not None:
            return version
        deadline = self.timing.clock() + seconds
        # A request that outlived its time leaves less than none.
        seconds = max(seconds, 0.0)
        if not self._discovering.acquire(timeout=seconds):
            raise ApiError(f"the API server has not said within {seconds:.3g} s which versions of {API_GROUP} it has")
        try:
            if self._version is None:
                self._version = self._discover(deadline - self.timing.clock(), patient=patient)
                log.info("api=%s version=%s is the one that the API server has", API_GROUP, self._version)
            return self._version
        finally:
            self._discovering.release()

    def _discover(self, seconds: float, *, patient: bool) -> str:
        group = APIRequest("GET", f"/apis/{API_GROUP}", f"discover {API_GROUP}")
        try:
            document = self.send(group, seconds=seconds, patient=patient)
            offered = tuple(str(one["version"]) for one in document["versions"])
        except ApiError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                return VERSIONS[0]
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            offered = ()
        except (KeyError, TypeError) as error:
            raise ApiError(f"the API server's answer to discover {API_GROUP} is no API group") from error
        version = best_version(offered)
        if version is None:
            raise ApiError(
                f"the API server offers {', '.join(offered) or 'nothing'} of {API_GROUP}, and one of "
                f"{', '.join(VERSIONS)} is needed; Kubernetes 1.34 and later serve v1"
            )
        return version

    def resource(
        self,
        request: Callable[[str, str], APIRequest],
        *,
        seconds: float = TOTAL_SECONDS,
        patient: bool = True,
        read: Callable[[bytes], Any] | None = None,
    ) -> Any:
        """Send the request that `request` makes of the path and the version of `resource.k8s.io`; see `send`.

        A version that is no longer there, after an upgrade of the server, is looked for again once.

        Returns:
            The answer, a single object brought to v1; with `read` what that makes of it.

        Raises:
            ApiError: the request fails.
        """
        deadline = self.timing.clock() + seconds

        def send(version: str) -> Any:
            root = f"/apis/{API_GROUP}/{version}"
            left = deadline - self.timing.clock()
            return self.send(request(root, version), seconds=left, patient=patient, read=read or _read_v1)

        version = self.version(seconds, patient=patient)
        try:
            return send(version)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND or error.of_object:
                raise
            if self._version == version:
                self._version = None
            again = self.version(deadline - self.timing.clock(), patient=patient)
            if again == version:
                raise
        return send(again)

    def begin(self, request: Callable[[str, str], APIRequest]) -> Callable[[], Any] | None:
        """Send the request for one object, once; the caller waits for the answer later.

        Returns:
            A function that waits for the object, brought to v1, and returns None if it did not come; None if the
            request was not sent. Use `resource` then, which tries again and says what is wrong.
        """
        version, wire = self._version, self._wire
        if version is None or not isinstance(wire, Begins):
            return None
        outgoing = self._outgoing(request(f"/apis/{API_GROUP}/{version}", version), _ANSWER_SECONDS)
        try:
            answer = wire.begin(outgoing)
        except UnreachableError:
            return None
        return None if answer is None else lambda: _object(answer())

    # --- any API ---

    def send(
        self,
        request: APIRequest,
        *,
        seconds: float = TOTAL_SECONDS,
        patient: bool = True,
        read: Callable[[bytes], Any] | None = None,
    ) -> Any:
        """Send a request; the document that comes back, or what `read` makes of its text.

        Args:
            request: what is sent.
            seconds: how long it may take.
            patient: try again where that is of use and the time allows, if the client does so at all; False for a
                caller with retries of its own.
            read: what makes a value of the answer's text; it raises ApiError.

        Raises:
            ApiError: it fails.
        """
        read = read or _document
        patient = patient and self._retries
        deadline = self.timing.clock() + seconds
        attempt = 0
        while True:
            left = max(deadline - self.timing.clock(), 0.1)
            try:
                # A connection may be dead, and a server slow: each further try has more time. What is not sent again
                # has all of it.
                each = min(left, _ANSWER_SECONDS * 2**attempt) if patient and request.method == "GET" else left
                return read(self._once(request, each, stream=False).data)
            except ApiError as error:
                delay = _BACKOFF.delay(attempt, self.timing.dice(), error.retry_after)
                passes = error.passes if request.method == "GET" else error.status in UNTOUCHED
                again = passes and not error.unasked
                in_time = self.timing.clock() + delay <= deadline
                if not (patient and again and in_time) or self.timing.stopped.wait(delay):
                    raise
                log.debug("trying to %s again: %s", request.what, error)
                attempt += 1

    def stream(self, request: APIRequest, seconds: float, opened: Callable[[Any], None]) -> Iterator[Any]:
        """The documents of an answer that comes line by line, until the server ends it.

        `opened` is called with the response, so that another thread can shut it down.

        Raises:
            BrokenStreamError: the connection breaks, or is silent for `seconds`.
            ApiError: the request fails.
        """
        broken = f"the connection to the API server broke: {request.what}"
        try:
            response = self._once(request, seconds, stream=True)
        except (BrokenError, TimeoutError) as error:  # in the middle of saying why it fails
            raise BrokenStreamError(broken) from error
        try:
            opened(response)
            for line in response:
                if line.strip():
                    yield _document(line)
        except (BrokenError, TimeoutError) as error:
            raise BrokenStreamError(broken) from error
        finally:
            response.close()

    def _once(self, request: APIRequest, seconds: float, *, stream: bool) -> Any:
        try:
            with self.asking(request.what):
                response = self._wire.send(self._outgoing(request, seconds, stream=stream))
        except UnreachableError as error:
            raise ApiError(str(error), unasked=isinstance(error, UnusableCredentialsError)) from error
        if response.status not in _SUCCESS:
            raise error_of(request.what, response.status, response.headers, response.data)
        return response

    def _outgoing(self, request: APIRequest, seconds: float, *, stream: bool = False) -> Outgoing:
        path = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
        headers, body = self._headers, None
        if request.body is not None:
            headers = {**headers, "Content-Type": request.kind}
            body = msgspec.json.encode(request.body)
        return Outgoing(request.method, path, headers, seconds, body, stream, request.most)


def _document(data: bytes) -> dict[str, Any]:
    if not data:
        raise ApiError("the API server's answer is empty; see that the address is one's", HTTPStatus.OK)
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        begins = f"it begins with {data[:40]!r}; see that the address is one's"
        raise ApiError(f"the API server's answer is not JSON: {error}; {begins}") from error
    if not isinstance(document, dict):
        raise ApiError(
            f"the API server's answer is not an object, but {data[:40]!r}; see that the address is one's", HTTPStatus.OK
        )
    return document


def _object(answer: Any) -> Any:
    """The object in the answer to `begin`; None if there is none."""
    if answer is None or answer.status != HTTPStatus.OK:
        return None
    try:
        return _read_v1(answer.data)
    except ApiError:
        return None


def _read_v1(data: bytes) -> Any:
    document = _document(data)
    if "items" in document:
        return document
    try:
        return to_v1(document)
    except DocumentError as error:
        raise ApiError(f"the API server's answer cannot be read: {error}") from error
