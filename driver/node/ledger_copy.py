"""A second record of the claims, beside the ledger, for the day when that one is damaged or gone.

A text file, `ledger.db-copy`: a head, a line for each claim, then a line for each commit, each line with its checksum.
A line is written when the commit is on disk and is not flushed, so it costs a Prepare nothing to speak of. Ledger and
copy number the commits, so it is seen which is behind the other. It is derived data: while the ledger is whole, a copy
that is not is rewritten.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from dranode.api.documents import decode_json, encode_json
from dranode.api.errors import DocumentError, LedgerError
from dranode.cdi.regular_file import read_regular
from dranode.driver.claims.record import Copied, Record
from dranode.driver.node.ledger import Contents, CorruptLedgerError, matches

_T = TypeVar("_T")

_VERSION: Final = 1
# It is rewritten when it has as many more lines than claims.
_GROWTH: Final = 2000
_BODY: Final = re.compile(rb'\{"uid":"')
# How wide SQLite stores a number of 32 bits.
_WIDTHS: Final = (4, 6, 3, 2, 1)


class _Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    copy: int
    commits: int
    rows: int
    boot: str = ""
    doubt: str = ""
    notes: str = ""
    notes_lost: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    commits: int
    put: tuple[Record, ...] = ()
    drop: tuple[str, ...] = ()
    notes: str | None = None
    closed: bool = False


class _FoundLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it is read, its records in JSON."""

    commits: int
    put: tuple[msgspec.Raw, ...] = ()
    drop: tuple[str, ...] = ()
    notes: str | None = None
    closed: bool = False


class LedgerCopy:
    """The copy of one ledger. Not thread-safe: it belongs to the holder of the lock on decisions."""

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is opened."""
        self.path = path
        self._room = 0

    def read(self, bodies: Mapping[bytes, Record] = MappingProxyType({})) -> Copied | None:
        """Return what it says, as far as it can be read; None if it is not there.

        Args:
            bodies: records by their JSON, which are not decoded again.

        Raises:
            LedgerError: the file cannot be read, or a newer dranode wrote it.
        """
        try:
            lines = read_regular(self.path).split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"the copy of the ledger {self.path} cannot be read: {error.strerror}; it may have claims that the "
                "ledger lacks: see to the disk, or put an empty file in its place, so that a ledger that has had "
                "claims counts as it is"
            ) from error
        head = _decoded(_Head, lines[0])
        if head is not None and head.copy > _VERSION:
            raise LedgerError(
                f"{self.path} was written by a newer dranode; go back to that version, or drain the node with it first"
            )
        copied = _followed(head, [_line(line, bodies) for line in lines[1:-1]], whole=not lines[-1])
        self._room = 2 * len(copied.records) + _GROWTH - len(lines)
        return copied

    def write(self, copied: Copied) -> None:
        """Rewrite it at once and whole, and flush it.

        Raises:
            LedgerError: it cannot be written; what was there stays.
        """
        head = _Head(
            copy=_VERSION,
            commits=copied.commits,
            rows=len(copied.records),
            boot=copied.boot,
            doubt=copied.doubt,
            notes=copied.notes,
            notes_lost=copied.notes_lost,
        )
        rows = (_Line(commits=copied.commits, put=(record,)) for record in copied.records.values())
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            with temporary.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(_encoded(head))
                file.writelines(map(_encoded, rows))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
            _flush(self.path.parent)
        except OSError as error:
            raise LedgerError(f"the copy of the ledger {self.path} cannot be written: {error.strerror}") from error
        self._room = len(copied.records) + _GROWTH

    def append(self, commits: int, put: tuple[Record, ...], drop: tuple[str, ...], notes: str | None = None) -> bool:
        """Add a commit; False if the copy has to be rewritten instead, because it has grown long or is missing."""
        self._room -= 1
        if self._room < 0:
            return False
        return self._add(_Line(commits=commits, put=put, drop=drop, notes=notes))

    def close(self) -> None:
        """Say that nothing of it is in memory alone, and flush it; without that it is believed until the next boot."""
        self._add(_Line(commits=0, closed=True), flush=True)

    def _add(self, line: _Line, *, flush: bool = False) -> bool:
        data = _encoded(line)
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                written = os.write(handle, data)
                if flush:
                    os.fsync(handle)
            finally:
                os.close(handle)
        except OSError:
            return False
        return written == len(data)

    def forget(self) -> None:
        """Take it away: a copy that lacks a commit and cannot be written must not be believed.

        Raises:
            LedgerError: it cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"the copy of the ledger {self.path} cannot be removed: {error.strerror}") from error


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _encoded(line: _Head | _Line) -> bytes:
    body = encode_json(line)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decoded(kind: type[_T], line: bytes) -> _T | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        return decode_json(kind, body)
    except DocumentError:
        return None


