"""gRPC services from the descriptors of the wire contracts: one table of methods serves every version of an API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor

Method = Callable[[Any, grpc.ServicerContext], Any]


def service(file: FileDescriptor, name: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
    """The handler of a service of which every method is implemented by `methods`."""
    descriptor = file.services_by_name[name]
    handlers = {}
    for method in descriptor.methods:
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(
            methods[method.name],
            request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
            response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def caller(channel: grpc.Channel, file: FileDescriptor, service_name: str, method_name: str) -> Callable[..., Any]:
    """Return a callable with which a client calls one method of a service."""
    descriptor = file.services_by_name[service_name]
    method = descriptor.methods_by_name[method_name]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    call: Callable[..., Any] = make(
        f"/{descriptor.full_name}/{method.name}",
        request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    return call
