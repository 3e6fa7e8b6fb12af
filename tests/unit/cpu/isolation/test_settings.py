"""The values of settings while claims want quiet CPUs, and how they are restored, whatever happens in between."""

import json

import pytest

from dranode.api.cpuset import CPUSet, mask_text
from dranode.api.errors import DocumentError
from dranode.cpu.isolation.settings import Kind, Machine, Noted, Setting, Tuning, TuningNotes, goal, noted_after, tuning
from tests.fakes.cpu import cpus

ONLINE = "0-7"
FILE = "proc/irq/24/smp_affinity_list"


def machine(quiet: str, online: str = ONLINE, reserved: str = "") -> Machine:
    return Machine(cpus(online), cpus(reserved), cpus(quiet))


def setting(now: str, kind: Kind = Kind.INTERRUPT, owner: str = "eth0") -> Setting:
    return Setting(FILE, kind, cpus(now), owner)


def notes(original: str, *given: str, owner: str = "eth0", refused: str = "") -> TuningNotes:
    return TuningNotes(settings={FILE: Noted(original=original, given=given, owner=owner, refused=refused)})


def written(tuned: Tuning) -> list[str]:
    return [str(write.cpus) for write in tuned.writes]


@pytest.mark.parametrize(
    ("kind", "original", "quiet", "expected"),
    [
        (Kind.INTERRUPT, "0-7", "2-3", "0-1,4-7"),
        (Kind.INTERRUPT, "0-1", "2-3", "0-1"),
        # An offline CPU may come back.
        (Kind.INTERRUPT, "0-7,9", "2-3", "0-1,4-7,9"),
        (Kind.INTERRUPT, "2", "2-3", "0-1,4-7"),
        # CPU 9 is offline: the kernel refuses an affinity without an online CPU.
        (Kind.INTERRUPT, "2,9", "2-3", "0-1,4-7"),
        (Kind.NEW_INTERRUPTS, "0-7", "0", "1-7"),
        (Kind.WORKQUEUE, "2", "2", "0-1,3-7"),
        (Kind.QUEUE, "2-3", "2", "3"),
        (Kind.QUEUE, "2", "2", ""),
        (Kind.QUEUE, "", "2", ""),
        (Kind.SLICE, "", "2-3", "0-1,4-7"),
        (Kind.SLICE, "", "", ""),
        (Kind.SLICE, "2-5", "2-3", "4-5"),
        (Kind.SLICE, "2-3", "2-3", "0-1,4-7"),
    ],
)
def test_a_setting_is_its_original_without_the_quiet_cpus(kind: Kind, original: str, quiet: str, expected: str) -> None:
    assert str(goal(kind, cpus(original), machine(quiet))) == expected


def test_interrupts_without_another_cpu_go_to_the_reserved_cpus() -> None:
    assert str(goal(Kind.INTERRUPT, cpus("2"), machine("2", reserved="0-1"))) == "0-1"
    assert str(goal(Kind.INTERRUPT, cpus("0"), machine("0-1", reserved="0-1"))) == "2-7"


def test_a_change_is_noted_with_the_values_before_and_after() -> None:
    tuned = tuning([setting("0-7")], TuningNotes(boot="b"), machine("2"))
    assert written(tuned) == ["0-1,3-7"]
    known = Noted(original="0-7", given=("0-7", "0-1,3-7"), owner="eth0")
    assert tuned.notes == TuningNotes(boot="b", settings={FILE: known})


def test_a_correct_setting_is_neither_written_nor_noted() -> None:
    assert tuning([setting("0-1")], TuningNotes(), machine("2")) == Tuning(TuningNotes())


def test_a_refused_change_is_not_tried_again_until_its_claim_ends() -> None:
    tuned = tuning([setting("2")], TuningNotes(), machine("2"))
    kept = noted_after(tuned, {FILE: setting("2")}, {FILE: "Input/output error"})
    assert kept.settings[FILE].refused == "Input/output error"
    assert tuning([setting("2")], kept, machine("2")) == Tuning(kept)
    assert tuning([setting("2")], kept, machine("3")) == Tuning(TuningNotes())


def test_a_value_that_the_kernel_adjusted_is_recognized_as_ours() -> None:
    tuned = tuning([setting("0-7")], TuningNotes(), machine("2"))
    kept = noted_after(tuned, {FILE: setting("0")}, {})
    assert tuning([setting("0")], kept, machine("")).writes[0].cpus == cpus("0-7")


@pytest.mark.parametrize("document", [None, {"boot": "earlier", "settings": {}}, {"settings": 3}, ["x"], "x"])
def test_notes_of_another_boot_and_invalid_notes_are_ignored(document: object) -> None:
    assert TuningNotes.read(document, "now") == TuningNotes(boot="now")


@pytest.mark.parametrize("noted", [3, {FILE: {"original": ["0-7"]}}, {FILE: {"original": "all"}}, {FILE: {}}])
def test_unreadable_notes_of_this_boot_are_an_error(noted: object) -> None:
    with pytest.raises(DocumentError, match="settings"):
        TuningNotes.read({"boot": "now", "settings": noted}, "now")


def test_notes_in_the_first_format_are_read() -> None:
    document = {
        "boot": "now",
        "settings": {FILE: {"original": "0-7", "given": ["0-7", "0-1"], "owner": "eth0", "refused": "no"}},
    }
    read = TuningNotes.read(document, "now")
    assert read == TuningNotes(boot="now", settings=notes("0-7", "0-7", "0-1", refused="no").settings)
    assert json.loads(json.dumps(read.document())) == document
    assert TuningNotes(boot="now").document() is None


@pytest.mark.parametrize("listed", ["", "0", "0-31", "31-32", "0,63-64,1023"])
def test_a_mask_is_written_in_the_kernels_format(listed: str) -> None:
    assert CPUSet.parse_mask(mask_text(cpus(listed))) == cpus(listed)
    assert all(len(word) == 8 for word in mask_text(cpus(listed)).split(","))
