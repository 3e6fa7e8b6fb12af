"""Methods for the gRPC server whose requests and answers are protobuf's messages, from the descriptors of contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from dranode.driver.kubelet.methods import Method, Streaming, Unary
from dranode.driver.kubelet.protobuf_wire import MessageError


def service(file: FileDescriptor, name: str, handlers: Mapping[str, Callable[..., Any]]) -> dict[str, Method]:
    """The methods of a service by path, `/<service>/<method>`, with the service's name in full.

    Args:
        file: the descriptor of the `.proto` file.
        name: the service's name without its package.
        handlers: by method name, as `Unary` or `Streaming` take it.

    Raises:
        KeyError: the file has no such service, or a method of it no handler.
    """
    descriptor = file.services_by_name[name]
    methods: dict[str, Method] = {}
    for method in descriptor.methods:
        kind = Streaming if method.server_streaming else Unary
        methods[f"/{descriptor.full_name}/{method.name}"] = kind(
            _reader(message_factory.GetMessageClass(method.input_type)),
            handlers[method.name],
            message_factory.GetMessageClass(method.output_type).SerializeToString,
        )
    return methods


def _reader(kind: type[Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise MessageError(str(error)) from error

    return read
