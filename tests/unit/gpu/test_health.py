import pytest
from msgspec.structs import replace

from dranode.api.errors import MachineError
from dranode.driver.claims.plugin import Health
from dranode.gpu.health import (
    AERCounts,
    Cause,
    GPUCondition,
    counted,
    expired,
    handled,
    needs,
    present,
    report,
    taints,
    wedged,
    xid,
)
from dranode.gpu.inventory import GPUInventory
from dranode.gpu.scan import scan
from dranode.gpu.sysfs import aer_counts
from tests.fakes.gpu import DEVICES
from tests.fakes.gpu_machines import flex, hgx, laptop

NOON = 1_800_000_000.0
GPU, NAME = "0000:01:00.0", "gpu-0000-01-00-0"


def start() -> GPUCondition:
    return present(GPUCondition(), scan(laptop().root()), NOON)


def state(condition: GPUCondition, name: str = NAME) -> tuple[Health, str]:
    (one,) = (each for each in report(condition) if each.device == name)
    return one.health, one.message


def test_gpus_are_healthy_until_an_error_is_seen() -> None:
    assert {one.health for one in report(start())} == {Health.HEALTHY}
    assert taints(start()) == {}


def test_errors_from_before_the_first_check_do_not_count() -> None:
    assert state(counted(start(), GPU, AERCounts(fatal=3, nonfatal=9), NOON)) == (Health.HEALTHY, "")


@pytest.mark.parametrize(
    ("counts", "cause", "words"),
    [
        (AERCounts(fatal=2), Cause.AER_FATAL, "2 uncorrected PCIe fatal"),
        (AERCounts(nonfatal=1), Cause.AER_NONFATAL, "non-fatal"),
    ],
)
def test_growing_counters_are_trouble_until_they_have_been_quiet(counts: AERCounts, cause: Cause, words: str) -> None:
    condition = counted(counted(start(), GPU, AERCounts(), NOON), GPU, counts, NOON + 10)
    health, message = state(condition)
    assert health is Health.UNHEALTHY
    assert words in message
    assert taints(condition)[NAME][0].value == cause
    assert state(expired(condition, NOON + 609)) == (health, message)
    assert state(expired(condition, NOON + 610)) == (Health.HEALTHY, "")


def test_more_errors_prolong_the_trouble_and_keep_its_start() -> None:
    condition = counted(counted(start(), GPU, AERCounts(), NOON), GPU, AERCounts(fatal=1), NOON + 10)
    condition = counted(condition, GPU, AERCounts(fatal=2), NOON + 500)
    assert state(expired(condition, NOON + 1000))[0] is Health.UNHEALTHY
    assert taints(condition)[NAME][0].time_added == "2027-01-15T08:00:10Z"


def test_falling_counters_have_restarted() -> None:
    condition = counted(counted(start(), GPU, AERCounts(fatal=5), NOON), GPU, AERCounts(fatal=1), NOON)
    assert state(condition)[0] is Health.HEALTHY
    assert state(counted(condition, GPU, AERCounts(fatal=2), NOON))[0] is Health.UNHEALTHY


def test_a_wedged_gpu_is_unhealthy_until_it_reports_its_recovery() -> None:
    condition = wedged(start(), GPU, "rebind,bus-reset", NOON)
    assert "recovered by rebind,bus-reset" in state(condition)[1]
    assert state(expired(condition, NOON + 1e6))[0] is Health.UNHEALTHY
    assert state(wedged(condition, GPU, "none", NOON + 5)) == (Health.HEALTHY, "")


@pytest.mark.parametrize("action", ["bind", "add"])
def test_a_rebound_gpu_has_no_earlier_trouble(action: str) -> None:
    condition = xid(wedged(start(), GPU, "rebind", NOON), GPU, 79, NOON)
    assert state(handled(condition, "unbind", GPU))[0] is Health.UNHEALTHY
    assert state(handled(condition, action, GPU))[0] is Health.HEALTHY


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 94])
def test_xids_of_programs_leave_the_gpu_healthy(number: int) -> None:
    assert state(xid(start(), GPU, number, NOON))[0] is Health.HEALTHY


@pytest.mark.parametrize("number", [48, 109])
def test_other_xids_last_an_hour(number: int) -> None:
    condition = xid(start(), GPU, number, NOON)
    assert state(condition) == (Health.UNHEALTHY, f"NVIDIA XID {number} (since 2027-01-15T08:00:00Z)")
    assert state(expired(condition, NOON + 3600))[0] is Health.HEALTHY


