"""Doctor sees every fault that is seeded into a healthy node, names it with its fix, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.driver.cli.doctor import command
from dranode.driver.core.diagnosis.facts import Facts, Finding, ServeOptions, Severity
from dranode.driver.core.diagnosis.rules import RULES, diagnose
from dranode.driver.core.diagnosis.runtime import TOLERANCE
from dranode.driver.doctor.cluster import read_cluster
from dranode.driver.doctor.examine import wanted_by
from dranode.driver.machine.forms import open_machine
from tests.fakes.apiobjects import Objects
from tests.fakes.apiserver import ApiServer
from tests.fakes.doctor import (
    DRIVER,
    KUBELET,
    NRI,
    SOCKET,
    VALIDATOR,
    FakeNode,
    FakeServer,
    forbid,
    slice_of,
    toml,
    write_machine,
)

UID = "3f0ae3c1-0c1e-4c9b-a5f5-5f2c1c0d0001"


@pytest.fixture
def node() -> Iterator[FakeNode]:
    # pytest's own folders have names that are too long for sockets.
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        yield FakeNode(Path(folder), stack)


def server(node: FakeNode) -> FakeServer:
    assert node.server is not None
    return node.server


def found(node: FakeNode) -> tuple[Finding, ...]:
    return diagnose(node.facts())


def old_containerd(node: FakeNode) -> None:
    node.silence()
    server(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.27"
    node.write(
        "etc/containerd/config.toml", 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'
    )


def old_containerd_without_cdi(node: FakeNode) -> None:
    server(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.27"
    node.write("etc/containerd/config.toml", 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n  disable = false\n')


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
    server(node).nodes["worker"]["containerRuntimeVersion"] = f"cri-o://{version}"
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
    node.dead(f"{KUBELET}/plugins_registry/{DRIVER}-{UID}-reg.sock")


def no_nri_socket(node: FakeNode) -> None:
    (node.folder / "run" / "nri" / "nri.sock").unlink()


def elsewhere(node: FakeNode) -> None:
    node.unregister()
    node.register(f"{DRIVER}-{UID}-reg.sock", endpoint="/opt/other/dra.sock")


def ledger(node: FakeNode) -> Path:
    return node.folder / KUBELET / "plugins" / DRIVER / "ledger.db"


def damaged_row(node: FakeNode) -> None:
    node.prepare()
    with sqlite3.connect(ledger(node)) as db:
        db.execute("UPDATE claims SET checksum = 0")
    db.close()


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
    server(node).gates_off.add("DRANodeAllocatableResources")
    node.options.update(node_allocatable_mapping=True)


def no_versions(node: FakeNode) -> None:
    server(node).versions = []


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
    "a stale registration socket": (stale, "stale-socket", f"rm /{KUBELET}/plugins_registry/{DRIVER}-{UID}-reg.sock"),
    "a second driver": (
        lambda node: node.register(f"{DRIVER}-{UID}-reg.sock"),
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
    "a damaged record": (damaged_row, "record-quarantined", "delete the pods that use the claim"),
    "a lost CDI spec": (lost_spec, "cdi-spec-missing", "restart the driver"),
    "a CDI spec left over": (left_over_spec, "cdi-spec-left-over", "dranode drain"),
    "NRI off by default in containerd 1.7": (old_containerd, "nri-off", "disable = false"),
    "CDI off by default in containerd 1.7": (
        old_containerd_without_cdi,
        "cdi-off",
        'enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"]',
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
        lambda node: server(node).nodes["worker"].update(kubeletVersion="v1.33.5"),
        "kubelet-too-old",
        "upgrade the node",
    ),
    "no Node of that name": (
        lambda node: setattr(node, "node_name", "Worker.example.com"),
        "node-missing",
        "NODE_NAME",
    ),
    "no right to slices": (
        lambda node: server(node).denied.add("create resourceslices"),
        "rbac-missing",
        "deploy/rbac.yaml",
    ),
    "no right to a claim's status": (
        lambda node: server(node).denied.add("associated-node:patch resourceclaims/driver"),
        "rbac-missing",
        "deploy/rbac.yaml",
    ),
    "consumable capacity off": (
        lambda node: server(node).gates_off.add("DRAConsumableCapacity"),
        "feature-gate-off",
        "switch on the feature gate DRAConsumableCapacity",
    ),
    "the gate of an option off": (
        gate_of_an_option_off,
        "feature-gate-off",
        "leave out --node-allocatable-mapping",
    ),
    "no class": (lambda node: server(node).classes.clear(), "class-missing", "deploy/deviceclasses.yaml"),
    "nothing published": (lambda node: server(node).slices.clear(), "no-slices", "start the driver on this node"),
    "a second pool": (
        lambda node: server(node).slices.append(slice_of("worker-numa0")),
        "two-pools",
        "remove the other driver of that name",
    ),
}
# One fault can have a second consequence that is told as well.
ALSO = {
    "CDI off by default in containerd 1.7": {"plugin-not-required"},
    "NRI off by default in containerd 1.7": {"place-missing"},
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
    findings = found(node)
    assert {finding.code for finding in findings} == {code} | ALSO.get(fault, set())
    assert any(fix in finding.fault.fix for finding in findings if finding.code == code)


def test_every_rule_has_a_seeded_fault() -> None:
    seeded = {code for _, code, _ in FAULTS.values()}
    assert {rule.code for rule in RULES} - seeded == {"socket-path-too-long"}


def test_a_kubelet_root_that_is_too_deep_for_sockets_is_told(node: FakeNode) -> None:
    facts = node.facts()
    assert facts.node is not None
    deep = replace(facts, node=replace(facts.node, socket_excess=5))
    (finding,) = diagnose(deep)
    assert (finding.code, finding.severity) == ("socket-path-too-long", Severity.STOPS)
    assert "112 bytes" in finding.fault.what


def test_a_kubelet_that_has_ended_and_is_not_reaped_is_not_the_one_that_runs(node: FakeNode) -> None:
    node.write("proc/5/comm", "kubelet\n")
    node.write("proc/5/cmdline", "")
    node.process("--root-dir", "/data/kubelet", f"--config=/{KUBELET}/config.yaml")
    assert "kubelet-root-differs" in [finding.code for finding in found(node)]


def test_two_instances_of_a_rolling_update_are_no_second_driver(node: FakeNode) -> None:
    node.unregister()
    for uid in (UID, UID.replace("0001", "0002")):
        node.register(f"{DRIVER}-{uid}-reg.sock")
    assert found(node) == ()


def test_the_drivers_of_others_are_none_of_our_business(node: FakeNode) -> None:
    node.register("gpu.example.com-reg.sock", driver="gpu.example.com", endpoint="/anywhere/dra.sock")
    assert found(node) == ()


def test_what_cannot_be_seen_is_said_and_not_judged(node: FakeNode) -> None:
    node.server = None
    (node.folder / KUBELET / "config.yaml").unlink()
    node.write("etc/containerd/config.toml", "version = 2\n")
    facts = node.facts()
    assert diagnose(facts)[0].code == "plugin-not-required"
    assert len(diagnose(facts)) == 1
    seen = "\n".join(facts.unseen)
    for part in ("the API server", "kubelet's configuration", "whether NRI is on", "whether CDI is on"):
        assert part in seen


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        (KUBELET, ["kubelet's configuration", "plugins_registry", "ledger.db", "kubelet.sock"]),
        (f"{KUBELET}/plugins", ["ledger.db"]),
        (f"{KUBELET}/plugins_registry", ["who is in kubelet's registry of plug-ins"]),
        ("etc/containerd", ["the runtime's configuration"]),
        ("run/cdi", []),
        ("etc/kubelet.d", ["kubelet's configuration"]),
    ],
)
def test_what_may_not_be_looked_into_is_said_and_not_judged(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, folder: str, told: list[str]
) -> None:
    node.process(*(["--config-dir=/etc/kubelet.d"] if "kubelet.d" in folder else []))
    (node.folder / "etc" / "kubelet.d").mkdir()
    forbid(monkeypatch, node.folder / folder)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    facts = node.facts()
    assert diagnose(facts) == ()
    seen = "\n".join(facts.unseen)
    assert [part for part in told if part not in seen] == []


@pytest.mark.parametrize("told", ["containerd://1.7.24", "containerd://2.2.1", "cri-o://1.29.4", "cri-o://1.35.1", ""])
def test_a_runtime_configuration_that_is_not_to_be_seen_is_not_taken_for_the_defaults(
    node: FakeNode, told: str
) -> None:
    server(node).nodes["worker"]["containerRuntimeVersion"] = told
    (node.folder / "etc/containerd/config.toml").unlink()
    facts = node.facts()
    assert diagnose(facts) == ()
    (unseen,) = (sentence for sentence in facts.unseen if "the runtime's configuration" in sentence)
    assert "crio status config" in unseen if "cri-o" in told else "containerd config dump" in unseen
    assert ("NRI is on" in unseen) is True


def test_an_old_runtime_is_told_by_the_node_alone(node: FakeNode) -> None:
    server(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.6.38"
    (node.folder / "etc/containerd/config.toml").unlink()
    assert [finding.code for finding in found(node)] == ["runtime-too-old"]


def test_a_runtime_that_is_seen_to_run_without_a_file_has_its_versions_defaults(node: FakeNode) -> None:
    server(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.24"
    (node.folder / "etc/containerd/config.toml").unlink()
    node.runtime("containerd")
    node.silence()
    assert {finding.code for finding in found(node)} == {"nri-off", "cdi-off", "place-missing"}


@pytest.mark.parametrize("flags", [["--config", "/etc/k/c.toml"], ["--config=/etc/k/c.toml"], ["-c", "/etc/k/c.toml"]])
def test_the_configuration_of_the_running_runtime_is_read_rather_than_another(node: FakeNode, flags: list[str]) -> None:
    node.runtime("containerd", *flags)
    node.write("etc/k/c.toml", (node.folder / "etc/containerd/config.toml").read_text())
    node.containerd({}, {"enable_cdi": False})
    assert found(node) == ()
    (node.folder / "etc/k/c.toml").unlink()
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("/etc/k/c.toml is not to be seen" in sentence for sentence in facts.unseen)


def test_a_runtime_that_answers_over_nri_has_it_on_whatever_a_file_says(node: FakeNode) -> None:
    node.containerd({"disable": True, "disable_connections": True, "default_validator": VALIDATOR}, {})
    assert found(node) == ()


# What doctor looks at, as a path of the node -> what is told where it is not there. Nothing else is found for it.
INPUTS = {
    f"{KUBELET}/config.yaml": set[str](),
    f"{KUBELET}/cpu_manager_state": set[str](),
    "etc/containerd/config.toml": set[str](),
    "sys/fs/cgroup/cgroup.controllers": set[str](),
    f"{KUBELET}/plugins": {"place-missing"},
    f"{KUBELET}/plugins_registry": {"place-missing"},
    f"{KUBELET}/pod-resources": {"place-missing"},
    f"{KUBELET}/pod-resources/kubelet.sock": {"place-missing"},
    "run/nri": {"place-missing"},
    "run/nri/nri.sock": {"place-missing"},
    "proc": set[str](),
    "opt": set[str](),
    "etc": set[str](),
    "sys": set[str](),
    "run": {"place-missing"},
    "var": {"place-missing"},
}


@pytest.mark.parametrize("path", INPUTS)
def test_what_is_not_there_is_judged_by_itself_alone(node: FakeNode, path: str) -> None:
    gone = node.folder / path
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink(missing_ok=True)
    assert {finding.code for finding in found(node)} == INPUTS[path]


def test_specs_that_may_not_be_looked_at_are_not_called_missing(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.prepare()
    forbid(monkeypatch, node.folder / "run" / "cdi")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("/var/run/cdi" in sentence for sentence in facts.unseen)


@pytest.mark.parametrize(
    "text",
    [
        "plugins = 3",
        "imports = 3",
        "imports = [3]",
        f'[plugins]\n"{NRI}" = 3',
        f'[plugins."{NRI}"]\ndefault_validator = 3',
    ],
)
def test_a_runtime_file_of_another_form_is_said_and_not_judged(node: FakeNode, text: str) -> None:
    node.write("etc/containerd/config.toml", text)
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("the runtime's configuration" in sentence for sentence in facts.unseen)


@pytest.mark.parametrize("text", ["[]", "3", "featureGates: [3]", "featureGates: 3", "a: [", "reservedSystemCPUs: [x]"])
def test_a_kubelet_file_of_another_form_is_said_and_not_judged(node: FakeNode, text: str) -> None:
    node.write(f"{KUBELET}/config.yaml", text)
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("kubelet's configuration" in sentence for sentence in facts.unseen)


def test_every_answer_of_the_server_may_be_missing_and_nothing_is_judged_by_that(node: FakeNode) -> None:
    answers = server(node)
    node.facts()
    damages: list[object] = [None, {}, {"kind": "Status"}, [], "text"]
    for path in {request.path for request in answers.asked}:
        for damage in damages:
            answers.damaged = {path: damage}
            facts = node.facts()
            assert diagnose(facts) == (), path
            assert len(facts.unseen) > (os.geteuid() != 0), path


def test_a_configuration_that_kubelet_was_told_of_and_is_not_there_is_not_taken_for_its_defaults(
    node: FakeNode,
) -> None:
    node.process("--config=/etc/kubernetes/kubelet.yaml")
    facts = node.facts()
    assert facts.kubelet is None
    assert any("/etc/kubernetes/kubelet.yaml cannot be read" in sentence for sentence in facts.unseen)


def test_kubelets_drop_in_files_are_laid_over_its_configuration_in_their_order(node: FakeNode) -> None:
    node.process(f"--config=/{KUBELET}/config.yaml", "--config-dir=/etc/kubelet.d")
    node.write("etc/kubelet.d/10-gates.conf", "featureGates: {KubeletPodResourcesDynamicResources: false}\n")
    node.write("etc/kubelet.d/20-cpus.conf", "reservedSystemCPUs: '0-1'\n")
    node.write("etc/kubelet.d/README", "not: [a configuration")
    assert [finding.code for finding in found(node)] == ["kubelet-gate-off", "reserved-cpus-differ"]


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600.0), ("1m30s", 90.0), ("500ms", 0.5), ("100us", 0.0001)])
def test_a_timeout_is_read_as_go_writes_it(node: FakeNode, text: str, seconds: float) -> None:
    node.containerd({"default_validator": VALIDATOR, "plugin_request_timeout": text}, {})
    runtime = node.facts().runtime
    assert runtime is not None
    assert runtime.request_timeout == pytest.approx(seconds)


def test_what_an_imported_file_imports_counts_too_and_a_circle_ends(node: FakeNode) -> None:
    node.silence()
    node.containerd({}, {}, imports=["conf.d/*.toml"])
    node.write("etc/containerd/conf.d/10.toml", 'imports = ["more/nri.toml", "../config.toml"]\n')
    node.write("etc/containerd/conf.d/more/nri.toml", '[plugins."io.containerd.nri.v1.nri"]\n  disable = true\n')
    assert "nri-off" in [finding.code for finding in found(node)]


def test_a_runtime_file_that_is_no_toml_is_said_with_its_place(node: FakeNode) -> None:
    node.write("etc/containerd/config.toml", "version = \n")
    facts = node.facts()
    assert facts.runtime is not None
    assert (facts.runtime.config, facts.runtime.nri, facts.runtime.cdi) == ("", None, None)
    assert any("/etc/containerd/config.toml is not TOML" in sentence for sentence in facts.unseen)


def test_a_server_that_answers_nothing_leaves_the_rest_to_be_judged(node: FakeNode) -> None:
    server(node).nodes.clear()
    server(node).denied.add("list resourceslices")
    codes = [finding.code for finding in found(node)]
    assert codes == ["node-missing", "rbac-missing"]


def test_an_older_version_of_the_api_is_enough(node: FakeNode) -> None:
    server(node).versions = ["v1beta1"]
    assert found(node) == ()
    (dry_run,) = [request for request in server(node).asked if request.query.get("dryRun")]
    assert dry_run.path == "/apis/resource.k8s.io/v1beta1/resourceslices"
    assert "basic" in dry_run.body["spec"]["devices"][0]


def test_rights_of_the_drivers_account_are_asked_where_somebody_else_asks(node: FakeNode) -> None:
    wanted, plugins = wanted_by(("cpu",), open_machine("cores=2"), "worker", node.options)
    server(node).denied = {"get nodes"}
    cluster, _, _ = read_cluster(server(node), wanted, plugins, "dranode:dranode")
    (fault,) = [one.fault.what for one in diagnose(Facts(wanted, cluster=cluster)) if one.code == "rbac-missing"]
    assert fault == "RBAC does not let the service account dranode:dranode get nodes"
    reviews = [request.body for request in server(node).asked if request.method == "POST" and not request.query]
    assert {review["kind"] for review in reviews} == {"SubjectAccessReview"}
    assert {review["spec"]["user"] for review in reviews} == {"system:serviceaccount:dranode:dranode"}


def test_a_driver_that_pins_nothing_needs_no_nri() -> None:
    facts = Facts(ServeOptions(node="worker", drivers=("dra.gpu",), nri_socket=""))
    assert diagnose(facts) == ()


def test_findings_that_stop_come_first(node: FakeNode) -> None:
    node.kubelet(reservedSystemCPUs="0-1")
    server(node).classes.clear()
    assert [finding.severity for finding in found(node)] == [Severity.STOPS, Severity.WARNS]


def test_the_command_prints_findings_for_programs_and_fails_if_one_stops(node: FakeNode) -> None:
    write_machine(node.folder)
    node.kubelet(cpuManagerPolicy="static", reservedSystemCPUs="0")
    arguments = ["--root", str(node.folder), "--node-name", "worker", "--reserved-cpus", "0", "-o", "json"]
    ran = CliRunner(env={"KUBERNETES_SERVICE_HOST": ""}).invoke(command, arguments)
    answer = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert (answer["node"], answer["drivers"]) == ("worker", ["dra.cpu"])
    assert [(one["code"], one["severity"]) for one in answer["findings"]] == [("kubelet-cpu-manager-static", "stops")]
    assert "cpuManagerPolicy: none" in answer["findings"][0]["fix"]


def test_the_command_fits_on_a_screen_and_says_when_nothing_is_wrong(node: FakeNode) -> None:
    write_machine(node.folder)
    arguments = ["--root", str(node.folder), "--node-name", "worker", "--reserved-cpus", "0"]
    ran = CliRunner(env={"KUBERNETES_SERVICE_HOST": ""}).invoke(command, arguments)
    assert ran.exit_code == 0
    assert "nothing wrong in what was seen" in ran.stdout
    assert SOCKET not in ran.stdout
    assert len(ran.stdout.splitlines()) < 10


def test_a_real_server_is_asked_and_left_as_it_was(node: FakeNode) -> None:
    write_machine(node.folder)
    with ApiServer(objects=Objects(gates_off=["DRAConsumableCapacity"])) as api:
        info = {"kubeletVersion": "v1.35.2", "containerRuntimeVersion": "containerd://2.2.1"}
        api.put("nodes", {"metadata": {"name": "worker"}, "status": {"nodeInfo": info}})
        kubeconfig = api.kubeconfig(node.folder / "kubeconfig")
        arguments = ["--root", str(node.folder), "--node-name", "worker", "--reserved-cpus", "0", "-o", "json"]
        ran = CliRunner().invoke(command, [*arguments, "--kubeconfig", kubeconfig])
        assert api.objects.all("resourceslices") == []
    answer = json.loads(ran.stdout)
    assert [one["code"] for one in answer["findings"]] == ["feature-gate-off", "class-missing", "no-slices"]
    # This server has no reviews of rights.
    assert [sentence.partition(":")[0] for sentence in answer["unseen"] if "root" not in sentence] == [
        "the driver's rights"
    ]
