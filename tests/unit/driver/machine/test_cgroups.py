import errno
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder, cgroup_of
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.kubepods import containers_of, pods_on
from dranode.driver.machine.root import Root
from dranode.driver.pinning.container_cgroups import container_cgroup
from dranode.sim.machines.forms import open_machine

KUBEPODS = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"


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
        ("/odd.slice:crio:c1/pod1/c1", "odd.slice:crio:c1/pod1/c1"),
        ("/kubepods/pod1/a:b", "kubepods/pod1/a:b"),
        ("system.slice:docker:c1", "system.slice/docker-c1.scope"),
        (":crio:c1", "system.slice/crio-c1.scope"),
        ("-.slice:crio:c1", "crio-c1.scope"),
        ("a.slice::c1", "a.slice/c1.scope"),
        ("", ""),
    ],
)
def test_a_cgroups_path_leads_to_its_folder(path: str, folder: str) -> None:
    assert cgroup_folder(path) == folder


@pytest.mark.parametrize(
    "name",
    [
        "k8s/c1/cpuset.cpus.effective",
        "cpuset/k8s/c1/cpuset.effective_cpus",
        "cpuset,cpu,cpuacct/k8s/c1/cpuset.effective_cpus",
        "cpu,cpuset/k8s/c1/cpuset.effective_cpus",
    ],
)
def test_effective_cpus_are_read_from_either_version(tmp_path: Path, name: str) -> None:
    root = machine(tmp_path, {name: "2-3,8\n"})
    assert Cgroups(root).effective_cpus("k8s/c1") == CPUSet((2, 3, 8))


def test_of_cruns_two_cgroups_the_one_with_the_processes_counts(tmp_path: Path) -> None:
    scope, pages = f"{KUBEPODS}/cri-containerd-c1.scope", "hugetlb.2MB.max"
    files = {"cpuset.cpus.effective": "0-7", "cpuset.mems.effective": "0-1", pages: "max"}
    inner = {"cpuset.cpus.effective": "0-1", "cpuset.mems.effective": "1", pages: "4194304"}
    cgroups = Cgroups(machine(tmp_path, {f"{scope}/{name}": text for name, text in files.items()}))
    assert (str(cgroups.effective_cpus(scope)), str(cgroups.effective_nodes(scope))) == ("0-7", "0-1")
    machine(tmp_path, {f"{scope}/container/{name}": text for name, text in inner.items()})
    assert (str(cgroups.effective_cpus(scope)), str(cgroups.effective_nodes(scope))) == ("0-1", "1")
    assert cgroups.page_limit(scope, 2 << 20) == 4 << 20


@pytest.mark.parametrize("hierarchy", ["", "cpuset/", "cpuset,cpu,cpuacct/", "cpu,cpuset/"])
def test_a_pods_containers_are_found_in_the_cpuset_hierarchy(tmp_path: Path, hierarchy: str) -> None:
    folder = f"kubepods/burstable/podp-1/{'c1' * 32}"
    name = "cpuset.effective_cpus" if hierarchy else "cpuset.cpus.effective"
    root = machine(tmp_path, {f"{hierarchy}{folder}/{name}": "2-3\n"})
    (found,) = containers_of(root, Cgroups(root), "p-1")
    assert (found.cgroup, found.id, found.cpus) == (folder, "c1" * 32, CPUSet((2, 3)))
    assert found.path == f"/sys/fs/cgroup/{hierarchy}{folder}"
    assert Cgroups(root).effective_cpus(found.cgroup) == found.cpus


@pytest.mark.parametrize("root", ["pods", "node.slice", "docker/0123abcd/kubelet"])
@pytest.mark.parametrize("name", ["kubepods", "node-kubepods.slice"])
def test_containers_are_found_below_any_cgroup_root_of_kubelet(tmp_path: Path, root: str, name: str) -> None:
    folder = f"{root}/{name}/burstable/podp-1/{'c1' * 32}"
    files = machine(tmp_path, {f"{folder}/cpuset.cpus.effective": "2-3\n"})
    assert [each.cgroup for each in containers_of(files, Cgroups(files), "p-1")] == [folder]
    assert pods_on(files) == ("p-1",)


