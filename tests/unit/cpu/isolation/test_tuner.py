"""Settings on a machine whose kernel behaves like Linux."""

import errno
import logging
import os

import pytest

from dranode.api.errors import ClaimError, DocumentError
from dranode.cpu.isolation.tuner import Tuner, disturbances
from tests.fakes.settings import (
    BOOT,
    DEFAULT,
    IRQ,
    ONLINE,
    RPS,
    SYSTEM,
    WORKQUEUE,
    XPS,
    Kernel,
    MemoryNotes,
    interrupt,
    quiet_record,
    settle,
    values,
)

ALL = (interrupt(24), interrupt(25), interrupt(26), DEFAULT, WORKQUEUE, RPS, XPS, SYSTEM)
BEFORE = ["0-7", "2", "5", "ff", "ff", "0c", "00", ""]
A, B = quiet_record("a", "2-3"), quiet_record("b", "5")


def test_all_settings_leave_a_claims_cpus_and_are_restored() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    moved = ["0-1,4-7", "0-1,4-7", "5", "f3", "f3", "00", "00", "0-1,4-7"]
    assert values(kernel, ALL) == moved
    kernel.written.clear()
    tuner.tune([A], notes)
    assert kernel.written == []
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE
    assert notes.document is None


def test_packet_steering_needs_a_separate_permission() -> None:
    kernel = Kernel()
    kernel.refuses[RPS] = errno.EPERM
    with pytest.raises(ClaimError, match="rps_cpus cannot be written: Operation not permitted"):
        Tuner(kernel).tune([A], MemoryNotes(kernel))


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM])
def test_interrupts_that_the_kernel_places_itself_stay_and_are_reported(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    kernel = Kernel()
    kernel.refuses[interrupt(25)] = number
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    assert values(kernel, ALL[:2]) == ["0-1,4-7", "2"]
    said = os.strerror(number)
    assert tuner.remaining == (f"interrupt 25 (nvme0q1) stays where it is: the kernel says {said}",)
    tuner.tune([A], notes)
    assert len(caplog.records) == 1, "said once"
    Tuner(kernel).tune([], notes)
    assert values(kernel, ALL) == BEFORE
    assert notes.document is None


def test_an_interrupt_without_a_free_vector_is_tried_again() -> None:
    kernel = Kernel()
    kernel.refuses[interrupt(24)] = errno.ENOSPC
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    assert tuner.remaining == ("interrupt 24 (eth0) stays where it is: the kernel says No space left on device",)
    kernel.refuses.clear()
    tuner.tune([A], notes)
    assert kernel.files[interrupt(24)] == "0-1,4-7"
    assert not tuner.remaining


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_machine_is_refused(number: int) -> None:
    kernel = Kernel()
    kernel.refuses = dict.fromkeys(ALL, number)
    with pytest.raises(ClaimError, match=r"smp_affinity_list cannot be written: .*components/isolation"):
        Tuner(kernel).tune([A], MemoryNotes(kernel))


def test_settings_are_restored_even_if_one_of_them_cannot_be() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.refuses[interrupt(24)] = errno.EROFS
    with pytest.raises(ClaimError, match="irq/24/smp_affinity_list cannot be written: Read-only file system"):
        tuner.tune([], notes)
    assert values(kernel, ALL) == ["0-1,4-7", *BEFORE[1:]]
    kernel.refuses.clear()
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE
    assert notes.document is None


def test_a_setting_that_cannot_be_restored_is_reported_and_stays_on_record(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.refuses[interrupt(25)] = errno.ENOSPC
    tuner.tune([], notes)
    said = "interrupt 25 (nvme0q1) stays where it is: the kernel says No space left on device"
    assert tuner.remaining == (said,)
    assert said in caplog.text
    kernel.refuses.clear()
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE
    assert not tuner.remaining


def test_notes_of_another_version_are_not_forgotten() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kept = notes.document
    notes.document = kept | {"settings": {interrupt(24): {"before": "0-7"}}}
    with pytest.raises(
        ClaimError,
        match=r"in a form that this version cannot read \(.*\); go back to the version that wrote it, or reboot",
    ):
        tuner.tune([], notes)
    assert list(disturbances(kernel, [A], notes.document)) == []
    notes.document = kept
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE


@pytest.mark.parametrize(
    ("path", "original", "what"),
    [
        ("sys/kernel/later/cpumask", "0-5", "/sys/kernel/later/cpumask"),
        ("run/systemd/machine.slice", "", "machine.slice"),
    ],
)
def test_unknown_settings_of_a_later_version_stay_on_record_and_are_reported(
    path: str, original: str, what: str
) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.files["sys/kernel/later/cpumask"] = "f3"
    notes.document["settings"][path] = {"original": original, "given": ["0-7", "0-1,4-7"], "more": "of it"}
    for claims in ([A], []):
        settle(tuner, claims, notes)
        (sentence,) = (sentence for sentence in tuner.remaining if what in sentence)
        assert sentence == (
            f"{what} cannot be read now, or only another version of the driver knows it: it stays unchanged, and on "
            f"record with its original CPUs ({original or 'none named'})"
        )
        assert notes.document["settings"][path]["original"] == original
    assert values(kernel, ALL) == BEFORE
    assert list(notes.document["settings"]) == [path]


def test_a_claim_recorded_by_another_version_is_named_and_has_unknown_disturbances() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    later = quiet_record("later", "5", isolation="of a later version")
    with pytest.raises(DocumentError, match="the record of claim default/later is from another version: isolation"):
        tuner.tune([A, later], notes)
    (found,) = disturbances(kernel, [later], notes.document)
    assert (str(found.cpus), found.count) == ("5", None)


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        # On the online CPUs of new interrupts, or near its device.
        ("0-1,4-7", "0-7"),
        ("0-1,4-6", "0-6"),
        ("0-1", "0-3"),
        # Its driver has set another affinity.
        ("5", "5"),
        ("0,4", "0,4"),
    ],
)
def test_a_later_interrupt_ends_where_it_would_have_begun_without_claims(begins: str, ends: str) -> None:
    kernel = Kernel()
    for node, near in enumerate(("0-3", "4-7")):
        kernel.files[f"sys/devices/system/node/node{node}/cpulist"] = near
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.files |= {interrupt(40): begins, f"{IRQ}/40/eth1/.": ""}
    kernel.files[ONLINE] = "0-6" if begins == "0-1,4-6" else "0-7"
    Tuner(kernel).tune([A], notes)
    assert kernel.files[interrupt(40)] == begins
    Tuner(kernel).tune([], notes)
    assert kernel.files[interrupt(40)] == ends
    assert notes.document is None


