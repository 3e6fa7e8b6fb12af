"""Requests to the API server: those that came, and the faults that are planned for those that come."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestFault:
    """A fault for requests whose method and path match, for the next `times` of them.

    `seconds` pass first, or the time until `release` is set. Then the connection is dropped, or `status` is answered;
    with neither, the request goes on.
    """

    method: str = ""
    path: str = ""
    times: int = 1
    seconds: float = 0.0
    release: threading.Event | None = None
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = '{"kind":"Status","message":"made to fail","code":0}'
    drop: bool = False

    def takes(self, method: str, path: str) -> bool:
        """Return whether it befalls this request; each time counts."""
        if self.times > 0 and self.method in ("", method) and self.path in path:
            self.times -= 1
            return True
        return False


@dataclass(frozen=True)
class SeenRequest:
    """A request that came.

    Attributes:
        status: what was answered; 0 if nothing was.
        at: when, by the monotonic clock, in seconds.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]
    status: int
    at: float
