"""`doctor --all-nodes` checks every node by what the API server knows, and prints one table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.tools.cli.doctor import command
from tests.fakes.apiserver import Fault
from tests.fakes.pods import CPU, PodCluster


@pytest.fixture
def doctor(cluster: PodCluster, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    kubeconfig = cluster.api.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str) -> tuple[int, str]:
        laptop = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": kubeconfig, "HOME": str(tmp_path)}
        ran = CliRunner(env=laptop).invoke(command, ["--all-nodes", *arguments])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return ran.exit_code, ran.stdout

    return run


def driver_pod(
    cluster: PodCluster,
    node: str,
    ready: str = "True",
    message: str = "",
    *,
    daemonset: str = "dranode",
    name: str = "",
    **more: Any,
) -> None:
    metadata = {
        "name": name or f"{daemonset}-{node}",
        "namespace": "dranode",
        "labels": {"app.kubernetes.io/name": daemonset},
        "ownerReferences": [
            {"kind": "DaemonSet", "name": daemonset, "apiVersion": "apps/v1", "uid": f"ds-{daemonset}"}
        ],
    }
    condition = {"type": "Ready", "status": ready, "reason": "ContainersNotReady", "message": message}
    restarted = [{"name": "dranode", "restartCount": 4, "state": {"running": {}}}] if ready != "True" else []
    status = {"phase": "Running", "conditions": [condition], "containerStatuses": restarted, **more}
    cluster.api.put("pods", {"metadata": metadata, "spec": {"nodeName": node}, "status": status})


def daemonset(cluster: PodCluster, name: str = "dranode", image: str = "dranode:0.1.0", **spec: Any) -> None:
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}], **spec}}
    metadata = {"name": name, "namespace": "dranode"}
    cluster.api.put(
        "daemonsets", {"metadata": metadata, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    )


def findings(text: str, node: str) -> dict[str, str]:
    (document,) = (one for one in json.loads(text) if one["node"] == node)
    return {finding["code"]: finding["what"] for finding in document["findings"]}


def codes(text: str) -> dict[str, list[str]]:
    return {one["node"]: [finding["code"] for finding in one["findings"]] for one in json.loads(text)}


def test_healthy_nodes_and_a_bare_control_plane_have_no_findings(cluster: PodCluster, doctor: Any) -> None:
    for node in ("worker-1", "worker-2"):
        driver_pod(cluster, node)
    status, text = doctor("-o", "json")
    assert (status, codes(text)) == (0, {"control-plane": [], "worker-1": [], "worker-2": []})


def test_a_node_whose_driver_is_not_ready_or_publishes_nothing(cluster: PodCluster, doctor: Any) -> None:
    driver_pod(cluster, "worker-1", "False", "containers with unready status: [dranode]")
    driver_pod(cluster, "worker-2")
    cluster.api.objects.remove("resourceslices", f"00000-{CPU}-worker-2-abcde")
    status, text = doctor("-o", "json")
    assert (status, codes(text)["worker-1"], codes(text)["worker-2"]) == (1, ["driver-pod-missing"], ["no-slices"])
    assert "its container dranode was restarted" in text


def test_an_old_kubelet_and_an_old_runtime_are_found_from_anywhere(cluster: PodCluster, doctor: Any) -> None:
    info = {"kubeletVersion": "v1.32.4", "containerRuntimeVersion": "containerd://1.6.38"}
    cluster.api.objects.edit("nodes", "worker-1", lambda node: node["status"].update(nodeInfo=info))
    driver_pod(cluster, "worker-1")
    _, text = doctor("-o", "json")
    assert codes(text)["worker-1"] == ["runtime-too-old", "kubelet-too-old"]


def test_a_device_plugin_for_the_same_gpus_is_found_from_anywhere(cluster: PodCluster, doctor: Any) -> None:
    gpus = {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "1"}
    for node in ("worker-1", "worker-2"):
        driver_pod(cluster, node)
        cluster.api.objects.edit("nodes", node, lambda one: one["status"].update(allocatable=gpus))
    cluster.slice("worker-1", "dra.gpu", [{"name": "gpu-0000-17-00-0"}])
    _, text = doctor("--drivers", "cpu", "--drivers", "gpu", "-o", "json")
    assert findings(text, "worker-1")["device-plugin"].startswith("a device plugin on this node hands out nvidia")
    assert "device-plugin" not in codes(text)["worker-2"], "the driver has no GPU there"


def test_one_table_has_every_finding_and_its_remedy(cluster: PodCluster, doctor: Any) -> None:
    cluster.api.objects.remove("resourceslices", f"00000-{CPU}-worker-2-abcde")
    status, text = doctor()
    lines = text.splitlines()
    assert lines[0].split() == ["node", "verdict", "first", "what", "to", "do"]
    assert status == 1
    assert any(line.startswith("worker-2") and "1 fault stops it, 0" in line for line in lines)
    assert "kubectl exec -n dranode POD -- dranode doctor" in " ".join(text.split())


def test_text_in_brackets_is_printed_too(cluster: PodCluster, doctor: Any) -> None:
    driver_pod(cluster, "worker-1", "False", "containers with unready status: [dranode]")
    _, text = doctor()
    assert "[dranode]" in text


def test_a_node_without_a_pod_of_the_driver_is_a_finding(cluster: PodCluster, doctor: Any) -> None:
    driver_pod(cluster, "worker-1")
    status, text = doctor("-o", "json")
    assert (status, codes(text)) == (
        1,
        {"control-plane": [], "worker-1": [], "worker-2": ["driver-pod-missing"]},
    )
    assert "no pod of the driver runs there" in findings(text, "worker-2")["driver-pod-missing"]


def test_a_pod_missing_from_a_selected_node_is_named_with_its_daemonset(cluster: PodCluster, doctor: Any) -> None:
    daemonset(cluster, tolerations=[{"operator": "Exists"}])
    driver_pod(cluster, "worker-1")
    driver_pod(cluster, "worker-2", daemonset="dranode", phase="Failed")
    status, text = doctor("-o", "json")
    assert status == 1
    for node in ("worker-2", "control-plane"):
        assert "though the DaemonSet dranode/dranode selects it" in findings(text, node)["driver-pod-missing"]
    assert codes(text)["worker-1"] == []


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeSelector": {"pool": "cpu"}}, "the pod's nodeSelector requires pool=cpu"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
                        }
                    }
                }
            },
            "the pod's node affinity excludes it",
        ),
    ],
)
def test_a_node_that_no_daemonset_selects_is_a_finding(
    cluster: PodCluster, doctor: Any, spec: dict[str, Any], why: str
) -> None:
    daemonset(cluster, **spec)
    status, text = doctor("-o", "json")
    assert (status, codes(text)["worker-1"]) == (0, ["driver-left-out"])
    assert f"DaemonSet dranode/dranode: {why}" in findings(text, "worker-1")["driver-left-out"]


def test_an_untolerated_taint_is_named_unless_it_comes_from_a_condition(cluster: PodCluster, doctor: Any) -> None:
    # Gt compares numbers, so it does not tolerate a taint without a value.
    key = "node-role.kubernetes.io/control-plane"
    daemonset(cluster, tolerations=[{"key": key, "operator": "Gt", "effect": "NoSchedule"}])
    for node in ("worker-1", "worker-2"):
        driver_pod(cluster, node)
    taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    cluster.node("worker-3", taints=taints, unschedulable=True)
    _, text = doctor("-o", "json")
    assert codes(text) == {
        "control-plane": ["driver-left-out"],
        "worker-1": [],
        "worker-2": [],
        "worker-3": ["driver-pod-missing"],
    }
    assert f"{key}:NoSchedule" in findings(text, "control-plane")["driver-left-out"]


def test_a_driver_that_is_installed_under_another_name_is_found(cluster: PodCluster, doctor: Any) -> None:
    daemonset(cluster, "cpus", "registry.example/team/dranode@sha256:0")
    for node in ("worker-1", "worker-2"):
        driver_pod(cluster, node, daemonset="cpus")
    assert codes(doctor("-o", "json")[1]) == {"control-plane": ["driver-left-out"], "worker-1": [], "worker-2": []}


def test_two_daemonsets_with_the_driver_on_one_node_are_named(cluster: PodCluster, doctor: Any) -> None:
    for name in ("dranode", "copy"):
        daemonset(cluster, name, nodeSelector={"kubernetes.io/hostname": "worker-1"} if name == "copy" else {})
        driver_pod(cluster, "worker-1", daemonset=name)
    driver_pod(cluster, "worker-2")
    status, text = doctor("-o", "json")
    assert (status, codes(text)["worker-1"], codes(text)["worker-2"]) == (1, ["two-daemonsets"], [])
    assert "dranode/copy and dranode/dranode" in findings(text, "worker-1")["two-daemonsets"]


def test_two_pods_of_one_daemonset_are_a_rolling_update(cluster: PodCluster, doctor: Any) -> None:
    daemonset(cluster)
    for node in ("worker-1", "worker-2"):
        driver_pod(cluster, node)
    driver_pod(cluster, "worker-1", "False", "it starts", name="dranode-new")
    assert codes(doctor("-o", "json")[1])["worker-1"] == []


def test_an_account_that_may_not_list_pods_is_told_so(cluster: PodCluster, doctor: Any) -> None:
    said = '{"kind":"Status","message":"User u cannot list resource pods"}'
    cluster.api.faults.append(Fault(path="/pods", status=403, times=99, body=said))
    status, text = doctor("-o", "json")
    assert (status, codes(text)["worker-1"]) == (0, ["pods-unseen"])
    assert "list pods" in findings(text, "worker-1")["pods-unseen"]
    assert "deploy/reader" in text


def test_an_account_that_may_not_list_daemonsets_still_finds_missing_pods(cluster: PodCluster, doctor: Any) -> None:
    said = '{"kind":"Status","message":"User u cannot list resource daemonsets"}'
    cluster.api.faults.append(Fault(path="/daemonsets", status=403, times=99, body=said))
    driver_pod(cluster, "worker-1")
    _, text = doctor("-o", "json")
    assert codes(text) == {"control-plane": [], "worker-1": [], "worker-2": ["driver-pod-missing"]}
    assert "on which nodes the driver should run" in text
