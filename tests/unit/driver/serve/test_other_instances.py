"""Instances notice each other's arrival and end."""

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


def test_an_instance_is_alone_before_another_comes_and_after_it_left(come: Callable[[str], OtherInstances]) -> None:
    old = come("old")
    assert not old.exist()
    new = come("new")
    assert old.exist()
    assert new.exist()
    new.leave()
    assert not old.exist()


@pytest.mark.parametrize("then", ["comes", "leaves", "wakes"])
def test_a_wait_ends_when_another_instance_comes_or_leaves(come: Callable[[str], OtherInstances], then: str) -> None:
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


def test_the_file_of_a_dead_instance_is_removed(come: Callable[[str], OtherInstances], tmp_path: Path) -> None:
    old, died = come("old"), come("died")
    # As the kernel does with the locks of a dying process.
    died._lock.release()
    assert not old.exist()
    assert [path.name for path in (tmp_path / "instances").iterdir()] == ["old"]
    assert old.has_died("died")


def test_only_an_instance_that_was_killed_has_died(come: Callable[[str], OtherInstances]) -> None:
    old, new = come("old"), come("new")
    assert not old.has_died("new")
    new.leave()
    assert [old.has_died(name) for name in ("new", "never")] == [False, False]
    died = come("died")
    died._lock.release()
    assert [old.has_died("died"), old.has_died("died")] == [True, True]


def test_an_instance_whose_file_is_removed_before_it_is_locked_tries_again(
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


def test_an_instance_is_not_alone_if_others_cannot_be_seen(
    come: Callable[[str], OtherInstances], tmp_path: Path
) -> None:
    old = come("old")
    (tmp_path / "instances" / "old").unlink()
    (tmp_path / "instances").rmdir()
    assert old.exist()


def test_an_instance_that_cannot_show_itself_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "instances").touch()
    unseen = OtherInstances(tmp_path / "instances", "unseen")
    unseen.arrive()
    assert not unseen.watched
    assert unseen.exist()
    unseen.wait(0)
    unseen.leave()
    assert "this instance cannot show itself to others" in caplog.text
