"""Bugs of ours behind the client: each is logged once, fails one call at most, and is retried."""

from collections.abc import Callable, Mapping

import pytest

from dranode.api.errors import LedgerError
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.unsolicited import Unsolicited
from dranode.driver.pinning.snapshot import PinSnapshot
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import CallFailedError, container
from tests.fakes.nri_client import HELD, NEW, P1, P2, Bench
from tests.fakes.waiting import eventually


class Handler:
    """The enforcer, or its unsolicited work, with some of its attributes replaced."""

    def __init__(self, handler: Enforcer | Unsolicited, instead: Mapping[str, object]) -> None:
        self._handler = handler
        self._instead = instead

    def __getattr__(self, name: str) -> object:
        return self._instead.get(name) or getattr(self._handler, name)


def test_a_failing_handler_is_answered_with_an_error_and_the_thread_lives(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()

    def broken() -> PinSnapshot:
        raise ZeroDivisionError("a mistake of ours")

    bench.node.snapshot = broken  # type: ignore[method-assign]
    with pytest.raises(CallFailedError, match="a mistake of ours"):
        runtime.create(container("g", "p1"), P1)
    del bench.node.snapshot
    assert runtime.create(container("g", "p1"), P1).adjust.linux.resources.cpu.cpus == "0-7"


def test_a_container_starts_in_spite_of_a_bug(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    made = container("g", "p1")
    runtime.create(made, P1)

    def broken() -> PinSnapshot:
        raise ZeroDivisionError("a mistake of ours")

    bench.node.snapshot = broken  # type: ignore[method-assign]
    runtime.call("StartContainer", nri.ContainerEvent(pod=P1, container=made))
    del bench.node.snapshot
    assert "an NRI request failed" in caplog.text


class Broken:
    """A handler's method that fails until it is repaired."""

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
@pytest.mark.parametrize("method", ["updates", "reconnection_due"])
def test_a_bug_in_unsolicited_work_is_logged_once_and_retried(
    bench: Bench, caplog: pytest.LogCaptureFixture, method: str, error: Exception
) -> None:
    broken = Broken(getattr(bench.enforcer.unsolicited, method), error)
    unsolicited = Handler(bench.enforcer.unsolicited, {method: broken})
    bench.client._enforcer = Handler(bench.enforcer, {"unsolicited": unsolicited})  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    eventually(lambda: broken.calls > 3)
    assert runtime.create(container("g", "p1"), P1).adjust.linux.resources.cpu.cpus == "0-7"
    assert caplog.text.count("unsolicited updates could not be decided") == 1
    broken.error = None
    calls = broken.calls
    eventually(lambda: broken.calls > calls + 1)
    assert bench.client.synchronized
    assert bench.enforcer.status().connections == 1


@MISTAKES
@pytest.mark.parametrize("method", ["configured", "started", "removed", "pod_gone", "answered"])
def test_the_runtime_is_reconnected_once_decisions_succeed_again(bench: Bench, method: str, error: Exception) -> None:
    unsolicited = bench.enforcer.unsolicited
    broken = Broken(getattr(unsolicited if method == "answered" else bench.enforcer, method), error)
    ticks = Broken(unsolicited.updates, error)
    if method == "answered":
        ticks.error = None
    replaced = {"answered": broken} if method == "answered" else {}
    unasked = Handler(unsolicited, {**replaced, "updates": ticks})
    bench.client._enforcer = Handler(bench.enforcer, {method: broken, "unsolicited": unasked})  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    if method == "answered":
        bench.enforcer.configured(RuntimePeer("containerd", "v2.4.0", NEW))
        bench.node.now = HELD
        bench.client.notify()
    else:
        runtime.notify_all(container("s", "p2"), P2)
        # The connection is kept while a new one would get no further: it refuses what it cannot decide.
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
def test_a_bug_at_the_end_of_a_connection_does_not_prevent_the_next(bench: Bench, error: Exception) -> None:
    broken = Broken(bench.enforcer.disconnected, error)
    bench.client._enforcer = Handler(bench.enforcer, {"disconnected": broken})  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    runtime.sock.close()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    assert broken.calls == 1


def test_a_failing_observer_fails_no_call(bench: Bench) -> None:
    broken = Broken(lambda _method, _seconds: None, ZeroDivisionError("a mistake"))
    bench.client._answered = broken  # type: ignore[assignment]
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    assert runtime.create(container("g", "p1"), P1).adjust.linux.resources.cpu.cpus == "0-7"
    assert (broken.calls, bench.enforcer.status().connections) == (2, 1)


def test_a_failed_synchronization_is_retried_on_a_new_connection(bench: Bench) -> None:
    def broken() -> PinSnapshot:
        raise ZeroDivisionError("a mistake of ours")

    bench.node.snapshot = broken  # type: ignore[method-assign]
    bench.client.start()
    with pytest.raises(CallFailedError, match="a mistake of ours"):
        bench.accept().handshake()
    del bench.node.snapshot
    # An old runtime leaves the first connection open, but sends nothing on it any more.
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
