"""The carrier of requests to an API server, as `Client` needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from dranode.driver.kube.http1 import MAX_BODY


class Outgoing(msgspec.Struct, frozen=True):
    """A request on its way.

    Attributes:
        method: the HTTP method.
        path: path and query.
        headers: beside those of authentication.
        seconds: how long the request may take, with connecting and all of the answer; in a stream how long until its
            head, and until each line.
        body: what is sent.
        stream: leave the answer's body to the caller.
        most: how large the answer, in a stream a line of it, may be, in bytes.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    seconds: float
    body: bytes | None = None
    stream: bool = False
    most: int = MAX_BODY


class Wire(Protocol):
    """The carrier of requests."""

    def send(self, outgoing: Outgoing) -> Any:
        """Send a request; an answer with `status`, `headers` and `data`.

        Raises:
            UnreachableError: there is no answer.
        """
