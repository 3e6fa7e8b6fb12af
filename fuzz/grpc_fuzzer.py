"""Fuzzes what a caller sends to the driver's socket: HTTP/2, gRPC's framing, and the messages."""

import contextlib

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.driver.kubelet.dra_messages import read_claims
    from dranode.driver.kubelet.http2 import HungUpError, Request, ServerConnection
    from dranode.driver.kubelet.protobuf_wire import MessageError
    from dranode.driver.kubelet.registration import read_status

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_one_input(data: bytes) -> None:
    """The bytes as they are, and after the preface; requests are answered."""
    for sent in (data, PREFACE + b"\0\0\0\4\0\0\0\0\0" + data):
        connection = ServerConnection()
        with contextlib.suppress(HungUpError):
            for event in connection.receive(sent):
                if isinstance(event, Request):
                    connection.answer(event.stream, b"")
        connection.outgoing()
    for read in (read_claims, read_status):
        with contextlib.suppress(MessageError):
            read(data)


if __name__ == "__main__":
    fuzz(test_one_input)
