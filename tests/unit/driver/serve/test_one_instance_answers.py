"""Two instances and one runtime: exactly one answers a request with adjustments, whatever happens in between."""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dranode.driver.serve.authority import RequestNotes


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def turns(tmp_path: Path, now: list[float]) -> Callable[[str], RequestNotes]:
    return lambda name: RequestNotes(tmp_path / "turns.db", name, clock=lambda: now[0])


@pytest.mark.parametrize("before", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("after", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_exactly_one_adjusts_in_any_order_and_wherever_authority_moves(
    turns: Callable[[str], RequestNotes], before: tuple[bool, bool], after: tuple[bool, bool], order: tuple[int, int]
) -> None:
    instances = (turns("old"), turns("new"))
    first, second = order
    answers = {first: instances[first].adjusts("create c1", authority=before[first])}
    answers[second] = instances[second].adjusts("create c1", authority=after[second])
    assert sorted(answers.values()) == [False, True]


def test_the_instance_with_authority_adjusts_if_no_other_is_asked(turns: Callable[[str], RequestNotes]) -> None:
    only = turns("only")
    assert [only.adjusts(f"create c{number}", authority=True) for number in range(3)] == [True] * 3


def test_the_same_request_again_is_a_new_one(turns: Callable[[str], RequestNotes]) -> None:
    old, new = turns("old"), turns("new")
    for _ in range(3):
        assert (old.adjusts("update c", authority=True), new.adjusts("update c", authority=False)) == (True, False)
    assert old.adjusts("update c", authority=True) is True
    assert old.adjusts("update c", authority=True) is True


def test_an_unused_note_does_not_count_for_a_later_request(
    turns: Callable[[str], RequestNotes], now: list[float]
) -> None:
    assert turns("dead").adjusts("stop c", authority=True) is True
    now[0] += 11
    assert turns("new").adjusts("stop c", authority=True) is True


def test_notes_from_before_a_reboot_are_ignored(turns: Callable[[str], RequestNotes], now: list[float]) -> None:
    turns("dead").adjusts("stop c", authority=True)
    now[0] = 1.0
    assert turns("new").adjusts("stop c", authority=True) is True


def test_notes_from_before_a_connection_are_ignored(turns: Callable[[str], RequestNotes], now: list[float]) -> None:
    old, new = turns("old"), turns("new")
    assert old.adjusts("update c", authority=True)
    now[0] += 0.1
    new.connected()
    assert new.adjusts("update c", authority=True)


def test_notes_are_removed_when_their_connection_ends(turns: Callable[[str], RequestNotes]) -> None:
    old, new = turns("old"), turns("new")
    old.disconnected()
    assert old.adjusts("update c", authority=True)
    old.disconnected()
    assert new.adjusts("update c", authority=True)


def test_notes_that_cannot_be_removed_are_reported(
    turns: Callable[[str], RequestNotes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = turns("old")
    old.adjusts("update c", authority=True)
    (tmp_path / "turns.db").unlink()
    (tmp_path / "turns.db").mkdir()
    old.disconnected()
    assert "cannot be removed" in caplog.text


def test_notes_of_a_dead_instance_are_ignored(tmp_path: Path) -> None:
    dead = RequestNotes(tmp_path / "turns.db", "dead")
    new = RequestNotes(tmp_path / "turns.db", "new", died=lambda name: name == "dead")
    for request in ("create c", "create d"):
        dead.adjusts(request, authority=True)
        assert new.adjusts(request, authority=True)


def alter_table(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"TABLE turns", b"TA\xffLE turns"))


def other_table(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute("DROP TABLE turns")
        db.execute("CREATE TABLE turns (note TEXT)")


def truncate(file: Path) -> None:
    os.truncate(file, 5000)


def overwrite(file: Path) -> None:
    file.write_bytes(b"no database" * 1000)


def empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.parametrize(
    "damage", [overwrite, truncate, alter_table, other_table, empty], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_damaged_file_is_replaced_once_and_exactly_one_adjusts_again(
    turns: Callable[[str], RequestNotes], tmp_path: Path, damage: Callable[[Path], None], order: tuple[int, int]
) -> None:
    before = turns("before")
    before.adjusts("create c", authority=True)
    before.close()
    damage(tmp_path / "turns.db")
    instances = (turns("old"), turns("new"))
    for number, authority in enumerate([(True, False), (False, True), (False, False)]):
        first, second = order
        answers = {first: instances[first].adjusts(f"create d{number}", authority=authority[first])}
        answers[second] = instances[second].adjusts(f"create d{number}", authority=authority[second])
        assert sorted(answers.values()) == [False, True]


def test_an_instance_uses_the_file_that_another_one_has_replaced(
    turns: Callable[[str], RequestNotes], tmp_path: Path
) -> None:
    old, new = turns("old"), turns("new")
    old.adjusts("create c", authority=True)
    overwrite(tmp_path / "turns.db")
    for path in tmp_path.glob("turns.db-*"):
        path.unlink()
    assert new.adjusts("create d", authority=False) is False
    assert old.adjusts("create d", authority=False) is True


@pytest.mark.parametrize("name", ["missing/turns.db", "folder.db"])
def test_without_a_file_of_notes_authority_decides_and_the_error_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (tmp_path / "folder.db").mkdir()
    broken = RequestNotes(tmp_path / name, "i")
    answers = [broken.adjusts("create c", authority=authority) for authority in (True, False, True)]
    assert answers == [True, False, True]
    assert caplog.text.count("cannot leave each other notes") == 1


def test_notes_of_many_containers_are_removed(turns: Callable[[str], RequestNotes], now: list[float]) -> None:
    old, new = turns("old"), turns("new")
    for number in itertools.islice(itertools.count(), 50):
        now[0] += 1
        old.adjusts(f"create c{number}", authority=True)
        new.adjusts(f"create c{number}", authority=False)
        old.adjusts(f"stop c{number}", authority=True)
    with sqlite3.connect(old._path) as db:
        (left,) = db.execute("SELECT count(*) FROM turns").fetchone()
    db.close()
    assert left <= 12
