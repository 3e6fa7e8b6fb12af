"""Conflicting claims: which calls wait for an Unprepare that may follow, and how many."""

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from dranode.driver.claims.answers import Conflict
from dranode.driver.node.node import CONFLICT_WAIT, MAX_WAITING
from tests.fakes.drivers import allocated_claim
from tests.fakes.node import LAMPS, opened, prepare, unprepare
from tests.fakes.waiting import eventually


def test_a_prepare_waits_for_the_unprepare_of_a_conflicting_claim(tmp_path: Path) -> None:
    # The clock stands still: a call that waited would wait forever.
    node = opened(tmp_path, clock=lambda: 0.0)
    first, second = allocated_claim("a", LAMPS, ["lamp-1"]), allocated_claim("b", LAMPS, ["lamp-1"])
    prepare(node, first)

    def later() -> None:
        eventually(lambda: node._waiting_calls._value < MAX_WAITING)
        unprepare(node, first)

    thread = threading.Thread(target=later)
    thread.start()
    answer = prepare(node, second)["b"]
    thread.join()
    assert [device.device for device in answer] == ["lamp-1"]


def test_few_enough_calls_wait_to_let_the_unprepare_through(tmp_path: Path) -> None:
    now = [0.0]
    node = opened(tmp_path, clock=lambda: now[0])
    held = allocated_claim("a", LAMPS, ["lamp-1"])
    prepare(node, held)
    with ThreadPoolExecutor(MAX_WAITING) as pool:
        calls = [
            pool.submit(prepare, node, allocated_claim(f"w{number}", LAMPS, ["lamp-1"]))
            for number in range(MAX_WAITING)
        ]
        eventually(lambda: node._waiting_calls._value == 0)
        # The clock stands still: one more waiting call would wait forever.
        assert isinstance(prepare(node, allocated_claim("b", LAMPS, ["lamp-1"]))["b"], Conflict)
        unprepare(node, held)
        wait(calls, return_when=FIRST_COMPLETED)
        now[0] = CONFLICT_WAIT
        answers = [next(iter(call.result().values())) for call in calls]
    assert sum(isinstance(answer, tuple) for answer in answers) == 1
    assert [node._waiting_calls.acquire(blocking=False) for _ in range(MAX_WAITING)] == [True] * MAX_WAITING


def test_a_prepare_waits_no_longer_than_its_call_may_take(tmp_path: Path) -> None:
    now = [0.0]
    node = opened(tmp_path, clock=lambda: now[0])
    prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(prepare, node, allocated_claim("b", LAMPS, ["lamp-1"]))
        eventually(lambda: node._waiting_calls._value < MAX_WAITING)
        now[0] = CONFLICT_WAIT - 0.1
        assert not call.done()
        now[0] = CONFLICT_WAIT
        assert isinstance(call.result()["b"], Conflict)
    # kubelet gives a call 45 s, of which fetching may take 25.
    assert CONFLICT_WAIT < 20


def test_a_node_that_must_not_wait_refuses_at_once(tmp_path: Path) -> None:
    # The clock stands still: a call that waited would wait forever.
    node = opened(tmp_path, clock=lambda: 0.0)
    node.conflict_wait = 0.0
    prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))
    assert isinstance(prepare(node, allocated_claim("b", LAMPS, ["lamp-1"]))["b"], Conflict)
