"""The driver's gRPC server on real sockets: deadlines, cancellation, many and large calls, odd peers, shutdown."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import DeviceHealth, Health
from dranode.driver.claims.prepare import Awaited, always
from dranode.driver.claims.record import PreparedDevice
from dranode.driver.kubelet.health import MAX_STREAMS
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import MAX_SOCKET_PATH, SocketError, bind, socket_paths, uri
from dranode.proto import dra_v1_pb2 as api
from dranode.proto import drahealth_v1_pb2 as health
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub
from tests.fakes.waiting import PATIENCE, eventually

DRIVER = "dra.example"
# As many calls as the server runs at once.
THREADS = 4 + MAX_STREAMS


class World:
    """A driver whose behavior follows the claim's name."""

    def __init__(self, root: Path) -> None:
        (root / "plugins_registry").mkdir()
        self.sockets = socket_paths(root, DRIVER)
        self.asked: list[str] = []
        self.slow = threading.Semaphore(0)
        self.listener = Listener(DRIVER, "node", self.sockets, root / "plugins" / DRIVER, pytest.fail)
        self.listener.calls.answer_with(self, self)
        self.listener.health.report([DeviceHealth("d", Health.HEALTHY)])
        self.listener.start()

    def get(self, refs: tuple[ClaimRef, ...]) -> Any:
        return dict.fromkeys(refs)

    def prepare(self, asked: Any, awaited: Awaited = always) -> Any:
        del awaited
        return {ref.uid: self._prepare(ref.name) for ref in asked}

    def _prepare(self, name: str) -> Prepared:
        self.asked.append(name)
        if name == "unsayable":
            return prepared("\ud800")
        if name == "slow":
            assert self.slow.acquire(timeout=PATIENCE)
        return prepared("x" * int(name.partition("-")[2] or 0))

    def unprepare(self, refs: Any, awaited: Awaited = always) -> Any:
        del awaited
        return dict.fromkeys(ref.uid for ref in refs)

    def channel(self) -> grpc.Channel:
        # A pool of its own, since grpcio's channels to one address share a connection otherwise.
        return grpc.insecure_channel(uri(self.sockets.dra), [("grpc.use_local_subchannel_pool", 1)])


def prepared(device: str) -> Prepared:
    return Prepared((PreparedDevice(request="r", pool="p", device=device, cdi=()),))


@pytest.fixture
def root() -> Iterator[Path]:
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield Path(name)


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    world = World(root)
    yield world
    world.slow.release(1000)
    world.listener.close()
    world.listener.release()


@pytest.fixture
def call(world: World) -> Iterator[Callable[..., Any]]:
    with world.channel() as channel:
        yield asking(channel)


def asking(channel: grpc.Channel) -> Callable[..., Any]:
    prepare = DRAPluginStub(channel).NodePrepareResources

    def request(name: str) -> api.NodePrepareResourcesRequest:
        return api.NodePrepareResourcesRequest(claims=[api.Claim(name=name, uid="uid")])

    def call(name: str, timeout: float = PATIENCE) -> Any:
        answer = prepare(request(name), timeout=timeout).claims["uid"]
        return answer.error or answer.devices[0].device_name

    call.future = lambda name: prepare.future(request(name), timeout=PATIENCE)  # type: ignore[attr-defined]
    return call


def watching(channel: grpc.Channel) -> Any:
    return DRAResourceHealthStub(channel).NodeWatchResources(health.NodeWatchResourcesRequest(), timeout=PATIENCE)


def test_a_too_large_request_is_refused_and_the_next_one_is_answered(call: Callable[..., Any]) -> None:
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match=r"larger than max \(5\d+ vs. 4194304\)") as refused:
            call("a" * 5_000_000)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call("a") == ""


def test_an_answer_that_cannot_be_serialized_is_an_internal_error(
    call: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.RpcError, match="internal error; see the driver's log: ") as refused:
        call("unsayable")
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert "Traceback" in caplog.text
    assert call("a") == ""


def test_callers_who_give_up_do_not_block_others(call: Callable[..., Any], world: World) -> None:
    for _ in range(2 * THREADS):
        with pytest.raises(grpc.RpcError) as refused:
            call("slow", timeout=0.05)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    world.slow.release(2 * THREADS)
    assert call("a") == ""


def test_a_call_that_is_cancelled_while_it_waits_is_not_begun(call: Callable[..., Any], world: World) -> None:
    busy = [call.future("slow") for _ in range(THREADS)]  # type: ignore[attr-defined]
    eventually(lambda: world.asked == ["slow"] * THREADS)
    waiting = call.future("never")  # type: ignore[attr-defined]
    waiting.cancel()
    # A connection's calls and cancellations are processed in order, so this call comes after both.
    last = call.future("last")  # type: ignore[attr-defined]
    with world.channel() as other, pytest.raises(grpc.RpcError):
        asking(other)("too late", timeout=0.2)
    world.slow.release(THREADS)
    assert [len(each.result(PATIENCE).claims) for each in (*busy, last)] == [1] * (THREADS + 1)
    assert "never" not in world.asked


def test_health_streams_beyond_the_limit_are_refused_until_one_ends(world: World) -> None:
    with world.channel() as channel, world.channel() as other:
        streams = [watching(channel) for _ in range(MAX_STREAMS)]
        for stream in streams:
            assert next(stream).devices[0].health == 1
        with pytest.raises(grpc.RpcError, match=f"{MAX_STREAMS} health streams are open already") as refused:
            next(watching(other))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert asking(other)("a") == ""
        streams[0].cancel()

        def opens() -> bool:
            try:
                return bool(next(watching(other)).devices)
            except grpc.RpcError:
                return False

        eventually(opens)


