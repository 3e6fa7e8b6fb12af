"""One call to a server that does not do what it should, and to grpcio's that does."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.driver.kubelet.grpc_values import RPCError, Status
from dranode.driver.kubelet.http2_frames import frame_bytes, literal
from dranode.driver.kubelet.unary_call import call
from tests.fakes.waiting import PATIENCE

GOAWAY = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\x08\7\0\0\0\0\0" + b"\0" * 8
# The settings, and headers that end the stream: `:status: 200`, and a status of gRPC's that is none.
ODD_STATUS = frame_bytes(4, 0, 0, b"") + frame_bytes(1, 5, 1, b"\x88" + literal(b"grpc-status", b"many"))
RESET = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\4\3\0\0\0\0\1\0\0\0\7"


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield Path(name) / "s.sock"


def asked(path: Path, message: bytes = b"", *, seconds: float = PATIENCE, limit: int = 1 << 20) -> bytes:
    return call(path, "/v1.Nobody/Answers", message, seconds=seconds, limit=limit)


@pytest.mark.parametrize(
    ("says", "status", "reason"),
    [
        (b"", Status.UNAVAILABLE, "closed before the answer"),
        (b"\0\0\4\0\0\0\0\0\0abcd", Status.INTERNAL, "the answer is no HTTP/2"),
        (GOAWAY, Status.UNAVAILABLE, "cut off"),
        (RESET, Status.UNAVAILABLE, "cut off"),
        (ODD_STATUS, Status.INTERNAL, "grpc-status is no number: 'many'"),
    ],
    ids=["nothing", "noise", "goodbye", "reset", "odd status"],
)
def test_a_server_that_does_not_answer_is_reported(path: Path, says: bytes, status: Status, reason: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(says)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(RPCError, match=reason) as refused:
            asked(path)
        assert refused.value.status == status


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_asked(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(RPCError, match=r"no answer within 0.05 s") as refused:
            asked(path, seconds=0.05)
    assert refused.value.status == Status.DEADLINE_EXCEEDED


def test_a_server_that_goes_on_talking_is_waited_for_no_longer_either(path: Path) -> None:
    pings = b"\0\0\x08\6\0\0\0\0\0" + b"\0" * 8
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as peer:
                peer.sendall(b"\0\0\0\4\0\0\0\0\0")
                try:
                    while not ended.wait(0.005):
                        peer.sendall(pings)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(RPCError, match=r"no answer within 0.2 s"):
            asked(path, seconds=0.2)
        ended.set()


def test_nobody_there_is_reported(path: Path) -> None:
    with pytest.raises(RPCError, match=r"^No such file or directory$") as refused:
        asked(path)
    assert refused.value.status == Status.UNAVAILABLE


class Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """grpcio's server: as many bytes as the request's, or a refusal without one."""

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not request:
            context.abort(grpc.StatusCode.NOT_FOUND, "100 % für 水\n")
        return request


@pytest.fixture
def server(path: Path) -> Iterator[Path]:
    options = [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Answers()], options=options)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    server.stop(None).wait()


@pytest.mark.parametrize("size", [1, 70_000, 5_000_000])
def test_messages_of_any_size_come_whole(server: Path, size: int) -> None:
    message = b"x" * size
    assert asked(server, message, limit=5_000_000) == message


def test_an_answer_above_the_limit_is_refused(server: Path) -> None:
    with pytest.raises(RPCError, match="an answer may have 1000 bytes, and more came"):
        asked(server, b"x" * 1001, limit=1000)


def test_a_refusal_comes_with_its_reason(server: Path) -> None:
    with pytest.raises(RPCError) as refused:
        asked(server)
    assert (refused.value.status, refused.value.reason) == (5, "100 % für 水\n")
