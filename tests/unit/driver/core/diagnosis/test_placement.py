"""The one rule of which container a cgroup's folder, and a process in it, belongs to."""

from __future__ import annotations

import pytest

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.diagnosis.placement import Process, container_cgroup, container_id, in_container

ID = "ab" * 32
POD = "3f0ae3c1-0c1e-4c9b-a5f5-5f2c1c0d0001"
SYSTEMD = f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice"


def process(cgroup: str) -> Process:
    return Process(7, "app", CPUSet.parse("0-3"), cgroup)


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
def test_a_folders_name_says_whose_container_it_is(folder: str, found: str) -> None:
    assert container_id(folder) == found


def test_a_process_below_a_containers_cgroup_is_in_it() -> None:
    assert in_container(process(f"{SYSTEMD}/cri-containerd-{ID}.scope/app/worker"), ID)
    assert in_container(process(f"kubepods/burstable/pod{POD}/{ID}"), ID)


def test_a_containers_monitor_is_in_no_container() -> None:
    monitor = f"{SYSTEMD}/crio-conmon-{ID}.scope"
    assert not in_container(process(monitor), ID)
    assert container_cgroup(monitor, POD) == ""


def test_a_process_of_a_pod_is_in_the_folder_below_the_pods() -> None:
    scope = f"{SYSTEMD}/cri-containerd-{ID}.scope"
    assert container_cgroup(f"{scope}/app", POD) == scope
    assert container_cgroup(SYSTEMD, POD) == ""
    assert container_cgroup(scope, "another") == ""
