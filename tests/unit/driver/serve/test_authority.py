"""Which instance is active, decided by kernel locks in a shared folder, step by step."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dranode.driver.process.locks import FileLock
from dranode.driver.serve.authority import Authority, OtherInstances, Role
from tests.fakes.waiting import eventually


class Instance:
    """One instance, checked step by step; `done` lists what it did."""

    def __init__(self, data: Path, name: str, done: list[str], *, prepared: bool = True) -> None:
        self.prepared, self.able = prepared, True
        self.authority = Authority(
            data,
            name,
            prepared=lambda: self.prepared,
            able=lambda: self.able,
            begin=lambda: done.append(f"{name} begins"),
            end=lambda: done.append(f"{name} ends"),
            follow=lambda: None,
            fatal=pytest.fail,
        )

    def check(self) -> Role:
        self.authority.check()
        return self.authority.role


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, done: list[str]) -> Iterator[Callable[..., Instance]]:
    made: list[Instance] = []

    def one(name: str, **options: bool) -> Instance:
        made.append(Instance(tmp_path, name, done, **options))
        return made[-1]

    yield one
    for instance in made:
        instance.authority.stop()
        instance.authority.close()


def test_a_single_instance_is_active_at_once(make: Callable[..., Instance], done: list[str]) -> None:
    assert make("only", prepared=False).check() is Role.ACTIVE
    assert done == ["only begins"]


def test_authority_passes_only_when_the_newer_instance_is_prepared(
    make: Callable[..., Instance], done: list[str]
) -> None:
    old, new = make("old"), make("new", prepared=False)
    assert [old.check(), new.check(), old.check(), new.check()] == [Role.ACTIVE, Role.WAITING] * 2
    new.prepared = True
    assert [new.check(), old.check(), new.check()] == [Role.WAITING, Role.RETIRED, Role.ACTIVE]
    assert done == ["old begins", "old ends", "new begins"]
    assert [old.check(), new.check()] * 2 == [Role.RETIRED, Role.ACTIVE] * 2


@pytest.mark.parametrize("looks", [2, 3, 4], ids=["before it takes over", "in the middle", "once it is active"])
def test_the_older_instance_becomes_active_again_if_the_newer_one_ends(
    make: Callable[..., Instance], done: list[str], looks: int
) -> None:
    old, new = make("old"), make("new")
    for each in (old, new, old, new)[:looks]:
        each.check()
    assert new.authority.active is (looks == 4)
    new.authority.stop()
    assert old.check() is Role.ACTIVE
    assert done[-1] == "old begins"


def test_a_waiting_instance_takes_over_from_a_dead_one_prepared_or_not(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new):
        each.check()
    old.authority.stop()
    assert new.check() is Role.ACTIVE


def test_between_two_checks_a_request_is_answered_by_exactly_one_instance(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new")
    for each in (old, new, old):
        each.check()
    assert [old.authority.active, new.authority.active] == [False, False]
    assert [old.authority.adjusts("create a"), new.authority.adjusts("create a")] == [True, False]
    assert [new.authority.adjusts("create b"), old.authority.adjusts("create b")] == [True, False]


def test_a_waiting_instance_answers_if_the_active_one_is_not_connected(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new):
        each.check()
    new.authority.connected()
    assert [new.authority.adjusts("update a") for _ in range(2)] == [True, True]
    old.authority.connected()
    assert [new.authority.adjusts("update a"), old.authority.adjusts("update a")] == [False, True]
    old.authority.disconnected()
    assert [new.authority.adjusts("update a") for _ in range(2)] == [True, True]


def test_a_waiting_instance_answers_while_the_active_one_is_stopped(
    make: Callable[..., Instance], tmp_path: Path
) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new):
        each.check()
        each.authority.connected()
    before = new.authority.speaks
    # No check has touched the lock since the machine was started.
    os.utime(tmp_path / "connected.lock", (0, 0))
    meanwhile = new.authority.speaks
    old.check()
    assert (before, meanwhile, new.authority.speaks) == (False, True, False)


@pytest.mark.parametrize("late", [False, True])
def test_a_note_of_one_connection_does_not_count_for_another(make: Callable[..., Instance], late: object) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new) if not late else (old,):
        each.authority.connected()
    old.check()
    assert old.authority.adjusts("update a")
    if late:
        new.authority.connected()
        old.authority._active.release()
        old.authority._answers.release()
    else:
        old.authority.disconnected()
    assert new.authority.adjusts("update a")


def test_a_stopping_instance_answers_while_no_other_does(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new")
    old.check()
    old.authority.connected()
    old.authority.stop()
    assert old.authority.adjusts("update a")
    new.check()
    new.authority.connected()
    assert [old.authority.adjusts("update a"), new.authority.adjusts("update a")] == [False, True]


def test_a_connection_that_could_not_be_shown_is_shown_at_the_next_check(
    make: Callable[..., Instance], tmp_path: Path
) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new):
        each.check()
    looks = FileLock(tmp_path / "connected.lock")
    looks.acquire()
    old.authority.connected()
    looks.release()
    before = new.authority.speaks
    old.check()
    assert (before, new.authority.speaks) == (True, False)


def test_the_active_instance_is_the_one_that_answers(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new")
    for each in (old, new):
        each.authority.connected()
        each.check()
    assert [old.authority.speaks, new.authority.speaks] == [True, False]
    for each in (old, new):
        each.check()
    assert [old.authority.speaks, new.authority.speaks] == [False, True]


def test_notes_of_a_killed_instance_are_ignored(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new):
        each.authority._others.arrive()
        each.authority.connected()
        each.check()
    assert [old.authority.adjusts("create a"), new.authority.adjusts("create a")] == [True, False]
    assert old.authority.adjusts("create b")
    # What the kernel does with the locks of a dying process.
    for lock in (old.authority._others._lock, old.authority._active, old.authority._answers):
        lock.release()
    assert new.authority.adjusts("create b")


def test_a_stopping_instance_still_answers_requests_left_to_it(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new", prepared=False)
    for each in (old, new):
        each.authority.connected()
        each.check()
    assert new.authority.adjusts("create a") is False
    old.authority.stop()
    assert old.authority.adjusts("create a") is True
    assert new.authority.adjusts("create b") is True
    assert old.authority.adjusts("create b") is False


def test_three_instances_pass_it_on_in_turn(make: Callable[..., Instance], done: list[str]) -> None:
    instances = [make(name) for name in "abc"]
    for _ in range(6):
        for each in instances:
            each.check()
    assert [each.authority.role for each in instances].count(Role.ACTIVE) == 1
    assert instances[2].authority.active or instances[1].authority.active
    assert done[0] == "a begins"


def test_an_active_instance_that_checks_together_with_a_retired_one_stays_active(
    make: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make("old"), make("new")
    for each in (old, new, old, new):
        each.check()
    flock = fcntl.flock
    moments: list[object] = []

    def and_the_active_one_looks(file: int, how: int) -> None:
        flock(file, how)
        if not moments:
            moments.append(how)
            moments.append(new.check())

    monkeypatch.setattr("dranode.driver.process.locks.fcntl.flock", and_the_active_one_looks)
    assert [old.check(), new.check()] == [Role.RETIRED, Role.ACTIVE]
    assert moments[1:] == [Role.ACTIVE]


def test_authority_taken_by_a_request_during_a_check_is_not_lost_again(
    make: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make("old"), make("new")
    for each in (old, new):
        each.check()
    moments = ["a request comes while the older one goes"]

    def active(authority: Authority) -> bool:
        before = authority.role is Role.ACTIVE
        if authority is new.authority and moments and not authority._lock.locked():
            moments.clear()
            old.authority.stop()
            assert new.authority.adjusts("create a")
        return before

    monkeypatch.setattr(Authority, "active", property(active))
    new.check()
    assert not new.authority.active
    assert [new.check(), new.check()] == [Role.ACTIVE, Role.ACTIVE]
    assert moments == []


def test_an_instance_waits_for_one_that_cannot_hand_over(make: Callable[..., Instance], tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "active.lock")
    assert lock.acquire(seconds=0)
    new = make("new")
    assert [new.check(), new.check()] == [Role.WAITING, Role.WAITING]
    lock.release()
    assert new.check() is Role.ACTIVE


def test_the_thread_passes_authority_on(tmp_path: Path, done: list[str]) -> None:
    old, new = Instance(tmp_path, "old", done), Instance(tmp_path, "new", done)
    for each in (old, new):
        each.authority.start()
    eventually(lambda: new.authority.active and done[-1:] == ["new begins"], lambda: done)
    assert done == ["old begins", "old ends", "new begins"]
    for each in (old, new):
        each.authority.stop()
        each.authority.close()


class Waits(OtherInstances):
    """The waiting times of the thread: no time passes, and every wait is recorded."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "one")
        self.waits: list[tuple[float, bool]] = []
        self.woken = self.seen = False

    def exist(self) -> bool:
        return self.seen

    def wake(self) -> None:
        self.woken = True

    def wait(self, seconds: float) -> None:
        self.waits.append((seconds, self.woken))
        self.woken = False


