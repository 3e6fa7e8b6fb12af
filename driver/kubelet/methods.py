"""gRPC methods as the server takes them, by path (`/<service>/<method>`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dranode.driver.core.claims.calls import Awaited


class Stream(Protocol):
    """An answer that may have many messages, to one caller.

    Attributes:
        gone: called when the caller has gone.
    """

    gone: Callable[[], None]

    @property
    def behind(self) -> bool:
        """Return whether the caller has not taken yet what it was sent."""

    def send(self, message: Any) -> None:
        """Send a message; to a caller who has gone nothing is sent."""

    def finish(self) -> None:
        """End the answer."""


class Unary:
    """A method with one answer, which `handle` makes of the request; an RPCError from it is the call's status.

    `decode` raises MessageError for what is no request. `handle` takes also what says whether the caller still waits.
    """

    def __init__(
        self, decode: Callable[[bytes], Any], handle: Callable[[Any, Awaited], Any], encode: Callable[[Any], bytes]
    ) -> None:
        self.decode, self.handle, self.encode = decode, handle, encode


class Streaming:
    """A method with many answers: `handle` takes request and stream, and returns at once."""

    def __init__(
        self, decode: Callable[[bytes], Any], handle: Callable[[Any, Stream], None], encode: Callable[[Any], bytes]
    ) -> None:
        self.decode, self.handle, self.encode = decode, handle, encode


Method = Unary | Streaming
