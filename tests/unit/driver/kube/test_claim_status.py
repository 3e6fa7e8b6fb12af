"""When a claim's status is written, with a clock that only the test moves."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.status import DeviceState, device_statuses
from dranode.driver.kube.client import Client, Timing
from dranode.driver.kube.reports import ClaimStatus
from tests.fakes.waiting import eventually

CLAIM = ClaimRef("default", "a", "uid-a")
READY = (DeviceState("node", "lamp-0", None, ready=True, reason="Prepared", message="ok"),)


class Server:
    """Keeps what is written; requests wait until `answers` is set."""

    def __init__(self) -> None:
        self.written: list[list[Any]] = []
        self.changed = threading.Condition()
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def write(self, request: Any) -> Any:
        self.asked.set()
        assert self.answers.wait(10)
        with self.changed:
            self.written.append(request("/apis/resource.k8s.io/v1", "v1").body["status"].get("devices", []))
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.written) >= count, 10)


class World:
    """A claim's status with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looked = threading.Event()
        self.server = Server()
        client = Client(None, timing=Timing(clock=self.clock))  # type: ignore[arg-type]
        client.resource = self.server.write  # type: ignore[assignment, method-assign]
        self.status = ClaimStatus(client, "lamps.example.com", pytest.fail)

    def clock(self) -> float:
        if threading.current_thread().name.endswith("-status"):
            self.looked.set()
        return self.now

    def later(self, seconds: float) -> None:
        """Move the clock, and wait until the writing thread has checked it."""
        self.looked.clear()
        with self.status._outbox._changed:
            self.now += seconds
            self.status._outbox._changed.notify_all()
        assert self.looked.wait(10)

    @property
    def written(self) -> list[list[str]]:
        return [[entry["device"] for entry in entries] for entries in self.server.written]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.status.close(10)


def test_a_claim_that_is_unprepared_within_a_second_has_no_status_written(world: World) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.later(0.5)
    world.status.withdraw(CLAIM)
    world.status.close(10)
    assert world.written == []


def test_a_status_is_written_after_an_idle_moment_and_removed_after_another(world: World) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    assert world.written == []
    world.later(1.0)
    world.server.wait(1)
    world.status.withdraw(CLAIM)
    assert len(world.written) == 1
    world.later(1.0)
    world.server.wait(2)
    assert world.written == [["lamp-0"], []]


def test_only_the_newest_status_of_a_claim_is_written(world: World) -> None:
    for message in ("one", "two", "three"):
        state = DeviceState("node", "lamp-0", None, ready=False, reason="Broken", message=message)
        world.status.report(CLAIM, partial(tuple[DeviceState], (state,)), (), new=True)
    world.status.close(10)
    assert [entries[0]["conditions"][0]["message"] for entries in world.server.written] == ["three"]


@pytest.mark.parametrize("new", [True, False], ids=["another entry", "prepared before"])
def test_an_entry_that_another_instance_may_have_written_is_removed(world: World, *, new: bool) -> None:
    before = [{"driver": "lamps.example.com", "pool": "node", "device": "lamp-9"}] if new else []
    world.status.report(CLAIM, lambda: READY, before, new=new)
    world.status.withdraw(CLAIM)
    world.status.close(10)
    assert world.written == [[]]


def test_a_written_entry_is_removed_even_if_a_newer_one_is_pending(world: World) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.later(1.0)
    world.server.wait(1)
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.status.withdraw(CLAIM)
    world.status.close(10)
    assert world.written == [["lamp-0"], []]


def test_a_claim_that_another_instance_unprepared_meanwhile_has_no_status_written(world: World) -> None:
    on_record = [True]
    world.status.report(CLAIM, lambda: READY, (), new=True, still=lambda: bool(on_record))
    on_record.clear()
    world.status.close(10)
    assert world.written == []


def test_a_claim_that_is_prepared_again_at_once_keeps_its_status(world: World) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.later(1.0)
    world.server.wait(1)
    world.status.withdraw(CLAIM)
    world.status.report(CLAIM, lambda: READY, world.server.written[0])
    world.status.close(10)
    assert world.written == [["lamp-0"]]


def test_a_status_that_the_claim_already_has_is_not_written(world: World) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.later(1.0)
    world.server.wait(1)
    world.status.report(CLAIM, lambda: READY, world.server.written[0])
    world.later(1.0)
    world.status.close(10)
    assert world.written == [["lamp-0"]]


def test_a_status_that_was_removed_after_the_claim_was_read_is_written_again(world: World) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.later(1.0)
    world.server.wait(1)
    world.status.withdraw(CLAIM)
    world.later(1.0)
    world.server.wait(2)
    eventually(lambda: not world.status._outbox.sends(CLAIM.uid))
    world.status.report(CLAIM, lambda: READY, world.server.written[0])
    world.later(1.0)
    world.server.wait(3)
    assert world.written == [["lamp-0"], [], ["lamp-0"]]
    eventually(lambda: not world.status._outbox.sends(CLAIM.uid))
    world.status.report(CLAIM, lambda: READY, world.server.written[2])
    world.status.close(10)
    assert len(world.written) == 3


def test_a_status_whose_removal_is_sent_while_a_call_is_answered_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.status.report(CLAIM, lambda: READY, (), new=True)
    world.later(1.0)
    world.server.wait(1)
    world.status.withdraw(CLAIM)
    take_back = world.status._outbox.take_back

    def once_it_is_sent(key: str) -> Any:
        world.later(1.0)
        world.server.wait(2)
        return take_back(key)

    monkeypatch.setattr(world.status._outbox, "take_back", once_it_is_sent)
    world.status.report(CLAIM, lambda: READY, world.server.written[0])
    world.status.close(10)
    assert world.written == [["lamp-0"], [], ["lamp-0"]]


def test_a_claim_with_a_repeated_removal_is_remembered_as_the_latest(world: World) -> None:
    written = 0
    for batch in (range(1000), (0,), (1000,)):
        for number in batch:
            world.status.withdraw(ClaimRef("default", f"c{number}", f"uid-{number}"))
            written += 1
        world.later(1.0)
        world.server.wait(written)
    assert list(world.status._removed) == [*(f"uid-{number}" for number in range(2, 1000)), "uid-0", "uid-1000"]


def test_removals_of_at_most_a_thousand_claims_are_remembered(world: World) -> None:
    for written in (600, 1200):
        for number in range(written - 600, written):
            world.status.withdraw(ClaimRef("default", f"c{number}", f"uid-{number}"))
        world.later(1.0)
        world.server.wait(written)
    assert list(world.status._removed) == [f"uid-{number}" for number in range(200, 1200)]


def test_a_status_that_follows_one_being_written_is_written(world: World) -> None:
    """The claim may have what it had when it was fetched, or what is being written."""
    states = (DeviceState("node", "lamp-0", None, ready=False, reason="Broken"),)
    before = device_statuses("lamps.example.com", states, (), "2026-01-01T00:00:00Z")
    world.server.answers.clear()
    world.status.report(CLAIM, lambda: READY, ())
    world.later(1.0)
    assert world.server.asked.wait(10)
    world.status.report(CLAIM, lambda: states, before)
    world.server.answers.set()
    world.status.close(10)
    assert [entries[0]["conditions"][0]["reason"] for entries in world.server.written] == ["Prepared", "Broken"]