def test_a_gpu_that_must_be_reset_is_unhealthy_until_the_driver_says_that_it_need_not() -> None:
    condition = needs(xid(start(), GPU, 79, NOON), GPU, "NVIDIA's driver asks for a reset of the GPU", NOON)
    assert state(expired(condition, NOON + 1e6)) == (
        Health.UNHEALTHY,
        "NVIDIA's driver asks for a reset of the GPU (since 2027-01-15T08:00:00Z)",
    )
    assert state(needs(condition, GPU, "", NOON + 1)) == (Health.HEALTHY, "")


def test_a_gpu_that_disappears_is_reported_until_it_is_back() -> None:
    inventory = scan(laptop().root())
    without = GPUInventory(inventory.gpus[:1])
    condition = present(present(GPUCondition(), inventory, NOON), without, NOON + 1)
    assert state(condition) == (Health.UNHEALTHY, "the GPU vanished from the PCI bus (since 2027-01-15T08:00:01Z)")
    assert state(present(condition, inventory, NOON + 2)) == (Health.HEALTHY, "")


def test_a_gpu_on_the_bus_that_is_left_out_is_not_reported_as_gone() -> None:
    machine = laptop()
    machine.fail(f"{DEVICES}/{GPU}/class")
    assert state(present(start(), scan(machine.root()), NOON)) == (
        Health.UNHEALTHY,
        "PCI function 0000:01:00.0 is left out: its class cannot be read (since 2027-01-15T08:00:00Z)",
    )
    machine = laptop()
    machine.nvidia(GPU, 0, "NVIDIA RTX", "GPU-x", excluded="Yes")
    assert state(present(start(), scan(machine.root()), NOON))[1].startswith("GPU 0000:01:00.0 is left out: NVIDIA's")


def test_partitions_that_an_administrator_removed_are_forgotten() -> None:
    before, after = scan(flex().root()), scan(flex(vfs=0).root())
    condition = present(present(GPUCondition(), before, NOON), after, NOON + 1)
    assert [one.device for one in report(condition)] == ["gpu-0000-4d-00-0"]


def test_trouble_of_a_gpu_affects_only_its_partitions() -> None:
    condition = present(GPUCondition(), scan(flex(vfs=2).root()), NOON)
    assert set(taints(wedged(condition, "0000:4d:00.0", "rebind", NOON))) == {
        "gpu-0000-4d-00-0",
        "gpu-0000-4d-00-1",
        "gpu-0000-4d-00-2",
    }
    assert set(taints(wedged(condition, "0000:4d:00.1", "rebind", NOON))) == {"gpu-0000-4d-00-1"}


def test_a_taint_is_the_same_at_every_check() -> None:
    condition = wedged(start(), GPU, "rebind", NOON)
    later = counted(condition, GPU, AERCounts(), NOON + 99)
    assert taints(later) == taints(condition)
    (taint,) = taints(condition)[NAME]
    assert (taint.key, taint.value, taint.effect) == ("dra.gpu/unhealthy", "wedged", "NoSchedule")


def test_a_message_fits_the_protocol_with_every_cause_at_once() -> None:
    condition = wedged(start(), GPU, "rebind,bus-reset,vendor-specific", NOON)
    condition = counted(counted(condition, GPU, AERCounts(), NOON), GPU, AERCounts(10**9, 10**9), NOON)
    condition = xid(condition, GPU, 79, NOON)
    condition = present(condition, GPUInventory(), NOON)
    assert len(state(condition)[1].encode()) <= 1024


def test_aer_counters_are_read_from_their_totals() -> None:
    machine = hgx()
    folder = machine.root().resolve(f"{DEVICES}/0000:1b:00.0")
    machine.put(f"{folder}/aer_dev_fatal", "DLP 4\nTOTAL_ERR_FATAL 4")
    assert aer_counts(machine.root(), "0000:1b:00.0") == AERCounts(fatal=4)


def test_a_function_without_aer_has_no_counts() -> None:
    assert aer_counts(hgx().root(), "0000:ff:00.0") is None


def test_empty_counters_are_unreadable() -> None:
    machine = hgx()
    machine.put(machine.root().resolve(f"{DEVICES}/0000:1b:00.0") + "/aer_dev_fatal", "TOTAL_ERR_FATAL many")
    with pytest.raises(MachineError, match=r"0000:1b:00\.0/aer_dev_fatal cannot be read: it has no TOTAL_ERR_FATAL"):
        aer_counts(machine.root(), "0000:1b:00.0")


def test_a_gpu_with_unreadable_counters_is_not_healthy() -> None:
    condition = replace(start(), unread={GPU: "/sys/aer_dev_fatal cannot be read: Input/output error"})
    assert state(condition) == (Health.UNKNOWN, "/sys/aer_dev_fatal cannot be read: Input/output error")
    assert taints(condition) == {}
    assert state(wedged(condition, GPU, "rebind", NOON))[0] is Health.UNHEALTHY
    assert state(replace(condition, unread={})) == (Health.HEALTHY, "")