def test_the_thread_checks_often_if_another_instance_exists(tmp_path: Path) -> None:
    looks: list[int] = []

    def follow() -> None:
        looks.append(len(waits.waits))
        # Another instance exists from the third check to the fourth; the fifth is the last one.
        waits.seen = len(looks) == 3
        if len(looks) == 6:
            authority._stopped.set()

    authority = Authority(
        tmp_path,
        "one",
        prepared=lambda: True,
        able=lambda: True,
        begin=lambda: None,
        end=lambda: None,
        follow=follow,
        fatal=pytest.fail,
    )
    waits = authority._others = Waits(tmp_path / "instances")
    waits.arrive()
    assert authority.adjusts("create a")
    authority._run()
    assert looks == [1, 2, 3, 4, 5, 6]
    # The first wait is before anything was begun, and the request has ended it.
    assert waits.waits == [(0.2, True), (5.0, False), (5.0, False), (0.2, False), (5.0, False), (5.0, False)]
    authority.stop()
    authority.close()


@pytest.mark.parametrize("lock", ["handover", "standby"])
def test_an_instance_that_has_only_locks_is_noticed(tmp_path: Path, lock: str) -> None:
    only = Instance(tmp_path, "only", [])
    only.authority._others.arrive()
    only.check()
    assert only.authority._is_alone()
    other = FileLock(tmp_path / f"{lock}.lock")
    other.acquire()
    assert not only.authority._is_alone()
    other.release()
    only.authority.stop()
    only.authority.close()


