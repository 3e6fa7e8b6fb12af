"""Calls by grpcio's client, for what people type and for the local run; `serve` does without grpcio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor


def caller(channel: grpc.Channel, file: FileDescriptor, service_name: str, method_name: str) -> Callable[..., Any]:
    """Return a callable with which a client calls one method of a service: message in, message or stream out.

    The callable raises `grpc.RpcError` if the call fails, and takes grpcio's `timeout=` in seconds.

    Raises:
        KeyError: the file has no such service, or the service no such method.
    """
    descriptor = file.services_by_name[service_name]
    method = descriptor.methods_by_name[method_name]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    call: Callable[..., Any] = make(
        f"/{descriptor.full_name}/{method.name}",
        request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    return call
