"""The index of what claims hold stays in step with the ledger, whatever fails in between."""

from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError
from dranode.api.resource import ResourceClaim
from dranode.cdi.spec import Spec
from dranode.driver.claims.answers import Conflict, Prepared, Refused
from dranode.driver.claims.grant import ClaimGrant
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger import Contents, Ledger
from dranode.driver.node.node import NodeClaims
from tests.fakes.drivers import Lamps, allocated_claim, damage_rows, reference


def test_another_instances_commit_is_read_again_after_a_failed_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 3))
    here, there = (
        NodeClaims(Lamps(), tmp_path, tmp_path / "cdi", clock=lambda: float(next(clock))) for _ in ("here", "there")
    )
    for node in (here, there):
        node.open()
    theirs, ours = (allocated_claim(name, Lamps.driver, ["lamp-0"]) for name in ("theirs", "ours"))
    there.prepare({reference(theirs): theirs})
    read = Ledger.read

    def fails_once(ledger: Ledger) -> Contents:
        del ledger
        monkeypatch.setattr(Ledger, "read", read)
        raise LedgerError("the disk does not answer")

    monkeypatch.setattr(Ledger, "read", fails_once)
    answers = [here.prepare({reference(ours): ours})[ours.metadata.uid] for _ in range(2)]
    assert [type(answer) for answer in answers] == [Refused, Conflict]
    assert str(answers[0]) == "the disk does not answer"


def test_claims_are_not_forgotten_if_the_cdi_directory_cannot_be_listed(tmp_path: Path) -> None:
    clock = iter(range(0, 1000, 3))
    data, cdi = tmp_path / "data", tmp_path / "cdi"
    data.mkdir()
    first = NodeClaims(Lamps(), data, cdi)
    first.open()
    theirs, ours = (allocated_claim(name, Lamps.driver, ["lamp-0"]) for name in ("theirs", "ours"))
    first.prepare({reference(theirs): theirs})
    first.close()
    for path in data.glob("ledger.db*"):
        path.write_bytes(b"no database" * 1000)
    cdi.rename(tmp_path / "away")
    cdi.touch()
    node = NodeClaims(Lamps(), data, cdi, clock=lambda: float(next(clock)))
    node.open()
    answers = [node.prepare({reference(ours): ours})[ours.metadata.uid]]
    cdi.unlink()
    (tmp_path / "away").rename(cdi)
    answers += [node.prepare({reference(ours): ours})[ours.metadata.uid]]
    assert isinstance(answers[0], Refused)
    assert "cannot be listed" in str(answers[0])
    assert isinstance(answers[1], Conflict)


class Puzzled(Lamps, Recovers):
    """A driver that fails in its own way when it reads a CDI spec."""

    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        raise KeyError(uid, spec.kind)


def test_a_spec_that_a_driver_fails_to_read_blocks_only_new_grants(tmp_path: Path) -> None:
    theirs, ours = (allocated_claim(name, Lamps.driver, ["lamp-0"]) for name in ("theirs", "ours"))
    first = NodeClaims(Puzzled(), tmp_path, tmp_path / "cdi")
    first.open()
    first.prepare({reference(theirs): theirs})
    first.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    node = NodeClaims(Puzzled(), tmp_path, tmp_path / "cdi")
    node.open()
    refused = node.prepare({reference(ours): ours})[ours.metadata.uid]
    assert "no new claims are prepared" in str(refused)
    assert isinstance(node.prepare({reference(theirs): theirs})[theirs.metadata.uid], Prepared)
    assert node.unprepare((reference(theirs),)) == {theirs.metadata.uid: None}
    assert isinstance(node.prepare({reference(ours): ours})[ours.metadata.uid], Prepared)


def on_record(name: str, cpus: str, fingerprint: str = "") -> Record:
    pinned = CPUSet.parse(cpus)
    return Record(uid=f"uid-{name}", namespace="default", name=name, cpus=pinned, held=pinned, fingerprint=fingerprint)


def test_recorded_claims_with_the_same_cpus_are_reported_once_and_keep_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    with ledger.transaction():
        ledger.commit(put=(on_record("a", "0-3", "f"), on_record("b", "2-5", "g"), on_record("c", "9")))
    node = NodeClaims(Lamps(), tmp_path, tmp_path / "cdi")
    node.open()
    with ledger.transaction():
        ledger.commit(drop=("uid-c",))
    node.records()
    (told,) = (message for message in caplog.messages if "both on record" in message)
    assert told.startswith(
        "driver=lamps.example.com: claims default/a and default/b are both on record with CPUs 2-3, which"
    )
    assert str(node.store.book.held.cpus) == "0-5"