def test_health_streams_end_when_their_caller_is_killed(world: World) -> None:
    script = (
        "import sys, grpc\n"
        "from dranode.proto import drahealth_v1_pb2 as api\n"
        "from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub\n"
        "channel = grpc.insecure_channel(sys.argv[1])\n"
        "watch = DRAResourceHealthStub(channel).NodeWatchResources\n"
        f"streams = [watch(api.NodeWatchResourcesRequest()) for _ in range({MAX_STREAMS})]\n"
        "for stream in streams: next(stream)\n"
        "print('open', flush=True)\n"
        "next(streams[0])\n"
    )
    command = [sys.executable, "-c", script, uri(world.sockets.dra)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"open\n"
        assert world.listener.health._streams == MAX_STREAMS
        caller.send_signal(signal.SIGKILL)
    eventually(lambda: world.listener.health._streams == 0)


def test_connections_and_streams_that_come_and_go_leave_nothing_behind(world: World) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - a count

    def come_and_go() -> None:
        with world.channel() as channel:
            assert asking(channel)("a") == ""
            stream = watching(channel)
            next(stream)
            stream.cancel()

    come_and_go()
    eventually(lambda: world.listener.health._streams == 0)
    descriptors, threads = held()
    for _ in range(20):
        come_and_go()
    eventually(lambda: held() <= (descriptors + 2, threads + 2))


def test_calls_that_have_arrived_are_answered_before_shutdown(call: Callable[..., Any], world: World) -> None:
    running = [call.future("slow") for _ in range(THREADS + 2)]  # type: ignore[attr-defined]
    eventually(lambda: world.asked == ["slow"] * THREADS)
    ending = threading.Thread(target=world.listener.close)
    ending.start()
    world.slow.release(THREADS + 2)
    assert [len(each.result(PATIENCE).claims) for each in running] == [1] * (THREADS + 2)
    ending.join(PATIENCE)
    assert not ending.is_alive()
    with pytest.raises(grpc.RpcError) as refused:
        call("a")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_hanging_call_delays_neither_shutdown_nor_exit(root: Path) -> None:
    script = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from dranode.driver.kubelet import listener\n"
        "from dranode.driver.kubelet.sockets import socket_paths\n"
        "from dranode.tools.readers.node import unprepare\n"
        "from dranode.driver.claims.held import ClaimRef\n"
        "listener._GRACE = 0.05\n"
        "root = Path(sys.argv[1])\n"
        "sockets = socket_paths(root, 'dra.example')\n"
        "serving = listener.Listener('dra.example', 'node', sockets, root / 'plugins' / 'dra.example', print)\n"
        "begun = threading.Event()\n"
        "def hang(refs, awaited):\n"
        "    begun.set()\n"
        "    time.sleep(3600)\n"
        "serving.calls.unprepare = hang\n"
        "serving.start()\n"
        "ask = threading.Thread(target=unprepare, args=(sockets.dra, [ClaimRef('n', 'a', 'u')]), daemon=True)\n"
        "ask.start()\n"
        "begun.wait()\n"
        "serving.close()\n"
        "print('closed')\n"
    )
    (root / "plugins_registry").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, root], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout, done.returncode) == ("closed\n", 0), done.stderr


# --- the sockets' files ---


def serving(path: Path) -> grpc.Server:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    bind(server, path)
    server.start()
    return server


def answers(path: Path) -> bool:
    with grpc.insecure_channel(uri(path), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            channel.unary_unary("/v1.Nothing/AtAll")(b"", timeout=PATIENCE)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNIMPLEMENTED)
    return False


def test_only_the_owner_may_use_a_socket_and_the_folder_has_nothing_else(root: Path) -> None:
    mask = os.umask(0)
    try:
        server = serving(root / "s.sock")
    finally:
        os.umask(mask)
    assert os.listdir(root) == ["s.sock"]  # noqa: PTH208 - hidden names too
    assert stat.S_IMODE((root / "s.sock").stat().st_mode) == 0o600
    assert answers(root / "s.sock")
    server.stop(0).wait()


def test_a_stopped_server_leaves_the_socket_of_its_successor(root: Path) -> None:
    path = root / "s.sock"
    older = serving(path)
    path.unlink()
    newer = serving(path)
    older.stop(0).wait()
    assert answers(path)
    newer.stop(0).wait()


@pytest.mark.parametrize("name", ["a%20b", "a b", "a?b#c", "ü"])
def test_a_path_may_have_any_character(root: Path, name: str) -> None:
    (root / name).mkdir()
    server = serving(root / name / name)
    assert answers(root / name / name)
    server.stop(0).wait()


def test_a_path_of_107_bytes_is_served(root: Path) -> None:
    folder = root / ("x" * (MAX_SOCKET_PATH - len(os.fsencode(root)) - len("//dra.sock")))
    folder.mkdir()
    server = serving(folder / "dra.sock")
    assert len(os.fsencode(folder / "dra.sock")) == MAX_SOCKET_PATH
    assert answers(folder / "dra.sock")
    server.stop(0).wait()


def test_a_socket_that_cannot_be_created_is_reported_in_one_sentence(root: Path) -> None:
    with pytest.raises(SocketError, match=r"^the socket \S+ cannot be bound; its folder must exist and be writable$"):
        serving(root / "missing" / "s.sock")
    (root / "s.sock").mkdir()
    with pytest.raises(SocketError, match=r"^the socket \S+/s\.sock cannot be created: Is a directory$"):
        serving(root / "s.sock")
    (root / "file").touch()
    with pytest.raises(SocketError, match=r"^the socket \S+ cannot be created: Not a directory$"):
        serving(root / "file" / "s.sock")
