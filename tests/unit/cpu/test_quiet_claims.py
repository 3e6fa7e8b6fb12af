"""Claims with quiet CPUs from Prepare to Unprepare, with a ledger: crashes, restarts, reboots, lost ledgers."""

import contextlib
import errno
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import LedgerError
from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Commit, Prepared, Refused
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger import decoded_notes
from dranode.driver.node.node import NodeClaims
from dranode.show.ledger_reading import read_ledger
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import lose_copy, reference
from tests.fakes.machine import machine
from tests.fakes.node import prepare, specs, unprepare
from tests.fakes.settings import (
    BOOT,
    DEFAULT,
    RPS,
    SYSTEM,
    WORKQUEUE,
    XPS,
    Kernel,
    PowerCutError,
    interrupt,
    quiet_claim,
    values,
)

EIGHT = "sockets=1,cores=4,threads=2"
ALL = (interrupt(24), interrupt(25), interrupt(26), DEFAULT, WORKQUEUE, RPS, XPS, SYSTEM)
BEFORE = ["0-7", "2", "5", "ff", "ff", "0c", "00", ""]
A, B = quiet_claim("a", "2-3"), quiet_claim("b", "5")
PLAIN = quiet_claim("plain", "6", isolation="cpuset")


def started(folder: Path, kernel: Root, boot: str = "first", **options: Any) -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True, parents=True)
    read = read_options({"group_by": "machine", "max_isolation": "partition", **options})
    plugin = CPUPlugin(open_machine(EIGHT), read, host=kernel)
    node = NodeClaims(plugin, folder / "data", folder / "cdi")
    node.open(boot)
    return node


def reason(answer: Any) -> str:
    assert isinstance(answer, Refused)
    return answer.reason


def test_a_quiet_claim_has_its_cpus_to_itself_until_it_is_unprepared(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A, PLAIN)
    assert values(kernel, ALL[:4]) == ["0-1,4-7", "0-1,4-7", "5", "f3"]
    (spec,) = (spec for name, spec in specs(tmp_path).items() if A.metadata.uid in name)
    uid = A.metadata.uid
    assert spec["devices"][0]["containerEdits"]["env"] == [f"DRA_CPUSET_{uid}=2-3", f"DRANODE_ISOLATION_{uid}=quiet"]
    assert unprepare(node, A) == {A.metadata.uid: None}
    assert values(kernel, ALL) == BEFORE


def test_a_claim_without_isolation_changes_nothing(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, PLAIN)
    node.tune()
    unprepare(node, PLAIN)
    assert kernel.written == []


def test_a_claim_with_the_shared_pool_is_told_its_own_cpus(tmp_path: Path) -> None:
    node = started(tmp_path, Kernel())
    mixed = quiet_claim("mixed", "2-3", isolation="cpuset", shared=True)
    prepare(node, mixed)
    (spec,) = specs(tmp_path).values()
    uid = mixed.metadata.uid
    assert spec["devices"][0]["containerEdits"]["env"] == [f"DRA_CPUSET_{uid}=2-3", f"DRANODE_SHARED_{uid}=true"]
    (record,) = node.records()
    assert record.grants[0].attributes["dra.cpu/shared"].bool_ is True
    snapshot = node.snapshot()
    assert snapshot is not None
    (claim,) = snapshot.claims.values()
    assert (claim.with_pool, str(claim.held)) == (True, "2-3")


def test_more_isolation_than_the_administrator_allows_is_refused(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel, max_isolation="cpuset")
    assert reason(prepare(node, A)["a"]) == (
        'request "r" of claim default/a asks for isolation: quiet, but this node allows no more than cpuset '
        "(--max-isolation); ask for less, or let its administrator allow more"
    )
    assert kernel.written == []
    assert node.records() == ()


def test_a_captured_machine_is_not_written_to(tmp_path: Path) -> None:
    node = started(tmp_path, machine({"sys/devices/system/cpu/online": "0-7"}))
    assert "/proc/irq cannot be listed" in reason(prepare(node, A)["a"])
    assert unprepare(node, A) == {A.metadata.uid: None}


def test_a_made_up_machine_shows_where_interrupts_go(tmp_path: Path) -> None:
    made = open_machine(EIGHT)
    node = started(tmp_path, made)
    prepare(node, A)
    assert made.read_bytes(interrupt(24)) == b"0-1,4-7\n"
    assert unprepare(node, A) == {A.metadata.uid: None}
    assert made.read_bytes(interrupt(24)) == b"0-7\n"


def steps(folder: Path, kernel: Kernel) -> NodeClaims:
    node = started(folder, kernel)
    prepare(node, B)
    return node


