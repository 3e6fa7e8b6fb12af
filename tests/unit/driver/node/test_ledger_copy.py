"""The copy of the ledger: what survives a power cut, when it is rewritten, and when it is trusted."""

import os
import zlib
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.documents import encode_json
from dranode.api.errors import LedgerError
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger_copy import LedgerCopy
from dranode.driver.node.lost_ledger import Copied

CPUS = CPUSet((0, 1))
A, B, C = (Record(uid=f"uid-{name}", namespace="default", name=name, cpus=CPUS, held=CPUS) for name in "abc")


class Disk:
    """A disk that keeps only what was flushed: a file's bytes, a folder's names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bytes: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}")
        if path.is_dir():
            self._names = {each.name: each.stat().st_ino for each in path.iterdir()}
        else:
            self._bytes[os.fstat(handle).st_ino] = path.read_bytes()

    def lines(self, path: Path) -> int:
        """The number of the file's lines after a power cut; none if it is gone."""
        return self._bytes.get(self._names.get(path.name, 0), b"").count(b"\n")


def written(path: Path, *records: Record, commits: int = 7, boot: str = "") -> LedgerCopy:
    copy = LedgerCopy(path)
    copy.write(Copied(commits, {record.uid: record for record in records}, boot=boot))
    return copy


def read(path: Path) -> Copied:
    copied = LedgerCopy(path).read()
    assert copied is not None
    return copied


def alter(path: Path, number: int, line: bytes) -> None:
    """Replace a line."""
    lines = path.read_bytes().split(b"\n")
    lines[number] = line
    path.write_bytes(b"\n".join(lines))


def appended(copy: LedgerCopy) -> int:
    """The number of commits until the copy must be rewritten."""
    number = 0
    while number < 10_000 and copy.append(8 + number, (), ()):
        number += 1
    return number


def test_a_rewritten_copy_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    written(tmp_path / "copy", A, B)
    assert disk.lines(tmp_path / "copy") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_commits_are_flushed_only_at_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    copy = written(tmp_path / "copy", A)
    assert copy.append(8, (B,), ())
    assert disk.lines(tmp_path / "copy") == 2
    copy.close()
    assert disk.lines(tmp_path / "copy") == 4


def test_only_the_owner_can_read_a_copy(tmp_path: Path) -> None:
    written(tmp_path / "copy", A)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600


def test_a_copy_holds_2000_commits_plus_one_for_each_claim(tmp_path: Path) -> None:
    assert appended(written(tmp_path / "copy", A, B, C)) == 2003


def test_reading_a_copy_counts_its_existing_lines(tmp_path: Path) -> None:
    copy = written(tmp_path / "copy", A, B, C)
    again = LedgerCopy(tmp_path / "copy")
    again.read()
    room = appended(again)
    assert 2000 < room <= 2003
    copy.write(Copied(7, {"uid-a": A, "uid-b": B, "uid-c": C}))
    for number in range(500):
        assert copy.append(8 + number, (), ())
    again.read()
    assert appended(again) == room - 500


def test_a_copy_that_was_never_read_is_rewritten(tmp_path: Path) -> None:
    written(tmp_path / "copy", A)
    assert not LedgerCopy(tmp_path / "copy").append(8, (B,), ())


def test_a_missing_copy_or_one_with_half_a_line_must_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = written(tmp_path / "copy", A)
    (tmp_path / "copy").rename(tmp_path / "away")
    assert not copy.append(8, (B,), ())
    assert not (tmp_path / "copy").exists()
    (tmp_path / "away").rename(tmp_path / "copy")
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:-1]))
    assert not copy.append(8, (B,), ())
    assert not read(tmp_path / "copy").whole


def test_a_copy_has_the_result_of_its_commits(tmp_path: Path) -> None:
    copy = written(tmp_path / "copy", A, B, boot="boot-1")
    assert read(tmp_path / "copy") == Copied(7, {"uid-a": A, "uid-b": B}, boot="boot-1")
    assert copy.append(8, (C,), ("uid-a",))
    assert copy.append(9, (), ("uid-c", "uid-a"))
    assert read(tmp_path / "copy") == Copied(9, {"uid-b": B}, boot="boot-1")


def test_records_with_the_ledgers_bytes_are_not_decoded_again(tmp_path: Path) -> None:
    written(tmp_path / "copy", A, B)
    copied = LedgerCopy(tmp_path / "copy").read({encode_json(A): A, encode_json(C): C})
    assert copied == Copied(7, {"uid-a": A, "uid-b": B})
    assert copied.records["uid-a"] is A
    assert copied.records["uid-b"] is not B
    # A whole line that is not a valid record does not count as whole either.
    body = b'{"commits":8,"put":[{"uid":9}]}'
    with (tmp_path / "copy").open("ab") as file:
        file.write(b"%08x %s\n" % (zlib.crc32(body), body))
    assert not read(tmp_path / "copy").whole


