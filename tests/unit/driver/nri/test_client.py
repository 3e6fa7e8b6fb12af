"""The client's thread against a runtime on a real socket, with the real decisions behind it."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import LedgerError
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.pinning.identity import KubeletPodClaims
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot
from dranode.driver.machine.forms import open_machine
from dranode.driver.nri import attempts as attempts_module
from dranode.driver.nri import client as client_module
from dranode.driver.nri.attempts import Attempts, delay
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.wake import Wake
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import CallFailedError, FakeRuntime, container, pod, updates_of
from tests.fakes.waiting import PATIENCE, eventually

NEW, OLD = "v0.12.1", ""
P1, P2 = pod("p1"), pod("p2")
ENV = ("DRA_CPUSET_a=2-3",)
EMPTY = HeldSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
CLAIM = HeldClaim(ClaimRef("default", "mine", "a"), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
HELD = replace(EMPTY, claims={"a": CLAIM})


@dataclass
class Node:
    """A node service: what is on record, what the ledger says when it is read again, and kubelet."""

    now: HeldSnapshot = EMPTY
    ledger: HeldSnapshot | None = None
    kubelet: Mapping[str, KubeletPodClaims] | None = field(default_factory=dict)
    asked: list[tuple[PodSandbox, ...]] = field(default_factory=list)

    def snapshot(self) -> HeldSnapshot:
        return self.now

    def reread(self) -> HeldSnapshot:
        if self.ledger is None:
            raise LedgerError("the ledger cannot be read: disk I/O error")
        self.now = self.ledger
        return self.now

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        self.asked.append(pods)
        return self.kubelet


@dataclass
class Bench:
    """A client and the socket at which it looks for a runtime."""

    path: Path
    listener: socket.socket
    node: Node
    enforcer: Enforcer
    client: NRIClient
    fatal: list[str]
    now: list[float]
    accepted: list[socket.socket] = field(default_factory=list)

    def accept(self) -> FakeRuntime:
        sock, _ = self.listener.accept()
        self.accepted.append(sock)
        return FakeRuntime(sock)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(client_module, "_TICK", 0.02)
    monkeypatch.setattr(attempts_module, "_FIRST_DELAY", 0.005)
    (tmp_path / "sys" / "fs" / "cgroup").mkdir(parents=True)
    path = tmp_path / "nri.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(PATIENCE)
    listener.bind(str(path))
    listener.listen()
    node, now = Node(ledger=HELD), [0.0]
    fatal: list[str] = []
    enforcer = Enforcer(node, open_machine(str(tmp_path)), clock=lambda: now[0])
    client = NRIClient(str(path), enforcer, name="dra.cpu", fatal=fatal.append, jitter=lambda: 0.0)
    bench = Bench(path, listener, node, enforcer, client, fatal, now)
    yield bench
    client.stop()
    for sock in (listener, *bench.accepted):
        sock.close()
    assert fatal == []
    assert not [thread for thread in threading.enumerate() if thread.name == "nri-dra.cpu"]


class Handler:
    """The enforcer with some of its methods replaced."""

    def __init__(self, enforcer: Enforcer, instead: Mapping[str, Callable[..., object]]) -> None:
        self._enforcer = enforcer
        self._instead = instead

    def __getattr__(self, name: str) -> object:
        return self._instead.get(name) or getattr(self._enforcer, name)


def test_a_client_registers_synchronizes_and_pins(bench: Bench) -> None:
    bench.node.now = HELD
    bench.client.start()
    runtime = bench.accept()
    registered = nri.RegisterPluginRequest.FromString(runtime.wait_for("RegisterPlugin"))
    assert (registered.plugin_name, registered.plugin_idx) == ("dra.cpu", "00")
    synced = runtime.handshake([P2], [container("s", "p2", state=nri.CONTAINER_RUNNING)])
    assert updates_of(synced) == {"s": "0-1,4-7"}
    eventually(lambda: bench.client.synchronized)
    created = runtime.create(container("g", "p1", ENV), P1)
    assert created.adjust.linux.resources.cpu.cpus == "2-3"
    with pytest.raises(CallFailedError, match="in use by container") as refused:
        runtime.create(container("h", "p1", ENV), P1)
    assert refused.value.code == 2
    status = bench.enforcer.status()
    assert (status.containers, status.refused, status.updates, status.unpinned) == (2, 1, 1, 1)
    assert bench.enforcer.claims_in_use() == {"a"}


def test_a_claim_that_the_snapshot_lacks_is_found_in_the_ledger(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    assert runtime.create(container("g", "p1", ENV), P1).adjust.linux.resources.cpu.cpus == "2-3"


def test_a_ledger_that_cannot_be_read_refuses_the_container_and_says_so(bench: Bench) -> None:
    bench.node.ledger = None
    bench.client.start()
    runtime = bench.accept()
    synced = runtime.handshake([P1], [container("g", "p1", ENV, state=nri.CONTAINER_RUNNING)])
    assert updates_of(synced) == {"g": "0-7"}
    with pytest.raises(CallFailedError, match="disk I/O error"):
        runtime.create(container("h", "p1", ENV), P1)


def test_kubelet_is_asked_about_a_pod_that_is_not_on_record(bench: Bench) -> None:
    bench.node.now = HELD
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    bench.node.kubelet = {"p2": KubeletPodClaims({"g": ("dra.k8s.io/cpu=claim-a",)})}
    assert runtime.create(container("g", "p2", ENV), P2).adjust.linux.resources.cpu.cpus == "2-3"
    assert [[each.uid for each in pods] for pods in bench.node.asked] == [["p2"]]
    runtime.stop(container("g", "p2"), P2)
    bench.node.kubelet = None
    with pytest.raises(CallFailedError, match="did not answer"):
        runtime.create(container("g", "p2", ENV), P2)
    bench.node.kubelet = {}
    with pytest.raises(CallFailedError, match="kubelet has not given"):
        runtime.create(container("g", "p2", ENV), P2)


def test_a_new_runtime_is_told_of_a_changed_pool_out_of_turn(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    bench.node.now = HELD
    bench.client.notify()
    first = nri.UpdateContainersRequest.FromString(runtime.wait_for("UpdateContainers"))
    assert updates_of(first) == {"s": "0-1,4-7"}
    bench.node.now = EMPTY
    bench.client.notify()
    second = nri.UpdateContainersRequest.FromString(runtime.wait_for("UpdateContainers", 2))
    assert updates_of(second) == {"s": "0-7"}
    eventually(lambda: bench.enforcer.status().waiting == 0)


def test_an_old_runtime_is_told_with_the_next_answer_and_the_lag_is_counted(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], OLD)
    bench.node.now = HELD
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 7.0
    assert bench.enforcer.status().lag == 7.0
    answer = runtime.stop(container("x", "p9"), pod("p9"))
    assert updates_of(answer) == {"s": "0-1,4-7"}
    eventually(lambda: bench.enforcer.status().waiting == 0)
    assert [name for name, _ in runtime.wire.received] == ["RegisterPlugin"]


def test_lag_that_no_answer_mends_is_mended_by_one_reconnection(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    listed = [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)]
    runtime.handshake([P2], listed, OLD)
    bench.node.now = HELD
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 60.0
    again = bench.accept()
    assert updates_of(again.handshake([P2], listed, OLD)) == {"s": "0-1,4-7"}
    assert bench.enforcer.status().reconnections == 1
    bench.node.now = EMPTY
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 300.0
    assert updates_of(again.stop(container("x", "p9"), pod("p9"))) == {"s": "0-7"}
    assert bench.enforcer.status().reconnections == 1


def test_updates_that_the_runtime_could_not_apply_are_sent_again_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    runtime.wire.update_error = "NRI update of some containers failed"
    bench.node.now = HELD
    bench.client.notify()
    runtime.wait_for("UpdateContainers")
    eventually(lambda: "did not apply every CPU set of 1 containers" in caplog.text)
    eventually(lambda: bench.enforcer.status().waiting == 1)
    runtime.wire.update_error = ""
    bench.now[0] += 31.0
    runtime.wait_for("UpdateContainers", 2)
    eventually(lambda: bench.enforcer.status().waiting == 0)


def test_drift_that_the_kernel_shows_is_repaired(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    group = bench.path.parent / "sys" / "fs" / "cgroup" / "k8s" / "s"
    group.mkdir(parents=True)
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    one = container("s", "p2", cpus="0-7", cgroup="/k8s/s", state=nri.CONTAINER_RUNNING)
    runtime.handshake([P2], [one], NEW)
    (group / "cpuset.cpus.effective").write_text("0-1\n")
    (drift,) = bench.enforcer.verify()
    assert str(drift) == 'container "s" of pod default/p2 runs on CPUs 0-1, but should run on 0-7'
    bench.client.notify()
    repaired = nri.UpdateContainersRequest.FromString(runtime.wait_for("UpdateContainers"))
    assert updates_of(repaired) == {"s": "0-7"}
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    assert bench.enforcer.verify() == ()
    assert bench.enforcer.status().drifts == 1


def test_on_an_old_runtime_drift_is_repaired_although_the_runtime_tells_the_right_mask(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    group = bench.path.parent / "sys" / "fs" / "cgroup" / "k8s" / "s"
    group.mkdir(parents=True)
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    listed = [container("s", "p2", cpus="0-7", cgroup="/k8s/s", state=nri.CONTAINER_RUNNING)]
    runtime.handshake([P2], listed, OLD)
    (group / "cpuset.cpus.effective").write_text("0-1\n")
    bench.enforcer.verify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 60.0
    assert updates_of(bench.accept().handshake([P2], listed, OLD)) == {"s": "0-7"}


def test_a_runtime_that_restarts_gets_everything_again(bench: Bench) -> None:
    bench.node.now = HELD
    bench.client.start()
    first = bench.accept()
    first.handshake([P1], [container("g", "p1", ENV, "2-3", state=nri.CONTAINER_RUNNING)])
    first.sock.close()
    second = bench.accept()
    synced = second.handshake([P1, P2], [container("g", "p1", ENV, "2-3"), container("late", "p2")])
    assert updates_of(synced) == {"late": "0-1,4-7"}


def test_a_runtime_that_refuses_the_plugin_is_left_and_tried_again(bench: Bench) -> None:
    bench.client.start()
    first = bench.accept()
    first.wire.register_error = "invalid plugin index"
    first.wait_for("RegisterPlugin")
    with pytest.raises(ConnectionError):
        first.pump()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)


def test_a_runtime_that_never_answers_is_left_and_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_WITHIN", 0.05)
    bench.client.start()
    silent = bench.accept()
    silent.wire.silent = True
    silent.wait_for("RegisterPlugin")
    with pytest.raises(ConnectionError):
        silent.pump()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)


def test_a_runtime_that_hangs_over_an_update_is_left(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_WITHIN", 0.05)
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    runtime.wire.silent = True
    bench.node.now = HELD
    bench.client.notify()
    runtime.wait_for("UpdateContainers")
    with pytest.raises(ConnectionError):
        runtime.pump()


def test_garbage_is_said_once_and_heals(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench.client.start()
    for _ in range(3):
        runtime = bench.accept()
        runtime.wait_for("RegisterPlugin")
        runtime.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConnectionError):
            runtime.pump()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    (said,) = [record.message for record in caplog.records if "not the NRI protocol" in record.message]
    assert said == (
        f"no NRI connection to {bench.path}, trying again until there is one: the runtime announced an NRI frame of "
        "791752241 bytes on connection 1213486160, and the limit is 16777226: this is not the NRI protocol"
    )


def test_truncation_is_said_and_heals(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench.client.start()
    runtime = bench.accept()
    runtime.wait_for("RegisterPlugin")
    _, data = runtime.wire.call("Configure", nri.ConfigureRequest(runtime_name="containerd"))
    runtime.sock.sendall(data[:-3])
    runtime.sock.close()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    assert "in the middle of a message" in caplog.text


def test_an_unknown_nri_version_is_served_as_an_old_one(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], "v9.next")
    bench.node.now = HELD
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    assert [name for name, _ in runtime.wire.received] == ["RegisterPlugin"]


def test_a_failing_handler_is_answered_with_an_error_and_the_thread_lives(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()

    def broken() -> HeldSnapshot:
        raise ZeroDivisionError("a mistake of ours")

    bench.node.snapshot = broken  # type: ignore[method-assign]
    with pytest.raises(CallFailedError, match="a mistake of ours"):
        runtime.create(container("g", "p1"), P1)
    del bench.node.snapshot
    assert runtime.create(container("g", "p1"), P1).adjust.linux.resources.cpu.cpus == "0-7"


class Broken:
    """A handler's method that fails until it is mended."""

    def __init__(self, works: Callable[..., object], error: Exception) -> None:
        self.error: Exception | None = error
        self.calls = 0
        self._works = works

    def __call__(self, *arguments: object) -> object:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self._works(*arguments)


