"""Functions that plant a fault in a healthy node or its API server."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dranode.driver.kube.errors import ApiError, error_of
from dranode.driver.node.ledger import Ledger
from dranode.driver.node.lost_ledger import LOST
from dranode.tools.diagnosis.runtime import TOLERANCE
from tests.fakes.doctor import DRIVER, KUBELET, POD_UID, FakeNode, own_class, server_of, slice_of, toml, volume


def old_containerd(node: FakeNode) -> None:
    node.silence()
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.27"
    node.write(
        "etc/containerd/config.toml", 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'
    )


def old_containerd_without_cdi(node: FakeNode) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.27"
    node.write("etc/containerd/config.toml", 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n  disable = false\n')


def with_memory(node: FakeNode) -> None:
    node.drivers = ("cpu", "memory")
    node.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids")


def nri_disabled(node: FakeNode) -> None:
    node.silence()
    node.containerd({"disable": True}, {})


def no_connections(node: FakeNode) -> None:
    node.silence()
    node.containerd({"disable_connections": True}, {})


def crio_without_nri(node: FakeNode) -> None:
    node.silence()
    crio(node, "[crio.nri]\nenable_nri = false\n")


def old_crio(node: FakeNode) -> None:
    node.silence()
    crio(node, "", "1.29.4")


def dropped_in(node: FakeNode) -> None:
    node.silence()
    node.containerd({}, {}, imports=["conf.d/*.toml"])
    node.write("etc/containerd/conf.d/10-nri.toml", '[plugins."io.containerd.nri.v1.nri"]\n  disable = true\n')


def crio(node: FakeNode, text: str, version: str = "1.35.1") -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = f"cri-o://{version}"
    validator = {
        "nri_enable_default_validator": True,
        "nri_validator_required_plugins": [f"00-{DRIVER}"],
        "nri_validator_tolerate_missing_plugins_annotation": TOLERANCE,
    }
    node.write("etc/crio/crio.conf.d/10-nri.conf", text)
    node.write("etc/crio/crio.conf.d/20-required.conf", toml({"crio": {"nri": {"default_validator": validator}}}))


def in_the_way(node: FakeNode) -> None:
    (node.folder / "run" / "cdi").rmdir()
    node.write("run/cdi", "a file")


def no_registry(node: FakeNode) -> None:
    node.unregister()
    (node.folder / KUBELET / "plugins_registry").rmdir()


def unserved(node: FakeNode) -> None:
    node.unregister()


def stale(node: FakeNode) -> None:
    node.dead(f"{KUBELET}/plugins_registry/{DRIVER}-{POD_UID}-reg.sock")


def no_nri_socket(node: FakeNode) -> None:
    (node.folder / "run" / "nri" / "nri.sock").unlink()


def elsewhere(node: FakeNode) -> None:
    node.unregister()
    node.register(f"{DRIVER}-{POD_UID}-reg.sock", endpoint="/opt/other/dra.sock")


def ledger(node: FakeNode) -> Path:
    return node.folder / KUBELET / "plugins" / DRIVER / "ledger.db"


def damaged_row(node: FakeNode) -> None:
    node.prepare()
    with sqlite3.connect(ledger(node)) as db:
        db.execute("UPDATE claims SET checksum = 0")
    db.close()


def doubtful_ledger(node: FakeNode) -> None:
    node.prepare()
    there = Ledger(ledger(node))
    with there.transaction():
        there.set_loss(LOST)
    there.close()


def lost_spec(node: FakeNode) -> Path:
    node.prepare()
    (spec,) = (node.folder / "run" / "cdi").iterdir()
    spec.unlink()
    return spec


def left_over_spec(node: FakeNode) -> None:
    node.prepare()
    with sqlite3.connect(ledger(node)) as db:
        db.execute("DELETE FROM claims")
    db.close()


def garbled_memory(node: FakeNode) -> None:
    node.drivers = ("cpu", "memory")
    node.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "many\n")


def reserved_nowhere(node: FakeNode) -> None:
    node.options.update(reserved_cpus="0-99")
    node.kubelet()


def nothing_reserved(node: FakeNode) -> None:
    node.options.update(reserved_cpus="")
    node.kubelet()


def gate_of_an_option_off(node: FakeNode) -> None:
    server_of(node).gates_off.add("DRANodeAllocatableResources")
    node.options.update(node_allocatable_mapping=True)


def no_versions(node: FakeNode) -> None:
    server_of(node).versions = []


def conflict(node: FakeNode, kind: str = "vendor.example/net") -> None:
    device = {"name": "a", "containerEdits": {"env": ["A=1"]}}
    spec = json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [device]})
    for name in ("one", "two"):
        node.write(f"run/cdi/{name}.json", spec)


def conflict_of_ours(node: FakeNode) -> None:
    conflict(node, f"{DRIVER}/claim")


def low(free: int, inodes: int = 1 << 20) -> Callable[[FakeNode], object]:
    return lambda node: setattr(node, "statvfs", lambda path: volume(path, free=free, inodes=inodes))


def class_with(**spec: Any) -> Callable[[FakeNode], object]:
    return lambda node: server_of(node).classes.update({DRIVER: {**own_class(), **spec}})


def selecting(expression: str) -> Callable[[FakeNode], object]:
    return class_with(selectors=[{"cel": {"expression": expression}}])


def two_classes(node: FakeNode) -> None:
    for name in ("fast", "slow"):
        server_of(node).classes[name] = {**own_class(), "extendedResourceName": "example.com/cpu"}


def newer_ledger(node: FakeNode) -> None:
    node.prepare()
    with sqlite3.connect(ledger(node)) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    db.close()


def quiet_claim_since(node: FakeNode, *, grouped: bool = False, **begun: Any) -> None:
    """A prepared claim with two quiet CPUs, and the counters as they were when it was prepared."""
    node.prepare(grouped=grouped)
    path = ledger(node).parent
    store = Ledger(path / "ledger.db")
    (record,) = store.read().records
    (grant,) = record.grants
    quiet = msgspec.structs.replace(grant, state={"isolation": "quiet"})
    with store.transaction():
        store.commit(put=(msgspec.structs.replace(record, grants=(quiet,)),))
        store.set_meta("notes", json.dumps({"begun": {record.uid: begun}}))
    store.close()


def interrupted(node: FakeNode) -> None:
    quiet_claim_since(node, interrupts={"24": 3})
    heads = " ".join(f"CPU{cpu}" for cpu in range(8))
    node.write("proc/interrupts", f"  {heads}\n 24:{' 9' * 8}  PCI-MSI 1-edge  eth0-rx\n")


def shared_with_a_service(node: FakeNode) -> None:
    quiet_claim_since(node)
    for cpu in range(8):
        thread(node, 9, cpu, "sshd", "0-7")
    node.write("proc/9/cgroup", "0::/system.slice/ssh.service\n")


def zeros(count: int) -> str:
    return " ".join(["0"] * count)


def thread(node: FakeNode, pid: int, cpu: int, name: str, allowed: str, *, parent: int = 1, ticks: int = 0) -> None:
    """A thread that ran last on a CPU, which is its number too."""
    status = f"Name:\t{name}\nState:\tS (sleeping)\nPPid:\t{parent}\nCpus_allowed_list:\t{allowed}\n"
    node.write(f"proc/{pid}/task/{cpu}/stat", f"{cpu} ({name}) S {zeros(10)} {ticks} {zeros(24)} {cpu} 0")
    node.write(f"proc/{pid}/task/{cpu}/status", status)
    if cpu == min(int(path.name) for path in (node.folder / f"proc/{pid}/task").iterdir()):
        node.write(f"proc/{pid}/status", status)


def notes_lost(node: FakeNode) -> None:
    quiet_claim_since(node)
    store = Ledger(ledger(node).parent / "ledger.db")
    with store.transaction():
        store.set_notes(json.dumps({"lost": "they were damaged"}))
    store.close()


def notes_damaged(node: FakeNode) -> None:
    quiet_claim_since(node)
    with sqlite3.connect(ledger(node)) as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('notes_checksum', 'of others')")
    db.close()


def first_cgroups(node: FakeNode) -> None:
    (node.folder / "sys/fs/cgroup/cgroup.controllers").unlink()
    node.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-7\n")


def selinux(node: FakeNode) -> None:
    node.write("sys/fs/selinux/enforce", "1")
    node.write("proc/self/attr/current", "system_u:system_r:container_t:s0:c1,c2\0")


def apparmor(node: FakeNode) -> None:
    node.write("sys/module/apparmor/parameters/enabled", "Y\n")
    node.write("proc/self/attr/current", "tight (enforce)\n")


def turned_down(path: str, status: int, said: str) -> Callable[[FakeNode], object]:
    def damage(node: FakeNode) -> None:
        server_of(node).refusals[path] = error_of(said, status, {}, b'{"message": "no"}')

    return damage


def unanswered(node: FakeNode) -> None:
    server_of(node).refusals["/apis/resource.k8s.io"] = ApiError("the API server at https://10.0.0.1 does not answer")


def by_configz(**config: Any) -> Callable[[FakeNode], object]:
    """A pod that sees neither kubelet's process nor its file, and may ask kubelet itself."""

    def hide(node: FakeNode) -> None:
        (node.folder / KUBELET / "config.yaml").unlink()
        server_of(node).configz = {"reservedSystemCPUs": "0", **config}

    return hide


def with_affinity(name: str) -> Callable[[FakeNode], None]:
    """A program that systemd has started with a CPUAffinity."""

    def seed(node: FakeNode) -> None:
        if name == "kubelet":
            node.process()
        else:
            node.runtime(name)
        pid = 77 if name == "kubelet" else 88
        node.allowed(pid, name, "0-3")

    return seed


def device_plugin(node: FakeNode) -> None:
    """Offer GPUs by the GPU driver, of which only the slices exist, and by a device plugin."""
    node.drivers = ("cpu", "gpu")
    server_of(node).slices.append(slice_of("worker", "dra.gpu"))
    server_of(node).allocatable["nvidia.com/gpu"] = "8"
