"""The kernel's CPU counters, parsed from texts of real machines, and what they mean for a claim's CPUs."""

import pytest

from dranode.cpu.isolation.cpu_counters import Begun, cpu_counters
from dranode.driver.claims.held import ClaimRef
from tests.fakes.cpu import cpus

CLAIM = ClaimRef("default", "a", "uid-a")
INTERRUPTS = """           CPU0       CPU1       CPU3
 24:          1          0          7  IO-APIC   5-edge      ACPI:Ged
 36:          0    7460924          2 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 38:          3          0          0 PCI-MSIX-0000:00:03.0   1-edge      eth0-rx, eth0-tx
LOC:   12134621   12040324         12   Local timer interrupts
IPI0:         1          2          3   Rescheduling interrupts
ERR:          0
MIS:          0
"""
SCHEDSTAT = """version 15
timestamp 4295009337
cpu0 0 0 100 50 60 30 2000000000 1000 90
domain0 03 0 0 0
cpu1 0 0 100 50 60 30 500000000 1000 90
cpu3 0 0 100 50 60 30 0 1000 90
"""
STAT = "cpu  10 20 30 40 0 0 0 0 0 0\ncpu0 100 20 30 4000 5 6 7 0 0 0\ncpu1 1 2 3 4 5 6 7 8 9 0\nintr 5 6\n"


def test_interrupts_are_counted_by_cpu_and_named_by_device() -> None:
    now = cpu_counters(INTERRUPTS, "", "")
    assert now.interrupts["36"] == {0: 0, 1: 7460924, 3: 2}
    assert now.names == {
        "24": "ACPI:Ged",
        "36": "virtio1-req.0",
        "38": "eth0-rx, eth0-tx",
        "LOC": "Local timer interrupts",
        "IPI0": "Rescheduling interrupts",
    }


def test_time_is_the_schedulers_or_else_that_of_ticks() -> None:
    both = cpu_counters("", SCHEDSTAT, STAT)
    assert (both.source, both.busy) == ("schedstat", {0: 2.0, 1: 0.5, 3: 0.0})
    ticks = cpu_counters("", "", STAT)
    assert (ticks.source, ticks.busy) == ("stat", {0: 1.5, 1: pytest.approx(0.06)})
    assert cpu_counters("", "version 15\n", "").source == ""


def test_events_on_a_claims_cpus_count_since_it_began() -> None:
    begun = cpu_counters(INTERRUPTS, SCHEDSTAT, STAT).begin(cpus("1,3"))
    fired = {"24": 7, "36": 7460926, "LOC": 12040336, "IPI0": 5}
    assert begun == Begun(interrupts=fired, busy=0.5, source="schedstat")
    later = cpu_counters(
        INTERRUPTS.replace(" 7460924 ", " 7460930 ").replace("12040324", "12040424"),
        SCHEDSTAT.replace("500000000", "750000000"),
        STAT,
    )
    found = later.since(begun, CLAIM, cpus("1,3"))
    assert found.interrupts == {"36 virtio1-req.0": 6}
    assert found.kernel == {"LOC Local timer interrupts": 100}
    assert (found.count, found.busy) == (6, 0.25)


def test_a_new_interrupt_counts_from_zero_and_a_removed_one_is_not_counted() -> None:
    begun = Begun(interrupts={"99": 5}, busy=1.0, source="stat")
    found = cpu_counters(INTERRUPTS, SCHEDSTAT, STAT).since(begun, CLAIM, cpus("3"))
    assert found.interrupts == {"24 ACPI:Ged": 7, "36 virtio1-req.0": 2}
    assert found.busy is None, "another file says other things"


def test_an_interrupt_number_that_another_device_has_now_counts_from_zero() -> None:
    begun = Begun(interrupts={"36": 9})
    assert cpu_counters(INTERRUPTS, "", "").since(begun, CLAIM, cpus("3")).interrupts == {
        "24 ACPI:Ged": 7,
        "36 virtio1-req.0": 2,
    }


def test_counters_that_the_kernel_lacks_for_some_cpus_are_unknown() -> None:
    now = cpu_counters(INTERRUPTS, SCHEDSTAT, STAT)
    # CPU 2 is offline, and CPU 3 was unknown at the beginning.
    for begun, held in ((now.begin(cpus("1")), "1-2"), (now.begin(cpus("2-3")), "3"), (Begun(busy=0.5), "1")):
        found = now.since(begun, CLAIM, cpus(held))
        assert (found.interrupts, found.kernel, found.count, found.busy) == (None, None, None, None)
    quiet = now.since(now.begin(cpus("0")), CLAIM, cpus("0"))
    assert (quiet.interrupts, quiet.count, quiet.busy) == ({}, 0, 0.0)


@pytest.mark.parametrize("text", ["", "\n", "no table\n", "CPU0\nx\n", "           CPU0 CPU1\n 24: 1\n 25: a b\n\n"])
def test_text_that_is_not_a_table_counts_nothing(text: str) -> None:
    now = cpu_counters(text, text, text)
    assert now.interrupts == {}
    found = now.since(now.begin(cpus("0")), CLAIM, cpus("0"))
    assert (found.count, found.busy) == (None, None)
