"""A copy of the ledger beside it, for the case that the ledger is damaged or lost.

kubelet does not ask again for the claims of running pods, so without a record their devices would be given out a second
time (docs/decisions/ledger-copy.md). The copy is a text file, `ledger.db-copy`: a head, a line for each claim, then a
line for each commit; each line has a checksum. A line is appended after its commit is on disk and is not flushed, so it
costs a Prepare almost nothing. Ledger and copy number their commits, which shows if one is behind the other. While the
ledger is intact, a copy that differs from it is rewritten.
"""

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
from dranode.cdi.regular_file import LARGEST, read_regular
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger import Contents, CorruptLedgerError, matches
from dranode.driver.node.lost_ledger import Copied

_T = TypeVar("_T")

_VERSION: Final = 1
# The copy is rewritten when it has this many lines more than claims, so it does not grow for ever.
_GROWTH: Final = 2000
# How the JSON of each record begins, to find rows in a file that SQLite cannot read any more.
_BODY: Final = re.compile(rb'\{"uid":"')
# How many bytes SQLite may use for a number of 32 bits (https://sqlite.org/fileformat.html, 2.1).
_WIDTHS: Final = (4, 6, 3, 2, 1)


class _Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    copy: int
    commits: int
    rows: int
    boot: str = ""
    loss: str = msgspec.field(default="", name="doubt")  # its name on disk
    notes: str = ""
    notes_lost: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    commits: int
    put: tuple[Record, ...] = ()
    drop: tuple[str, ...] = ()
    notes: str | None = None
    closed: bool = False


