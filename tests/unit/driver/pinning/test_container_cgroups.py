"""The one rule that says which container a cgroup's folder, and a process in it, belongs to."""

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.pinning.container_cgroups import (
    ContainerCgroup,
    Process,
    container_cgroup,
    container_id,
    pod_of_folder,
    with_processes,
)

ID = "ab" * 32
POD = "3f0ae3c1-0c1e-4c9b-a5f5-5f2c1c0d0001"
SYSTEMD = f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice"


def process(cgroup: str, pid: int = 7, env: frozenset[str] | None = None) -> Process:
    return Process(pid, "app", CPUSet.parse("0-3"), cgroup, env)


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        (f"cri-containerd-{ID}.scope", ID),
        (f"crio-{ID}.scope", ID),
        (ID, ID),
        (f"crio-conmon-{ID}.scope", ""),
        (f"cri-containerd-{ID[:-1]}.scope", ""),
        ("init", ""),
    ],
)
def test_a_folders_name_identifies_its_container(folder: str, found: str) -> None:
    assert container_id(folder) == found


@pytest.mark.parametrize(
    ("folder", "uid"),
    [
        (f"pod{POD}", POD),
        (f"kubepods-burstable-pod{POD.replace('-', '_')}.slice", POD),
        ("kubepods-pod9aac5b5c8815def09a2ef9e37b89da55.slice", "9aac5b5c8815def09a2ef9e37b89da55"),
        ("podstatic-web-1", "static-web-1"),
        ("kubepods-podstatic_web_1.slice", "static-web-1"),
        *((name, "") for name in ("pods", "pods.slice", "node-pods.slice", "node-pods-kubepods.slice", "kubepods")),
    ],
)
def test_a_folder_of_a_pod_is_recognized_including_static_pods(folder: str, uid: str) -> None:
    assert pod_of_folder(folder) == uid


@pytest.mark.parametrize("above", [SYSTEMD, f"../..{SYSTEMD}", f"kubelet/kubepods/burstable/pod{POD}"])
def test_a_cgroup_and_the_processes_in_and_below_it_are_one_container(above: str) -> None:
    scope = f"cri-containerd-{ID}.scope"
    listed = ContainerCgroup(POD, f"{SYSTEMD}/{scope}", "sys/fs/cgroup", CPUSet.parse("1-2"))
    inside = process(f"{above}/{scope}", 7, frozenset({"A"})), process(f"{above}/{scope}/app/worker", 8, None)
    (found,) = with_processes([listed], [*inside, process("init.scope", 9)], [POD])
    assert (found.id, sorted(found.pids), sorted(found.env), found.hidden) == (ID, [7, 8], ["A"], True)
    assert str(found.actual) == "1-2"


def test_a_container_without_a_cgroup_of_its_own_runs_where_its_processes_may() -> None:
    (found,) = with_processes([], [process(f"{SYSTEMD}/sandbox/app", env=frozenset())], ["another", POD])
    assert (found.pod, found.cgroup, found.id, found.hidden) == (POD, f"{SYSTEMD}/sandbox", "", False)
    assert str(found.actual) == "0-3"


def test_a_container_without_a_process_still_exists() -> None:
    listed = ContainerCgroup(POD, f"{SYSTEMD}/{ID}", "sys/fs/cgroup", CPUSet.parse("1-2"))
    assert with_processes([listed], [process("init.scope")], [POD]) == (listed,)


def test_a_containers_monitor_is_in_no_container() -> None:
    monitor = f"{SYSTEMD}/crio-conmon-{ID}.scope"
    assert container_cgroup(monitor, POD) == ""
    assert with_processes([], [process(monitor)], [POD]) == ()


def test_a_process_of_a_pod_is_in_the_folder_below_the_pods() -> None:
    scope = f"{SYSTEMD}/cri-containerd-{ID}.scope"
    assert container_cgroup(f"{scope}/app", POD) == scope
    assert container_cgroup(SYSTEMD, POD) == ""
    assert container_cgroup(scope, "another") == ""