def test_an_earlier_interrupt_keeps_an_affinity_that_looks_like_a_later_ones() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    kernel.files |= {interrupt(40): "0-1,4-7", f"{IRQ}/40/eth1/.": ""}
    tuner.tune([A], notes)
    kernel.unread[interrupt(40)] = errno.EIO
    tuner.tune([A], notes)
    kernel.unread.clear()
    tuner.tune([A, B], notes)
    assert kernel.files[interrupt(40)] == "0-1,4,6-7"
    tuner.tune([], notes)
    assert kernel.files[interrupt(40)] == "0-1,4-7"


def test_no_interrupt_is_later_by_notes_of_a_version_that_did_not_list_them() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    kernel.files |= {interrupt(40): "0-1,4-7", f"{IRQ}/40/eth1/.": ""}
    tuner.tune([A], notes)
    del notes.document["interrupts"]
    tuner.tune([A], notes)
    tuner.tune([], notes)
    assert kernel.files[interrupt(40)] == "0-1,4-7"


def test_a_later_interrupt_that_the_kernel_places_itself_is_forgotten() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.files |= {interrupt(40): "0-1,4-7", f"{IRQ}/40/nvme1q1/.": ""}
    kernel.refuses[interrupt(40)] = errno.EIO
    tuner.tune([A], notes)
    tuner.tune([], notes)
    assert (kernel.files[interrupt(40)], notes.document) == ("0-1,4-7", None)


def test_settings_that_somebody_else_resets_are_changed_again_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.files[interrupt(24)], kernel.files[interrupt(26)] = "3", "7"
    tuner.tune([A], notes)
    assert values(kernel, (interrupt(24), interrupt(26))) == ["0-1,4-7", "7"]
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("cpus=2-3: another program has put interrupt 24 (eth0) there again (1 in total)")
    # A device that now has the number was not moved by anybody.
    kernel.remove(f"{IRQ}/25")
    kernel.files |= {interrupt(25): "0-7", f"{IRQ}/25/eth2/.": ""}
    tuner.tune([A], notes)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("written", "expected"),
    [(("ff", "f1"), "fd"), (("ff", "f1", "f3"), "ff"), (("fd", "f3"), "ff"), (("ff", "07"), "07")],
)
def test_cpus_for_new_interrupts_that_cri_o_edits_get_back_those_that_claims_took_out(
    written: tuple[str, ...], expected: str
) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    for value in written:
        kernel.files[DEFAULT] = value
        for _ in range(2):
            tuner.tune([A], notes)
    tuner.tune([], notes)
    assert kernel.files[DEFAULT] == expected
    assert notes.document is None


