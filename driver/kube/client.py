"""Requests to the API server: documents in and out, with time limits, retries, and the API version that it serves.

A driver repeats a request that only reads, as long as its time allows, while the server is away, overloaded or slow. It
repeats a write only if the server says that it did nothing (429). A command repeats no other request either, because
the person who waits for it can run it again.
"""

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

from dranode.api.documents import API_GROUP, basic_device, to_v1
from dranode.api.errors import DocumentError
from dranode.driver.kube.errors import UNTOUCHED, ApiError, Backoff, BrokenStreamError, error_of
from dranode.driver.kube.http1 import MAX_BODY, Begins, BrokenError, Outgoing, Wire
from dranode.driver.kube.server import UnreachableError, UnusableCredentialsError

log = logging.getLogger(__name__)


# The versions of `resource.k8s.io` that a server may offer, and our documents in each of them.

# Newest first. v1beta1 ends with Kubernetes 1.38, v1beta2 with 1.39.
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")


def best_version(offered: Iterable[str]) -> str | None:
    """Return the newest version that both sides know; None if there is none."""
    # The server's own order does not matter: the newest version that both sides know loses the fewest fields.
    served = frozenset(offered)
    return next((version for version in VERSIONS if version in served), None)


def from_v1(document: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Convert a ResourceSlice, or the status of a ResourceClaim, to `version`.

    Only v1beta1 differs: it has a device's fields under `basic`.
    """
    converted = {**document, "apiVersion": f"{API_GROUP}/{version}"}
    spec = document.get("spec")
    if version == "v1beta1" and document.get("kind") == "ResourceSlice" and isinstance(spec, Mapping):
        converted["spec"] = {**spec, "devices": [basic_device(device) for device in spec.get("devices", ())]}
    return converted


JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
# How long the first answer to a request that can be repeated may take, and how long a request may take in all.
_ANSWER_SECONDS: Final = 5.0
TOTAL_SECONDS: Final = 20.0
_BACKOFF: Final = Backoff(first=0.1, most=5.0)
# 204 has no object, and a redirection is not followed.
_SUCCESS: Final = frozenset({200, 201, 202})
# A login page or a proxy's page comes from another server than was meant.
_CHECK_ADDRESS: Final = "check that the address is that of an API server"


class Timing(msgspec.Struct, frozen=True):
    """Clock, random numbers and waiting times.

    Attributes:
        clock: returns seconds and never goes back.
        dice: returns a random number in [0, 1).
        idle: the statuses of claims are written once none of them has changed for this many seconds.
        delay: the longest that a claim's status may wait for that, in seconds.
        stopped: set when the driver stops, which ends all waiting.
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
        path: the path, without the server.
        what: the request in words, for messages such as "does not let this account get resourceclaims in namespace
            default".
        query: the parameters.
        body: the document to send; None for none.
        kind: the media type of the body.
        most: the largest answer that is accepted, in bytes.
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
        self,
        wire: Wire,
        agent: str = "dranode",
        timing: Timing | None = None,
        *,
        retries: bool = False,
        limit: float | None = None,
    ) -> None:
        """Set the client up; nothing is sent yet.

        Args:
            wire: carries the requests.
            agent: the user agent, which audit logs show.
            timing: clock, random numbers and waiting times.
            retries: whether requests are repeated where that is useful, as in a driver.
            limit: how many seconds each request may take, instead of what its caller says.
        """
        self.timing = timing or Timing()
        # Entered with `APIRequest.what` while a request waits for its answer, so that a command can show it.
        self.asking: Callable[[str], AbstractContextManager[object]] = nullcontext
        self._retries = retries
        self._limit = limit
        self._wire = wire
        self._headers = {"Accept": JSON, "User-Agent": agent}
        self._version: str | None = None
        self._discovering = threading.Lock()

    # --- resource.k8s.io, in the version that the server has ---

    def version(self, seconds: float = TOTAL_SECONDS, *, patient: bool = True) -> str:
        """Return the newest version of `resource.k8s.io` that both sides know; the server is asked once. See `send`.

        Raises:
            ApiError: the server cannot be asked, or offers none.
        """
        version = self._version
        if version is not None:
            return version
        deadline = self.timing.clock() + seconds
        # The caller's time may be up already, and a lock refuses a negative timeout.
        seconds = max(seconds, 0.0)
        # The claims of a call ask at the same time. One of them asks the server, and the others wait for its answer.
        if not self._discovering.acquire(timeout=seconds):
            raise ApiError(f"the API server did not answer within {seconds:.3g} s which versions of {API_GROUP} it has")
        try:
            if self._version is None:
                self._version = self._discover(deadline - self.timing.clock(), patient=patient)
                log.info("api=%s version=%s is the newest that the API server also has", API_GROUP, self._version)
            return self._version
        finally:
            self._discovering.release()

    def _discover(self, seconds: float, *, patient: bool) -> str:
        group = APIRequest("GET", f"/apis/{API_GROUP}", f"discover {API_GROUP}")
        try:
            document = self.send(group, seconds=seconds, patient=patient)
            offered = tuple(str(entry["version"]) for entry in document["versions"])
        except ApiError as error:
            # An account may lack the right to discover, since RBAC can take `system:discovery` away. Assume a current
            # server then; if it is not, `resource` gets a 404.
            if error.status == HTTPStatus.FORBIDDEN:
                return VERSIONS[0]
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            offered = ()
        except (KeyError, TypeError) as error:
            raise ApiError(f"the API server's answer to discover {API_GROUP} is not an APIGroup") from error
        version = best_version(offered)
        if version is None:
            raise ApiError(
                f"the API server offers {', '.join(offered) or 'nothing'} of {API_GROUP}, but one of "
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
        """Send the request that `request` makes from the path and the version of `resource.k8s.io`; see `send`.

        If the server does not serve that version any more, because it was upgraded, its version is determined again
        once.

        Returns:
            The answer, converted to v1 if it is a single object; with `read`, what it returns.

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
            # A 404 about the object is an answer. Any other one says that the path does not exist: the server serves
            # another version.
            if error.status != HTTPStatus.NOT_FOUND or error.of_object:
                raise
            # Another thread may have determined the new version already.
            if self._version == version:
                self._version = None
            again = self.version(deadline - self.timing.clock(), patient=patient)
            if again == version:
                raise
        return send(again)

    def begin(self, request: Callable[[str, str], APIRequest]) -> Callable[[], Any] | None:
        """Send the request for one object, once; the caller waits for the answer later.

        Returns:
            A function that waits for the object, converts it to v1, and returns None if it did not come; None if the
            request was not sent. In both cases use `resource`, which tries again and reports errors.
        """
        version, wire = self._version, self._wire
        if version is None or not isinstance(wire, Begins):
            return None
        # The version is known here, so no discovery can delay the other claims of the call.
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
        """Send a request; returns the document in the answer, or what `read` makes of the answer's text.

        Args:
            request: the request.
            seconds: how long it may take in all.
            patient: whether to try again if that is useful, the time allows, and the client does so at all; False for a
                caller that has retries of its own.
            read: converts the answer's text; it raises ApiError if it cannot.

        Raises:
            ApiError: the request failed.
        """
        read = read or _document
        repeats = self._retries and request.method == "GET"
        deadline = self.timing.clock() + (self._limit or seconds)
        attempt = 0
        while True:
            left = max(deadline - self.timing.clock(), 0.1)
            try:
                # The connection may be dead, or the server slow, so each try has more time than the one before. A
                # request that is not repeated has all of the time.
                limit = min(left, _ANSWER_SECONDS * 2**attempt) if patient and repeats else left
                return read(self._once(request, limit, stream=False).data)
            except ApiError as error:
                delay = _BACKOFF.delay(attempt, self.timing.dice(), error.retry_after)
                # A write that got no answer may have been carried out. Sent again, it could create a second object.
                passes = error.passes if repeats else error.status in UNTOUCHED
                again = passes and not error.unasked
                in_time = self.timing.clock() + delay <= deadline
                if not (patient and again and in_time) or self.timing.stopped.wait(delay):
                    raise
                log.debug("trying to %s again: %s", request.what, error)
                attempt += 1

    def stream(self, request: APIRequest, seconds: float, opened: Callable[[Any], None]) -> Iterator[Any]:
        """Yield the documents of an answer that comes line by line, until the server ends it.

        `opened` is called with the response, so that another thread can shut it down.

        Raises:
            BrokenStreamError: the connection breaks, or is silent for `seconds`.
            ApiError: the request failed.
        """
        broken = f"the connection to the API server broke: {request.what}"
        try:
            response = self._once(request, seconds, stream=True)
        except (BrokenError, TimeoutError) as error:  # in the middle of an error's body
            raise BrokenStreamError(broken) from error
        try:
            opened(response)
            for line in response:
                # Each line is an event; an empty one carries none.
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
        raise ApiError(f"the API server's answer is empty; {_CHECK_ADDRESS}", HTTPStatus.OK)
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        begins = f"it begins with {data[:40]!r}"
        raise ApiError(f"the API server's answer is not JSON: {error}; {begins}; {_CHECK_ADDRESS}") from error
    if not isinstance(document, dict):
        raise ApiError(f"the API server's answer is not an object, but {data[:40]!r}; {_CHECK_ADDRESS}", HTTPStatus.OK)
    return document


def _object(answer: Any) -> Any:
    """Return the object in the answer to `begin`; None if there is none."""
    if answer is None or answer.status != HTTPStatus.OK:
        return None
    try:
        return _read_v1(answer.data)
    except ApiError:
        return None


def _read_v1(data: bytes) -> Any:
    document = _document(data)
    # The items of a list have no `apiVersion` of their own, so they are converted by the code that reads the list.
    if "items" in document:
        return document
    try:
        return to_v1(document)
    except DocumentError as error:
        raise ApiError(f"the API server's answer cannot be read: {error}") from error
