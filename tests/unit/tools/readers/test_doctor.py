"""`doctor` on whole nodes: what it says about healthy and about unusual ones, and how its command prints that."""

import contextlib
import errno
import io
import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dranode.api.resource import Device
from dranode.driver.claims.plugin import Inventory
from dranode.gpu.plugin import GPUPlugin
from dranode.gpu.scan import scan
from dranode.sanity.objects import Objects
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.doctor import _draw, command
from dranode.tools.diagnosis.facts import Facts, RuntimeFacts, ServeOptions, Severity
from dranode.tools.diagnosis.rules import diagnose
from dranode.tools.readers.cluster import read_cluster
from dranode.tools.readers.examine import judged_options
from dranode.tools.readers.runtime import runtime_version
from tests.fakes.apiserver import ApiServer
from tests.fakes.doctor import DRIVER, KUBELET, POD_UID, SOCKET, VALIDATOR, FakeNode, diagnosed, options, server_of
from tests.fakes.doctor_seeds import conflict, conflict_of_ours, crio
from tests.fakes.gpu_machines import mi300x
from tests.fakes.machine import write_machine

VECTORS = Path(__file__).parents[3] / "vectors" / "kubelet"


def test_a_kubelet_root_that_is_too_deep_for_sockets_is_reported(node: FakeNode) -> None:
    facts = node.facts()
    assert facts.node is not None
    deep = replace(facts, node=replace(facts.node, socket_excess=5))
    (finding,) = diagnose(deep)
    assert (finding.code, finding.severity) == ("socket-path-too-long", Severity.STOPS)
    assert "112 bytes" in finding.fault.what


def test_a_zombie_is_not_taken_for_the_running_kubelet(node: FakeNode) -> None:
    node.write("proc/5/comm", "kubelet\n")
    node.write("proc/5/cmdline", "")
    node.process("--root-dir", "/data/kubelet", f"--config=/{KUBELET}/config.yaml")
    assert "kubelet-root-differs" in [finding.code for finding in diagnosed(node)]


def test_two_instances_during_a_rolling_update_are_fine(node: FakeNode) -> None:
    node.unregister()
    for uid in (POD_UID, POD_UID.replace("0001", "0002")):
        node.register(f"{DRIVER}-{uid}-reg.sock")
    assert diagnosed(node) == ()


def test_two_instances_that_both_stay_are_a_finding(node: FakeNode) -> None:
    node.unregister()
    names = [f"{DRIVER}-{uid}-reg.sock" for uid in (POD_UID, POD_UID.replace("1", "2"))]
    for name in names:
        node.register(name)
    old = time.time() - 3600
    os.utime(node.folder / KUBELET / "plugins_registry" / names[0], (old, old))
    assert diagnosed(node) == ()
    os.utime(node.folder / KUBELET / "plugins_registry" / names[1], (old, old))
    (finding,) = diagnosed(node)
    assert finding.code == "second-driver"
    assert "kubectl get daemonsets -A" in finding.fault.fix


def test_other_vendors_drivers_are_not_a_finding(node: FakeNode) -> None:
    node.register("gpu.example.com-reg.sock", driver="gpu.example.com", endpoint="/anywhere/dra.sock")
    assert diagnosed(node) == ()


def test_an_old_runtime_is_found_from_the_node_object_alone(node: FakeNode) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.6.38"
    (node.folder / "etc/containerd/config.toml").unlink()
    assert [finding.code for finding in diagnosed(node)] == ["runtime-too-old"]


def test_a_running_runtime_without_a_file_has_its_versions_defaults(node: FakeNode) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.24"
    (node.folder / "etc/containerd/config.toml").unlink()
    node.runtime("containerd")
    node.silence()
    assert {finding.code for finding in diagnosed(node)} == {"nri-off", "cdi-off", "place-missing"}


@pytest.mark.parametrize("flags", [["--config", "/etc/k/c.toml"], ["--config=/etc/k/c.toml"], ["-c", "/etc/k/c.toml"]])
def test_the_configuration_of_the_running_runtime_is_read(node: FakeNode, flags: list[str]) -> None:
    node.runtime("containerd", *flags)
    node.write("etc/k/c.toml", (node.folder / "etc/containerd/config.toml").read_text())
    node.containerd({}, {"enable_cdi": False})
    assert diagnosed(node) == ()
    (node.folder / "etc/k/c.toml").unlink()
    facts = node.facts()
    assert diagnose(facts) == ()
    assert any("/etc/k/c.toml cannot be seen" in sentence for sentence in facts.unseen)


def test_nri_is_on_if_the_runtime_answers_whatever_a_file_says(node: FakeNode) -> None:
    node.containerd({"disable": True, "disable_connections": True, "default_validator": VALIDATOR}, {})
    assert diagnosed(node) == ()


