"""A call that kubelet has given up is not carried out later, since kubelet may have asked for the opposite since."""

import fcntl
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.prepare import Awaited
from dranode.driver.kubelet.service import DRAService
from dranode.driver.process.threads import DaemonPool
from dranode.proto import dra_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from tests.fakes.drivers import Lamps, allocated_claim, reference
from tests.fakes.node import LAMPS, opened
from tests.fakes.waiting import PATIENCE, eventually

CLAIM = allocated_claim("a", LAMPS, ["lamp-0"])
# Long enough for a call to reach the driver on a busy machine.
_SHORT_SECONDS = 0.5


class World:
    """A node behind its socket, and an API server that answers when a test lets it."""

    def __init__(self, folder: Path) -> None:
        self.node = opened(folder)
        self.lock = folder / "data" / "serialize.lock"
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.ended: list[str] = []
        dra = DRAService(Lamps.driver)
        dra.observe = lambda call, succeeded, _seconds: self.ended.append(f"{call} {succeeded}")
        dra.answer_with(self, self.node)
        self.awaited: list[Awaited] = []
        self.prepare = dra.prepare
        dra.prepare = self.noted  # type: ignore[method-assign, assignment]
        self.server = grpc.server(DaemonPool("test", 4, pytest.fail))
        dra.add_to(self.server)
        self.server.add_insecure_port(f"unix:{folder / 's.sock'}")
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix:{folder / 's.sock'}", [("grpc.use_local_subchannel_pool", 1)])

    def noted(self, refs: tuple[ClaimRef, ...], awaited: Awaited) -> Any:
        self.awaited.append(awaited)
        return self.prepare(refs, awaited)

    def get(self, refs: tuple[ClaimRef, ...]) -> Any:
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        return dict.fromkeys(refs, CLAIM)

    def call(self, method: str, timeout: float = PATIENCE) -> Any:
        ref = reference(CLAIM)
        claim = api.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
        request = getattr(api, f"{method}Request")(claims=[claim])
        return getattr(DRAPluginStub(self.channel), method)(request, timeout=timeout).claims[ref.uid].error

    def give_up(self, method: str) -> None:
        """Make a call with a short deadline; returns when the driver has seen that the caller has given up."""
        with pytest.raises(grpc.RpcError) as given_up:
            self.call(method, _SHORT_SECONDS)
        assert given_up.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError, match="Method not found"):
            self.channel.unary_unary("/x/y")(b"", timeout=PATIENCE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.answers.set()
    world.channel.close()
    world.server.stop(PATIENCE).wait()


def test_an_abandoned_prepare_leaves_nothing_after_the_unprepare(world: World) -> None:
    world.answers.clear()
    world.give_up("NodePrepareResources")
    assert world.asked.is_set()
    assert world.call("NodeUnprepareResources") == ""
    world.answers.set()
    eventually(lambda: world.ended == ["unprepare True", "prepare False"])
    assert world.node.records() == ()


def test_an_abandoned_unprepare_does_not_affect_the_next_pod(world: World) -> None:
    assert world.call("NodePrepareResources") == ""
    with world.lock.open("rb") as lock:
        # Another instance holds the lock meanwhile.
        fcntl.flock(lock, fcntl.LOCK_EX)
        world.give_up("NodeUnprepareResources")
    eventually(lambda: world.ended == ["prepare True", "unprepare False"])
    assert [record.uid for record in world.node.records()] == [CLAIM.metadata.uid]


def test_a_call_is_carried_out_however_long_it_takes_while_its_caller_waits(world: World) -> None:
    world.answers.clear()
    began = time.monotonic()
    threading.Timer(_SHORT_SECONDS, world.answers.set).start()
    assert world.call("NodePrepareResources") == ""
    assert time.monotonic() - began >= _SHORT_SECONDS
    assert len(world.node.records()) == 1


def test_a_caller_that_hangs_up_abandons_its_calls(world: World) -> None:
    world.answers.clear()
    with futures.ThreadPoolExecutor() as pool:
        call = pool.submit(world.call, "NodePrepareResources")
        assert world.asked.wait(PATIENCE)
        world.channel.close()
        assert isinstance(call.exception(), (grpc.RpcError, ValueError))
    eventually(lambda: not world.awaited[0]())
    world.answers.set()
    eventually(lambda: world.ended == ["prepare False"])
    assert world.node.records() == ()
