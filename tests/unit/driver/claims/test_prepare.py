"""The decisions of Prepare and Unprepare as values: what is committed, and which effects follow in which order."""

import msgspec
import pytest

from dranode.api.errors import ClaimError
from dranode.driver.claims.answers import Changed, Commit, Configure, Decision, RemoveFiles, Restore, WriteFiles
from dranode.driver.claims.held import Held
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.prepare import (
    Circumstances,
    completed,
    decide_claim,
    prepare_decision,
    restarted,
    unprepare_decision,
)
from dranode.driver.claims.record import Record
from tests.fakes.drivers import Board, Lamps, WiredLamps, allocated_claim, reference

CLAIM = allocated_claim("a", Lamps.driver, ["lamp-0"])
REF = reference(CLAIM)
WIRED = WiredLamps(Board())


def given(plugin: Plugin, blocked: str | None = None) -> Circumstances:
    return Circumstances(plugin, plugin.discover(), Held(), "node", blocked)


def record_of_claim() -> Record:
    record = decide_claim(REF, CLAIM, None, given(Lamps()))
    assert isinstance(record, Record)
    return record


def test_a_prepare_commits_its_decision_before_it_writes_files() -> None:
    record = record_of_claim()
    assert prepare_decision([record], lambda _: None) == Decision(Commit(put=(record,)), (WriteFiles(record),))


def test_a_repeated_prepare_commits_nothing_and_checks_the_files() -> None:
    record = record_of_claim()
    decision = prepare_decision([record], lambda _: record)
    assert not decision.commit
    assert decision.effects == (WriteFiles(record),)


def test_hardware_is_configured_between_two_commits() -> None:
    record = restarted(record_of_claim())
    decision = prepare_decision([record], lambda _: None)
    assert decision.commit == Commit(put=(record,))
    assert decision.effects[:2] == (Configure(record), Commit(put=(completed(record),)))


def test_an_unprepare_drops_the_record_when_everything_is_undone() -> None:
    record = record_of_claim()
    decision = unprepare_decision([REF], {REF.uid: record}, (), Lamps())
    assert not decision.commit
    assert decision.effects == (RemoveFiles(REF, ("r",)), Commit(drop=(REF.uid,)))


def test_an_unprepare_commits_started_before_it_restores_hardware() -> None:
    record = record_of_claim()
    decision = unprepare_decision([REF], {REF.uid: record}, (), WIRED)
    assert decision.commit == Commit(put=(restarted(record),))
    assert decision.effects[0] == Restore(restarted(record))


def test_a_damaged_row_is_dropped_after_the_files_of_its_claim() -> None:
    decision = unprepare_decision([REF], {}, (REF.uid,), Lamps())
    assert decision == Decision(effects=(RemoveFiles(REF, ()), Commit(drop=(REF.uid,))))


def test_an_unknown_claim_is_undone_without_a_commit() -> None:
    assert unprepare_decision([REF, REF], {}, (), Lamps()) == Decision(effects=(RemoveFiles(REF, ()),))


def test_a_new_claim_is_refused_while_it_is_unknown_what_others_hold() -> None:
    with pytest.raises(ClaimError, match="the ledger was lost"):
        decide_claim(REF, CLAIM, None, given(Lamps(), blocked="the ledger was lost"))


def test_a_lost_claim_is_prepared_whatever_is_unknown_about_others() -> None:
    lost = Record(uid=REF.uid)
    assert decide_claim(REF, CLAIM, lost, given(Lamps(), blocked="the ledger was lost")) == record_of_claim()


def test_a_claim_without_devices_of_the_driver_is_never_refused() -> None:
    other = allocated_claim("a", "other.example.com", ["lamp-0"])
    record = decide_claim(REF, other, None, given(Lamps(), blocked="the ledger was lost"))
    assert isinstance(record, Record)
    assert record.grants == ()


def test_an_allocation_that_differs_from_the_record_is_a_change() -> None:
    record = record_of_claim()
    other = allocated_claim("a", Lamps.driver, ["lamp-1"])
    assert decide_claim(REF, other, record, given(Lamps())) == Changed(record)


def test_a_recorded_claim_is_refreshed_with_its_current_pods() -> None:
    record = msgspec.structs.replace(record_of_claim(), pods=())
    assert decide_claim(REF, CLAIM, record, given(Lamps(), blocked="the ledger was lost")) == record_of_claim()