class _FoundLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it was read, with its records still in JSON."""

    commits: int
    put: tuple[msgspec.Raw, ...] = ()
    drop: tuple[str, ...] = ()
    notes: str | None = None
    closed: bool = False


class LedgerCopy:
    """The copy of one ledger. Not thread-safe: use it under the lock on decisions."""

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is opened."""
        self.path = path
        # How many lines may be appended before the copy has to be rewritten; 0 until it was read or written.
        self._room = 0

    def read(self, bodies: Mapping[bytes, Record] = MappingProxyType({})) -> Copied | None:
        """Return what the copy says, as far as it can be read; None if there is no copy.

        Args:
            bodies: records by their JSON; these are not decoded again.

        Raises:
            LedgerError: the file cannot be read, or a newer dranode wrote it.
        """
        try:
            lines = read_regular(self.path, LARGEST).split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"the copy of the ledger {self.path} cannot be read: {error.strerror}; it may have claims that the "
                "ledger lacks; repair the disk, or put an empty file in its place: a ledger that has had claims is "
                "then used without a copy"
            ) from error
        # Each line ends with a newline, so the last element is empty. If it is not, a line was cut off.
        head = _decoded(_Head, lines[0])
        if head is not None and head.copy > _VERSION:
            raise LedgerError(
                f"{self.path} was written by a newer dranode; go back to that version, or drain the node with it first"
            )
        copied = _followed(head, [_line(line, bodies) for line in lines[1:-1]], whole=not lines[-1])
        self._room = 2 * len(copied.records) + _GROWTH - len(lines)
        return copied

    def write(self, copied: Copied) -> None:
        """Replace the copy by a new file, and flush it.

        Raises:
            LedgerError: the new file cannot be written; the old one stays.
        """
        head = _Head(
            copy=_VERSION,
            commits=copied.commits,
            rows=len(copied.records),
            boot=copied.boot,
            loss=copied.loss,
            notes=copied.notes,
            notes_lost=copied.notes_lost,
        )
        rows = (_Line(commits=copied.commits, put=(record,)) for record in copied.records.values())
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            with temporary.open("wb") as file:
                # The copy has what the ledger has, such as environment variables for containers, so only root may read
                # it.
                os.fchmod(file.fileno(), 0o600)
                file.write(_encoded(head))
                file.writelines(map(_encoded, rows))
                file.flush()
                os.fsync(file.fileno())
            # A crash before this line leaves the old copy, a crash after it the new one. Neither leaves half of one.
            temporary.replace(self.path)
            _flush(self.path.parent)
        except OSError as error:
            raise LedgerError(f"the copy of the ledger {self.path} cannot be written: {error.strerror}") from error
        self._room = len(copied.records) + _GROWTH

    def append(self, commits: int, put: tuple[Record, ...], drop: tuple[str, ...], notes: str | None = None) -> bool:
        """Append a commit; False if the copy has to be rewritten instead, because it is too long or missing."""
        # Counted down before the line is written: a copy that was never read has no room, so it is rewritten first.
        self._room -= 1
        if self._room < 0:
            return False
        return self._add(_Line(commits=commits, put=put, drop=drop, notes=notes))

    def close(self) -> None:
        """Append that the copy is complete, and flush it. Without this line it counts as complete only in this boot."""
        self._add(_Line(commits=0, closed=True), flush=True)

    def _add(self, line: _Line, *, flush: bool = False) -> bool:
        data = _encoded(line)
        try:
            # Opened for each line and never created: if somebody removes or replaces the file, that is noticed, and the
            # copy is rewritten as a whole. A named pipe in its place does not block the commit.
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                written = os.write(handle, data)
                if flush:
                    os.fsync(handle)
            finally:
                os.close(handle)
        except OSError:
            return False
        # A disk that is full may take half of a line. Its checksum then fails, and the copy is rewritten now.
        return written == len(data)

    def forget(self) -> None:
        """Delete the copy, because it lacks a commit and cannot be rewritten.

        Raises:
            LedgerError: the copy cannot be deleted.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"the copy of the ledger {self.path} cannot be removed: {error.strerror}") from error


def _flush(folder: Path) -> None:
    # A rename is durable only once its folder is flushed (fsync(2)).
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
    """Decode a line, with its records from `bodies` if they are there; None if the line is damaged."""
    # Records stay in JSON at first: most of them are the same bytes as in the ledger and need not be decoded twice.
    line = _decoded(_FoundLine, data)
    if line is None:
        return None
    try:
        put = tuple(bodies.get(body) or decode_json(Record, body) for body in map(bytes, line.put))
    except DocumentError:
        return None
    return _Line(commits=line.commits, put=put, drop=line.drop, notes=line.notes, closed=line.closed)


def _followed(head: _Head | None, lines: list[_Line | None], *, whole: bool) -> Copied:
    """Return the state after all lines; `whole` if no line is missing or damaged."""
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
        # Only the last line counts: what was appended after a closing line may not have been flushed.
        closed = line.closed
        if closed:
            continue
        # The first lines are one for each claim, with the number of the head; each later line is one commit more.
        whole = whole and line.commits == at + (number >= rows)
        at = line.commits
        records |= {record.uid: record for record in line.put}
        for uid in line.drop:
            records.pop(uid, None)
        notes, lost = (notes, lost) if line.notes is None else (line.notes, "")
    loss, boot = (head.loss, head.boot) if head is not None else ("", "")
    return Copied(at, records, loss, boot, whole, closed, notes, lost)


def refuse_behind(path: Path, contents: Contents, copied: Copied | None) -> None:
    """Refuse a ledger that lacks commits which its copy has, such as an older file that was put back.

    Raises:
        CorruptLedgerError: the copy has commits that the ledger lacks, or may have some.
    """
    if copied is None:
        return
    # The copy is written after the ledger's commit, so an intact ledger is never behind it.
    if copied.commits > contents.commits:
        raise CorruptLedgerError(
            f"the ledger {path} is not the one that was written last: it ends with commit {contents.commits} and its "
            f"copy with {copied.commits}"
        )
    if not copied.whole and not (contents.commits or contents.records or contents.damaged):
        raise CorruptLedgerError(f"the ledger {path} is new, and the damaged copy of another lies beside it")


def rows_in(path: Path) -> Iterator[Record]:
    """Find the intact rows in a damaged file, deleted ones included; none if there is no file.

    A row ends with its body and its checksum, and the body says all that is in the other columns.

    Raises:
        OSError: the file cannot be read.
    """
    with contextlib.suppress(FileNotFoundError):
        yield from _rows(read_regular(path, LARGEST))


def _rows(data: bytes) -> Iterator[Record]:
    for beginning in _BODY.finditer(data):
        end = _end(data, beginning.start())
        body = data[beginning.start() : end]
        try:
            # A deleted row may still be in a free page. `salvaged` decides by the other sources whether it counts.
            record = decode_json(Record, body)
            if any(matches(record, body, data[end : end + width]) for width in _WIDTHS):
                yield record
        except DocumentError:
            continue


def _end(data: bytes, start: int) -> int:
    """Return where the JSON object that begins at `start` ends; the end of the data if it has no end."""
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