MISTAKES = pytest.mark.parametrize("error", [ZeroDivisionError("a mistake"), LedgerError("no ledger")], ids=repr)


@MISTAKES
@pytest.mark.parametrize("method", ["unsolicited", "reconnection_due"])
def test_a_mistake_in_what_is_due_unasked_is_said_once_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture, method: str, error: Exception
) -> None:
    broken = Broken(getattr(bench.enforcer, method), error)
    bench.client._enforcer = Handler(bench.enforcer, {method: broken})  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    eventually(lambda: broken.calls > 3)
    assert runtime.create(container("g", "p1"), P1).adjust.linux.resources.cpu.cpus == "0-7"
    assert caplog.text.count("what is due for containers could not be decided") == 1
    broken.error = None
    calls = broken.calls
    eventually(lambda: broken.calls > calls + 1)
    assert bench.client.synchronized
    assert bench.enforcer.status().connections == 1


@MISTAKES
@pytest.mark.parametrize("method", ["configured", "started", "removed", "pod_gone", "updates_answered"])
def test_what_could_not_be_taken_in_is_told_again_on_a_new_connection_once_decisions_succeed(
    bench: Bench, method: str, error: Exception
) -> None:
    broken = Broken(getattr(bench.enforcer, method), error)
    ticks = Broken(bench.enforcer.unsolicited, error)
    if method == "updates_answered":
        ticks.error = None
    bench.client._enforcer = Handler(bench.enforcer, {method: broken, "unsolicited": ticks})  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    if method == "updates_answered":
        bench.enforcer.configured(RuntimePeer("containerd", "v2.4.0", NEW))
        bench.node.now = HELD
        bench.client.notify()
    else:
        runtime.tell_all(container("s", "p2"), P2)
        # The connection is kept as long as a new one would not get further: it refuses what it cannot decide.
        calls = ticks.calls
        eventually(lambda: ticks.calls > calls + 2)
        assert bench.client.synchronized
        ticks.error = None
    with pytest.raises(ConnectionError):
        runtime.wait_for("another connection")
    assert broken.calls
    broken.error = None
    bench.accept().handshake([P2], [], NEW)
    eventually(lambda: bench.client.synchronized and bench.enforcer.status().containers == 0)


