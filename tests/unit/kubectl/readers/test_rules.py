"""Every rule of `doctor` with a fault that was planted for it: named, with what mends it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dranode.driver.cli.environment import unknown_variables
from dranode.driver.core.claims.salvage import LOST
from dranode.driver.core.diagnosis.rules import RULES, diagnose
from dranode.driver.core.diagnosis.runtime import TOLERANCE
from dranode.driver.kube.errors import ApiError, error_of
from dranode.driver.node.ledger import Ledger
from tests.fakes.doctor import (
    DRIVER,
    KUBELET,
    POD_UID,
    FakeNode,
    diagnosed,
    own_class,
    server_of,
    slice_of,
    toml,
    volume,
)


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
        there.doubt(LOST)
    there.close()


def lost_spec(node: FakeNode) -> None:
    node.prepare()
    (spec,) = (node.folder / "run" / "cdi").iterdir()
    spec.unlink()


def left_over_spec(node: FakeNode) -> None:
    node.prepare()
    with sqlite3.connect(ledger(node)) as db:
        db.execute("DELETE FROM claims")
    db.close()


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


def conflict(node: FakeNode) -> None:
    device = {"name": "a", "containerEdits": {"env": ["A=1"]}}
    spec = json.dumps({"cdiVersion": "0.6.0", "kind": "vendor.example/net", "devices": [device]})
    for name in ("one", "two"):
        node.write(f"run/cdi/{name}.json", spec)


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


def quiet_claim_since(node: FakeNode, **begun: Any) -> None:
    """A prepared claim that wants two CPUs quiet, whose counters stood so when it began."""
    node.prepare()
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
        node.write(f"proc/9/task/{cpu}/stat", f"{cpu} (sshd) S {' '.join(['0'] * 35)} {cpu} 0")
    node.write("proc/9/status", "Name:\tsshd\nState:\tS (sleeping)\nPPid:\t1\nCpus_allowed_list:\t0-7\n")
    node.write("proc/9/cgroup", "0::/system.slice/ssh.service\n")


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


FAULTS: dict[str, tuple[Callable[[FakeNode], object], str, str]] = {
    # what is broken: how, the finding, a part of its fix
    "CPU manager static in kubelet's file": (
        lambda node: node.kubelet(cpuManagerPolicy="static", reservedSystemCPUs="0"),
        "kubelet-cpu-manager-static",
        "cpuManagerPolicy: none",
    ),
    "CPU manager static in kubelet's state alone": (
        lambda node: node.write(f"{KUBELET}/cpu_manager_state", '{"policyName":"static"}'),
        "kubelet-cpu-manager-static",
        "/var/lib/kubelet/cpu_manager_state",
    ),
    "CPU manager static by a flag": (
        lambda node: node.process("--cpu-manager-policy=static"),
        "kubelet-cpu-manager-static",
        "restart kubelet",
    ),
    "another kubelet root": (
        lambda node: node.process("--root-dir", "/data/kubelet", f"--config=/{KUBELET}/config.yaml"),
        "kubelet-root-differs",
        "--kubelet-root /data/kubelet",
    ),
    "DRA off in kubelet": (
        lambda node: node.kubelet(featureGates={"DynamicResourceAllocation": False}, reservedSystemCPUs="0"),
        "kubelet-gate-off",
        "remove it from featureGates",
    ),
    "pod-resources without claims by a flag": (
        lambda node: node.process("--feature-gates=A=true,KubeletPodResourcesDynamicResources=false"),
        "kubelet-gate-off",
        "remove it from featureGates",
    ),
    "other reserved CPUs": (
        lambda node: node.kubelet(reservedSystemCPUs="0-1"),
        "reserved-cpus-differ",
        "--reserved-cpus 0-1",
    ),
    "no reserved CPUs": (nothing_reserved, "no-reserved-cpus", "--reserved-cpus"),
    "reserved CPUs that do not exist": (
        reserved_nowhere,
        "options-refused",
        "dranode machine show",
    ),
    "no registry": (no_registry, "place-missing", "mount it into the driver's pod"),
    "a file for the CDI directory": (in_the_way, "place-wrong", "move it away"),
    "no NRI socket": (no_nri_socket, "place-missing", "the runtime has NRI on"),
    "a dead pod-resources socket": (
        lambda node: node.dead(f"{KUBELET}/pod-resources/kubelet.sock"),
        "place-unusable",
        "mount the folder rather than the socket",
    ),
    "no cpuset controller": (
        lambda node: node.write("sys/fs/cgroup/cgroup.controllers", "cpu memory"),
        "no-cpuset-controller",
        "Delegate=cpuset",
    ),
    "a stale registration socket": (
        stale,
        "stale-socket",
        f"rm /{KUBELET}/plugins_registry/{DRIVER}-{POD_UID}-reg.sock",
    ),
    "a second driver": (
        lambda node: node.register(f"{DRIVER}-{POD_UID}-reg.sock"),
        "second-driver",
        "stop all but one",
    ),
    "the name served from elsewhere": (elsewhere, "foreign-endpoint", "stop that driver"),
    "nobody serves": (unserved, "not-serving", "kubectl apply -k deploy/"),
    "a ledger that is none": (
        lambda node: ledger(node).write_bytes(b"not a database at all, but long enough to be looked at" * 20),
        "ledger-unusable",
        "do not delete the ledger",
    ),
    "records that are missing": (doubtful_ledger, "records-missing", f"dranode forget-lost --driver {DRIVER}"),
    "a damaged record": (damaged_row, "record-quarantined", "delete the pods that use the claim"),
    "a lost CDI spec": (lost_spec, "cdi-spec-missing", "restart the driver"),
    "a CDI spec left over": (left_over_spec, "cdi-spec-left-over", "dranode drain"),
    "NRI off by default in containerd 1.7": (old_containerd, "nri-off", "disable = false"),
    "CDI off by default in containerd 1.7": (
        old_containerd_without_cdi,
        "cdi-off",
        'enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"]',
    ),
    "huge pages that containerd does not limit": (
        with_memory,
        "hugetlb-controller-off",
        "set disable_hugetlb_controller = false under",
    ),
    "NRI off": (nri_disabled, "nri-off", "restart containerd"),
    "NRI off in an imported file": (dropped_in, "nri-off", "restart containerd"),
    "NRI without a socket": (
        no_connections,
        "nri-connections-off",
        "disable_connections = false",
    ),
    "NRI elsewhere": (
        lambda node: node.containerd({"socket_path": "/run/other/nri.sock"}, {}),
        "nri-socket-differs",
        "--nri-socket /run/other/nri.sock",
    ),
    "no NRI wanted": (
        lambda node: node.options.update(nri_socket="none"),
        "nri-unused",
        "leave the option out",
    ),
    "CDI off": (
        lambda node: node.containerd({}, {"enable_cdi": False}),
        "cdi-off",
        'enable_cdi = true under [plugins."io.containerd.cri.v1.runtime"]',
    ),
    "CDI specs from elsewhere": (
        lambda node: node.containerd({}, {"cdi_spec_dirs": ["/etc/cdi"]}),
        "cdi-dir-not-read",
        "--cdi-dir",
    ),
    "no plug-in required": (
        lambda node: node.containerd({}, {}),
        "plugin-not-required",
        'required_plugins = ["dra.cpu"]',
    ),
    "another plug-in required": (
        lambda node: node.containerd({"default_validator": {"enable": True, "required_plugins": ["other"]}}, {}),
        "plugin-not-required",
        'required_plugins = ["dra.cpu"]',
    ),
    "required of the driver itself": (
        lambda node: node.containerd({"default_validator": {"enable": True, "required_plugins": [DRIVER]}}, {}),
        "required-without-tolerance",
        'tolerate_missing_plugins_annotation = "tolerate-missing-plugins.noderesource.dev"',
    ),
    "a hasty runtime": (
        lambda node: node.containerd({"plugin_request_timeout": "500ms"}, {}),
        "nri-timeout-short",
        'plugin_request_timeout = "2s"',
    ),
    "another plug-in that sets CPUs": (
        lambda node: node.write("opt/nri/plugins/10-balloons", ""),
        "other-nri-plugin",
        "remove one of the two",
    ),
    "NRI off in CRI-O": (crio_without_nri, "nri-off", "enable_nri = true"),
    "NRI off by default in an old CRI-O": (old_crio, "nri-off", "enable_nri = true"),
    "NRI elsewhere in CRI-O": (
        lambda node: crio(node, '[crio.nri]\nnri_listen = "/run/crio/nri.sock"\n'),
        "nri-socket-differs",
        "--nri-socket /run/crio/nri.sock",
    ),
    "a runtime before CDI": (lambda node: crio(node, "", "1.27.0"), "runtime-too-old", "CRI-O 1.28"),
    "no DRA in the API server": (no_versions, "dra-api-missing", "Kubernetes 1.34"),
    "an old kubelet": (
        lambda node: server_of(node).nodes["worker"].update(kubeletVersion="v1.33.5"),
        "kubelet-too-old",
        "upgrade the node",
    ),
    "no Node of that name": (
        lambda node: setattr(node, "node_name", "Worker.example.com"),
        "node-missing",
        "NODE_NAME",
    ),
    "no right to slices": (
        lambda node: server_of(node).denied.add("create resourceslices"),
        "rbac-missing",
        "deploy/rbac.yaml",
    ),
    "no right to a claim's status": (
        lambda node: server_of(node).denied.add("associated-node:patch resourceclaims/driver"),
        "rbac-missing",
        "deploy/rbac.yaml",
    ),
    "consumable capacity off": (
        lambda node: server_of(node).gates_off.add("DRAConsumableCapacity"),
        "feature-gate-off",
        "switch on the feature gate DRAConsumableCapacity",
    ),
    "the gate of an option off": (
        gate_of_an_option_off,
        "feature-gate-off",
        "leave out --node-allocatable-mapping",
    ),
    "no class": (lambda node: server_of(node).classes.clear(), "class-missing", "deploy/deviceclasses.yaml"),
    "nothing published": (lambda node: server_of(node).slices.clear(), "no-slices", "start the driver on this node"),
    "a kubelet file that is no YAML": (
        lambda node: node.write(f"{KUBELET}/config.yaml", "kind: [\n"),
        "kubelet-config-invalid",
        "correct the file",
    ),
    "kubelet's memory manager": (
        lambda node: node.kubelet(memoryManagerPolicy="Static", reservedSystemCPUs="0"),
        "kubelet-memory-manager-static",
        "memoryManagerPolicy: None",
    ),
    "kubelet's topology manager": (
        lambda node: node.process("--topology-manager-policy=single-numa-node"),
        "kubelet-topology-manager-strict",
        "topologyManagerPolicy",
    ),
    "CPU manager static by kubelet's own answer": (
        by_configz(cpuManagerPolicy="static"),
        "kubelet-cpu-manager-static",
        "cpuManagerPolicy: none",
    ),
    "a gate off by kubelet's own answer": (
        by_configz(featureGates={"DynamicResourceAllocation": False}),
        "kubelet-gate-off",
        "featureGates",
    ),
    "a containerd file that is no TOML": (
        lambda node: node.write("etc/containerd/config.toml", "version = \n"),
        "runtime-config-invalid",
        "correct the file",
    ),
    "a full disk": (low(0), "disk-full", "df"),
    "no inodes": (low(1 << 40, 0), "disk-full", "df -i"),
    "a disk that is nearly full": (low(20 << 20), "disk-low", "free some"),
    "few inodes": (low(1 << 40, 10), "disk-low", "free some"),
    "a ledger of a newer release": (newer_ledger, "ledger-newer", "go back to that version"),
    "cgroup v1": (first_cgroups, "cgroup-v1", "systemd.unified_cgroup_hierarchy=1"),
    "SELinux": (selinux, "confined", "deploy/components/crio"),
    "AppArmor": (apparmor, "confined", "apparmor"),
    "reserved CPUs that are isolated": (
        lambda node: node.write("sys/devices/system/cpu/isolated", "0,6\n"),
        "reserved-cpus-isolated",
        "take 0 out of isolcpus",
    ),
    "CPUs without a tick that are shared": (
        lambda node: node.write("sys/devices/system/cpu/nohz_full", "6-7\n"),
        "nohz-full-shared",
        "domain,6-7",
    ),
    "devices that interrupt quiet CPUs": (interrupted, "quiet-cpus-interrupted", "isolcpus=managed_irq"),
    "a service on quiet CPUs": (shared_with_a_service, "quiet-cpus-shared", "AllowedCPUs="),
    "settings of which nothing is known": (notes_lost, "settings-unrestorable", "reboot the node"),
    "damaged notes of settings": (notes_damaged, "settings-unrestorable", "reboot the node"),
    "a misspelt variable": (
        lambda node: setattr(
            node,
            "variables",
            tuple(unknown_variables({"DRANODE_NODENAME": "w"}, ["DRANODE_NODE_NAME"])),
        ),
        "variable-unknown",
        "did you mean DRANODE_NODE_NAME?",
    ),
    "two CDI files with one device": (conflict, "cdi-conflict", "remove the file"),
    "another's CDI file that no runtime loads": (
        lambda node: node.write("etc/cdi/vendor.json", '{"cdiVersion": "0.6.0", "kind": "vendor", "devices": []}'),
        "cdi-invalid",
        "dranode cdi validate",
    ),
    "a class that no server takes": (selecting("device.driver =="), "class-wrong", "correct the expression"),
    "a class whose selector fails": (
        selecting(f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].none == 1'),
        "class-wrong",
        "orValue()",
    ),
    "a class that selects nothing": (
        selecting(f'device.driver == "{DRIVER}" && device.driver == "other"'),
        "class-wrong",
        "deploy/deviceclasses.yaml",
    ),
    "a class whose configuration is refused": (
        class_with(config=[{"opaque": {"driver": DRIVER, "parameters": {"kind": "Other"}}}]),
        "class-wrong",
        "correct spec.config",
    ),
    "two classes for one extended resource": (two_classes, "class-wrong", "extendedResourceName"),
    "a token that is not taken": (
        turned_down("/apis/resource.k8s.io", 401, "discover resource.k8s.io"),
        "api-refused",
        "token",
    ),
    "a policy that turns slices down": (
        turned_down("/apis/resource.k8s.io/v1/resourceslices", 403, "create resourceslices"),
        "api-refused",
        "admission policies",
    ),
    "a server that refuses slices as invalid": (
        turned_down("/apis/resource.k8s.io/v1/resourceslices", 422, "create resourceslices"),
        "api-refused",
        "admission policies",
    ),
    "a server that nobody reaches": (unanswered, "api-refused", "network policies"),
    "a clock that is behind": (lambda node: setattr(node, "skew", 75), "clock-skew", "timedatectl"),
    "a second pool": (
        lambda node: server_of(node).slices.append(slice_of("worker-numa0")),
        "two-pools",
        "remove the other driver of that name",
    ),
}


# Of a memory driver that is not there yet, and of its options.
WITH_MEMORY = {"not-serving", "class-missing", "memory-unreserved", "no-slices"}
# One fault can have a second consequence that is told as well.
ALSO = {
    "CDI off by default in containerd 1.7": {"plugin-not-required"},
    "NRI off by default in containerd 1.7": {"place-missing"},
    "huge pages that containerd does not limit": WITH_MEMORY,
    "NRI off": {"place-missing"},
    "NRI off in an imported file": {"place-missing"},
    "NRI off in CRI-O": {"place-missing"},
    "NRI off by default in an old CRI-O": {"place-missing"},
    "NRI without a socket": {"plugin-not-required", "place-missing"},
    "NRI elsewhere": {"plugin-not-required"},
    "CDI off": {"plugin-not-required"},
    "CDI specs from elsewhere": {"plugin-not-required"},
    "a hasty runtime": {"plugin-not-required"},
    "no Node of that name": {"two-pools"},
}


def test_a_healthy_node_has_no_findings_and_everything_was_seen(node: FakeNode) -> None:
    node.prepare()
    facts = node.facts()
    assert diagnose(facts) == ()
    assert [sentence for sentence in facts.unseen if "not root" not in sentence] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_named_with_its_fix(fault: str, node: FakeNode) -> None:
    seed, code, fix = FAULTS[fault]
    seed(node)
    findings = diagnosed(node)
    assert {finding.code for finding in findings} == {code} | ALSO.get(fault, set())
    assert any(fix in finding.fault.fix for finding in findings if finding.code == code)


def test_every_rule_has_a_seeded_fault() -> None:
    seeded = {code for _, code, _ in FAULTS.values()}
    assert {rule.code for rule in RULES} - seeded == {"socket-path-too-long", "driver-pod-missing"}
