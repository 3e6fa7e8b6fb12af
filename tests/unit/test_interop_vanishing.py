"""The tests' own readers of what the kernel may take away meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path, PosixPath

import pytest

from tests.interop.vanishing import paths_below, text_of


class Failing(PosixPath):
    """A file that is answered with an error number, which is its name, when it is read."""

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        del encoding, errors
        raise OSError(int(self.name), os.strerror(int(self.name)))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EIO])
def test_what_goes_between_listing_and_reading_says_nothing(number: int) -> None:
    assert text_of(Failing(str(number))) == ""


def test_what_may_not_be_read_has_not_gone() -> None:
    with pytest.raises(PermissionError):
        text_of(Failing(str(errno.EACCES)))


def test_a_process_that_has_ended_has_no_name() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        assert text_of(comm)
    assert text_of(comm) == ""


def test_folders_that_go_while_they_are_listed_are_left_out(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "pod").mkdir(parents=True)
        (tmp_path / name / "pod" / "procs").touch()
    paths = paths_below(tmp_path, "*/*/procs")
    seen = next(paths)
    (other,) = (path for path in tmp_path.iterdir() if path not in seen.parents)
    shutil.rmtree(other)
    assert [*paths] == []
