"""Kernel locks on files."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from dranode.api.errors import LedgerError
from dranode.driver.process.locks import FileLock
from tests.fakes.waiting import eventually


def open_files(path: Path) -> list[str]:
    """Return the descriptors of a file in this process; Python closes what other tests left at any moment."""
    return [link.name for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == str(path)]


def test_a_file_system_without_locks_is_reported_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server without lockd answers ENOLCK; every call tries the lock on decisions again."""

    def refused(file: int, kind: int) -> None:
        del file, kind
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    lock = FileLock(tmp_path / "serialize.lock")
    for attempt in (lock.acquire, lock.is_held):
        with pytest.raises(LedgerError, match=r"^the lock \S+/serialize\.lock cannot be taken: No locks available$"):
            attempt()
    assert not open_files(lock.path)


def test_a_lock_held_by_another_is_seen_and_not_acquired(tmp_path: Path) -> None:
    ours, theirs = FileLock(tmp_path / "active.lock"), FileLock(tmp_path / "active.lock")
    assert not ours.is_held()
    with theirs.held(0):
        assert ours.is_held()
        assert not ours.acquire(seconds=0)
    assert ours.acquire(seconds=0)
    ours.release()


def test_a_lock_whose_file_was_removed_is_taken_on_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "active.lock"
    theirs, ours = FileLock(path), FileLock(path)
    assert theirs.acquire()
    waiting = threading.Thread(target=ours.acquire)
    waiting.start()
    # The other holder's file, and the one that is opened to wait.
    eventually(lambda: len(open_files(path)) == 2)
    path.unlink()
    theirs.release()
    waiting.join()
    assert ours.is_mine
    # A third one finds our file, not one that nobody else has open.
    assert not FileLock(path).acquire(seconds=0)
    ours.release()
