"""The durable record of claims."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import msgspec
import pytest

from dranode.cdi.rules import spec_problems
from dranode.cdi.spec import CDIDevice, ContainerEdits, DeviceNode, Spec
from dranode.driver.core.errors import LedgerError
from dranode.driver.core.plugin import Grant
from dranode.driver.core.record import Record, State, claim_spec, copied, prepared_devices
from dranode.driver.core.resource import ResourceClaimConsumerReference
from dranode.driver.ledger import CorruptLedgerError, Ledger, move_aside, read_ledger

A = Record(uid="uid-a", namespace="default", name="a", cpus="0-1", held="0-1,8-9", fingerprint="f")
B = Record(uid="uid-b", grants=(Grant(request="r", pool="p", device="d", admin=True),), fingerprint="g")


def written(path: Path, *records: Record) -> Ledger:
    ledger = Ledger(path)
    with ledger.transaction():
        ledger.commit(put=records)
    return ledger


def test_what_was_committed_is_read_after_reopening(tmp_path: Path) -> None:
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


def test_a_ledger_is_readable_by_nobody_else(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        written(tmp_path / "l.db", A)
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_it_notices_what_another_process_commits(tmp_path: Path) -> None:
    ours, theirs = written(tmp_path / "l.db"), Ledger(tmp_path / "l.db")
    assert not ours.changed()
    with theirs.transaction():
        theirs.commit(put=(A,))
    assert ours.changed()
    assert ours.changed()
    ours.read()
    assert not ours.changed()


@pytest.mark.parametrize("column", ["devices", "held", "body"])
def test_a_row_that_fails_its_checksum_is_told_apart(tmp_path: Path, column: str) -> None:
    written(tmp_path / "l.db", A, B).close()
    with sqlite3.connect(tmp_path / "l.db") as db:
        db.execute(f"UPDATE claims SET {column} = CAST({column} || ' ' AS TEXT) WHERE uid = 'uid-a'")  # noqa: S608 - a column of ours
    contents = Ledger(tmp_path / "l.db").read()
    assert contents.records == (B,)
    assert [row.uid for row in contents.damaged] == ["uid-a"]


@pytest.mark.parametrize("column", ["uid", "held", "devices"])
def test_bytes_that_are_no_text_cost_their_row_and_no_other(tmp_path: Path, column: str) -> None:
    written(tmp_path / "l.db", A, B).close()
    with sqlite3.connect(tmp_path / "l.db") as db:
        kind = "BLOB" if column == "devices" else "TEXT"
        db.execute(f"UPDATE claims SET {column} = CAST(x'5b22ff225d' AS {kind}) WHERE uid = 'uid-b'")  # noqa: S608 - a column's name
    contents = Ledger(tmp_path / "l.db").read()
    assert contents.records == (A,)
    assert [row.reason for row in contents.damaged] == ["the row does not match its checksum"]
    assert read_ledger(tmp_path / "l.db") == contents


def test_no_altered_bit_is_read_as_another_record_or_as_a_crash(tmp_path: Path) -> None:
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
        except LedgerError:
            outcomes.add("refused")
        else:
            assert all(record in (A, B) for record in contents.records)
            outcomes.add("damaged" if contents.damaged else "read")
    assert outcomes == {"refused", "damaged", "read"}


def test_a_file_that_is_no_database_is_called_corrupt(tmp_path: Path) -> None:
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


def test_a_folder_that_is_not_there_keeps_the_ledger_closed(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be used: unable to open database file"):
        Ledger(tmp_path / "missing" / "l.db")


def test_a_ledger_can_be_read_while_a_driver_has_it_open(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l.db", A)
    assert read_ledger(tmp_path / "l.db").records == (A,)
    ledger.close()


def test_a_ledger_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "l.db").records == ()
    assert not (tmp_path / "l.db").exists()


def test_a_ledger_whose_making_was_cut_short_has_no_rows_and_is_made_again(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "l.db") as db:
        db.execute("PRAGMA journal_mode=WAL")
    assert read_ledger(tmp_path / "l.db").records == ()
    assert written(tmp_path / "l.db", A).read().records == (A,)


def test_a_full_disk_keeps_the_file_and_what_was_committed(tmp_path: Path) -> None:
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
def test_only_two_kinds_of_error_call_a_file_corrupt(tmp_path: Path, code: int, *, corrupt: bool) -> None:
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


NODE = DeviceNode(path="/dev/lamp0", type="c", major=1, minor=2)
GIVEN = Record(
    uid="uid-g",
    namespace="default",
    name="g",
    grants=(Grant(request="r", pool="p", device="d", edits=ContainerEdits(env=("LAMP=d",)), state={"lit": True}),),
    edits=ContainerEdits(env=("WALL=ü\u2028",)),
    cpus="0-1",
    held="0-3",
)


def test_a_spec_carries_what_the_claim_was_given_and_nothing_that_is_asked_again() -> None:
    pods = (ResourceClaimConsumerReference(resource="pods", name="pod", uid="pod-uid"),)
    record = msgspec.structs.replace(GIVEN, state=State.STARTED, pods=pods, pod_claim_name="lamp", fingerprint="f")
    grants = tuple(msgspec.structs.replace(each, edits=ContainerEdits(device_nodes=(NODE,))) for each in record.grants)
    spec = claim_spec("lamps.example.com/claim", msgspec.structs.replace(record, grants=grants), record)
    assert spec is not None
    assert copied("uid-g", spec) == GIVEN
    assert spec.cdi_version == "0.3.0"
    assert list(spec_problems(spec)) == []
    told = {name for device in prepared_devices(spec.kind, record) for name in device.cdi}
    hidden = [device for device in spec.devices if f"{spec.kind}={device.name}" not in told]
    assert [device.name for device in hidden] == ["record-uid-g"]


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("record-uid-b", 'DRANODE_RECORD={"uid":"uid-b"}'),
        ("claim-uid-a", 'DRANODE_RECORD={"uid":"uid-a"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-b"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-a","fingerprint":"f"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-a","held":"3-1"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-a","cpus":"x"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":'),
        ("record-uid-a", "DRANODE_RECORD="),
        ("record-uid-a", 'RECORD={"uid":"uid-a"}'),
    ],
)
def test_a_copy_that_is_not_this_claims_or_not_whole_is_not_believed(name: str, entry: str) -> None:
    device = CDIDevice(name=name, container_edits=ContainerEdits(env=(entry,)))
    assert copied("uid-a", Spec(cdi_version="0.3.0", kind="lamps.example.com/claim", devices=(device,))) is None