@pytest.mark.parametrize("what", ["prepare", "unprepare", "both"])
def test_a_crash_before_any_write_is_recovered_from(tmp_path: Path, what: str) -> None:
    cuts = 0
    for lasts in range(60):
        kernel, folder = Kernel(), tmp_path / str(lasts)
        node = steps(folder, kernel)
        if what != "prepare":
            prepare(node, A)
        asked = (A, B) if what == "both" else (A,)
        kernel.lasts = lasts
        try:
            prepare(node, A) if what == "prepare" else unprepare(node, *asked)
        except PowerCutError:
            cuts += 1
        else:
            break
        kernel.lasts = None
        node.close()
        # Repeated calls complete their work; without them, the next check restores the settings once the claim is gone.
        again = started(folder, kernel)
        again.tune()
        if what == "prepare":
            assert isinstance(again.prepare({reference(A): A})[A.metadata.uid], Prepared)
            assert values(kernel, ALL[:4]) == ["0-1,4,6-7", "0-1,4,6-7", "0-1,4,6-7", "d3"]
        assert unprepare(again, A) == {A.metadata.uid: None}
        assert values(kernel, ALL[:4]) == (BEFORE[:4] if what == "both" else ["0-4,6-7", "2", "0-4,6-7", "df"])
        unprepare(again, B)
        assert values(kernel, ALL) == BEFORE
        assert again.store.recovery.notes == ""
        again.close()
    assert cuts >= 4


