"""What `doctor` cannot see, or does not understand, is reported and not judged."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dranode.tools.diagnosis.rules import diagnose
from tests.fakes.doctor import KUBELET, NRI, VALIDATOR, FakeNode, diagnosed, forbid, server_of


def test_what_cannot_be_seen_is_reported_and_not_judged(node: FakeNode) -> None:
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
        (f"{KUBELET}/plugins_registry", ["which plug-ins are registered with kubelet"]),
        ("etc/containerd", ["the runtime's configuration"]),
        ("run/cdi", []),
        ("etc/kubelet.d", ["kubelet's configuration"]),
        ("proc", ["/proc may not be listed"]),
    ],
)
def test_what_may_not_be_read_is_reported_and_not_judged(
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


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        (f"{KUBELET}/plugins_registry", "which plug-ins are registered with kubelet"),
        ("run/cdi", "the CDI specs in /var/run/cdi"),
        ("etc/containerd/conf.d", "/etc/containerd/conf.d cannot be listed"),
        ("etc/kubelet.d", "/etc/kubelet.d cannot be listed"),
        ("proc", "/proc cannot be listed"),
    ],
)
def test_unreadable_folders_are_not_taken_for_empty_ones(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, folder: str, told: str
) -> None:
    node.process("--config-dir=/etc/kubelet.d")
    node.write("etc/kubelet.d/10.conf", "cpuManagerPolicy: none\n")
    node.containerd({"default_validator": VALIDATOR}, {}, imports=["conf.d/*.toml"])
    node.write("etc/containerd/conf.d/10-nri.toml", "version = 3\n")
    assert [each for each in node.facts().unseen if "root" not in each] == []
    names = os.listdir

    def failing(path: Any = ".") -> list[str]:
        if str(path) == str(node.folder / folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return names(path)

    monkeypatch.setattr(os, "listdir", failing)
    facts = node.facts()
    assert diagnose(facts) == ()
    assert [each for each in facts.unseen if told in each and "Input/output error" in each]


def test_a_file_system_of_unknown_fill_level_is_named(node: FakeNode) -> None:
    def failing(path: str) -> os.statvfs_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    node.statvfs = failing
    facts = node.facts()
    assert diagnose(facts) == ()
    assert "how full the file system of /var/lib/kubelet/plugins is: Input/output error" in facts.unseen


def test_an_unreadable_cpu_manager_state_is_reported(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    state = node.folder / KUBELET / "cpu_manager_state"
    state.unlink()
    assert not [each for each in node.facts().unseen if "CPU manager" in each]
    state.write_text('{"policyName":"static"}')
    opened = os.open

    def guarded(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path) == str(state):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", guarded)
    (sentence,) = (each for each in node.facts().unseen if "CPU manager" in each)
    assert "/var/lib/kubelet/cpu_manager_state cannot be read (Permission denied)" in sentence


# A file -> its content, and the sentences with which doctor reports that it could not be read.
UNREAD = {
    "sys/fs/cgroup/cgroup.controllers": (
        "cpuset cpu\n",
        ["whether the node has the cpuset controller: ", "the version of the node's cgroups: "],
    ),
    "sys/devices/system/cpu/isolated": ("2-3\n", ["which CPUs are isolated: "]),
    "sys/devices/system/cpu/nohz_full": ("2-3\n", ["which CPUs are nohz_full: "]),
    "proc/self/attr/current": ("tight (enforce)\n", ["whether SELinux or AppArmor confines this process: "]),
}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("path", UNREAD)
def test_an_unreadable_file_is_not_taken_for_a_missing_one(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, path: str, number: int
) -> None:
    text, told = UNREAD[path]
    assert not [each for each in node.facts().unseen if each.startswith(tuple(told))]
    node.write(path, text)
    opened = os.open

    def guarded(place: Any, *arguments: Any, **options: Any) -> int:
        if str(place) == str(node.folder / path):
            raise OSError(number, os.strerror(number), str(place))
        return opened(place, *arguments, **options)

    monkeypatch.setattr(os, "open", guarded)
    facts = node.facts()
    # Without this one, the driver itself may prepare nothing.
    assert {finding.code for finding in diagnose(facts)} <= {"hardware-unread"}
    sentences = [each for each in facts.unseen if each.startswith(tuple(told))]
    assert sorted(sentences) == sorted(f"{each}/{path} cannot be read: {os.strerror(number)}" for each in told)


def test_unexpected_cpu_lists_of_the_kernel_are_reported(node: FakeNode) -> None:
    node.write("sys/devices/system/cpu/nohz_full", "(null)\n")
    assert not [each for each in node.facts().unseen if "nohz_full" in each]
    node.write("sys/devices/system/cpu/nohz_full", "all\n")
    assert [each for each in node.facts().unseen if "which CPUs are nohz_full: " in each]


def test_an_selinux_label_of_unknown_enforcement_is_reported(node: FakeNode) -> None:
    node.write("proc/self/attr/current", "system_u:system_r:spc_t:s0\0")
    assert not [each for each in node.facts().unseen if "SELinux" in each]
    node.write("proc/self/attr/current", "system_u:system_r:container_t:s0:c1,c2\0")
    facts = node.facts()
    assert diagnose(facts) == ()
    assert [each for each in facts.unseen if "whether SELinux is enforced for this process (system_u:" in each]
    node.write("sys/fs/selinux/enforce", "0")
    assert not [each for each in node.facts().unseen if "SELinux" in each]


@pytest.mark.parametrize("text", ["", "{", '{"policyName"', "[]", "{}", '{"policyName":3}'])
def test_a_damaged_cpu_manager_state_is_reported(node: FakeNode, text: str) -> None:
    (node.folder / KUBELET / "cpu_manager_state").write_text(text)
    (sentence,) = (each for each in node.facts().unseen if "CPU manager" in each)
    assert "/var/lib/kubelet/cpu_manager_state does not name one" in sentence
    assert "drain the node, remove the file and restart kubelet" in sentence


VECTORS = Path(__file__).parents[3] / "vectors/kubelet"
CLAIMS = (VECTORS / "dra_manager_state-1.37.2.json").read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", CLAIMS[:100], bytes(200), CLAIMS.replace(b"default", b"DEFAULT")],
    ids=["empty", "truncated", "zeros", "wrong checksum"],
)
def test_kubelets_damaged_record_of_claims_is_named(node: FakeNode, content: bytes) -> None:
    path = node.folder / KUBELET / "dra_manager_state"
    path.write_bytes(CLAIMS)
    assert not [sentence for sentence in node.facts().unseen if "dra_manager_state" in sentence]
    path.write_bytes(content)
    (sentence,) = (sentence for sentence in node.facts().unseen if "dra_manager_state" in sentence)
    assert "/var/lib/kubelet/dra_manager_state is damaged" in sentence
    assert "remove the file and restart kubelet" in sentence


def test_a_managers_state_with_a_wrong_checksum_is_named(node: FakeNode) -> None:
    name, text = "cpu_manager_state", (VECTORS / "cpu_manager_state-1.37.2.json").read_text()
    node.write(f"{KUBELET}/{name}", text)
    assert not [sentence for sentence in node.facts().unseen if name in sentence]
    for damaged in (text.replace("tatic", "tatick"), text.replace("main", "name")):
        node.write(f"{KUBELET}/{name}", damaged)
        (sentence,) = (sentence for sentence in node.facts().unseen if name in sentence)
        assert f"/var/lib/kubelet/{name} is damaged" in sentence


@pytest.mark.parametrize("name", ["allocated_pods_state", "actuated_pods_state"])
def test_kubelets_damaged_records_of_pods_are_named(node: FakeNode, name: str) -> None:
    path = node.folder / KUBELET / name
    # The checksum is what the package checksum of kubelet 1.36.4 returns.
    path.write_text('{"data":"{\\"entries\\":{}}","checksum":1057365947}')
    assert not [sentence for sentence in node.facts().unseen if name in sentence]
    for content in (
        "",
        '{"data":"{',
        '{"data":"{\\"entries\\":{}}","checksum":1}',
        '{"data":"{}","checksum":1}"}',
        "[]",
    ):
        path.write_text(content)
        (sentence,) = (sentence for sentence in node.facts().unseen if name in sentence)
        assert f"/var/lib/kubelet/{name} is damaged" in sentence


@pytest.mark.parametrize("told", ["containerd://1.7.24", "containerd://2.2.1", "cri-o://1.29.4", "cri-o://1.35.1", ""])
def test_a_hidden_runtime_configuration_is_not_taken_for_defaults(node: FakeNode, told: str) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = told
    (node.folder / "etc/containerd/config.toml").unlink()
    facts = node.facts()
    assert diagnose(facts) == ()
    (unseen,) = (sentence for sentence in facts.unseen if "the runtime's configuration" in sentence)
    assert "crio status config" in unseen if "cri-o" in told else "containerd config dump" in unseen
    assert ("NRI is on" in unseen) is True


# What doctor reads, as a path on the node -> the only findings that there are if that path is missing.
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
def test_a_missing_path_has_no_other_findings(node: FakeNode, path: str) -> None:
    gone = node.folder / path
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink(missing_ok=True)
    assert {finding.code for finding in diagnosed(node)} == INPUTS[path]


def test_unreadable_specs_are_not_called_missing(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_runtime_file_of_another_format_is_reported_and_not_judged(node: FakeNode, text: str) -> None:
    node.write("etc/containerd/config.toml", text)
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("the runtime's configuration" in sentence for sentence in facts.unseen)


@pytest.mark.parametrize("text", ["[]", "3", "featureGates: [3]", "featureGates: 3"])
def test_a_kubelet_file_of_another_format_is_reported_and_not_judged(node: FakeNode, text: str) -> None:
    node.write(f"{KUBELET}/config.yaml", text)
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("kubelet's configuration" in sentence for sentence in facts.unseen)


def test_a_duplicate_key_in_kubelets_file_is_reported_and_not_judged(node: FakeNode) -> None:
    node.write(f"{KUBELET}/config.yaml", "cpuManagerPolicy: static\ncpuManagerPolicy: none\n")
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any('the key "cpuManagerPolicy" is given twice' in sentence for sentence in facts.unseen)


def test_nothing_is_judged_by_a_missing_answer_of_the_server(node: FakeNode) -> None:
    answers = server_of(node)
    node.facts()
    damages: list[object] = [None, {}, {"kind": "Status"}, [], "text"]
    for path in {request.path for request in answers.asked}:
        for damage in damages:
            answers.damaged = {path: damage}
            facts = node.facts()
            assert diagnose(facts) == (), path
            assert len(facts.unseen) > (os.geteuid() != 0), path


def test_a_missing_kubelet_configuration_is_not_taken_for_defaults(
    node: FakeNode,
) -> None:
    node.process("--config=/etc/kubernetes/kubelet.yaml")
    facts = node.facts()
    assert facts.kubelet is None
    assert any("/etc/kubernetes/kubelet.yaml cannot be read" in sentence for sentence in facts.unseen)


def test_a_runtime_file_that_is_not_toml_is_a_finding_with_the_line(node: FakeNode) -> None:
    node.write("etc/containerd/config.toml", "version = \n")
    facts = node.facts()
    assert facts.runtime is None
    (finding,) = diagnose(facts)
    assert "/etc/containerd/config.toml is not TOML" in finding.fault.what


def test_the_rest_is_judged_even_if_objects_are_missing_or_refused(node: FakeNode) -> None:
    server_of(node).nodes.clear()
    server_of(node).denied.add("list resourceslices")
    codes = [finding.code for finding in diagnosed(node)]
    assert codes == ["node-missing", "rbac-missing"]


@pytest.mark.parametrize(
    "files",
    [
        # AllowedCPUs= of its slice only limits its cgroup, and a pod has another cgroup.
        {"sys/fs/cgroup/system.slice/cpuset.cpus.effective": "0-3\n"},
        # The kernel keeps all user processes off isolated CPUs, until a cgroup includes them.
        {"sys/devices/system/cpu/isolated": "4-7\n"},
        # Until Linux 6.2 a process that is moved into a cgroup gets all CPUs of that cgroup.
        {"proc/sys/kernel/osrelease": "6.1.0-18-amd64\n"},
    ],
)
def test_a_runtime_on_few_cpus_without_its_own_affinity_is_fine(node: FakeNode, files: dict[str, str]) -> None:
    node.allowed(99, "dockerd", "0-3")
    for path, text in files.items():
        node.write(path, text)
    assert "affinity-inherited" not in {finding.code for finding in diagnose(node.facts())}


def test_a_runtime_with_a_hidden_affinity_is_not_judged(node: FakeNode) -> None:
    (node.folder / "proc/99/status").unlink()
    facts = node.facts()
    assert "with which CPU affinity dockerd runs: its status or its cgroup cannot be read" in facts.unseen
    shutil.rmtree(node.folder / "proc/99")
    assert any("they are not among the processes" in sentence for sentence in node.facts().unseen)


@pytest.mark.parametrize("known", [True, False], ids=["a known runtime", "an unknown runtime"])
def test_a_symlink_loop_as_the_runtimes_configuration_is_reported(node: FakeNode, *, known: bool) -> None:
    if not known:
        node.server = None
    _link_to_itself(node.folder / "etc/containerd/config.toml")
    seen = [sentence for sentence in node.facts().unseen if "the runtime's configuration" in sentence]
    assert [("Too many levels of symbolic links" in sentence, "root" in sentence) for sentence in seen] == [
        (True, False)
    ]


def test_a_symlink_loop_as_a_ledger_stops_the_driver(node: FakeNode) -> None:
    _link_to_itself(node.folder / KUBELET / "plugins/dra.cpu/ledger.db")
    assert "ledger-unusable" in {finding.code for finding in diagnosed(node)}


def _link_to_itself(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path)