@MISTAKES
def test_a_mistake_at_the_end_of_a_connection_does_not_keep_from_the_next(bench: Bench, error: Exception) -> None:
    broken = Broken(bench.enforcer.disconnected, error)
    bench.client._enforcer = Handler(bench.enforcer, {"disconnected": broken})  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    runtime.sock.close()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    assert broken.calls == 1


def test_an_observer_that_fails_costs_nothing(bench: Bench) -> None:
    broken = Broken(lambda _method, _seconds: None, ZeroDivisionError("a mistake"))
    bench.client._answered = broken  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    assert runtime.create(container("g", "p1"), P1).adjust.linux.resources.cpu.cpus == "0-7"
    assert (broken.calls, bench.enforcer.status().connections) == (2, 1)


def test_a_synchronization_that_failed_is_tried_again_on_a_new_connection(bench: Bench) -> None:
    def broken() -> HeldSnapshot:
        raise ZeroDivisionError("a mistake of ours")

    bench.node.snapshot = broken  # type: ignore[method-assign]
    bench.client.start()
    with pytest.raises(CallFailedError, match="a mistake of ours"):
        bench.accept().handshake()
    del bench.node.snapshot
    # An old runtime leaves the first connection open, and is silent on it from then on.
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)


def test_a_socket_that_is_not_there_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "later.sock"
    enforcer = Enforcer(Node(), open_machine("sockets=1,cores=2"))
    client = NRIClient(str(path), enforcer, name="dra.cpu", fatal=pytest.fail, jitter=lambda: 1.0)
    client.start()
    eventually(lambda: "No such file or directory" in caplog.text)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(PATIENCE)
        listener.bind(str(path))
        listener.listen()
        with listener.accept()[0] as sock:
            FakeRuntime(sock).handshake()
            eventually(lambda: client.synchronized)
    client.stop()
    assert caplog.text.count("No such file or directory") == 1


