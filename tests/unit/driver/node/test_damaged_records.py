"""Damaged rows and ledgers: what CDI specs bring back, and what stays blocked until a person decides."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.cdi.spec import Spec
from dranode.driver.claims.answers import Conflict, Refused
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record
from dranode.driver.pinning.snapshot import PinnedClaim, Pins, PinSnapshot
from tests.fakes.drivers import (
    DAMAGES,
    Board,
    Lamps,
    WiredLamps,
    allocated_claim,
    damage_ledger,
    damage_rows,
    lose_copy,
)
from tests.fakes.node import LAMPS, in_pool, opened, prepare, prepared_before, spec_of, specs, unprepare


@pytest.fixture(autouse=True)
def no_conflict_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dranode.driver.node.node.CONFLICT_WAIT", 0.0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_recovered_from_its_spec_is_not_completed_from_another_nodes_pool(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    node = opened(tmp_path, pool="node")
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    node.close()
    damage(tmp_path)
    again = opened(tmp_path, pool="node", in_use=lambda _: False)
    assert "this node's pool is" in str(prepare(again, in_pool(claim, "node-77"))["a"])
    assert again.store.book.held.holders({"lamp-0"})


def test_an_unusable_ledger_blocks_grants_and_its_file_stays(tmp_path: Path) -> None:
    prepared_before(tmp_path, allocated_claim("a", LAMPS, ["lamp-0"]))
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    again = opened(tmp_path)
    answer = prepare(again, allocated_claim("b", LAMPS, ["lamp-1"]))["b"]
    assert isinstance(answer, Refused)
    assert "newer dranode" in str(answer)
    assert [path.name for path in (tmp_path / "data").glob("*corrupt*")] == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_recovered_from_the_spec_without_blocking_others(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    config = {"source": "FromClaim", "opaque": {"driver": LAMPS, "parameters": {"colour": "red"}}}
    claim, new = allocated_claim("a", LAMPS, ["lamp-0"], config=[config]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    first, before, spec = prepare(node, claim), node.records(), spec_of(tmp_path, claim).read_bytes()
    node.close()
    damage(tmp_path)
    again = opened(tmp_path)
    refused = prepare(again, allocated_claim("thief", LAMPS, ["lamp-0"]))["thief"]
    assert isinstance(refused, Conflict)
    assert "which claim default/a still holds" in str(refused)
    assert len(prepare(again, new)["b"]) == 1
    assert prepare(again, claim) == first
    assert [record for record in again.records() if record.uid == claim.metadata.uid] == list(before)
    assert spec_of(tmp_path, claim).read_bytes() == spec
    again.close()
    assert {record.name for record in opened(tmp_path).records()} == {"a", "b"}
    assert again.store.book.damaged == {}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_with_a_damaged_record_is_unprepared_from_its_spec(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    board, claim = Board(), allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    prepared_before(tmp_path, claim, plugin=WiredLamps(board))
    damage(tmp_path)
    again = opened(tmp_path, WiredLamps(board))
    assert unprepare(again, claim) == {claim.metadata.uid: None}
    assert board.actions == ["configure a", "restore a"]
    assert board.lit == set()
    assert (again.records(), again.store.book.damaged, specs(tmp_path)) == ((), {}, {})


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_reallocated_while_its_record_was_damaged_is_prepared_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    prepared_before(tmp_path, allocated_claim("a", LAMPS, ["lamp-0"]))
    damage(tmp_path)
    again, changed = opened(tmp_path, in_use=lambda _: False), allocated_claim("a", LAMPS, ["lamp-1"])
    assert [device.device for device in prepare(again, changed)["a"]] == ["lamp-1"]
    assert [record.devices for record in again.records()] == [("lamp-1",)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_admin_access_holds_nothing_after_damage(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    prepared_before(tmp_path, allocated_claim("a", LAMPS, ["lamp-0"], adminAccess=True))
    damage(tmp_path)
    assert len(prepare(opened(tmp_path), allocated_claim("b", LAMPS, ["lamp-0"]))["b"]) == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_without_edits_is_still_held_after_its_ledger_is_lost(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    class Silent(Lamps):
        def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
            del held, inventory
            return ClaimGrant(tuple(Grant.of(each.result) for each in claim.results))

    node = opened(tmp_path, Silent())
    assert [device.cdi for device in prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))["a"]] == [()]
    node.close()
    damage(tmp_path)
    answer = prepare(opened(tmp_path, Silent()), allocated_claim("b", LAMPS, ["lamp-0"]))["b"]
    assert isinstance(answer, Conflict)


@pytest.mark.parametrize(
    ("damage", "answer"), [(damage_rows, "is damaged (the row does not match its checksum)"), (damage_ledger, "lamp-0")]
)
def test_a_claim_without_a_readable_spec_blocks_grants_until_it_is_unprepared(
    tmp_path: Path, damage: Callable[[Path], None], answer: str
) -> None:
    claim, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    prepared_before(tmp_path, claim)
    damage(tmp_path)
    spec_of(tmp_path, claim).write_text("junk")
    again = opened(tmp_path)
    assert f"the claim with UID {claim.metadata.uid} may hold anything" in str(prepare(again, new)["b"])
    # If the whole record is lost, the claim's allocation says what it was given. A damaged row may say something else.
    assert answer in str(prepare(again, claim)["a"])
    assert unprepare(again, claim) == {claim.metadata.uid: None}
    assert len(prepare(again, new)["b"]) == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_spec_that_becomes_readable_again_unblocks_grants(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    claim, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    first = prepared_before(tmp_path, claim)
    damage(tmp_path)
    whole = spec_of(tmp_path, claim).read_bytes()
    spec_of(tmp_path, claim).write_text("junk")
    again = opened(tmp_path)
    told: list[list[tuple[str, ...]]] = []
    again.watch(lambda _: told.append([record.devices for record in again.store.book.known()]))
    assert "may hold anything" in str(prepare(again, new)["b"])
    spec_of(tmp_path, claim).write_bytes(whole)
    assert len(prepare(again, new)["b"]) == 1
    assert ("lamp-0",) in told[-1]
    assert isinstance(prepare(again, allocated_claim("thief", LAMPS, ["lamp-0"]))["thief"], Conflict)
    assert prepare(again, claim) == first


def test_a_lost_record_is_recovered_with_the_owner_that_it_got_meanwhile(tmp_path: Path) -> None:
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepared_before(tmp_path, claim)
    whole = spec_of(tmp_path, claim).read_bytes()
    spec_of(tmp_path, claim).write_text("junk")
    damage_ledger(tmp_path)
    again = opened(tmp_path)
    (lost,) = again.unfinished()
    pods = claim.status.reserved_for
    again.finish([(lost, msgspec.structs.replace(lost, namespace="another", name="renamed", pods=pods))])
    again.close()
    spec_of(tmp_path, claim).write_bytes(whole)
    (found,) = opened(tmp_path).unfinished()
    assert (found.namespace, found.name, found.pods) == ("another", "renamed", pods)
    assert found.devices == ("lamp-0",)


def test_a_damaged_index_is_found_when_the_ledger_is_opened(tmp_path: Path) -> None:
    known, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    first = prepared_before(tmp_path, known)
    file = tmp_path / "data" / "ledger.db"
    with contextlib.closing(sqlite3.connect(file)) as db:
        (index,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_claims_1'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(file.read_bytes())
    content[(index - 1) * size : index * size] = b"\xff" * size
    file.write_bytes(content)
    again = opened(tmp_path)
    assert len(prepare(again, new)["b"]) == 1
    assert prepare(again, known) == first
    assert len(list((tmp_path / "data").glob("ledger.db.corrupt-*"))) == 1


def test_damage_found_only_by_writing_moves_the_ledger_aside(tmp_path: Path) -> None:
    known, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    first = prepare(node, known)
    # A row with the new claim's key that was not read.
    behind_its_back = node.store.refresh()._db
    behind_its_back.execute(
        "INSERT INTO claims SELECT ?, devices, held, body, checksum FROM claims", (new.metadata.uid,)
    )
    assert "is damaged: UNIQUE constraint failed" in str(prepare(node, new)["b"])
    assert prepare(node, known) == first
    assert len(list((tmp_path / "data").glob("ledger.db.corrupt-*"))) == 1
    assert len(prepare(node, new)["b"]) == 1


def test_a_damaged_row_with_an_invalid_uid_does_not_stop_unprepare(tmp_path: Path) -> None:
    first, second = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    prepared_before(tmp_path, first, second)
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        db.execute("UPDATE claims SET uid = CAST(x'2f00ff' AS TEXT) WHERE uid = ?", (first.metadata.uid,))
    lose_copy(tmp_path)
    again = opened(tmp_path)
    assert unprepare(again, second) == {second.metadata.uid: None}
    refused = str(prepare(again, second)["b"])
    assert f"run `dranode forget-lost --drivers {LAMPS}`" in refused


def test_a_pinning_driver_gets_the_claim_of_a_damaged_row(tmp_path: Path) -> None:
    class Recoverable(Lamps, Pins, Recovers):
        def recover(self, uid: str, spec: Spec) -> ClaimGrant:
            del uid, spec
            return ClaimGrant((), cpus=CPUSet((3,)), held=CPUSet((3,)))

        def pool(self, inventory: Inventory) -> PinSnapshot:
            del inventory
            return PinSnapshot()

        def pinned(self, record: Record) -> PinnedClaim:
            return PinnedClaim(record.ref, record.cpus, record.held)

    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepared_before(tmp_path, claim, plugin=Recoverable())
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        db.execute("UPDATE claims SET checksum = 0")
    lose_copy(tmp_path)
    again = opened(tmp_path, Recoverable())
    told: list[PinSnapshot | None] = []
    again.watch(told.append)
    unprepare(again, claim)
    assert [list(map(str, each.held)) for each in told if each] == [["3"], []]
    assert [list(each.claims) for each in told if each] == [[claim.metadata.uid], []]


def test_a_damaged_row_holds_its_devices_if_the_spec_names_none(tmp_path: Path) -> None:
    class Recoverable(Lamps, Recovers):
        def recover(self, uid: str, spec: Spec) -> ClaimGrant:
            del uid, spec
            return ClaimGrant((), cpus=CPUSet((3,)), held=CPUSet((3,)))

    node = opened(tmp_path, Recoverable())
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    # A driver that reads specs itself writes them in its own form.
    assert [len(spec["devices"]) for spec in specs(tmp_path).values()] == [1]
    node.close()
    damage_rows(tmp_path)
    again = opened(tmp_path, Recoverable())
    assert isinstance(prepare(again, allocated_claim("b", LAMPS, ["lamp-0"]))["b"], Conflict)
    assert len(prepare(again, allocated_claim("c", LAMPS, ["lamp-1"]))["c"]) == 1


def test_an_unreadable_spec_blocks_grants_before_and_after_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / f"{LAMPS}-claim_claim-left.json").write_text("junk")
    new, left = allocated_claim("a", LAMPS, ["lamp-0"]), ClaimRef("", "", "left")
    node = opened(tmp_path)
    assert "UID left may hold anything" in str(prepare(node, new)["a"])
    node.finish((record, record) for record in node.unfinished())
    assert "UID left may hold anything" in str(prepare(node, new)["a"])
    assert node.unprepare((left,)) == {"left": None}
    assert len(prepare(node, new)["a"]) == 1
