"""The cgroup of all pods: both cgroup versions, both of kubelet's cgroup drivers, and nodes that are containers."""

import errno
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from dranode.api.errors import MachineError
from dranode.driver.machine.kubepods import cgroup_cpus, has_changed, pods_cgroup_changes, read_pods_cgroup
from dranode.driver.pinning.pods_cgroup import UNLIMITED, PodsCgroup
from dranode.sim.machines.confined import ConfinedRoot
from tests.fakes.cpu import cpus
from tests.fakes.machine import machine

CGROUP = "sys/fs/cgroup"
V2 = {"cgroup.controllers": "cpuset cpu memory\n", "cpuset.cpus.effective": "0-7\n", "cpuset.mems.effective": "0-1\n"}


def unified(files: Mapping[str, str]) -> ConfinedRoot:
    return machine({f"{CGROUP}/{name}": text for name, text in {**V2, **files}.items()})


def legacy(files: Mapping[str, str]) -> ConfinedRoot:
    top = {"cpuset/cpuset.cpus": "0-7\n", "cpuset/cpuset.effective_cpus": "0-7\n", "memory/kubepods/tasks": ""}
    return machine({f"{CGROUP}/{name}": text for name, text in {**top, **files}.items()})


@pytest.mark.parametrize(
    "folder",
    [
        "kubepods.slice",
        "kubepods",
        "kubelet.slice/kubelet-kubepods.slice",
        "kubelet/kubepods",
        "node.slice/node-pods.slice/node-pods-kubepods.slice",
        "docker/0123abcd/kubelet/kubepods",
        "lxc.payload.c1/kubepods",
    ],
)
def test_the_cgroup_of_all_pods_is_found_wherever_kubelet_creates_it(folder: str) -> None:
    files = {f"{folder}/cpuset.cpus.effective": "0-1,4-5\n", f"{folder}/cpuset.mems.effective": "0\n"}
    assert read_pods_cgroup(unified(files)) == PodsCgroup(f"/{CGROUP}/{folder}", cpus("0-1,4-5"), cpus("0"))


@pytest.mark.parametrize("hierarchy", ["cpuset", "cpuset,cpu,cpuacct", "cpu,cpuset"])
@pytest.mark.parametrize("name", ["effective_cpus", "cpus"])
def test_the_cgroup_of_all_pods_is_found_in_cgroup_v1(hierarchy: str, name: str) -> None:
    found = read_pods_cgroup(legacy({f"{hierarchy}/kubepods/cpuset.{name}": "2-3\n"}))
    assert found == PodsCgroup(f"/{CGROUP}/{hierarchy}/kubepods", cpus("2-3"), None)


def test_in_cgroup_v1_effective_cpus_count_and_an_empty_set_is_not_filled_yet() -> None:
    above = {"cpuset/kubelet/cpuset.effective_cpus": "1-3\n", "cpuset/kubelet/cpuset.cpus": "1-7\n"}
    pods = {"cpuset/kubelet/kubepods/cpuset.effective_cpus": "\n", "cpuset/kubelet/kubepods/cpuset.cpus": "\n"}
    assert read_pods_cgroup(legacy({**above, **pods})).cpus == cpus("1-3")


def test_the_parents_cpuset_limits_pods_if_the_cgroup_has_none() -> None:
    above = {"kubelet/cpuset.cpus.effective": "0-3\n", "kubelet/kubepods/cgroup.procs": ""}
    assert read_pods_cgroup(unified(above)) == PodsCgroup(f"/{CGROUP}/kubelet/kubepods", cpus("0-3"), cpus("0-1"))


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpuset/kubelet/tasks": ""},
        {"cgroup.controllers": "cpuset\n", "cpuset.cpus.effective": "0-1\n"},
        {"cgroup.controllers": "", "system.slice/kubepods.slice/cpuset.cpus.effective": "0\n"},
    ],
)
def test_nothing_is_limited_before_kubelet_creates_the_cgroup_of_pods(files: Mapping[str, str]) -> None:
    assert read_pods_cgroup(machine({f"{CGROUP}/{name}": text for name, text in files.items()})) == UNLIMITED


def test_cpus_of_partitions_below_the_cgroup_still_belong_to_pods() -> None:
    files = {
        "kubepods.slice/cpuset.cpus.effective": "0-1,4-5\n",
        "kubepods.slice/cpuset.cpus.exclusive": "2-3\n",
        "kubepods.slice/cpuset.cpus.exclusive.effective": "2-3\n",
    }
    assert read_pods_cgroup(unified(files)).cpus == cpus("0-5")
    no_partition = {**files, "kubepods.slice/cpuset.cpus.exclusive": "\n"}
    assert read_pods_cgroup(unified(no_partition)).cpus == cpus("0-1,4-5")