def without_ledger(folder: Path, *claims: ResourceClaim) -> NodeClaims:
    """A driver that had prepared these claims, after its ledger and the copy were lost; only the CDI specs are left."""
    first = NodeClaims(Lamps(), folder, folder / "cdi")
    first.open()
    first.prepare({reference(claim): claim for claim in claims})
    first.close()
    for path in folder.glob("ledger.db*"):
        path.unlink()
    node = NodeClaims(Lamps(), folder, folder / "cdi")
    node.open()
    return node


def test_a_claim_recovered_from_its_spec_keeps_its_namespace_and_name(tmp_path: Path) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    (record,) = without_ledger(tmp_path, claim).records()
    assert record.ref == reference(claim)
    assert record.devices == ("lamp-0",)


def test_the_spec_of_a_recovered_claim_is_written_again_if_it_is_removed(tmp_path: Path) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    node = without_ledger(tmp_path, claim)
    (spec,) = (tmp_path / "cdi").iterdir()
    whole = spec.read_bytes()
    (left,) = node.unfinished()
    assert node.finish([(left, left)]) == (left,)
    assert node.finish([(left, left)]) == ()
    spec.unlink()
    assert node.mend_files([left.uid]) == {left.uid: None}
    assert spec.read_bytes() == whole


def test_a_lost_claim_no_longer_blocks_others_once_it_is_prepared_again(tmp_path: Path) -> None:
    lost, other = (allocated_claim(name, Lamps.driver, [lamp]) for name, lamp in (("a", "lamp-0"), ("b", "lamp-1")))
    first = NodeClaims(Lamps(), tmp_path, tmp_path / "cdi")
    first.open()
    first.prepare({reference(lost): lost})
    first.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    for path in (tmp_path / "cdi").iterdir():
        path.write_text("junk")
    node = NodeClaims(Lamps(), tmp_path, tmp_path / "cdi")
    node.open()
    assert "may hold anything" in str(node.impediment)
    assert isinstance(node.prepare({reference(lost): lost})[lost.metadata.uid], Prepared)
    assert node.impediment is None
    assert isinstance(node.prepare({reference(other): other})[other.metadata.uid], Prepared)


def test_a_quarantined_claim_that_is_prepared_again_is_known_once(tmp_path: Path) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    (tmp_path / "data").mkdir()
    first = NodeClaims(Lamps(), tmp_path / "data", tmp_path / "cdi")
    first.open()
    first.prepare({reference(claim): claim})
    first.close()
    damage_rows(tmp_path)
    node = NodeClaims(Lamps(), tmp_path / "data", tmp_path / "cdi")
    node.open()
    assert (node.records(), set(node.store.book.damaged)) == ((), {claim.metadata.uid})
    assert [record.devices for record in node.store.book.known()] == [("lamp-0",)]
    assert isinstance(node.prepare({reference(claim): claim})[claim.metadata.uid], Prepared)
    assert node.store.book.damaged == {}
    assert list(node.store.book.known()) == list(node.records())


def test_a_damaged_claim_stays_known_while_its_spec_cannot_be_listed(tmp_path: Path) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    first = NodeClaims(Lamps(), tmp_path / "data", tmp_path / "cdi")
    (tmp_path / "data").mkdir()
    first.open()
    first.prepare({reference(claim): claim})
    first.close()
    damage_rows(tmp_path)
    node = NodeClaims(Lamps(), tmp_path / "data", tmp_path / "cdi")
    node.open()
    (tmp_path / "cdi").rename(tmp_path / "away")
    (tmp_path / "cdi").write_text("a file where the folder should be")
    node.close()
    node.check()
    assert node.impediment is not None
    assert [record.devices for record in node.store.book.known()] == [("lamp-0",)]
    (tmp_path / "cdi").unlink()
    node.check()
    assert node.store.book.unknown.keys() == {claim.metadata.uid}


def test_forget_missing_releases_what_an_unreadable_spec_may_hold(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    spec = tmp_path / "cdi" / "lamps.example.com-claim_claim-uid-left.json"
    spec.write_text("{")
    node = NodeClaims(Lamps(), tmp_path, tmp_path / "cdi")
    node.open()
    assert len(node.missing()) == 1
    assert len(node.forget_missing()) == 1
    assert node.missing() == ()
    assert not spec.exists()
    assert node.records() == ()
