"""gRPC methods as the server takes them, from the descriptors of the wire contracts: one table serves all versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dranode.driver.core.claims.calls import Awaited

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor


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

    `handle` takes also what says whether the caller still waits.
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


def service(file: FileDescriptor, name: str, handlers: Mapping[str, Callable[..., Any]]) -> dict[str, Method]:
    """The methods of a service by path, `/<service>/<method>`, with the service's name in full.

    Args:
        file: the descriptor of the `.proto` file.
        name: the service's name without its package.
        handlers: by method name, as `Unary` or `Streaming` take it.

    Raises:
        KeyError: the file has no such service, or a method of it no handler.
    """
    from google.protobuf import message_factory  # noqa: PLC0415 - registration is answered without

    descriptor = file.services_by_name[name]
    methods: dict[str, Method] = {}
    for method in descriptor.methods:
        kind = Streaming if method.server_streaming else Unary
        methods[f"/{descriptor.full_name}/{method.name}"] = kind(
            message_factory.GetMessageClass(method.input_type).FromString,
            handlers[method.name],
            message_factory.GetMessageClass(method.output_type).SerializeToString,
        )
    return methods