def test_a_copy_is_closed_until_the_next_commit(tmp_path: Path) -> None:
    copy = written(tmp_path / "copy", A)
    copy.close()
    assert read(tmp_path / "copy") == Copied(7, {"uid-a": A}, closed=True)
    assert copy.append(8, (B,), ())
    assert read(tmp_path / "copy") == Copied(8, {"uid-a": A, "uid-b": B})
    copy.close()
    with (tmp_path / "copy").open("ab") as file:
        file.write(b"junk\n")
    assert read(tmp_path / "copy") == Copied(8, {"uid-a": A, "uid-b": B}, whole=False)


@pytest.mark.parametrize("number", [7, 9])
def test_a_missing_or_repeated_commit_is_a_gap(tmp_path: Path, number: int) -> None:
    copy = written(tmp_path / "copy", A)
    assert copy.append(number, (B,), ())
    assert copy.append(number + 1, (C,), ())
    assert read(tmp_path / "copy") == Copied(number + 1, {"uid-a": A, "uid-b": B, "uid-c": C}, whole=False)


@pytest.mark.parametrize(("row", "known"), [(1, {"uid-b"}), (2, {"uid-a"})])
def test_a_damaged_line_loses_only_its_claim_but_the_copy_is_not_whole(
    tmp_path: Path, row: int, known: set[str]
) -> None:
    written(tmp_path / "copy", A, B)
    alter(tmp_path / "copy", row, b"junk")
    copied = read(tmp_path / "copy")
    assert (set(copied.records), copied.whole, copied.commits) == (known, False, 7)


def test_a_copy_that_ends_before_its_last_claim_is_not_whole(tmp_path: Path) -> None:
    written(tmp_path / "copy", A, B)
    lines = (tmp_path / "copy").read_bytes().splitlines(keepends=True)
    (tmp_path / "copy").write_bytes(b"".join(lines[:2]))
    assert read(tmp_path / "copy") == Copied(7, {"uid-a": A}, whole=False)


def test_a_row_whose_commit_differs_from_the_heads_is_a_gap(tmp_path: Path) -> None:
    written(tmp_path / "other", A, B, commits=8)
    written(tmp_path / "copy", A, B)
    alter(tmp_path / "copy", 2, (tmp_path / "other").read_bytes().split(b"\n")[2])
    assert not read(tmp_path / "copy").whole


def test_a_copy_without_its_head_is_not_whole(tmp_path: Path) -> None:
    copy = written(tmp_path / "copy", commits=0)
    assert copy.append(1, (A,), ())
    assert read(tmp_path / "copy") == Copied(1, {"uid-a": A})
    alter(tmp_path / "copy", 0, b"junk")
    assert read(tmp_path / "copy") == Copied(1, {"uid-a": A}, whole=False)


def test_the_copy_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    assert LedgerCopy(tmp_path / "copy").read() is None
    head = b'{"copy":2,"commits":7,"rows":0}'
    (tmp_path / "copy").write_bytes(b"%08x %s\n" % (zlib.crc32(head), head))
    with pytest.raises(LedgerError, match="was written by a newer dranode"):
        LedgerCopy(tmp_path / "copy").read()


def test_a_forgotten_copy_is_removed(tmp_path: Path) -> None:
    copy = written(tmp_path / "copy", A)
    copy.forget()
    assert not (tmp_path / "copy").exists()
    copy.forget()


def test_an_unusable_copy_is_reported(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy = LedgerCopy(tmp_path / "copy")
    with pytest.raises(LedgerError, match="cannot be read: Is a directory"):
        copy.read()
    with pytest.raises(LedgerError, match="cannot be written"):
        copy.write(Copied())
    with pytest.raises(LedgerError, match="cannot be removed"):
        copy.forget()


@pytest.mark.parametrize("junk", [b"", b"\n", b"junk\n"])
def test_an_illegible_copy_has_no_commit_and_is_not_whole(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "copy").write_bytes(junk)
    assert read(tmp_path / "copy") == Copied(whole=False)


def test_a_named_pipe_in_place_of_the_copy_blocks_no_commit(tmp_path: Path) -> None:
    copy = written(tmp_path / "copy", A)
    (tmp_path / "copy").unlink()
    os.mkfifo(tmp_path / "copy")
    assert not copy.append(8, (B,), ())
