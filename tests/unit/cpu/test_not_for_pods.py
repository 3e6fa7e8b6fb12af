"""CPUs outside the cgroup of all pods are neither published nor granted, and no container gets them."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError
from dranode.cpu.plugin import CPUPlugin, plugin
from dranode.driver.claims.grant import ClaimGrant
from dranode.driver.claims.held import Held
from dranode.driver.claims.record import Record
from dranode.driver.machine.folder import HostRoot
from tests.fakes.cpu import claim, config, cpus, own, result
from tests.fakes.machine import write_machine

KUBEPODS = "sys/fs/cgroup/kubepods.slice"


def allow(folder: Path, pods: str, nodes: str = "0-1") -> None:
    """Set these CPUs and NUMA nodes for the cgroup of all pods."""
    files = {
        "sys/fs/cgroup/cgroup.controllers": "cpuset",
        f"{KUBEPODS}/cpuset.cpus.effective": pods,
        f"{KUBEPODS}/cpuset.mems.effective": nodes,
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{text}\n")


def driver(folder: Path, pods: str, machine: str = "sockets=1,numa=2,cores=4", **options: Any) -> CPUPlugin:
    """The driver on a machine with eight CPUs, on which pods may use only these CPUs."""
    if not (folder / "sys").exists():
        write_machine(folder, machine)
    allow(folder, pods)
    made = plugin(HostRoot(str(folder)), options)
    assert isinstance(made, CPUPlugin)
    return made


def counts(made: CPUPlugin) -> dict[str, str]:
    return {device.name: str(device.capacity["dra.cpu/cpu"].value) for device in made.discover().devices}


def names(made: CPUPlugin) -> list[str]:
    return [device.name for device in made.discover().devices]


def ask(made: CPUPlugin, wanted: str, options: Mapping[str, Any]) -> ClaimGrant:
    """Request these CPUs, by device or by cpuset; for NUMA nodes, request this number."""
    number = cpus(wanted)
    if options.get("device_mode"):
        asked = claim([result(f"cpu{cpu:03d}", request=f"r{cpu}") for cpu in number])
    elif options.get("group_by"):
        asked = claim([result("cpudevmachine", len(number))], [config(own(cpuset=wanted))])
    else:
        halves = {name: len(number & cpus(whole)) for name, whole in HALVES.items()}
        asked = claim([result(name, count, request=name) for name, count in halves.items() if count])
    return made.grant(asked, Held(), made.discover())


HALVES = {"cpudevnuma000": "0-3", "cpudevnuma001": "4-7"}
MODES: tuple[Mapping[str, Any], ...] = ({}, {"group_by": "machine"}, {"device_mode": "individual"})


def test_only_cpus_on_which_pods_may_run_are_published(tmp_path: Path) -> None:
    made = driver(tmp_path, "0-1,4-6", keep_shared=False)
    assert counts(made) == {"cpudevnuma000": "2", "cpudevnuma001": "3"}
    assert names(driver(tmp_path, "0,5", device_mode="individual", keep_shared=False)) == ["cpu000", "cpu005"]
    assert counts(driver(tmp_path, "0-1", keep_shared=False)) == {"cpudevnuma000": "2"}


def test_a_core_with_only_one_thread_for_pods_is_not_a_whole_core(tmp_path: Path) -> None:
    machine = "sockets=1,cores=4,threads=2"
    made = driver(tmp_path, "0-2,4-5", machine, device_mode="individual", threads="full-core", keep_shared=False)
    assert names(made) == ["core000", "core001"]
    assert any("CPUs 2 share a core with CPUs that are reserved or not for pods" in each for each in warnings(made))


def warnings(made: CPUPlugin) -> tuple[str, ...]:
    return made.discover().warnings


def test_the_cpu_for_containers_without_claims_is_one_that_pods_may_use(tmp_path: Path) -> None:
    assert counts(driver(tmp_path, "0-3", keep_shared=True)) == {"cpudevnuma000": "3"}
    # Reserved CPUs outside the pods' cgroup cannot run containers.
    assert counts(driver(tmp_path, "0-3", keep_shared=True, reserved_cpus="6-7")) == {"cpudevnuma000": "3"}
    assert counts(driver(tmp_path, "0-3", keep_shared=True, reserved_cpus="3")) == {"cpudevnuma000": "3"}


def test_interrupts_may_stay_on_cpus_without_pods(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep_shared": False, "max_isolation": "quiet"}
    assert counts(driver(tmp_path, "0-3", **options)) == {"cpudevnuma000": "4"}
    assert counts(driver(tmp_path, "0-7", **options)) == {"cpudevnuma000": "4", "cpudevnuma001": "3"}


def test_containers_without_claims_get_the_cpus_and_memory_nodes_of_pods(tmp_path: Path) -> None:
    made = driver(tmp_path, "0-1,4-5", reserved_cpus="0,7")
    allow(tmp_path, "0-1,4-5", nodes="1")
    pool = made.pool(made.discover())
    assert (pool.shared, pool.mems) == (cpus("1,4-5"), cpus("1"))
    assert made.unread_pool().online == cpus("0-1,4-5")


@pytest.mark.parametrize("options", MODES)
def test_no_claim_gets_a_cpu_on_which_no_pod_may_run(tmp_path: Path, options: Mapping[str, Any]) -> None:
    made = driver(tmp_path, "0-1,4-5", **options)
    held = ask(made, "0-1,4", options)
    assert held.held == cpus("0-1,4")
    with pytest.raises(ClaimError, match=r"/sys/fs/cgroup/kubepods\.slice|which has 4 left|claims may get"):
        ask(made, "0-2,4-5", options)


def test_a_claim_whose_cpus_are_no_longer_for_pods_is_reported_and_keeps_them(tmp_path: Path) -> None:
    made = driver(tmp_path, "0-7")
    made.discover()
    allow(tmp_path, "0-1,4-5")
    record = Record(uid="u", namespace="default", name="a", cpus=cpus("1-2"), held=cpus("1-2"))
    (lost,) = made.impairments(made.discover(), [record])
    assert lost.reason == "CPUsNotForPods"
    assert lost.message == (
        "claim default/a holds CPUs 2, on which pods may no longer run, and runs only on 1 instead of 1-2: "
        "give them back to /sys/fs/cgroup/kubepods.slice, which has 0-1,4-5, or recreate its pods"
    )
    allow(tmp_path, "1-2")
    assert not list(made.impairments(made.discover(), [record]))


def test_the_devices_of_such_cpus_are_unhealthy(tmp_path: Path) -> None:
    alone = driver(tmp_path, "0-6", device_mode="individual", reserved_cpus="0")
    sentence = "pods may not run on the CPU: /sys/fs/cgroup/kubepods.slice has CPUs 0-6"
    assert {each.device: each.message for each in alone.health(alone.discover())} == {"cpu007": sentence}
    grouped = driver(tmp_path, "0-7")
    grouped.discover()
    allow(tmp_path, "0-3")
    (gone,) = grouped.health(grouped.discover())
    assert gone.device == "cpudevnuma001"
    assert "/sys/fs/cgroup/kubepods.slice lacks it" in gone.message


def test_doctor_and_the_log_name_a_cgroup_that_lacks_cpus(tmp_path: Path) -> None:
    made = driver(tmp_path, "0-1,4-5")
    inventory = made.discover()
    (problem,) = made.problems(inventory)
    assert (problem.code, problem.stops) == ("pods-cgroup-cpus", False)
    assert "CPUs 2-3,6-7" in problem.what
    assert "/sys/fs/cgroup/kubepods.slice has CPUs 0-1,4-5" in problem.what
    assert problem.what in inventory.warnings
    allow(tmp_path, "0-7")
    assert not list(made.problems(made.discover()))


def test_a_cgroup_without_any_cpu_of_the_machine_leaves_nothing_to_publish(tmp_path: Path) -> None:
    made = driver(tmp_path, "")
    assert made.discover().devices == ()
    assert made.pool(made.discover()).online == CPUSet()


def test_a_change_of_the_cgroup_is_noticed_without_a_kernel_event(tmp_path: Path) -> None:
    made = driver(tmp_path, "0-7", "sockets=1,cores=8", keep_shared=False)
    made._events = None
    made.discover()
    stop = threading.Event()
    looks = made.watch(stop)
    allow(tmp_path, "0-3")
    next(looks)
    assert counts(made) == {"cpudevnuma000": "4"}
    stop.set()


def test_local_memory_of_a_node_without_memory_for_pods_is_refused(tmp_path: Path) -> None:
    made = driver(tmp_path, "0-7")
    allow(tmp_path, "0-7", nodes="0")
    with pytest.raises(ClaimError, match=r"node 1, whose memory /sys/fs/cgroup/kubepods\.slice does not give to pods"):
        made.grant(claim([result("cpudevnuma001", 2)], [config(own(memory="local"))]), Held(), made.discover())