@pytest.mark.parametrize(
    "pods", ["kubepods/pod1/tasks", "kubepods/burstable/pod1/tasks", "kubepods/besteffort/podab-c/tasks"]
)
def test_the_cgroup_driver_that_has_pods_counts(pods: str) -> None:
    files = {"kubepods.slice/cpuset.cpus.effective": "0-7\n", "kubepods/cpuset.cpus.effective": "0-3\n", pods: ""}
    assert read_pods_cgroup(unified(files)).cpus == cpus("0-3")


def test_pods_have_the_common_cpus_if_it_is_unknown_which_cgroup_counts() -> None:
    files = {"kubepods.slice/cpuset.cpus.effective": "2-7\n", "kubepods/cpuset.cpus.effective": "0-3\n"}
    assert read_pods_cgroup(unified(files)).cpus == cpus("2-3")


class Failing(ConfinedRoot):
    """A machine with one unreadable file or folder."""

    def __init__(self, whole: ConfinedRoot, path: str, error: int) -> None:
        self._whole, self._path, self._error = whole, path, error

    def read_bytes(self, path: str) -> bytes:
        return self._whole.read_bytes(self._seen(path))

    def listdir(self, path: str) -> list[str]:
        return self._whole.listdir(self._seen(path))

    def _seen(self, path: str) -> str:
        if path == self._path:
            raise OSError(self._error, "out of order", path)
        return path


@pytest.mark.parametrize(
    "path", ["", "kubepods", "kubepods/cpuset.cpus.effective", "kubepods/cpuset.mems.effective", "kubelet"]
)
def test_an_unreadable_cgroup_is_neither_unlimited_nor_empty(path: str) -> None:
    files = {"kubepods/cpuset.cpus.effective": "0-3\n", "kubepods/cpuset.mems.effective": "0\n"}
    if path == "kubelet":
        files = {f"kubelet/{name}": text for name, text in files.items()}
    if path == "kubepods":
        files |= {"kubepods.slice/cpuset.cpus.effective": "0-3\n"}
    place = f"{CGROUP}/{path}".rstrip("/")
    with pytest.raises(MachineError, match=f"/{place} cannot be .*out of order"):
        read_pods_cgroup(Failing(unified(files), place, errno.EACCES))


def test_an_invalid_set_is_an_error_that_names_the_file() -> None:
    with pytest.raises(MachineError, match=r"/sys/fs/cgroup/kubepods/cpuset\.cpus\.effective cannot be understood"):
        read_pods_cgroup(unified({"kubepods/cpuset.cpus.effective": "lots\n"}))


def test_a_cgroup_that_is_removed_during_the_read_limits_nothing() -> None:
    root = Failing(unified({"kubepods/cpuset.cpus.effective": "0\n"}), f"{CGROUP}/kubepods", errno.ENODEV)
    assert read_pods_cgroup(root).cpus == cpus("0")


def test_a_change_and_a_file_that_becomes_unreadable_are_noticed() -> None:
    root = unified({"kubepods/cpuset.cpus.effective": "0-3\n"})
    known = read_pods_cgroup(root)
    assert not has_changed(root, known)
    assert has_changed(unified({"kubepods/cpuset.cpus.effective": "0-1\n"}), known)
    assert has_changed(unified({}), known)
    assert has_changed(Failing(root, f"{CGROUP}/kubepods/cpuset.cpus.effective", errno.EIO), known)
    assert not has_changed(root, UNLIMITED)


class Rounds(threading.Event):
    """A stop that is set after this many waits, which take no time."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds

    def wait(self, timeout: Any = None) -> bool:
        del timeout
        self.rounds -= 1
        return self.rounds < 0


def test_a_watch_yields_every_minute_and_when_the_cgroup_changes() -> None:
    root = unified({"kubepods/cpuset.cpus.effective": "0-3\n"})
    known = read_pods_cgroup(root)
    assert len(list(pods_cgroup_changes(root, lambda: known, Rounds(30)))) == 1
    assert len(list(pods_cgroup_changes(root, lambda: PodsCgroup("/other"), Rounds(3)))) == 3


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("/system.slice/containerd.service", "4-7"),
        ("/../../system.slice/containerd.service", "4-7"),
        ("/user.slice/a.scope", "0-7"),
        ("/", "0-7"),
    ],
)
def test_a_cgroup_without_a_cpuset_has_the_cpus_of_its_nearest_parent(cgroup: str, found: str) -> None:
    assert cgroup_cpus(unified({"system.slice/cpuset.cpus.effective": "4-7\n"}), cgroup) == cpus(found)


def test_an_unreadable_cgroup_has_no_known_cpus() -> None:
    assert cgroup_cpus(machine({}), "/a") is None
    assert cgroup_cpus(Failing(unified({}), f"{CGROUP}/cpuset.cpus.effective", errno.EIO), "/a") is None
    assert cgroup_cpus(legacy({"cpuset/a/cpuset.cpus": "\n"}), "/a") == cpus("0-7")
