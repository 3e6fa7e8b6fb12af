from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dranode.driver.cgroups import cgroup_folder, effective_cpus, has_processes
from dranode.driver.core.containers import Container, Pod
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.forms import open_machine
from dranode.driver.machine.root import Root

KUBEPODS = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"


def container(cgroup: str) -> Container:
    return Container("c1", "c1", Pod("s", "p"), cgroup=cgroup)


def machine(folder: Path, files: dict[str, str]) -> Root:
    for name, text in files.items():
        place = folder / "sys" / "fs" / "cgroup" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return open_machine(str(folder))


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/k8s.io/c1", "k8s.io/c1"),
        ("/kubepods/burstable/pod1/c1", "kubepods/burstable/pod1/c1"),
        ("kubepods-burstable-pod1.slice:cri-containerd:c1", f"{KUBEPODS}/cri-containerd-c1.scope"),
        ("kubepods-burstable-pod1.slice:crio:c1", f"{KUBEPODS}/crio-c1.scope"),
        ("system.slice:docker:c1", "system.slice/docker-c1.scope"),
        (":crio:c1", "system.slice/crio-c1.scope"),
        ("-.slice:crio:c1", "crio-c1.scope"),
        ("a.slice::c1", "a.slice/c1.scope"),
        ("", ""),
    ],
)
def test_a_cgroups_path_says_where_the_cgroup_lies(path: str, folder: str) -> None:
    assert cgroup_folder(path) == folder


@pytest.mark.parametrize(
    "name",
    [
        "k8s/c1/cpuset.cpus.effective",
        "cpuset/k8s/c1/cpuset.effective_cpus",
        "cpuset,cpu,cpuacct/k8s/c1/cpuset.effective_cpus",
    ],
)
def test_effective_cpus_are_read_from_either_version(tmp_path: Path, name: str) -> None:
    root = machine(tmp_path, {name: "2-3,8\n"})
    assert effective_cpus(root, container("/k8s/c1")) == CPUSet((2, 3, 8))


def test_effective_cpus_that_cannot_be_had_are_not_an_empty_set(tmp_path: Path) -> None:
    root = machine(tmp_path, {"k8s/bad/cpuset.cpus.effective": "no list\n"})
    for path in ("/k8s/gone", "/k8s/bad", ""):
        assert effective_cpus(root, container(path)) is None


@pytest.mark.parametrize(
    ("files", "alive"),
    [
        ({"cgroup.procs": "1\n", "k8s/c1/cgroup.events": "populated 1\nfrozen 0\n"}, True),
        ({"cgroup.procs": "1\n", "k8s/c1/cgroup.events": "populated 0\nfrozen 0\n"}, False),
        ({"cgroup.procs": "1\n"}, False),
        ({"cpuset/cgroup.procs": "1\n", "cpuset/k8s/c1/cgroup.procs": "71\n"}, True),
        ({"cpuset/cgroup.procs": "1\n", "cpuset/k8s/c1/cgroup.procs": ""}, False),
        (
            {
                "cpuset/cgroup.procs": "1\n",
                "cpuset/k8s/c1/cgroup.procs": "",
                "cpuset/k8s/c1/init.scope/cgroup.procs": "71\n",
            },
            True,
        ),
        ({"cpuset/cgroup.procs": "1\n"}, False),
    ],
)
def test_a_container_has_processes_while_its_cgroup_does(tmp_path: Path, files: dict[str, str], alive: bool) -> None:  # noqa: FBT001 - a table
    assert has_processes(machine(tmp_path, files), container("/k8s/c1")) is alive


def test_where_no_hierarchy_can_be_seen_a_container_counts_as_alive(tmp_path: Path) -> None:
    root = machine(tmp_path, {"other": ""})
    assert has_processes(root, container("/k8s/c1"))
    assert has_processes(machine(tmp_path, {"cgroup.procs": "1\n"}), container(""))


@pytest.mark.parametrize(
    ("number", "alive"), [(errno.EMFILE, True), (errno.EACCES, True), (errno.EIO, True), (errno.ENODEV, False)]
)
def test_a_container_whose_cgroup_cannot_be_read_counts_as_alive_unless_it_is_gone(number: int, *, alive: bool) -> None:
    class Failing(HostRoot):
        def exists(self, path: str) -> bool:
            return path.endswith(("cgroup/cgroup.procs", "cgroup.events"))

        def read_bytes(self, path: str) -> bytes:
            raise OSError(number, "says the kernel", path)

    assert has_processes(Failing(), container("/k8s/c1")) is alive