def test_kubelets_drop_in_files_are_merged_in_order(node: FakeNode) -> None:
    node.process(f"--config=/{KUBELET}/config.yaml", "--config-dir=/etc/kubelet.d")
    node.write("etc/kubelet.d/10-gates.conf", "featureGates: {KubeletPodResourcesDynamicResources: false}\n")
    node.write("etc/kubelet.d/20-cpus.conf", "reservedSystemCPUs: '0-1'\n")
    node.write("etc/kubelet.d/README", "not: [a configuration")
    assert [finding.code for finding in diagnosed(node)] == ["kubelet-gate-off", "reserved-cpus-differ"]


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600.0), ("1m30s", 90.0), ("500ms", 0.5), ("100us", 0.0001)])
def test_a_timeout_is_parsed_like_a_go_duration(node: FakeNode, text: str, seconds: float) -> None:
    node.containerd({"default_validator": VALIDATOR, "plugin_request_timeout": text}, {})
    runtime = node.facts().runtime
    assert runtime is not None
    assert runtime.request_timeout == pytest.approx(seconds)


def test_nested_imports_count_and_a_loop_of_imports_ends(node: FakeNode) -> None:
    node.silence()
    node.containerd({}, {}, imports=["conf.d/*.toml"])
    node.write("etc/containerd/conf.d/10.toml", 'imports = ["more/nri.toml", "../config.toml"]\n')
    node.write("etc/containerd/conf.d/more/nri.toml", '[plugins."io.containerd.nri.v1.nri"]\n  disable = true\n')
    assert "nri-off" in [finding.code for finding in diagnosed(node)]


def test_an_older_version_of_the_api_is_enough(node: FakeNode) -> None:
    server_of(node).versions = ["v1beta1"]
    assert diagnosed(node) == ()
    (dry_run,) = [request for request in server_of(node).asked if request.query.get("dryRun")]
    assert dry_run.path == "/apis/resource.k8s.io/v1beta1/resourceslices"
    assert "basic" in dry_run.body["spec"]["devices"][0]


def test_the_rights_of_the_drivers_account_are_checked_for_other_users(node: FakeNode) -> None:
    wanted, plugins = judged_options(("cpu",), open_machine("cores=2"), "worker", node.options)
    server_of(node).denied = {"get nodes"}
    cluster, _, _ = read_cluster(server_of(node), wanted, plugins, "dranode:dranode")
    (fault,) = [one.fault.what for one in diagnose(Facts(wanted, cluster=cluster)) if one.code == "rbac-missing"]
    assert fault == "RBAC does not allow the service account dranode:dranode to get nodes"
    reviews = [request.body for request in server_of(node).asked if request.method == "POST" and not request.query]
    assert {review["kind"] for review in reviews} == {"SubjectAccessReview"}
    assert {review["spec"]["user"] for review in reviews} == {"system:serviceaccount:dranode:dranode"}


def test_hardware_warnings_are_shown_as_the_driver_logs_them() -> None:
    machine = mi300x(gpus=1, parts=1)
    machine.fail("sys/class/kfd/kfd/topology/nodes/1/properties")
    root = machine.root()
    (sentence,) = scan(root).warnings
    judged, _ = judged_options(("gpu",), root, "worker", options())
    assert judged.oddities == (f"dra.gpu: {sentence}",)
    (finding,) = diagnose(Facts(judged))
    assert (finding.code, finding.severity) == ("hardware-odd", Severity.WARNS)
    assert finding.fault.what == f"dra.gpu: {sentence}"
    assert "so it is not known whether AMD GPUs are partitioned" in sentence


def test_unpublished_devices_are_reported_as_the_driver_logs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = Inventory((Device(name="a"), Device(name="a")), warnings=("odd",))
    monkeypatch.setattr(GPUPlugin, "discover", lambda _: twice)
    judged, _ = judged_options(("gpu",), mi300x().root(), "worker", options())
    assert judged.oddities == ("dra.gpu: odd", 'dra.gpu: device "a" is left out: another one has that name')


def test_a_driver_that_may_not_read_its_hardware_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> Inventory:
        raise PermissionError(errno.EACCES, "Permission denied", "/sys/class/lamp")

    monkeypatch.setattr(GPUPlugin, "discover", refused)
    judged, plugins = judged_options(("gpu",), mi300x().root(), "worker", options())
    assert plugins == ()
    (finding,) = diagnose(Facts(judged))
    assert (finding.code, finding.severity) == ("hardware-unread", Severity.STOPS)
    assert finding.fault.what == "dra.gpu prepares no claims: [Errno 13] Permission denied: '/sys/class/lamp'"


