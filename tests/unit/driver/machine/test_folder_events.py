"""What the kernel tells of a folder."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from dranode.driver.machine.folder_events import FolderEvents


def test_files_that_come_go_or_are_written_in_place_make_events_with_their_names(tmp_path: Path) -> None:
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


def test_a_folder_that_comes_late_or_is_replaced_may_hold_anything(tmp_path: Path) -> None:
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


def test_more_events_than_the_kernel_keeps_mean_that_anything_may_have_changed(tmp_path: Path) -> None:
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
