"""The effects of a decision: hardware is configured and restored, specs are written, and each claim fails alone."""

from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import ClaimError
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.node.node import NodeClaims
from tests.fakes.drivers import Board, Lamps, WiredLamps, allocated_claim
from tests.fakes.node import LAMPS, opened, prepare, prepared_before, specs, unprepare


def test_hardware_is_configured_once_and_restored_once(tmp_path: Path) -> None:
    board = Board()
    node = opened(tmp_path, WiredLamps(board))
    claim = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    prepare(node, claim)
    prepare(node, claim)
    assert board.lit == {"lamp-0"}
    unprepare(node, claim)
    assert board.lit == set()
    assert board.actions == ["configure a", "restore a"]


def test_hardware_is_configured_again_after_a_reboot(tmp_path: Path) -> None:
    board = Board()
    claim = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    prepared_before(tmp_path, claim, plugin=WiredLamps(board))
    rebooted = NodeClaims(WiredLamps(board), tmp_path / "data", tmp_path / "cdi")
    rebooted.open("another boot")
    prepare(rebooted, claim)
    assert board.actions == ["configure a", "configure a"]


def test_a_reboot_is_noticed_even_if_the_ledger_was_unusable_at_the_start(tmp_path: Path) -> None:
    board = Board()
    claim = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    prepared_before(tmp_path, claim, plugin=WiredLamps(board))
    ledger = tmp_path / "data" / "ledger.db"
    ledger.rename(ledger.with_name("away"))
    ledger.mkdir()
    rebooted = NodeClaims(WiredLamps(board), tmp_path / "data", tmp_path / "cdi")
    rebooted.open("another boot")
    assert isinstance(prepare(rebooted, claim)["a"], Refused)
    ledger.rmdir()
    ledger.with_name("away").rename(ledger)
    assert len(prepare(rebooted, claim)["a"]) == 1
    assert board.actions == ["configure a", "configure a"]


def test_a_hardware_failure_fails_only_its_claim_until_the_next_try(tmp_path: Path) -> None:
    class Moody(WiredLamps):
        def configure(self, claim: ClaimRef, grants: Any) -> None:
            if claim.name == "a" and not self.board.actions:
                self.board.actions.append("refused")
                raise ClaimError("the fuse has blown; replace it")
            super().configure(claim, grants)

    node = opened(tmp_path, Moody(Board()))
    a, b = (allocated_claim(name, WiredLamps.driver, [f"lamp-{n}"]) for n, name in enumerate("ab"))
    answers = prepare(node, a, b)
    assert str(answers["a"]) == "the fuse has blown; replace it"
    assert len(answers["b"]) == 1
    assert len(prepare(node, a)["a"]) == 1


def test_a_bug_in_a_drivers_grant_fails_only_its_claim(tmp_path: Path) -> None:
    class Buggy(Lamps):
        def grant(self, claim: Any, held: Any, inventory: Any) -> Any:
            if claim.ref.name == "a":
                raise KeyError("oops")
            return super().grant(claim, held, inventory)

    node = opened(tmp_path, Buggy())
    answers = prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"]))
    said = "claim default/a failed: internal error in lamps.example.com, see its log: KeyError('oops')"
    assert str(answers["a"]) == said
    assert len(answers["b"]) == 1


def test_a_bug_in_a_drivers_configure_fails_only_its_claim_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Buggy(WiredLamps):
        def configure(self, claim: ClaimRef, grants: Any) -> None:
            if claim.name == "a":
                raise KeyError("oops")
            super().configure(claim, grants)

    node = opened(tmp_path, Buggy(Board()))
    answers = prepare(node, *(allocated_claim(name, WiredLamps.driver, [f"lamp-{n}"]) for n, name in enumerate("ab")))
    said = f"claim default/a failed: internal error in {WiredLamps.driver}, see its log: KeyError('oops')"
    assert str(answers["a"]) == said
    assert "Configure failed" in caplog.text
    assert len(answers["b"]) == 1


def test_an_unwritable_spec_is_reported_and_written_at_the_next_try(tmp_path: Path) -> None:
    node = opened(tmp_path)
    (tmp_path / "cdi").rmdir() if (tmp_path / "cdi").exists() else None
    (tmp_path / "cdi").write_text("a file in the way")
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    assert "the CDI spec of claim default/a cannot be written to" in str(prepare(node, claim)["a"])
    (tmp_path / "cdi").unlink()
    assert len(prepare(node, claim)["a"]) == 1
    assert len(specs(tmp_path)) == 1


def test_a_uid_that_would_leave_the_cdi_directory_removes_nothing(tmp_path: Path) -> None:
    uid = "/../../victim"
    (tmp_path / "cdi" / f"{LAMPS}-claim_claim-").mkdir(parents=True)
    (tmp_path / "victim.json").touch()
    assert opened(tmp_path).unprepare((ClaimRef("default", "a", uid),)) == {uid: None}
    assert (tmp_path / "victim.json").exists()