def test_a_driver_that_pins_nothing_needs_no_nri() -> None:
    facts = Facts(ServeOptions(node="worker", drivers=("dra.gpu",), nri_socket=""))
    assert diagnose(facts) == ()


@pytest.mark.parametrize(("version", "codes"), [("v1.7.12-k3s1", ["runtime-too-old"]), ("1.7.27", []), ("1.7", [])])
def test_gpus_need_a_containerd_that_knows_the_groups_of_device_nodes(version: str, codes: list[str]) -> None:
    runtime = RuntimeFacts("containerd", "", runtime_version(version), nri=None, cdi=None)
    facts = Facts(ServeOptions(node="worker", drivers=("dra.gpu",), nri_socket=""), runtime=runtime)
    assert [finding.code for finding in diagnose(facts)] == codes


def test_findings_that_stop_pods_come_first(node: FakeNode) -> None:
    node.kubelet(reservedSystemCPUs="0-1")
    server_of(node).classes.clear()
    assert [finding.severity for finding in diagnosed(node)] == [Severity.STOPS, Severity.WARNS]


def test_the_command_prints_json_and_fails_if_a_finding_stops_pods(node: FakeNode) -> None:
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


@pytest.mark.parametrize(
    ("root", "command_line"),
    [("/", "kubectl debug node/worker -it"), ("FOLDER", "")],
)
def test_a_partial_check_says_first_which_command_sees_more(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, root: str, command_line: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    facts = replace(node.facts(), unseen=("kubelet's configuration: config.yaml cannot be read",))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _draw(facts, diagnose(facts), root)
    first = out.getvalue().splitlines()[0]
    assert first.startswith("This is a partial check of node worker: 1 thing could not be checked")
    assert command_line in " ".join(out.getvalue().split())
    assert ("kubectl debug" in out.getvalue()) is bool(command_line)


def test_a_full_check_does_not_say_that_it_is_partial(node: FakeNode) -> None:
    facts = replace(node.facts(), unseen=())
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _draw(facts, diagnose(facts), "/")
    assert "partial" not in out.getvalue()


def test_a_real_server_is_asked_and_not_changed(node: FakeNode) -> None:
    write_machine(node.folder)
    with ApiServer(objects=Objects(gates_off=["DRAConsumableCapacity"])) as api:
        info = {"kubeletVersion": "v1.35.2", "containerRuntimeVersion": "containerd://2.2.1"}
        api.put("nodes", {"metadata": {"name": "worker"}, "status": {"nodeInfo": info}})
        kubeconfig = api.kubeconfig(node.folder / "kubeconfig")
        arguments = ["--root", str(node.folder), "--node-name", "worker", "--reserved-cpus", "0", "-o", "json"]
        ran = CliRunner().invoke(command, [*arguments, "--kubeconfig", kubeconfig])
        assert api.objects.all("resourceslices") == []
    answer = json.loads(ran.stdout)
    codes = [one["code"] for one in answer["findings"]]
    # This server refuses reviews of rights.
    assert codes == ["api-refused", "feature-gate-off", "class-missing", "no-slices"]
    assert answer["findings"][0]["what"].startswith("the driver's rights: the API server answered 422")
    assert [sentence for sentence in answer["unseen"] if "root" not in sentence] == []


def test_relative_paths_start_at_the_working_directory_as_with_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubelet" / "plugins").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    arguments = ["--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "none", "-o", "json"]
    ran = CliRunner(env={"KUBERNETES_SERVICE_HOST": ""}).invoke(command, arguments)
    missing = [each["what"] for each in json.loads(ran.output)["findings"] if each["code"] == "place-missing"]
    assert [what.split(" (")[0] for what in missing] == [
        f"the folder {tmp_path}/kubelet/plugins_registry",
        f"the socket {tmp_path}/kubelet/pod-resources/kubelet.sock",
    ]


def test_a_cdi_conflict_of_another_vendor_does_not_stop_us(node: FakeNode) -> None:
    conflict(node)
    assert [(each.code, each.severity) for each in diagnosed(node)] == [("cdi-conflict", Severity.WARNS)]


def test_a_cdi_conflict_of_our_devices_stops_pods(node: FakeNode) -> None:
    conflict_of_ours(node)
    assert [(each.code, each.severity) for each in diagnosed(node)] == [("cdi-conflict", Severity.STOPS)]


@pytest.mark.parametrize(
    ("version", "hangs"),
    [
        ("v1.34.0", True),
        ("v1.34.1+k3s1", True),
        ("v1.34.1-eks-113cf36", True),
        ("v1.34.2", False),
        ("v1.34.10", False),
        ("v1.35.0", False),
        ("v1.34", False),
    ],
)
def test_a_kubelet_that_hangs_on_idle_plugins_is_named(node: FakeNode, version: str, *, hangs: bool) -> None:
    server_of(node).nodes["worker"]["kubeletVersion"] = version
    codes = [finding.code for finding in diagnosed(node)]
    assert codes == (["kubelet-hangs"] if hangs else [])