def test_without_proc_irq_nothing_is_promised() -> None:
    kernel = Kernel()
    kernel.remove(IRQ)
    with pytest.raises(ClaimError, match="/proc/irq cannot be listed, so interrupts cannot be moved"):
        Tuner(kernel).tune([A], MemoryNotes(kernel))


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (WORKQUEUE, "unbound kernel work stays, because there is no /sys/devices/virtual/workqueue/cpumask"),
        ("sys/fs/cgroup/cgroup.controllers", "the host's services stay, because /sys/fs/cgroup is not cgroup v2"),
        (
            SYSTEM,
            (
                "system.slice stays, because systemd does not answer at /run/dbus/system_bus_socket and the cpuset "
                "controller is not on in /sys/fs/cgroup/cgroup.subtree_control"
            ),
        ),
    ],
)
def test_settings_that_the_machine_lacks_are_reported(gone: str, sentence: str) -> None:
    kernel = Kernel()
    kernel.files["sys/fs/cgroup/system.slice/cgroup.procs"] = ""
    del kernel.files[gone]
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert tuner.remaining == (sentence,)
    assert kernel.files[interrupt(24)] == "0-1,4-7"


@pytest.mark.parametrize(
    ("path", "text"), [(interrupt(24), "what"), (DEFAULT, "what"), (DEFAULT, ""), (WORKQUEUE, "what"), (WORKQUEUE, "")]
)
def test_settings_that_are_not_cpu_lists_are_reported(path: str, text: str) -> None:
    kernel = Kernel()
    kernel.files[path] = text
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert tuner.remaining == (f"the work that /{path} places stays, because it is not a list of CPUs",)
    assert kernel.files[interrupt(25)] == "0-1,4-7"


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        (interrupt(24), f"the work that /{interrupt(24)} places stays, because it is not a list of CPUs"),
        (f"{IRQ}/24", f"the work that /{interrupt(24)} places stays, because its device cannot be read"),
        (RPS, f"the work that /{RPS} places stays, because it is not a list of CPUs"),
        ("sys/class/net/eth0/ifindex", f"the work that /{RPS} places stays, because its device cannot be read"),
        ("sys/class/net/eth0/queues", "the packets of network devices stay, because /sys/class/net/eth0/queues cannot"),
    ],
)
def test_unreadable_settings_are_reported(hidden: str, sentence: str, error: int) -> None:
    kernel = Kernel()
    before = dict(kernel.files)
    kernel.unread[hidden] = error
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    assert any(said.startswith(sentence) for said in tuner.remaining), tuner.remaining
    assert kernel.files[interrupt(25)] == "0-1,4-7"
    tuner.tune([], notes)
    assert kernel.files == before | {SYSTEM: "0-7"}


def test_an_interrupt_without_an_affinity_is_reported_if_it_has_a_device() -> None:
    kernel = Kernel()
    del kernel.files[interrupt(24)]
    kernel.files[f"{IRQ}/27/spurious"] = ""
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert tuner.remaining == (f"interrupt 24 (eth0) stays, because there is no /{interrupt(24)}",)


def test_the_default_affinity_is_not_an_interrupt() -> None:
    kernel = Kernel()
    kernel.refuses[DEFAULT] = errno.ENOSPC
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert tuner.remaining == (f"/{DEFAULT} stays where it is: the kernel says No space left on device",)


def test_a_moved_interrupt_that_is_refused_later_is_retried_and_restored() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.refuses[interrupt(24)] = errno.EIO
    tuner.tune([A, B], notes)
    assert tuner.remaining == ("interrupt 24 (eth0) stays where it is: the kernel says Input/output error",)
    kernel.refuses.clear()
    tuner.tune([A, B], notes)
    assert kernel.files[interrupt(24)] == "0-1,4,6-7"
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE


@pytest.mark.parametrize(
    "folder",
    [
        "kubepods.slice",
        "k3s.service/kubepods",
        "containerd.service/kubelet/kubepods/besteffort",
        "a.slice/kubelet-kubepods.slice",
    ],
)
def test_a_slice_with_pods_keeps_its_cpus(folder: str) -> None:
    kernel = Kernel()
    kernel.files[f"sys/fs/cgroup/system.slice/{folder}/cgroup.procs"] = ""
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert kernel.files[SYSTEM] == ""
    assert tuner.remaining == ("system.slice stays, because pods are in it",)


@pytest.mark.parametrize("folder", ["sys/fs/cgroup/system.slice", "sys/fs/cgroup/system.slice/k3s.service"])
def test_a_slice_that_cannot_be_read_keeps_its_cpus(folder: str) -> None:
    kernel = Kernel()
    kernel.files["sys/fs/cgroup/system.slice/k3s.service/kubepods/cgroup.procs"] = ""
    kernel.unread[folder] = errno.EACCES
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert kernel.files[SYSTEM] == ""
    (sentence,) = tuner.remaining
    assert sentence == (
        f"system.slice stays, because /{folder} cannot be listed, so it is not known whether pods are in it: "
        "Permission denied"
    )