def test_an_instance_that_cannot_decide_is_active_only_if_nobody_else_wants_to_be(
    make: Callable[..., Instance], done: list[str]
) -> None:
    old, unable, new = make("old"), make("unable", prepared=False), make("new")
    unable.able = False
    assert [each.check() for each in (old, unable)] == [Role.ACTIVE, Role.WAITING]
    assert new.check() is Role.WAITING
    old.authority.stop()
    assert unable.authority.adjusts("create a") is False
    assert unable.check() is Role.WAITING
    assert new.check() is Role.ACTIVE
    new.authority.stop()
    assert unable.check() is Role.ACTIVE
    assert done == ["old begins", "old ends", "new begins", "new ends", "unable begins"]


def test_an_instance_that_is_no_longer_prepared_withdraws_its_offer(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new")
    assert [each.check() for each in (old, new)] == [Role.ACTIVE, Role.WAITING]
    new.prepared = new.able = False
    assert [each.check() for each in (new, old, new)] == [Role.WAITING, Role.ACTIVE, Role.WAITING]
    old.authority.stop()
    assert new.check() is Role.ACTIVE


def test_an_instance_that_can_no_longer_decide_hands_back_to_an_older_one(
    make: Callable[..., Instance], done: list[str]
) -> None:
    old, new = make("old"), make("new")
    for each in (old, new, old, new, old):
        each.check()
    new.able = new.prepared = False
    assert [new.check(), new.check()] == [Role.WAITING, Role.WAITING]
    assert new.authority.adjusts("create a") is False
    assert old.check() is Role.ACTIVE
    assert done[2:] == ["new begins", "new ends", "old begins"]
    new.able = new.prepared = True
    assert [new.check(), old.check(), new.check()] == [Role.WAITING, Role.RETIRED, Role.ACTIVE]


def test_an_instance_that_can_no_longer_decide_stays_active_if_no_other_can(make: Callable[..., Instance]) -> None:
    old, new = make("old"), make("new")
    for each in (old, new, old, new, old):
        each.check()
    for each in (old, new):
        each.able = each.prepared = False
        each.check()
    assert [new.check(), old.check(), new.check()] == [Role.ACTIVE, Role.RETIRED, Role.ACTIVE]
    old.authority.stop()
    assert new.check() is Role.ACTIVE