def _line(data: bytes, bodies: Mapping[bytes, Record]) -> _Line | None:
    """A line, its records taken from `bodies` where they are there; None if it is not whole."""
    found = _decoded(_FoundLine, data)
    if found is None:
        return None
    try:
        put = tuple(bodies.get(body) or decode_json(Record, body) for body in map(bytes, found.put))
    except DocumentError:
        return None
    return _Line(commits=found.commits, put=put, drop=found.drop, notes=found.notes, closed=found.closed)


def _followed(head: _Head | None, lines: list[_Line | None], *, whole: bool) -> Copied:
    """The state after all lines; `whole` only if there is no gap between them."""
    rows = head.rows if head is not None else 0
    at = head.commits if head is not None else 0
    whole = whole and head is not None and len(lines) >= rows
    records: dict[str, Record] = {}
    notes, lost = (head.notes, head.notes_lost) if head is not None else ("", "")
    closed = False
    for number, line in enumerate(lines):
        if line is None:
            whole = closed = False
            continue
        closed = line.closed
        if closed:
            continue
        whole = whole and line.commits == at + (number >= rows)
        at = line.commits
        records |= {record.uid: record for record in line.put}
        for uid in line.drop:
            records.pop(uid, None)
        notes, lost = (notes, lost) if line.notes is None else (line.notes, "")
    doubt, boot = (head.doubt, head.boot) if head is not None else ("", "")
    return Copied(at, records, doubt, boot, whole, closed, notes, lost)


def refuse_behind(path: Path, contents: Contents, copied: Copied | None) -> None:
    """Refuse a ledger that lacks what its copy has.

    Raises:
        CorruptLedgerError: the copy has commits that the ledger lacks, or may have.
    """
    if copied is None:
        return
    if copied.commits > contents.commits:
        raise CorruptLedgerError(
            f"the ledger {path} is not the one that was written last: it ends with commit {contents.commits} and its "
            f"copy with {copied.commits}"
        )
    if not copied.whole and not (contents.commits or contents.records or contents.damaged):
        raise CorruptLedgerError(f"the ledger {path} is new, and the damaged copy of another lies beside it")


def rows_in(path: Path) -> Iterator[Record]:
    """The records whose rows stand whole anywhere in a file, forgotten ones among them; none if there is no file.

    A row ends with its body and its checksum; the columns before it follow from the body.

    Raises:
        OSError: the file cannot be read.
    """
    with contextlib.suppress(FileNotFoundError):
        yield from _rows(read_regular(path))


def _rows(data: bytes) -> Iterator[Record]:
    for found in _BODY.finditer(data):
        end = _end(data, found.start())
        body = data[found.start() : end]
        try:
            record = decode_json(Record, body)
            if any(matches(record, body, data[end : end + width]) for width in _WIDTHS):
                yield record
        except DocumentError:
            continue


def _end(data: bytes, start: int) -> int:
    """Return where the JSON object that begins at `start` ends; the end of the data if it does not."""
    depth, quoted, at = 0, False, start
    while at < len(data):
        match data[at : at + 1]:
            case b"\\" if quoted:
                at += 1
            case b'"':
                quoted = not quoted
            case b"{" if not quoted:
                depth += 1
            case b"}" if not quoted:
                depth -= 1
                if not depth:
                    return at + 1
        at += 1
    return at