def test_a_slice_in_which_pods_appear_gets_its_cpus_back() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    assert kernel.files[SYSTEM] == "0-1,4-7"
    kernel.files["sys/fs/cgroup/system.slice/k3s.service/kubepods/cgroup.procs"] = ""
    tuner.tune([A], notes)
    assert kernel.files[SYSTEM] == "0-7"
    kernel.written.clear()
    tuner.tune([A], notes)
    assert kernel.written == []


@pytest.mark.parametrize("path", [interrupt(24), f"{IRQ}/24", RPS, DEFAULT, SYSTEM])
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_temporarily_unreadable_setting_is_restored_afterwards(path: str, error: int) -> None:
    kernel = Kernel()
    before = dict(kernel.files)
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    kernel.unread[path] = error
    tuner.tune([], notes)
    assert kernel.files != before
    assert notes.document is not None
    kernel.unread.clear()
    tuner.tune([], notes)
    changed = {name: text for name, text in kernel.files.items() if text != before[name]}
    assert changed in ({}, {SYSTEM: "0-7"}), "a slice with processes gets all CPUs instead"
    assert notes.document is None


def test_a_setting_that_is_unreadable_after_its_write_stays_on_record() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    write = kernel.write

    def writes_and_hides(path: str, content: str) -> None:
        write(path, content)
        if path == interrupt(24):
            kernel.unread[path] = errno.EIO

    kernel.write = writes_and_hides  # type: ignore[method-assign]
    tuner.tune([A], notes)
    assert notes.document["settings"][interrupt(24)]["original"] == "0-7"


def test_network_devices_that_cannot_be_listed_are_reported() -> None:
    kernel = Kernel()
    kernel.unread["sys/class/net"] = errno.EACCES
    tuner = Tuner(kernel)
    tuner.tune([A], MemoryNotes(kernel))
    assert tuner.remaining == (
        "the packets of network devices stay, because /sys/class/net cannot be listed: Permission denied",
    )


def test_a_kubelet_service_is_not_a_pod() -> None:
    kernel = Kernel()
    kernel.files["sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs"] = ""
    Tuner(kernel).tune([A], MemoryNotes(kernel))
    assert kernel.files[SYSTEM] == "0-1,4-7"


def test_offline_cpus_of_a_claim_do_not_prevent_the_end_of_another(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A, B], notes)
    before = dict(kernel.files)
    kernel.files[ONLINE] = "5"
    tuner.tune([B], notes)
    assert kernel.files == before | {ONLINE: "5"}
    assert "claims want all online CPUs (5) quiet, so nothing is moved" in caplog.text
    kernel.files[ONLINE] = "0-7"
    tuner.tune([B], notes)
    assert values(kernel, ALL[:2]) == ["0-4,6-7", "2"]
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE


def test_a_kernel_without_a_list_of_online_cpus_is_refused() -> None:
    kernel = Kernel()
    del kernel.files[ONLINE]
    with pytest.raises(ClaimError, match="does not report which CPUs are online"):
        Tuner(kernel).tune([A], MemoryNotes(kernel))


INTERRUPTS, STAT = "proc/interrupts", "proc/stat"


def fired(kernel: Kernel, count: int, ticks: int) -> None:
    kernel.files[INTERRUPTS] = f"     CPU2 CPU3\n 25: {count} 1 PCI-MSI 1-edge  nvme0q1\n"
    kernel.files[STAT] = f"cpu2 {ticks} 0 0 5\ncpu3 0 0 0 5"


def test_disturbances_of_a_claim_count_from_its_start_to_its_end() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    fired(kernel, 10, 100)
    tuner.tune([A], notes)
    fired(kernel, 13, 150)
    tuner.tune([A, B], notes)
    (found,) = (each for each in disturbances(kernel, [A, B], notes.document) if each.claim == A.ref)
    assert (str(found.cpus), found.interrupts, found.busy) == ("2-3", {"25 nvme0q1": 3}, 0.5)
    tuner.tune([B], notes)
    tuner.tune([A, B], notes)
    (found,) = (each for each in disturbances(kernel, [A, B], notes.document) if each.claim == A.ref)
    assert (found.count, found.busy) == (0, 0.0), "a claim that came again has begun anew"
    kernel.files[BOOT] = "second"
    for noted in (notes.document, None):
        (found,) = disturbances(kernel, [A, quiet_record("plain", "6", isolation="cpuset")], noted)
        assert (found.claim, found.count, found.busy) == (A.ref, None, None), "when it began is not known"


def test_nothing_is_forgotten_if_the_boot_id_is_unknown() -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([A], notes)
    del kernel.files[BOOT]
    with pytest.raises(ClaimError, match="boot_id cannot be read"):
        tuner.tune([], notes)
    kernel.files[BOOT] = "first"
    tuner.tune([], notes)
    assert values(kernel, ALL) == BEFORE
