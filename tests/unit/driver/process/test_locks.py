"""Kernel locks on files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from dranode.api.errors import LedgerError
from dranode.driver.process.locks import FileLock
from tests.fakes.waiting import eventually


def is_open(path: Path) -> bool:
    """Whether this process has the file open. Others are not looked at: Python closes what tests left at any moment."""
    found = path.stat()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.path.samestat(link.stat(), found):
                return True
    return False


def test_a_file_system_without_locks_is_reported_in_a_sentence_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server without lockd answers ENOLCK; the lock on decisions is tried again with every call."""

    def refused(file: int, kind: int) -> None:
        del file, kind
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    lock = FileLock(tmp_path / "serialize.lock")
    for attempt in (lock.acquire, lock.is_held):
        with pytest.raises(LedgerError, match=r"^the lock \S+/serialize\.lock cannot be taken: No locks available$"):
            attempt()
    assert not is_open(lock.path)


def test_a_lock_that_another_one_has_is_seen_and_not_had(tmp_path: Path) -> None:
    ours, theirs = FileLock(tmp_path / "active.lock"), FileLock(tmp_path / "active.lock")
    assert not ours.is_held()
    with theirs.held():
        assert ours.is_held()
        assert not ours.acquire(wait=False)
    assert ours.acquire(wait=False)
    ours.release()


def test_a_lock_whose_file_its_holder_removes_is_taken_on_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "active.lock"
    theirs, ours = FileLock(path), FileLock(path)
    assert theirs.acquire()
    waiting = threading.Thread(target=ours.acquire)
    waiting.start()
    # Theirs, and the one that is opened to wait.
    eventually(lambda: len(open_files(path)) == 2)
    path.unlink()
    theirs.release()
    waiting.join()
    assert ours.is_mine
    # A third one meets ours, and not a file that nobody else opens.
    assert not FileLock(path).acquire(wait=False)
    ours.release()


def open_files(path: Path) -> list[str]:
    return [link.name for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == str(path)]
