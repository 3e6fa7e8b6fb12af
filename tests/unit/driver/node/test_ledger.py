"""The durable record of claims."""

import contextlib
import os
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger import TABLES, CorruptLedgerError, Ledger, move_aside
from dranode.show.ledger_reading import read_ledger

A = Record(
    uid="uid-a", namespace="default", name="a", cpus=CPUSet.parse("0-1"), held=CPUSet.parse("0-1,8-9"), fingerprint="f"
)
B = Record(uid="uid-b", grants=(Grant(request="r", pool="p", device="d", admin=True),), fingerprint="g")


def written(path: Path, *records: Record) -> Ledger:
    ledger = Ledger(path)
    with ledger.transaction():
        ledger.commit(put=records)
    return ledger


def test_committed_records_are_read_after_reopening(tmp_path: Path) -> None:
    written(tmp_path / "l.db", A, B).close()
    assert Ledger(tmp_path / "l.db").read().records == (A, B)


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l.db", A)

    def fail_halfway() -> None:
        with ledger.transaction():
            ledger.commit(put=(B,), drop=("uid-a",))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert ledger.read().records == (A,)


def test_only_the_owner_can_read_a_ledger(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        written(tmp_path / "l.db", A)
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_ledger_notices_commits_of_another_process(tmp_path: Path) -> None:
    ours, theirs = written(tmp_path / "l.db"), Ledger(tmp_path / "l.db")
    assert not ours.changed()
    with theirs.transaction():
        theirs.commit(put=(A,))
    assert ours.changed()
    assert ours.changed()
    ours.read()
    assert not ours.changed()


@pytest.mark.parametrize("column", ["devices", "held", "body"])
def test_a_row_that_fails_its_checksum_is_reported_as_damaged(tmp_path: Path, column: str) -> None:
    written(tmp_path / "l.db", A, B).close()
    with sqlite3.connect(tmp_path / "l.db") as db:
        db.execute(f"UPDATE claims SET {column} = CAST({column} || ' ' AS TEXT) WHERE uid = 'uid-a'")  # noqa: S608 - a column of ours
    contents = Ledger(tmp_path / "l.db").read()
    assert contents.records == (B,)
    assert [row.uid for row in contents.damaged] == ["uid-a"]


@pytest.mark.parametrize("column", ["uid", "held", "devices"])
def test_bytes_that_are_not_text_damage_only_their_row(tmp_path: Path, column: str) -> None:
    written(tmp_path / "l.db", A, B).close()
    with sqlite3.connect(tmp_path / "l.db") as db:
        kind = "BLOB" if column == "devices" else "TEXT"
        db.execute(f"UPDATE claims SET {column} = CAST(x'5b22ff225d' AS {kind}) WHERE uid = 'uid-b'")  # noqa: S608 - a column's name
    contents = Ledger(tmp_path / "l.db").read()
    assert contents.records == (A,)
    assert [row.reason for row in contents.damaged] == ["the row does not match its checksum"]
    assert replace(read_ledger(tmp_path / "l.db"), schema=0) == contents


def test_no_altered_bit_causes_a_wrong_record_or_a_crash(tmp_path: Path) -> None:
    written(tmp_path / "l.db", A, B).close()
    good, dice = (tmp_path / "l.db").read_bytes(), random.Random(20261120)
    told = [at for at, byte in enumerate(good) if byte]
    outcomes = set()
    for at in dice.sample(told, 300):
        altered = bytearray(good)
        altered[at] ^= 1 << dice.randrange(8)
        (tmp_path / "l.db").write_bytes(altered)
        try:
            contents = read_ledger(tmp_path / "l.db")
        except LedgerError as error:
            outcomes.add("refused" if "b'" not in str(error) else str(error))
        else:
            assert all(record in (A, B) for record in contents.records)
            outcomes.add("damaged" if contents.damaged else "read")
    assert outcomes == {"refused", "damaged", "read"}


C = Record(uid="uid-c", cpus=CPUSet.parse("4-5"), held=CPUSet.parse("4-5"), fingerprint="h")


def used(path: Path, good: bytes, altered: bytes) -> str:
    """Read an altered ledger in which A was forgotten and C written; neither may be lost silently."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(altered)
    ledger = None
    try:
        ledger = Ledger(path)
        before = ledger.read()
        records = {record.uid: record for record in before.records}
        assert len(records) + len(before.damaged) == 2
        assert all(record in (A, B) for record in records.values())
        with ledger.transaction():
            ledger.commit(put=(C,), drop=records.keys() & {A.uid})
        ledger.close()
        ledger = Ledger(path)
        records.pop(A.uid, None)
        assert {record.uid: record for record in ledger.read().records} == records | {C.uid: C}
    except CorruptLedgerError:
        return "corrupt"
    except LedgerError:
        return "refused"
    else:
        return "damaged" if before.damaged else "harmless" if altered != good else "the same"
    finally:
        if ledger is not None:
            ledger.close()


def test_no_flipped_bit_silently_loses_or_revives_a_record(tmp_path: Path) -> None:
    """Flips bits in and around the data; LEDGER_EVERY_BIT=1 flips every bit of every page, which takes minutes."""
    path, dice = tmp_path / "l.db", random.Random(20261121)
    written(path, A, B).close()
    good = path.read_bytes()
    bits = range(len(good) * 8)
    told = [bit for bit in bits if any(good[max(bit // 8 - 1, 0) : bit // 8 + 2])]
    outcomes = set()
    for bit in bits if os.environ.get("LEDGER_EVERY_BIT") else dice.sample(told, 250):
        altered = bytearray(good)
        altered[bit // 8] ^= 1 << bit % 8
        outcomes.add(used(path, good, bytes(altered)))
    assert outcomes >= {"corrupt", "damaged", "harmless"}


def key_of_another(path: Path) -> None:
    """Make the primary key's index say `uid-z` for A, which neither SQLite nor a row's checksum notices."""
    page = path.read_bytes()
    # The row is followed by its devices, and the UID in its body is quoted.
    at = next(found.start() for found in re.finditer(rb'(?<!")uid-a(?!\[)', page))
    path.write_bytes(page[: at + 4] + b"z" + page[at + 5 :])


def test_an_index_that_differs_from_its_table_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    written(path, A, B).close()
    key_of_another(path)
    for read in (Ledger, read_ledger):
        with pytest.raises(CorruptLedgerError, match=r"missing from index|its index has 2 claims and its table 2"):
            read(path)


@pytest.mark.parametrize("put", [True, False])
def test_a_statement_that_misses_a_recorded_claims_row_is_damage(tmp_path: Path, *, put: bool) -> None:
    ledger = written(tmp_path / "l.db", A, B)
    ledger.read()
    # As if the index had lost the key after the file was opened.
    ledger._db.execute("DELETE FROM claims WHERE uid = 'uid-a'")
    with (
        pytest.raises(CorruptLedgerError, match="finds 0 rows of the claim with UID uid-a, not 1"),
        ledger.transaction(),
    ):
        ledger.commit(put=(A,) if put else (), drop=() if put else (A.uid,))


def test_a_second_row_with_the_same_key_is_damage(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l.db", A)
    ledger.read()
    ledger._db.execute("INSERT INTO claims SELECT 'uid-b', devices, held, body, checksum FROM claims")
    with pytest.raises(CorruptLedgerError, match="UNIQUE"), ledger.transaction():
        ledger.commit(put=(B,))


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_table_with_another_name_or_schema_is_damage_and_is_not_recreated(tmp_path: Path, table: str) -> None:
    for before, after in ((f"TABLE {table}", f"TABLE {table[:-1]}z"), ("NOT NULL", "NOT NU")):
        path = tmp_path / f"{after}.db"
        written(path, A).close()
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA writable_schema=ON")
            db.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (before, after, table))
        for read in (Ledger, read_ledger):
            with pytest.raises(CorruptLedgerError, match="damaged"):
                read(path)


def test_a_wrong_header_that_sqlite_ignores_is_damage(tmp_path: Path) -> None:
    written(tmp_path / "l.db", A).close()
    good = (tmp_path / "l.db").read_bytes()
    (tmp_path / "l.db").write_bytes(good[:67] + b"\1" + good[68:])
    for read in (Ledger, read_ledger):
        with pytest.raises(CorruptLedgerError, match="its header has 00000001 at byte 64"):
            read(tmp_path / "l.db")


def test_a_changed_table_definition_that_sqlite_accepts_is_damage(tmp_path: Path) -> None:
    written(tmp_path / "l.db", A).close()
    with sqlite3.connect(tmp_path / "l.db") as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, 'held TEXT NOT NULL', 'held TEXT')")
    for read in (Ledger, read_ledger):
        with pytest.raises(CorruptLedgerError, match="its table claims is another"):
            read(tmp_path / "l.db")


@pytest.mark.parametrize(
    ("schema", "loss"),
    [("0", ""), ("0", "why"), ("", ""), ("x", ""), ("\u0661", ""), ("-1", ""), ("2", ""), ("1", "why")],
)
def test_a_schema_that_no_dranode_wrote_is_damage(tmp_path: Path, schema: str, loss: str) -> None:
    ledger = written(tmp_path / "l.db", A)
    with ledger.transaction():
        ledger.set_loss(loss)
        ledger.set_meta("schema", schema)
    ledger.close()
    with pytest.raises(CorruptLedgerError, match="its schema has the number") as raised:
        Ledger(tmp_path / "l.db")
    assert raised.value.__traceback__ is not None
    # The caller, who moves the file aside, has no open handle on it.
    handles = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert str(tmp_path / "l.db") not in handles


def test_a_ledger_that_was_just_opened_is_unchanged_until_another_process_commits(tmp_path: Path) -> None:
    written(tmp_path / "l.db", A).close()
    ours, theirs = Ledger(tmp_path / "l.db"), Ledger(tmp_path / "l.db")
    assert not ours.changed()
    with theirs.transaction():
        theirs.commit(put=(B,))
    assert ours.changed()


def test_a_new_ledger_has_no_commit_and_flushes_each(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    assert ledger.read().commits == 0
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (3,)
    with ledger.transaction():
        assert ledger.commit(put=(A,)) == 1


def test_a_file_that_is_not_a_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "l.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(CorruptLedgerError, match=r"l\.db is damaged"):
        Ledger(tmp_path / "l.db")


def test_a_corrupt_file_is_moved_aside_with_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(b"x")
    aside = move_aside(path)
    assert {found.name.removeprefix(aside.name) for found in tmp_path.iterdir()} == {"", "-wal", "-shm"}


def test_a_newer_schema_is_kept_and_refused(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l.db", A)
    with ledger.transaction():
        ledger.set_meta("schema", "99")
    ledger.close()
    before = (tmp_path / "l.db").read_bytes()
    with pytest.raises(LedgerError, match=r"newer dranode \(schema 99") as refused:
        Ledger(tmp_path / "l.db")
    assert not isinstance(refused.value, CorruptLedgerError)
    assert (tmp_path / "l.db").read_bytes() == before


def test_a_missing_folder_keeps_the_ledger_closed(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be used: unable to open database file"):
        Ledger(tmp_path / "missing" / "l.db")


def test_a_ledger_can_be_read_while_a_driver_has_it_open(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l.db", A)
    assert read_ledger(tmp_path / "l.db").records == (A,)
    ledger.close()


def test_a_missing_ledger_has_no_rows(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "l.db").records == ()
    assert not (tmp_path / "l.db").exists()


def test_a_half_created_ledger_has_no_rows_and_is_created_again(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "l.db") as db:
        db.execute("PRAGMA journal_mode=WAL")
    assert read_ledger(tmp_path / "l.db").records == ()
    assert written(tmp_path / "l.db", A).read().records == (A,)


def test_a_full_disk_keeps_the_file_and_all_commits(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l.db", A)
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        with ledger.transaction():
            ledger.commit(put=(Record(uid=f"uid-{n}", name="x" * 1000) for n in range(100)))

    with pytest.raises(LedgerError, match="cannot be used: database or disk is full") as refused:
        fill()
    assert not isinstance(refused.value, CorruptLedgerError)
    assert ledger.read().records == (A,)


@pytest.mark.parametrize(
    ("code", "corrupt"),
    [
        (sqlite3.SQLITE_CORRUPT, True),
        (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_CORRUPT_INDEX, True),
        (sqlite3.SQLITE_IOERR, False),
        (sqlite3.SQLITE_IOERR_FSYNC, False),
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_BUSY, False),
        (sqlite3.SQLITE_READONLY, False),
        (sqlite3.SQLITE_CANTOPEN, False),
    ],
)
def test_only_two_kinds_of_error_mean_a_corrupt_file(tmp_path: Path, code: int, *, corrupt: bool) -> None:
    class Failing:
        def execute(self, *_: object) -> None:
            error = sqlite3.DatabaseError("the disk says no")
            error.sqlite_errorcode = code
            raise error

    ledger = written(tmp_path / "l.db", A)
    ledger._db = Failing()  # type: ignore[assignment] # a database that fails
    with pytest.raises(LedgerError, match="the disk says no") as refused:
        ledger.meta("schema")
    assert isinstance(refused.value, CorruptLedgerError) is corrupt


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY_RECOVERY])
def test_the_journal_of_a_killed_driver_is_read_on_a_read_only_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ledger = written(tmp_path / "l.db", A)
    killed = tmp_path / "killed"
    killed.mkdir()
    for suffix in ("", "-wal"):
        (killed / f"l.db{suffix}").write_bytes((tmp_path / f"l.db{suffix}").read_bytes())
    ledger.close()
    connect = sqlite3.connect

    def connected(place: str, **options: Any) -> sqlite3.Connection:
        # SQLite's error for a journal that it would have to recover and cannot.
        if str(killed) in place:
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = code
            raise error
        found: sqlite3.Connection = connect(place, **options)
        return found

    monkeypatch.setattr(sqlite3, "connect", connected)
    assert read_ledger(killed / "l.db").records == (A,)
    assert {path.name for path in killed.iterdir()} == {"l.db", "l.db-wal"}


def test_a_newer_schema_is_noticed_before_the_next_reading_of_an_open_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with contextlib.closing(written(path)) as ledger:
        ledger.read()
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE meta SET value = '9' WHERE key = 'schema'")
        assert ledger.changed()
        for _ in range(2):
            with pytest.raises(LedgerError, match="newer dranode"):
                ledger.read()
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE meta SET value = '1' WHERE key = 'schema'")
        assert ledger.read().records == ()
