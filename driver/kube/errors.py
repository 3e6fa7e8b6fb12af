"""Errors of the API server: one sentence for each, and whether and when to try again."""

import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from dranode.api.errors import DranodeError

NO_UID: Final = "metadata.uid is missing, which every object has; check that the address is that of an API server"
"""The error for a document that should be an object of the API server but has no UID, such as `{}`."""
_LONGEST: Final = 600
_FIRST_ERROR: Final = 400
_STATUSES: Final = frozenset(HTTPStatus)
# In seconds: a header may ask for any time, even one that is too long for a thread to wait.
_LONGEST_WAIT: Final = 3600.0


# The status of a request that got no answer.
NO_ANSWER: Final = 0
# Statuses of a server that is overloaded, starting or stopping: the same request may succeed later.
_TEMPORARY: Final = frozenset({NO_ANSWER, HTTPStatus.TOO_MANY_REQUESTS, 500, 502, 503, 504})
# After these the server has done nothing, so that even a request that creates an object may be sent again.
UNTOUCHED: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS})


class ApiError(DranodeError):
    """A request to the API server that failed or was not answered.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        retry_after: how many seconds the server asks clients to wait.
        of_object: the answer is about the object in the request; otherwise the API itself may be missing.
        unasked: no request was sent, because the credentials cannot be used; waiting does not help.
    """

    def __init__(
        self,
        message: str,
        status: int = NO_ANSWER,
        *,
        retry_after: float = 0,
        of_object: bool = False,
        unasked: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.of_object = of_object
        self.unasked = unasked

    @property
    def passes(self) -> bool:
        """Return whether the same request may succeed later without a change by an administrator."""
        return self.status in _TEMPORARY


class BrokenStreamError(ApiError):
    """A watch that ended in the middle of an answer, because the server restarts or the connection broke."""


def error_of(what: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error in an answer.

    Args:
        what: the request, such as `get resourceclaims in namespace default`.
        status: the answer's HTTP status.
        headers: the answer's headers, with names in lower case.
        body: the answer's body, usually a Status object.
    """
    answer = _status_object(body)
    # A proxy's page or an admission webhook's reason may have many lines. A log line and an Event should have one.
    message = " ".join(str(answer.get("message") or body.decode(errors="replace")).split())
    if status < _FIRST_ERROR:
        why = f"it redirects to {headers['location']}" if "location" in headers else "it has no object"
        message = f"{why}; check that the address is that of an API server"
    # The Status of a missing object names the object. That of a missing path does not; that is how both kinds of 404
    # differ.
    details = answer.get("details")
    details = details if isinstance(details, dict) else {}
    wait = headers.get("retry-after") or details.get("retryAfterSeconds") or 0
    return ApiError(
        _sentence(what, status, message[:_LONGEST]),
        status,
        retry_after=_seconds(wait),
        of_object="name" in details or answer.get("reason") in ("AlreadyExists", "Expired"),
    )


def _status_object(body: bytes) -> dict[str, Any]:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = msgspec.json.decode(body)
        if isinstance(answer, dict):
            return answer
    return {}


def _seconds(wait: Any) -> float:
    # The other form of the header, a date, is not used by API servers.
    try:
        return min(max(0.0, float(wait)), _LONGEST_WAIT)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _sentence(what: str, status: int, message: str) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return f"the API server rejects the credentials for {what}; they may have expired, or their account is gone"
        case HTTPStatus.FORBIDDEN:
            return f"RBAC or an admission policy does not let this account {what}: {message}"
        case _:
            phrase = f" {HTTPStatus(status).phrase}" if status in _STATUSES else ""
            return f"the API server answered {status}{phrase} to {what}{message and f': {message}'}"


class Backoff(msgspec.Struct, frozen=True):
    """Waiting times that double, each spread at random, so that the nodes of a cluster do not retry at the same time.

    Attributes:
        first: the first waiting time, in seconds.
        most: the longest one.
    """

    first: float
    most: float

    def delay(self, attempt: int, dice: float, at_least: float = 0.0) -> float:
        """Return the seconds to wait after an attempt.

        Args:
            attempt: the number of the attempt, from 0.
            dice: a random number in [0, 1).
            at_least: the seconds that the server asks for (`Retry-After`).
        """
        # The exponent is bounded only to keep the number small; the delay is bounded by `most` long before.
        doubled = min(self.first * 2.0 ** min(attempt, 16), self.most)
        return max(doubled * (0.75 + dice / 2), at_least * (1 + dice / 4))
