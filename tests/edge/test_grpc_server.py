"""The server on a real socket, asked by grpcio's client: deadlines, cancellation, many calls, large ones, its end."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.connection import H2Connection

from dranode.driver.kubelet.grpc_server import GrpcServer
from dranode.driver.kubelet.grpc_values import RPCError, Status, with_length
from dranode.driver.kubelet.methods import Stream
from dranode.driver.kubelet.rpc import caller
from dranode.driver.process.answering import once_answered
from dranode.proto import dra_v1_pb2 as api
from dranode.proto import drahealth_v1_pb2
from tests.fakes.grpc_methods import service
from tests.fakes.waiting import PATIENCE, eventually

# As a client numbers them.
STREAMS = (1, 3)
BEHIND = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


class World:
    """A server whose handlers do what a claim's name says."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s.sock"
        self.asked: list[str] = []
        self.slow = threading.Semaphore(0)
        self.answered = threading.Event()
        self.later: list[bool] = []
        handlers = {"NodePrepareResources": self.prepare, "NodeUnprepareResources": self.prepare}
        self.server = GrpcServer("test", service(api.DESCRIPTOR, "DRAPlugin", handlers).get, pytest.fail)
        self.server.listen(self.path)
        self.server.start()
        self.stopped = False

    def prepare(self, request: Any, _awaited: Any) -> Any:
        name = request.claims[0].name
        self.asked.append(name)
        if name == "broken":
            raise KeyError(name)
        if name == "refused":
            raise RPCError(Status.UNAVAILABLE, "100 % für 水\n")
        if name == "later":
            once_answered(lambda: self.later.append(self.answered.wait(PATIENCE)))
        if name == "slow":
            assert self.slow.acquire(timeout=PATIENCE)
        error = "x" * int(name.partition("-")[2] or 0)
        return api.NodePrepareResourcesResponse(claims={name: api.NodePrepareResourceResponse(error=error)})

    def channel(self) -> grpc.Channel:
        # Of its own: grpcio's channels to one address share a connection otherwise.
        return grpc.insecure_channel(f"unix:{self.path}", [("grpc.use_local_subchannel_pool", 1)])

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.server.stop(PATIENCE)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        world = World(Path(name))
        yield world
        world.slow.release(1000)
        world.stop()


@pytest.fixture
def call(world: World) -> Iterator[Callable[..., Any]]:
    with world.channel() as channel:
        yield asking(channel)


def asking(channel: grpc.Channel) -> Callable[..., Any]:
    prepare = caller(channel, api.DESCRIPTOR, "DRAPlugin", "NodePrepareResources")

    def call(name: str, timeout: float = PATIENCE) -> Any:
        request = api.NodePrepareResourcesRequest(claims=[api.Claim(name=name)])
        return prepare(request, timeout=timeout).claims[name].error

    call.future = lambda name, timeout=PATIENCE: prepare.future(  # type: ignore[attr-defined]
        api.NodePrepareResourcesRequest(claims=[api.Claim(name=name)]), timeout=timeout
    )
    return call


def test_many_callers_at_once_get_each_its_own_answer(world: World) -> None:
    with futures.ThreadPoolExecutor(32) as callers, world.channel() as first, world.channel() as second:
        asks = [asking(first), asking(second)]
        answers = callers.map(lambda n: len(asks[n % 2](f"a-{n}")), range(400))
        assert list(answers) == list(range(400))


@pytest.mark.parametrize("size", [0, 65_536, 4_000_000])
def test_an_answer_larger_than_any_window_comes_whole(call: Callable[..., Any], size: int) -> None:
    assert len(call(f"a-{size}")) == size


def test_a_request_larger_than_any_window_comes_whole(call: Callable[..., Any], world: World) -> None:
    name = "a" * 4_000_000
    call(name)
    assert world.asked == [name]


def test_a_request_above_the_limit_is_refused_and_the_next_is_answered(call: Callable[..., Any]) -> None:
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="a request may have 4194304 bytes") as refused:
            call("a" * 5_000_000)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call("a") == ""


def test_what_was_put_off_is_done_once_its_caller_has_the_answer(call: Callable[..., Any], world: World) -> None:
    assert call("later") == ""
    world.answered.set()
    eventually(lambda: world.later == [True])


def test_a_reason_comes_as_it_was_given(call: Callable[..., Any]) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call("refused")
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "100 % für 水\n")


def test_an_error_inside_a_method_is_reported_and_logged(
    call: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.RpcError, match=r"an error inside the driver: .*broken") as refused:
        call("broken")
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert "Traceback" in caplog.text
    assert call("a") == ""


