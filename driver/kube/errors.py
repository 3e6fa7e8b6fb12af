"""The errors of an API server, in one sentence each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from dranode.api.errors import DranodeError
from dranode.driver.kube import retry

NO_UID: Final = "metadata.uid is missing, which every object of an API server has; see that the address is one's"
"""The error of a document that is to be an object of the API server: `{}` decodes to one as well."""
_LONGEST: Final = 600
_FIRST_ERROR: Final = 400
# In seconds. No thread can wait for as long as a header may say.
_LONGEST_WAIT: Final = 3600.0


class ApiError(DranodeError):
    """An answer that is no success, or none at all.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        retry_after: for how many seconds the server wants to be left alone.
        of_object: the answer is about the object asked for, not about an API that is not there.
        unasked: nothing was asked, since the credentials cannot be used; seconds do not change that.
    """

    def __init__(
        self,
        message: str,
        status: int = retry.NO_ANSWER,
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
        return self.status in retry.PASSING


class BrokenStreamError(ApiError):
    """An answer that came line by line has ended in the middle: servers restart, and connections do not last."""


def error_of(what: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an answer to the request `what` (`get resourceclaims in namespace default`, say).

    Names of headers are in lower case.
    """
    said = _status_object(body)
    # A proxy's page or an admission webhook's reason may have many lines; a log's line and an event's note have one.
    message = " ".join(str(said.get("message") or body.decode(errors="replace")).split())
    if status < _FIRST_ERROR:
        why = f"it leads to {headers['location']}" if "location" in headers else "it has no object"
        message = f"{why}; see that the address is an API server's"
    details = said.get("details")
    details = details if isinstance(details, dict) else {}
    wait = headers.get("retry-after") or details.get("retryAfterSeconds") or 0
    return ApiError(
        _sentence(what, status, message[:_LONGEST]),
        status,
        retry_after=_seconds(wait),
        of_object="name" in details or said.get("reason") in ("AlreadyExists", "Expired"),
    )


def _status_object(body: bytes) -> dict[str, Any]:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = msgspec.json.decode(body)
        if isinstance(said, dict):
            return said
    return {}


def _seconds(wait: Any) -> float:
    # The other form of the header, a date, is not used by API servers.
    try:
        return min(max(0.0, float(wait)), _LONGEST_WAIT)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _sentence(what: str, status: int, message: str) -> str:
    match status:
        case retry.UNAUTHORIZED:
            return f"the API server does not take this account's token for {what}; see that the account exists"
        case retry.FORBIDDEN:
            return f"RBAC or an admission policy does not let this account {what}: {message}"
        case retry.NOT_FOUND:
            return f"the API server does not find what to {what}: {message}"
        case _:
            return f"the API server answered {_phrase(status)} to {what}{message and f': {message}'}"


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
