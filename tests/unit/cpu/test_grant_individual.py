"""What claims are granted in individual mode; rows of A.7, with devices named by CPU id."""

from typing import Any

import pytest

from dranode.api.errors import ClaimConflictError, ClaimError
from dranode.cdi.spec import ContainerEdits
from dranode.cpu.options import CPUOptions, DeviceMode, Threads
from dranode.cpu.topology import Topology
from dranode.driver.claims.grant import ClaimGrant
from tests.fakes.cpu import MACHINES, claim, config, cpus, granted, holding, own, result
from tests.fakes.topology import regular

INDIVIDUAL = CPUOptions(mode=DeviceMode.INDIVIDUAL)
CORES = CPUOptions(mode=DeviceMode.INDIVIDUAL, threads=Threads.FULL_CORE)
ANEW = "delete the claim so that it is allocated again"
SMT = regular(sockets=1, numa=1, l3=2, cores=2, threads=2)


def take(
    machine: Topology, devices: str, *configs: Any, held: str = "", options: CPUOptions = INDIVIDUAL
) -> ClaimGrant:
    asked = claim([result(device, request=f"r{index}") for index, device in enumerate(devices.split())], configs)
    return granted(machine, asked, options, holding(other=held) if held else None)


def test_a_claim_gets_the_cpus_that_were_allocated() -> None:
    got = take(MACHINES["M1"], "cpu000 cpu001")
    assert got.edits == ContainerEdits(env=("DRA_CPUSET_claim-1=0-1",))
    assert [(grant.request, grant.device, grant.attributes) for grant in got.grants] == [
        ("r0", "cpu000", {}),
        ("r1", "cpu001", {}),
    ]


def test_a_claim_without_results_of_this_driver_gets_nothing() -> None:
    got = granted(MACHINES["M1"], claim([]), INDIVIDUAL)
    assert (got.grants, got.edits, str(got.held)) == ((), None, "")


@pytest.mark.parametrize("device", ["cpudev000", "cpu0", "cpu0000", "gpu000", "core0", "core"])
def test_a_device_that_is_not_a_cpu_is_refused(device: str) -> None:
    with pytest.raises(
        ClaimError, match=f"was allocated {device}, which is neither a CPU nor a core of this node .*; {ANEW}"
    ):
        take(MACHINES["M1"], device)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("cpu007", "which this machine does not have; it has 0-3"),
        ("cpu000", "which is reserved by --reserved-cpus 0"),
        ("cpu001 cpu001", "which it was allocated twice"),
    ],
)
def test_a_cpu_that_is_not_published_is_refused(device: str, why: str) -> None:
    with pytest.raises(ClaimError, match=f"{why}; {ANEW}"):
        take(MACHINES["M1"], device, options=CPUOptions(mode=DeviceMode.INDIVIDUAL, reserved=cpus("0")))


def test_a_cpu_that_another_claim_holds_is_a_conflict() -> None:
    with pytest.raises(ClaimConflictError, match="cpu000, which is not free; 0 held by default/other"):
        take(MACHINES["M1"], "cpu000", held="0")


def test_admin_access_takes_nothing_from_the_holder() -> None:
    got = granted(MACHINES["M1"], claim([result("cpu000", admin_access=True)]), INDIVIDUAL, holding(other="0"))
    assert (str(got.held), got.edits) == ("", None)


@pytest.mark.parametrize("threads", ["full-core", "one-per-core"])
def test_whole_cores_are_checked_over_all_requests(threads: str) -> None:
    with pytest.raises(ClaimError, match=f"requires threads: {threads}, but was allocated 0-1,4, .* 5 are missing"):
        take(SMT, "cpu000 cpu004 cpu001", config(own(threads=threads)))


def test_a_claim_gets_the_cores_that_were_allocated_and_learns_their_cpus() -> None:
    got = take(SMT, "core000 core003", options=CORES)
    assert (str(got.cpus), str(got.held)) == ("0,3-4,7", "0,3-4,7")
    told = [{name: value.int_ or value.string for name, value in grant.attributes.items()} for grant in got.grants]
    assert told == [
        {"dra.cpu/allocatedNumCPUs": 2, "dra.cpu/cpuset": "0,4"},
        {"dra.cpu/allocatedNumCPUs": 2, "dra.cpu/cpuset": "3,7"},
    ]


def test_a_claim_may_run_on_one_thread_of_its_core() -> None:
    got = take(SMT, "core001 core002", config(own(threads="one-per-core")), options=CORES)
    assert (str(got.cpus), str(got.held)) == ("1-2", "1-2,5-6")


@pytest.mark.parametrize(
    ("device", "chosen", "why"),
    [
        ("core002", "2-3", "which is not in the cpuset"),
        ("core001", "0-7", "which is reserved by --reserved-cpus 5"),
        ("core000 core000", "0-7", "which it was allocated twice"),
        ("core003", "0-7", "which is not free; 7 held by default/other"),
        ("core009", "0-7", "which this machine does not have; it has 0-7"),
    ],
)
def test_a_core_is_refused_if_one_of_its_cpus_would_be(device: str, chosen: str, why: str) -> None:
    with pytest.raises(ClaimError, match=why):
        take(SMT, device, config({"cpuset": chosen}), held="7", options=CORES._replace(reserved=cpus("5")))


def test_cpus_allocated_before_cores_were_published_are_granted_as_whole_cores() -> None:
    assert str(take(SMT, "cpu000 cpu004", options=CORES).held) == "0,4"
    assert str(take(SMT, "core000", options=INDIVIDUAL).held) == "0,4"
    with pytest.raises(ClaimError, match="splits cores: 4 are missing"):
        take(SMT, "cpu000", options=CORES)


def test_one_per_core_runs_on_one_thread_of_each_core() -> None:
    got = take(SMT, "cpu004 cpu000", config(own(threads="one-per-core")))
    assert (str(got.cpus), str(got.held)) == ("0", "0,4")


def test_a_required_l3_cache_is_checked() -> None:
    demand = config(own(l3="require"))
    assert str(take(SMT, "cpu000 cpu001", demand).cpus) == "0-1"
    with pytest.raises(ClaimError, match="has l3: require, but was allocated 1-2"):
        take(SMT, "cpu001 cpu002", demand)


def test_of_several_l3_caches_one_may_be_partial() -> None:
    demand = config(own(l3="require"))
    assert str(take(SMT, "cpu000 cpu001 cpu004 cpu005 cpu002", demand).cpus) == "0-2,4-5"
    with pytest.raises(ClaimError, match="does not keep to L3 caches"):
        take(regular(1, 1, 3, 2, 1), "cpu000 cpu002 cpu004", demand)


def test_mere_preferences_never_cause_a_refusal() -> None:
    got = take(SMT, "cpu000 cpu003", config(own(l3="prefer", spread={"policy": "packed"})))
    assert str(got.cpus) == "0,3"


def test_a_cpuset_must_agree_with_the_allocated_cpus() -> None:
    assert str(take(MACHINES["M1"], "cpu000 cpu001", config({"cpuset": "0-1"})).cpus) == "0-1"
    with pytest.raises(ClaimError, match="cpu002, which is not in the cpuset of its configuration, 0-1; select"):
        take(MACHINES["M1"], "cpu002", config({"cpuset": "0-1"}))