def test_stop_without_start_and_stop_twice_return_at_once(bench: Bench) -> None:
    bench.client.stop()
    bench.client.stop()
    assert not bench.client.synchronized


def test_start_without_stop_does_not_keep_a_process(bench: Bench) -> None:
    bench.client.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "nri-dra.cpu"]
    assert thread.daemon


def test_waits_before_a_runtime_that_turns_us_away_double_to_a_low_limit_and_are_jittered() -> None:
    assert [delay(attempt, 0.0) for attempt in range(1, 5)] == [0.1, 0.2, 0.4, 0.8]
    assert delay(9, 0.0) == delay(10_000, 0.0) == 2.0
    assert delay(4, 1.0) == 0.4


def test_a_runtime_that_comes_back_after_bad_connections_is_met_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts_module, "_FIRST_DELAY", 3600.0)
    monkeypatch.setattr(attempts_module, "_LONGEST_DELAY", 3600.0)
    bench.client.start()
    bench.accept().sock.close()
    with socket.socket(socket.AF_UNIX) as another:
        another.settimeout(PATIENCE)
        another.bind(f"{bench.path}.new")
        another.listen()
        Path(f"{bench.path}.new").rename(bench.path)
        with another.accept()[0] as sock:
            FakeRuntime(sock).handshake()
            eventually(lambda: bench.client.synchronized)


def test_reasons_that_alternate_are_said_once_each_and_garbage_does_not_fill_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench.client.start()
    for number in range(24):
        runtime = bench.accept()
        runtime.wait_for("RegisterPlugin")
        if number % 2:
            runtime.sock.sendall(struct.pack(">II", 1, 0xFFFF0000 + number))
        runtime.sock.close()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    assert caplog.text.count("the runtime closed the connection") == 1
    assert len(caplog.records) == 8


@pytest.mark.parametrize("left", [False, True], ids=["no-socket", "nobody-listens"])
def test_a_runtime_that_stays_away_for_long_is_not_waited_for_longer(tmp_path: Path, *, left: bool) -> None:
    path = tmp_path / "nri.sock"
    if left:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
    attempts = Attempts(str(path), time.monotonic, lambda: 0.0)
    wake = Wake()
    with socket.socket(socket.AF_UNIX) as sock:
        for _ in range(40):
            attempts.begin()
            with pytest.raises(OSError, match=r"No such file|refused") as failed:
                sock.connect(str(path))
            attempts.failed(failed.value, synchronized=False)
    began = time.monotonic()
    attempts.wait(wake, lambda: False)
    assert time.monotonic() - began < 1.0
    wake.close()