@pytest.mark.parametrize("state", sorted(VECTORS.glob("cpu_manager_state-*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("root", [KUBELET, "var/snap/microk8s/common/var/lib/kubelet", "var/lib/k0s/kubelet"])
def test_a_static_cpu_manager_is_found_without_a_configuration_file(node: FakeNode, state: Path, root: str) -> None:
    # On k3s and MicroK8s kubelet is part of a process with their name.
    (node.folder / KUBELET / "config.yaml").unlink()
    (node.folder / KUBELET / "cpu_manager_state").unlink()
    node.options["kubelet_root"] = f"/{KUBELET}"
    node.write(f"{root}/cpu_manager_state", state.read_text())
    facts = node.facts()
    finding = next(each for each in diagnose(facts) if each.code == "kubelet-cpu-manager-static")
    assert f"(/{root}/cpu_manager_state)" in finding.fault.what
    assert "kubelet-arg" in finding.fault.fix
    assert any("kubelet's configuration" in sentence for sentence in facts.unseen)


@pytest.mark.parametrize(("configured", "state"), [("static", "none"), ("none", "static")])
def test_a_cpu_manager_state_with_another_policy_is_named(node: FakeNode, configured: str, state: str) -> None:
    # kubelet does not start until that file is removed.
    config = node.folder / KUBELET / "config.yaml"
    config.write_text(f"{config.read_text()}\ncpuManagerPolicy: {configured}\n")
    node.write(f"{KUBELET}/cpu_manager_state", f'{{"policyName":"{state}","defaultCpuSet":"0-3","checksum":0}}')
    finding = next(finding for finding in diagnosed(node) if finding.code == "kubelet-cpu-manager-static")
    assert "set cpuManagerPolicy: none" in finding.fault.fix
    assert "cpu_manager_state and restart kubelet" in finding.fault.fix


def test_a_static_memory_manager_is_found_by_its_state(node: FakeNode) -> None:
    node.write(f"{KUBELET}/memory_manager_state", '{"policyName":"Static","machineState":{},"checksum":0}')
    (finding,) = diagnosed(node)
    assert finding.code == "kubelet-memory-manager-static"
    assert "memory_manager_state" in finding.fault.what


def test_drop_in_files_in_folders_count_and_null_resets_a_value(node: FakeNode) -> None:
    node.process(f"--config=/{KUBELET}/config.yaml", "--config-dir=/etc/kubelet.d")
    node.write("etc/kubelet.d/10/a.conf", "cpuManagerPolicy: static\ntopologyManagerPolicy: restricted\n")
    node.write("etc/kubelet.d/20.conf", "topologyManagerPolicy: null\n")
    assert [finding.code for finding in diagnosed(node)] == ["kubelet-cpu-manager-static"]


@pytest.mark.parametrize("flag", ["--cpu-manager-policy=static", "--cpu_manager_policy=static"])
def test_kubelets_flags_may_have_underscores(node: FakeNode, flag: str) -> None:
    node.process(f"--config=/{KUBELET}/config.yaml", flag)
    assert [finding.code for finding in diagnosed(node)] == ["kubelet-cpu-manager-static"]


def test_feature_gates_are_parsed_like_go_booleans(node: FakeNode) -> None:
    node.process(f"--config=/{KUBELET}/config.yaml", "--feature-gates=DynamicResourceAllocation=1")
    assert diagnosed(node) == ()
    node.process(
        f"--config=/{KUBELET}/config.yaml", "--feature-gates=DynamicResourceAllocation=F", "--feature-gates=A=1"
    )
    assert [finding.code for finding in diagnosed(node)] == ["kubelet-gate-off"]


def test_a_kubelet_root_is_normalized_before_it_is_compared(node: FakeNode) -> None:
    node.process("--root-dir=/var/lib/./kubelet/")
    assert diagnosed(node) == ()


def test_every_file_in_crios_folder_counts_whatever_its_suffix(node: FakeNode) -> None:
    node.silence()
    crio(node, "")
    node.write("etc/crio/crio.conf.d/99-more/nri", "[crio.nri]\nenable_nri = false\n")
    assert "nri-off" in [finding.code for finding in diagnosed(node)]


def test_the_configuration_of_the_running_crio_is_read(node: FakeNode) -> None:
    node.silence()
    crio(node, "")
    node.runtime("crio", "--config-dir=/etc/other")
    node.write("etc/other/nri.conf", "[crio.nri]\nenable_nri = false\n")
    assert "nri-off" in [finding.code for finding in diagnosed(node)]