def test_an_abandoned_claim_leaves_nothing_behind(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    kernel.lasts = 3
    with pytest.raises(PowerCutError):
        prepare(node, A)
    kernel.lasts = None
    node.close()
    again = started(tmp_path, kernel)
    again.tune()
    assert values(kernel, ALL) == BEFORE


def test_after_a_reboot_a_claim_is_quiet_again_only_once_it_is_prepared(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    node.close()
    booted = Kernel()
    booted.files |= {BOOT: "second", interrupt(24): "4"}
    again = started(tmp_path, booted, boot="second")
    again.tune()
    assert booted.written == []
    prepare(again, A)
    assert booted.files[interrupt(25)] == "0-1,4-7"
    unprepare(again, A)
    assert values(booted, ALL) == ["4", *BEFORE[1:]]


def test_a_drain_after_a_reboot_restores_nothing_of_the_earlier_boot(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    node.close()
    booted = Kernel()
    booted.files |= {BOOT: "second", interrupt(24): "4"}
    read = read_options({"group_by": "machine"})
    drained = NodeClaims(CPUPlugin(open_machine(EIGHT), read, host=booted), tmp_path / "data", tmp_path / "cdi")
    assert unprepare(drained, A) == {A.metadata.uid: None}
    assert booted.written == []


def test_two_instances_of_a_rolling_update_share_their_notes(tmp_path: Path) -> None:
    kernel = Kernel()
    older, newer = started(tmp_path, kernel), started(tmp_path, kernel)
    prepare(older, A)
    prepare(newer, B)
    assert kernel.files[interrupt(24)] == "0-1,4,6-7"
    unprepare(newer, A)
    assert kernel.files[interrupt(25)] == "2"
    unprepare(older, B)
    assert values(kernel, ALL) == BEFORE


def test_notes_survive_a_damaged_ledger(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    node.close()
    (tmp_path / "data" / "ledger.db").write_bytes(b"no ledger")
    again = started(tmp_path, kernel)
    moved = dict(kernel.files)
    again.tune()
    assert kernel.files == moved, "its containers run on"
    unprepare(again, A)
    assert values(kernel, ALL) == BEFORE


def test_settings_noted_by_another_version_are_restored(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    kernel.files[interrupt(24)] = "0-1"
    noted = {"original": "0-7", "given": ["0-1", "0-7"], "owner": "eth0", "of a later version": True}
    document = {"boot": "first", "settings": {interrupt(24): noted}, "more": 1}
    with node.store.transaction():
        node.store.commit(Commit(notes=json.dumps(document)))
    node.close()
    again = started(tmp_path, kernel)
    again.tune()
    assert kernel.files[interrupt(24)] == "0-7"
    assert again.store.recovery.notes == ""


def flip(folder: Path) -> None:
    """Alter the notes in the ledger as a flipped bit would: an original value becomes another one."""
    with contextlib.closing(sqlite3.connect(folder / "data" / "ledger.db")) as db, db:
        db.execute("UPDATE meta SET value = replace(value, '\"0-7\"', '\"0-5\"') WHERE key = 'notes'")


def lose_ledger(folder: Path) -> None:
    shutil.rmtree(folder / "data")


def notes_of(folder: Path) -> Any:
    return decoded_notes(read_ledger(folder / "data" / "ledger.db"))


def test_a_flipped_bit_in_the_notes_is_repaired_from_the_copy(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    node.close()
    flip(tmp_path)
    with pytest.raises(LedgerError, match="notes in its ledger are damaged: they do not match their checksum"):
        notes_of(tmp_path)
    again = started(tmp_path, kernel)
    unprepare(again, A)
    assert values(kernel, ALL) == BEFORE
    assert notes_of(tmp_path) is None


def test_notes_of_a_version_without_checksums_are_trusted(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    with node.store.transaction():
        # It writes them to the ledger and to the copy, and leaves the old checksum of a newer version's notes.
        node.store.commit(Commit(notes=node.store.recovery.notes + " "))
    node.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "ledger.db")) as db, db:
        db.execute("UPDATE meta SET value = 'of before' WHERE key = 'notes_checksum'")
    again = started(tmp_path, kernel)
    unprepare(again, A)
    assert values(kernel, ALL) == BEFORE


@pytest.mark.parametrize("harm", ["flip", "lose", "garble"])
def test_settings_without_their_original_values_are_reported_until_the_next_boot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    if harm == "garble":
        with node.store.transaction():
            node.store.commit(Commit(notes='{"boot'))
    node.close()
    lose_copy(tmp_path)
    if harm == "flip":
        flip(tmp_path)
    if harm == "lose":
        lose_ledger(tmp_path)
    again = started(tmp_path, kernel)
    moved = values(kernel, ALL)
    again.tune()
    kernel.files[interrupt(25)] = "2"
    again.tune()
    assert values(kernel, ALL) == moved, "what is known of the claim keeps its CPUs quiet"
    assert unprepare(again, A) == {A.metadata.uid: None}
    again.tune()
    assert values(kernel, ALL) == ["0-1,4-7", "2", "5", "f3", "f3", "00", "00", "0-1,4-7"], "nothing is guessed"
    sentence = "the original settings are lost"
    assert caplog.text.count(sentence) == 1
    assert isinstance(again.plugin, CPUPlugin)
    assert sentence in (again.plugin.remaining or ("",))[0]
    again.close()
    later = started(tmp_path, kernel)
    prepare(later, B)
    assert sentence in (later.plugin.remaining or ("",))[0]  # type: ignore[attr-defined]
    unprepare(later, B)
    assert sentence in later.plugin.unrestorable(notes_of(tmp_path))  # type: ignore[attr-defined]
    later.close()
    kernel.files[BOOT] = "second"
    rebooted = started(tmp_path, kernel, boot="second")
    rebooted.tune()
    assert notes_of(tmp_path) is None


def test_a_ledger_lost_without_a_quiet_claim_has_lost_no_settings(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, PLAIN)
    node.close()
    lose_ledger(tmp_path)
    again = started(tmp_path, kernel)
    again.tune()
    unprepare(again, PLAIN)
    assert notes_of(tmp_path) is None


def test_a_copy_that_lacks_a_line_may_lack_notes(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    prepare(node, B)
    copy = tmp_path / "data" / "ledger.db-copy"
    text = copy.read_bytes()
    node.close()
    lines = text.splitlines(keepends=True)
    lines[-2] = b"x" + lines[-2]
    copy.write_bytes(b"".join(lines))
    (tmp_path / "data" / "ledger.db").write_bytes(b"no ledger")
    again = started(tmp_path, kernel)
    again.tune()
    assert again.plugin.unrestorable(notes_of(tmp_path))  # type: ignore[attr-defined]


def test_a_claim_that_leaves_no_cpu_for_interrupts_is_refused(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel, keep_shared=False)
    everything = quiet_claim("all", "0-7")
    assert "interrupts need one" in reason(prepare(node, everything)["all"])
    assert unprepare(node, everything) == {everything.metadata.uid: None}
    assert kernel.written == []


def test_a_claim_stays_until_its_settings_can_be_restored(tmp_path: Path) -> None:
    kernel = Kernel()
    node = started(tmp_path, kernel)
    prepare(node, A)
    kernel.refuses = dict.fromkeys(ALL, 30)
    answer = unprepare(node, A)[A.metadata.uid]
    assert answer is not None
    assert "Read-only file system" in answer.reason
    kernel.refuses = {}
    assert unprepare(node, A) == {A.metadata.uid: None}
    assert values(kernel, ALL) == BEFORE


def test_the_status_has_the_isolation_and_what_could_not_be_moved(tmp_path: Path) -> None:
    kernel = Kernel()
    kernel.refuses[interrupt(25)] = errno.EIO
    node = started(tmp_path, kernel)
    prepare(node, A, PLAIN)
    for record in node.records():
        (grant,) = record.grants
        said = node.plugin.describe(grant, record, node.inventory)
        if record.name == "plain":
            assert "isolation" not in said
        else:
            (sentence,) = said["stays"]
            assert sentence.startswith("interrupt 25 (nvme0q1) stays where it is")
            assert (said["isolation"], said["staysInAll"], said["cpus"]) == ("quiet", 1, "2-3")
    node.close()
    again = started(tmp_path, kernel)
    (record,) = (each for each in again.records() if each.name == "a")
    said = again.plugin.describe(record.grants[0], record, again.inventory)
    assert "stays" not in said, "nobody has looked since the start"