def test_bytes_that_are_no_message_are_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with world.channel() as channel:
        prepare = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources")
        with pytest.raises(grpc.RpcError) as refused:
            prepare(b"\xff\xff", timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    (record,) = caplog.records
    assert "a gRPC message cannot be read: " in record.getMessage()
    assert record.exc_info is None


def test_a_method_that_is_not_there_is_named(world: World) -> None:
    with world.channel() as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/v1.Nothing/AtAll")(b"", timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert refused.value.details() == "there is no method /v1.Nothing/AtAll"


def test_a_caller_who_gives_up_keeps_nobody_from_being_answered(call: Callable[..., Any], world: World) -> None:
    for _ in range(8):
        with pytest.raises(grpc.RpcError) as refused:
            call("slow", timeout=0.05)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    world.slow.release(8)
    assert call("a") == ""


def test_a_call_that_is_taken_back_while_it_waits_is_not_begun(call: Callable[..., Any], world: World) -> None:
    busy = [call.future("slow") for _ in range(4)]  # type: ignore[attr-defined]
    eventually(lambda: world.asked == ["slow"] * 4)
    waiting = call.future("never")  # type: ignore[attr-defined]
    eventually(lambda: len(world.server._requests) == 1)
    waiting.cancel()
    last = call.future("last")  # type: ignore[attr-defined]
    eventually(lambda: len(world.server._requests) == 2)
    world.slow.release(4)
    assert [len(each.result(PATIENCE).claims) for each in (*busy, last)] == [1] * 5
    assert "never" not in world.asked


def test_a_peer_that_sends_noise_disturbs_nobody(call: Callable[..., Any], world: World) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, BEHIND + b"\0\0\4\0\0\0\0\0\7abcd", b""):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(str(world.path))
            peer.sendall(noise)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
        assert call("a") == ""


def test_a_peer_that_takes_nothing_is_hung_up_on(call: Callable[..., Any], world: World) -> None:
    """It pings without end, and reads none of the answers."""
    pings = b"\0\0\x08\6\0\0\0\0\0\0\0\0\0\0\0\0\0" * 4096
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE)
        peer.connect(str(world.path))
        peer.sendall(BEHIND)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            peer.sendall(pings * 1000)
    assert call("a") == ""


def test_streams_that_end_while_their_caller_is_hung_up_on_disturb_nobody() -> None:
    deaths: list[str] = []
    opened, gone = threading.Semaphore(0), threading.Semaphore(0)

    def watch(_request: Any, stream: Stream) -> None:
        def ends() -> None:
            stream.finish()
            gone.release()

        stream.gone = ends
        opened.release()

    methods = service(drahealth_v1_pb2.DESCRIPTOR, "DRAResourceHealth", {"NodeWatchResources": watch})

    def die(sentence: str) -> None:
        deaths.append(sentence)
        gone.release(len(STREAMS))

    server = GrpcServer("test", methods.get, die)
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        path = Path(name, "s.sock")
        server.listen(path)
        server.start()
        with socket.socket(socket.AF_UNIX) as sock:
            # Unlike grpcio's channel, one that is killed takes no stream back before.
            sock.connect(str(path))
            client = H2Connection()
            client.initiate_connection()
            for stream in STREAMS:
                method = (":path", next(iter(methods)))
                headers = [(":method", "POST"), (":scheme", "http"), method, (":authority", "localhost")]
                client.send_headers(stream, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
                client.send_data(stream, with_length(b""), end_stream=True)
            sock.sendall(client.data_to_send())
            assert all(opened.acquire(timeout=PATIENCE) for _ in STREAMS)
        assert all(gone.acquire(timeout=PATIENCE) for _ in STREAMS)
        server.stop(PATIENCE)
    assert deaths == []


def test_connections_that_come_and_go_leave_nothing_behind(world: World) -> None:
    for _ in range(20):
        with world.channel() as channel:
            assert asking(channel)("a") == ""
    eventually(lambda: not world.server._connections)


def test_calls_that_have_come_are_answered_before_the_end_and_no_others(call: Callable[..., Any], world: World) -> None:
    running = [call.future("slow") for _ in range(6)]  # type: ignore[attr-defined]
    eventually(lambda: world.asked == ["slow"] * 4 and len(world.server._requests) == 2)
    ending = threading.Thread(target=world.stop)
    ending.start()
    world.slow.release(6)
    assert [len(each.result(PATIENCE).claims) for each in running] == [1] * 6
    ending.join(PATIENCE)
    assert not ending.is_alive()
    with pytest.raises(grpc.RpcError) as refused:
        call("a")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_end_waits_no_longer_than_its_grace(world: World, call: Callable[..., Any]) -> None:
    running = call.future("slow")  # type: ignore[attr-defined]
    eventually(lambda: world.asked)
    world.stopped = True
    world.server.stop(0.05)
    with pytest.raises(grpc.RpcError) as refused:
        running.result(PATIENCE)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
