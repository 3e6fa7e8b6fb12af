"""Instances see each other come and go."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dranode.driver.serve.authority import OtherInstances
from tests.fakes.waiting import PATIENCE

HOUR = 3600.0


@pytest.fixture
def come(tmp_path: Path) -> Iterator[Callable[[str], OtherInstances]]:
    there: list[OtherInstances] = []

    def one(name: str) -> OtherInstances:
        there.append(OtherInstances(tmp_path / "instances", name))
        there[-1].arrive()
        return there[-1]

    yield one
    for each in there:
        each.leave()


def test_one_is_alone_until_another_comes_and_when_it_has_left(come: Callable[[str], OtherInstances]) -> None:
    old = come("old")
    assert not old.exist()
    new = come("new")
    assert old.exist()
    assert new.exist()
    new.leave()
    assert not old.exist()


@pytest.mark.parametrize("then", ["comes", "leaves", "wakes"])
def test_a_wait_ends_when_another_comes_or_leaves(come: Callable[[str], OtherInstances], then: str) -> None:
    old = come("old")
    assert old.watched
    new = come("new") if then == "leaves" else None
    old.wait(0)
    waits = threading.Thread(target=old.wait, args=(HOUR,), daemon=True)
    waits.start()
    if then == "wakes":
        old.wake()
    elif new is not None:
        new.leave()
    else:
        come("new")
    waits.join(PATIENCE)
    assert not waits.is_alive()


def test_what_one_that_died_left_is_removed(come: Callable[[str], OtherInstances], tmp_path: Path) -> None:
    old, died = come("old"), come("died")
    # As the kernel does with the locks of a process that dies.
    died._lock.release()
    assert not old.exist()
    assert [path.name for path in (tmp_path / "instances").iterdir()] == ["old"]
    assert old.has_died("died")


def test_one_that_lives_or_has_left_or_never_came_has_not_died(come: Callable[[str], OtherInstances]) -> None:
    old, new = come("old"), come("new")
    assert not old.has_died("new")
    new.leave()
    assert [old.has_died(name) for name in ("new", "never")] == [False, False]
    died = come("died")
    died._lock.release()
    assert [old.has_died("died"), old.has_died("died")] == [True, True]


def test_one_whose_file_is_removed_before_it_is_locked_shows_itself_all_the_same(
    come: Callable[[str], OtherInstances], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, lock = come("old"), fcntl.flock
    looks = iter([old.exist])

    def lock_late(file: int, kind: int) -> None:
        if (look := next(looks, None)) is not None:
            assert not look()
        lock(file, kind)

    monkeypatch.setattr("dranode.driver.process.locks.fcntl.flock", lock_late)
    come("new")
    assert old.exist()


def test_none_is_taken_for_alone_where_others_are_not_seen(
    come: Callable[[str], OtherInstances], tmp_path: Path
) -> None:
    old = come("old")
    (tmp_path / "instances" / "old").unlink()
    (tmp_path / "instances").rmdir()
    assert old.exist()


def test_one_that_cannot_show_itself_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "instances").touch()
    unseen = OtherInstances(tmp_path / "instances", "unseen")
    unseen.arrive()
    assert not unseen.watched
    assert unseen.exist()
    unseen.wait(0)
    unseen.leave()
    assert "this instance cannot show itself to others" in caplog.text
