"""The kernel's events for a folder."""

import ctypes
from pathlib import Path

import pytest

from dranode.driver.machine.folder_events import FolderEvents


def test_created_removed_and_written_files_cause_events_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("a")
    events = FolderEvents(tmp_path)
    assert events.names() is None
    assert events.names() == frozenset()
    (tmp_path / "old").write_text("b")
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "newer")
    assert events.names() == frozenset(("old", "new", "newer"))
    (tmp_path / "old").unlink()
    assert events.names() == frozenset(("old",))
    events.close()


def test_a_late_or_replaced_folder_may_contain_anything(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    events = FolderEvents(folder)
    assert (events.names(), events.names()) == (None, None)
    folder.mkdir()
    assert (events.names(), events.names()) == (None, frozenset())
    folder.rename(tmp_path / "away")
    folder.mkdir()
    assert (events.names(), events.names()) == (None, frozenset())
    (folder / "spec").touch()
    assert events.names() == frozenset(("spec",))
    events.close()


def test_without_inotify_anything_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    events = FolderEvents(tmp_path)
    assert (events.names(), events.names()) == (None, None)


def test_after_an_overflow_of_events_anything_may_have_changed(tmp_path: Path) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    events = FolderEvents(tmp_path)
    events.names()
    for number in range(kept // 2 + 2):
        path = tmp_path / str(number % 2)
        path.touch()
        path.unlink()
    assert events.names() is None
    assert events.names() is None
    assert events.names() == frozenset()
    events.close()
