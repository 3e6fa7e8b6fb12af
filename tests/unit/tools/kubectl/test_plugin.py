"""`kubectl dranode` shows claims, devices and nodes of all drivers, with kubectl's flags and output formats."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dranode.api.errors import DranodeError, UsageError
from dranode.sanity.kinds import kind_of
from dranode.tools.kubectl.plugin import candidates, options_behind, plugin
from dranode.tools.kubectl.views import age
from tests.fakes.apiserver import Fault
from tests.fakes.doctor import forbid
from tests.fakes.pods import CPU, GPU, PodCluster, cpu_device, cpus, on_laptop, request, result, running


@pytest.fixture
def kubectl(cluster: PodCluster, tmp_path: Path) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        return on_laptop(plugin, cluster, tmp_path, *arguments).output

    return run


def table(text: str) -> list[list[str]]:
    """The cells of a table; no cell in these tests contains three spaces."""
    lines = text.splitlines()
    starts = [index for index, char in enumerate(lines[0]) if char != " " and lines[0][:index][-3:] in ("", "   ")]
    return [[line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)] for line in lines]


def busy(cluster: PodCluster) -> None:
    """Worker-1 has one running claim of CPUs and one of a GPU; another pod waits for the first."""
    some = [result("cpudevnuma000", CPU, "worker-1", shareID="s1", consumedCapacity={f"{CPU}/cpu": "6"})]
    cluster.claim("busy", cpus("6"), results=some, node="worker-1", pods=["b"], labels={"team": "a"})
    cluster.claim(
        "gpu", request(device_class=GPU), results=[result("gpu-0", GPU, "worker-1")], node="worker-1", pods=["g"]
    )
    cluster.claim("idle", cpus("1"))
    cluster.pod("b", claims={"cpus": "busy"}, node="worker-1", containers=[running()])
    cluster.pod("later", claims={"cpus": "busy"})
    cluster.pod("g", claims={"gpu": "gpu"}, node="worker-1", containers=[running()])


def test_claims_have_pods_node_devices_and_waiting_pods(cluster: PodCluster, kubectl: Any) -> None:
    busy(cluster)
    lines = table(kubectl("claims"))
    assert lines[0] == ["NAME", "STATE", "POD", "NODE", "DEVICES", "AGE", "HEALTH", "WAITING"]
    rows = {line[0]: line[1:5] + line[6:] for line in lines[1:]}
    assert rows["busy"] == ["allocated,reserved", "b", "worker-1", "cpudevnuma000(6 cpu)", "<none>", "later"]
    assert rows["gpu"] == ["allocated,reserved", "g", "worker-1", "gpu-0", "<none>", "<none>"]
    assert rows["idle"][:4] == ["pending", "<none>", "<none>", "<none>"]
    assert table(kubectl("claims", "-A", "busy"))[1][0] == "default"
    assert kubectl("claims", "-l", "team=a", "-o", "name") == "resourceclaim.resource.k8s.io/busy\n"
    assert kubectl("claims", "-n", "other") == "No resources found.\n"
    assert len(kubectl("claims", "--no-headers").splitlines()) == 3


def test_a_claims_health_is_what_its_driver_reports(cluster: PodCluster, kubectl: Any) -> None:
    busy(cluster)
    condition = {"type": "Ready", "status": "False", "reason": "Overheated", "message": "at 104 degrees"}
    entry = {"driver": GPU, "pool": "worker-1", "device": "gpu-0", "conditions": [condition]}
    cluster.api.objects.edit("resourceclaims", "gpu", lambda claim: claim["status"].update(devices=[entry]), "default")
    lines = table(kubectl("claims", "gpu", "-o", "wide"))
    row = dict(zip(lines[0], lines[1], strict=True))
    assert (row["HEALTH"], row["MESSAGE"], row["DRIVERS"]) == ("Overheated", "at 104 degrees", GPU)


def test_devices_are_free_taken_shared_or_tainted_with_the_reason(cluster: PodCluster, kubectl: Any) -> None:
    busy(cluster)
    rule = {"deviceSelector": {"driver": GPU, "pool": "worker-2", "device": "gpu-1"}}
    cluster.api.put(
        "devicetaintrules",
        {"metadata": {"name": "off"}, "spec": {**rule, "taint": {"key": "m", "value": "x", "effect": "NoSchedule"}}},
    )
    rows = {(line[1], line[2]): line[4:] for line in table(kubectl("devices"))[1:]}
    assert rows["worker-1", "cpudevnuma000"] == ["shared", "2/8 cpu", "default/busy(6 cpu)", "<none>"]
    assert rows["worker-2", "cpudevnuma000"] == ["free", "8/8 cpu", "<none>", "<none>"]
    assert rows["worker-1", "gpu-0"] == ["taken", "<none>", "default/gpu", "<none>"]
    assert rows["worker-1", "gpu-1"][0] == "free"
    assert rows["worker-2", "gpu-1"] == ["tainted", "<none>", "<none>", "m=x:NoSchedule (rule off)"]
    assert kubectl("devices", "--state", "taken", "-o", "name") == f"device/{GPU}/worker-1/gpu-0\n"
    assert len(kubectl("devices", "--node", "worker-2", "--drivers", GPU, "--no-headers").splitlines()) == 2
    with pytest.raises(UsageError, match="the states are free, taken, shared, tainted, blocked"):
        kubectl("devices", "--state", "lost")


def test_a_shared_device_with_nothing_left_is_shown_as_taken(cluster: PodCluster, kubectl: Any) -> None:
    every = [result("cpudevnuma000", CPU, "worker-1", shareID="s1", consumedCapacity={"cpu": "8"})]
    cluster.claim("all", cpus("8"), results=every, node="worker-1", pods=["p"])
    row = table(kubectl("devices", "--node", "worker-1", "--drivers", CPU))[1]
    assert row[4:6] == ["taken", "0/8 cpu"]


def test_admin_access_takes_nothing(cluster: PodCluster, kubectl: Any) -> None:
    watch = [result("gpu-0", GPU, "worker-1", adminAccess=True)]
    cluster.claim("watch", request(device_class=GPU), results=watch, node="worker-1", pods=["p"])
    row = table(kubectl("devices", "--node", "worker-1", "gpu-0"))[1]
    assert (row[4], row[6]) == ("free", "default/watch(admin)")


def test_a_partition_whose_counters_are_used_up_is_blocked(cluster: PodCluster, kubectl: Any) -> None:
    counters = [{"name": "memory", "counters": {"bytes": {"value": "80Gi"}}}]

    def part(name: str, size: str) -> Any:
        return {"name": name, "consumesCounters": [{"counterSet": "memory", "counters": {"bytes": {"value": size}}}]}

    spec = {"driver": "mig", "nodeName": "worker-1", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}}
    cluster.api.put("resourceslices", {"metadata": {"name": "a"}, "spec": {**spec, "sharedCounters": counters}})
    devices = [part("whole", "80Gi"), part("half-0", "40Gi"), part("half-1", "40Gi")]
    cluster.api.put("resourceslices", {"metadata": {"name": "b"}, "spec": {**spec, "devices": devices}})
    half = {**result("half-0", "mig", "worker-1"), "pool": "p"}
    cluster.claim("mine", request(device_class=GPU), results=[half], node="worker-1", pods=["p"])
    rows = {line[2]: line[4] for line in table(kubectl("devices", "--drivers", "mig"))[1:]}
    assert rows == {"whole": "blocked", "half-0": "taken", "half-1": "free"}


def test_devices_of_an_older_generation_are_left_out(cluster: PodCluster, kubectl: Any) -> None:
    cluster.slice("worker-2", "nic", [{"name": "new"}], generation=2)
    spec = {"driver": "nic", "nodeName": "worker-2", "devices": [{"name": "old"}]}
    pool = {"name": "worker-2", "generation": 1, "resourceSliceCount": 1}
    cluster.api.put("resourceslices", {"metadata": {"name": "x"}, "spec": {**spec, "pool": pool}})
    assert kubectl("devices", "--drivers", "nic", "-o", "name") == "device/nic/worker-2/new\n"


def test_nodes_show_what_is_free_by_numa_node_and_driver(cluster: PodCluster, kubectl: Any) -> None:
    busy(cluster)
    numa = {"resource.kubernetes.io/numaNode": {"int": 1}}
    devices = [cpu_device("cpudevnuma001", "16", attributes=numa)]
    cluster.api.objects.edit(
        "resourceslices", f"00000-{CPU}-worker-2-abcde", lambda one: one["spec"].update(devices=devices)
    )
    nics = [{"name": f"nic-{index}", "attributes": numa} for index in range(2)]
    cluster.slice("worker-2", "nic.example.com", nics)
    lines = table(kubectl("nodes"))
    assert lines[0] == ["NODE", "STATUS", "NUMA", "DRA.CPU/CPU", "GPU.EXAMPLE.COM", "NIC.EXAMPLE.COM"]
    assert lines[1:] == [
        ["control-plane", "Ready", "-", "-", "-", "-"],
        ["worker-1", "Ready", "-", "2/8", "1/2", "-"],
        ["worker-2", "Ready", "1", "16/16", "-", "2/2"],
        ["worker-2", "Ready", "-", "-", "2/2", "-"],
    ]
    assert [line[0] for line in table(kubectl("nodes", "worker-1"))[1:]] == ["worker-1"]
    with pytest.raises(DranodeError, match='node "worker-9" not found'):
        kubectl("nodes", "worker-9")


def memory_device(name: str, size: str, pages: str = "") -> dict[str, Any]:
    attributes = {"hugeTLB": {"bool": bool(pages)}, **({"pageSize": {"string": pages}} if pages else {})}
    return {
        "name": name,
        "attributes": attributes,
        "allowMultipleAllocations": True,
        "capacity": {"size": {"value": size}},
    }


def test_memory_and_huge_pages_have_their_own_columns_and_names(cluster: PodCluster, kubectl: Any) -> None:
    devices = [memory_device("m", "54Gi"), memory_device("h2", "1Gi", "2m"), memory_device("h1", "2Gi", "1g")]
    cluster.slice("worker-1", "dra.memory", devices)
    part = {**result("m", "dra.memory", "worker-1"), "consumedCapacity": {"size": "4Gi"}, "shareID": "s"}
    cluster.claim("mine", request(device_class=CPU), results=[part], node="worker-1", pods=["p"])
    header, *rows = table(kubectl("nodes", "worker-1"))
    amounts = [dict(zip(header, row, strict=True)) for row in rows]
    for column, amount in (("MEMORY", "50Gi/54Gi"), ("HUGEPAGES-2MI", "1Gi/1Gi"), ("HUGEPAGES-1GI", "2Gi/2Gi")):
        assert {row[column] for row in amounts} - {"-"} == {amount}
    items = json.loads(kubectl("nodes", "worker-1", "-o", "json"))["items"]
    totals = {name: amount for item in items for name, amount in item["total"].items()}
    assert totals.items() >= {"memory": "54Gi", "hugepages-2Mi": "1Gi", "hugepages-1Gi": "2Gi"}.items()
    of_devices = kubectl("devices", "--drivers", "dra.memory")
    assert "50Gi/54Gi memory" in of_devices
    assert "1Gi/1Gi hugepages-2Mi" in of_devices
    assert "default/mine(4Gi)" in of_devices
    assert "m(4Gi)" in kubectl("claims")


@pytest.mark.parametrize("what", ["claims", "devices", "nodes"])
def test_json_and_yaml_are_the_same_list(cluster: PodCluster, kubectl: Any, what: str) -> None:
    busy(cluster)
    document = json.loads(kubectl(what, "-o", "json"))
    assert document["items"]
    assert yaml.safe_load(kubectl(what, "-o", "yaml")) == document


def test_the_plugin_has_explain_and_fit_too(cluster: PodCluster, kubectl: Any) -> None:
    cluster.pod("app", templates={"cpus": "none"})
    page = json.loads(kubectl("explain", "app", "-o", "json"))
    assert page["causes"][0]["cause"] == "template-missing"
    assert "Usage: plugin fit" in kubectl("fit", "--help")


def test_fit_asks_the_cluster_that_kubectl_uses(cluster: PodCluster, kubectl: Any, tmp_path: Path) -> None:
    busy(cluster)
    for kind in ("services", "replicationcontrollers", "replicasets", "statefulsets", "priorityclasses"):
        refuse(cluster, kind)
    page = tmp_path / "fit.html"
    text = " ".join(kubectl("fit", "--pod", "later", "--html", str(page)).split())
    assert "default/later" in text
    assert "note: not seen: RBAC or an admission policy does not let this account list services" in text
    assert page.read_text().count("worker-1")
    refuse(cluster, "resourceslices")
    with pytest.raises(DranodeError, match="list resourceslices"):
        kubectl("fit", "--pod", "later")


def test_a_server_without_taint_rules_is_not_an_error(cluster: PodCluster, kubectl: Any) -> None:
    cluster.api.versions = ("v1beta1",)
    assert len(kubectl("devices", "--drivers", GPU, "--no-headers").splitlines()) == 4


def refuse(cluster: PodCluster, resource: str) -> None:
    said = f'{{"kind":"Status","message":"User u cannot list resource {resource}"}}'
    cluster.api.faults.append(Fault(path=f"/{resource}", status=403, times=99, body=said))


@pytest.mark.parametrize(("resource", "column"), [("pods", "WAITING"), ("resourceslices", "NODE")])
def test_claims_are_shown_even_if_the_account_may_not_list_the_rest(
    cluster: PodCluster, kubectl: Any, resource: str, column: str
) -> None:
    busy(cluster)
    refuse(cluster, resource)
    note, *rest = kubectl("claims").splitlines()
    assert note.startswith("not seen: ")
    assert f"does not let this account list {resource}" in note
    head, *lines = table("\n".join(rest))
    assert {line[head.index(column)] for line in lines if line[0] != "idle" or column == "WAITING"} == {"<unknown>"}
    document = json.loads(kubectl("claims", "busy", "-o", "json").partition("\n")[2])
    assert document["items"][0][column.lower()] is None


def test_nothing_is_called_free_without_claims_or_ready_without_nodes(cluster: PodCluster, kubectl: Any) -> None:
    busy(cluster)
    refuse(cluster, "nodes")
    note, *rest = kubectl("nodes").splitlines()
    assert note.startswith("not seen: which nodes are ready: RBAC")
    assert {line[1] for line in table("\n".join(rest))[1:]} == {"Unknown"}
    refuse(cluster, "devicetaintrules")
    assert "not seen: the taints of DeviceTaintRules" in kubectl("devices")
    refuse(cluster, "resourceclaims")
    for command in ("devices", "nodes", "claims"):
        with pytest.raises(DranodeError, match="does not let this account list resourceclaims"):
            kubectl(command)


def test_a_pool_with_missing_slices_is_reported(cluster: PodCluster, kubectl: Any) -> None:
    busy(cluster)
    slices = cluster.api.objects.all("resourceslices")
    slices[0]["spec"]["pool"]["resourceSliceCount"] = 3
    cluster.api.objects.replace(kind_of("resourceslices"), slices[0])
    for command in ("devices", "nodes"):
        assert "is not complete: 1 of 3 slices are published" in kubectl(command)
    assert "is not complete" not in kubectl("devices", "--node", "worker-1")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("--context prod --kubeconfig=f -n x claims a -A", "claims --context prod --kubeconfig=f -n x a -A"),
        ("-s x --insecure-skip-tls-verify --as=j nodes", "nodes -s x --insecure-skip-tls-verify --as=j"),
        ("claims -n x", "claims -n x"),
        ("-nx -A claims", "claims -nx -A"),
        ("--context prod --help", "--help"),
        ("--context", ""),
    ],
)
def test_kubectls_options_may_stand_before_the_command(written: str, read: str) -> None:
    assert options_behind(written.split()) == read.split()


def test_without_a_cluster_it_says_how_to_name_one(tmp_path: Path) -> None:
    runner = CliRunner(env={"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""})
    ran = runner.invoke(plugin, ["claims"])
    assert "set KUBECONFIG" in str(ran.exception)


def test_an_unreadable_default_kubeconfig_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner(env={"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""})
    (tmp_path / ".kube").mkdir()
    forbid(monkeypatch, tmp_path / ".kube")
    for command in (["claims"], ["explain", "pod/p"]):
        ran = runner.invoke(plugin, command)
        assert isinstance(ran.exception, UsageError), ran.output
        assert f"{tmp_path}/.kube/config cannot be accessed: Permission denied; run as" in str(ran.exception)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-2, "<invalid>"), (-1, "0s"),
     (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (3 * 3600 + 60, "3h1m"), (9 * 3600, "9h"),
     (3 * 86400, "3d"), (3 * 86400 + 7200, "3d2h"), (30 * 86400, "30d"), (729 * 86400, "729d"),
     (730 * 86400, "2y"), (800 * 86400, "2y70d"), (2921 * 86400, "8y")],
)  # fmt: skip
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    assert age("2026-01-01T00:00:00Z", datetime.fromtimestamp(made.timestamp() + seconds, UTC)) == text


def test_an_unknown_age() -> None:
    assert age("", datetime(2026, 1, 1, tzinfo=UTC)) == "<unknown>"


def test_kubectl_gets_completions_with_descriptions_and_no_files(
    cluster: PodCluster, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("KUBECONFIG", cluster.api.kubeconfig(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))
    commands = list(candidates([""]))
    assert [line.partition("\t")[0] for line in commands] == [
        "claims", "completion", "devices", "explain", "fit", "nodes", ":4",
    ]  # fmt: skip
    assert list(candidates(["nodes", "worker-"])) == ["worker-1", "worker-2", ":4"]
    assert next(candidates(["claims", "--no"])).startswith("--no-headers\t")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion_script(kubectl: Any, shell: str) -> None:
    assert f"_KUBECTL_DRANODE_COMPLETE={shell}_complete" in kubectl("completion", shell)


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name.endswith("kubectl.plugin"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from dranode.tools.kubectl import run_plugin
run_plugin()
"""


def test_ctrl_c_while_modules_are_loaded_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
