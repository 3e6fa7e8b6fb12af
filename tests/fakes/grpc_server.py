"""grpcio's own server for stand-ins of kubelet: another implementation than the driver's."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor


def service(
    file: FileDescriptor, name: str, methods: Mapping[str, Callable[[Any, grpc.ServicerContext], Any]]
) -> grpc.GenericRpcHandler:
    """grpcio's handler of a service whose methods are implemented by `methods`."""
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