def test_a_pod_without_a_uid_has_no_container(tmp_path: Path) -> None:
    cgroup = f"kubepods/podp-1/{'c1' * 32}"
    root = machine(
        tmp_path, {f"{cgroup}/cpuset.cpus.effective": "2-3\n", f"pod/{'c1' * 32}/cpuset.cpus.effective": "2\n"}
    )
    assert not list(containers_of(root, Cgroups(root), ""))
    assert not container_cgroup(cgroup, "")


def test_unreadable_effective_cpus_are_not_an_empty_set(tmp_path: Path) -> None:
    root = machine(tmp_path, {"k8s/bad/cpuset.cpus.effective": "no list\n"})
    for folder in ("k8s/gone", "k8s/bad", ""):
        assert Cgroups(root).effective_cpus(folder) is None


def test_a_folder_whose_name_has_colons_is_found(tmp_path: Path) -> None:
    folder = "kubepods/poduid/odd.slice:crio:c1"
    root = machine(tmp_path, {f"{folder}/cpuset.cpus.effective": "2-3\n"})
    assert Cgroups(root).effective_cpus(folder) == CPUSet((2, 3))


V1 = {"cpuset/cgroup.procs": "1\n", "cpuset/k8s/cgroup.procs": "", "pids/k8s/pids.current": "1\n"}


@pytest.mark.parametrize(
    ("files", "alive"),
    [
        ({"k8s/c1/cgroup.events": "populated 1\nfrozen 0\n", "k8s/c1/cgroup.procs": "0\n"}, True),
        ({"k8s/c1/cgroup.events": "populated 0\nfrozen 0\n"}, False),
        ({"k8s/cgroup.events": "populated 1\n"}, False),
        ({"cpuset/k8s/c1/cgroup.procs": "71\n"}, True),
        # How a pod sees another pod's process: without a name, but with its number.
        ({**V1, "cpuset/k8s/c1/cgroup.procs": "", "pids/k8s/c1/pids.current": "1\n"}, True),
        ({**V1, "cpuset/k8s/c1/cgroup.procs": "", "pids/k8s/c1/pids.current": "0\n"}, False),
        ({**V1, "cpuset/k8s/c1/cgroup.procs": ""}, True),
        ({**V1, "cpuset/k8s/c1/cgroup.procs": "", "pids/k8s/c1/pids.current": "many\n"}, True),
        ({"cpuset,pids/k8s/c1/cgroup.procs": "", "cpuset,pids/k8s/c1/pids.current": "2\n"}, True),
        (V1, False),
    ],
)
def test_a_container_has_processes_while_its_cgroup_does(tmp_path: Path, files: dict[str, str], alive: bool) -> None:  # noqa: FBT001 - a table
    assert Cgroups(machine(tmp_path, files)).has_processes("k8s/c1") is alive


@pytest.mark.parametrize(
    "files",
    [
        {"other": ""},
        # What a pod sees of cgroup v2 and v1 if the host's are not mounted.
        {"cgroup.procs": "1\n", "cgroup.events": "populated 1\n"},
        {"cpuset/cgroup.procs": "1\n", "pids/cgroup.procs": "1\n"},
    ],
)
def test_a_container_counts_as_alive_if_no_containers_are_visible(tmp_path: Path, files: dict[str, str]) -> None:
    cgroups = Cgroups(machine(tmp_path, files))
    for folder in ("k8s/c1", "c1", ""):
        assert cgroups.has_processes(folder)


@pytest.mark.parametrize(
    ("number", "alive"), [(errno.EMFILE, True), (errno.EACCES, True), (errno.EIO, True), (errno.ENODEV, False)]
)
def test_a_container_with_an_unreadable_cgroup_counts_as_alive(number: int, *, alive: bool) -> None:
    class Failing(HostRoot):
        def exists(self, path: str) -> bool:
            return path.endswith("cgroup/k8s")

        def read_bytes(self, path: str) -> bytes:
            raise OSError(number, "says the kernel", path)

    assert Cgroups(Failing()).has_processes("k8s/c1") is alive


@pytest.mark.parametrize("text", ["", "5\n", "\ufffd\ufffd", "0::/a\n0::"])
def test_a_damaged_list_of_cgroups_is_not_an_answer(tmp_path: Path, text: str) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(text)
    assert cgroup_of(open_machine(str(tmp_path)), "7") == ""
