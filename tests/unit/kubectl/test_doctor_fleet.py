"""`doctor --all-nodes`: every node by what the API server says of it, in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.driver.core.api.errors import UsageError
from dranode.kubectl.doctor import command
from tests.fakes.apiserver import ApiServer
from tests.fakes.pods import CPU, PodCluster


@pytest.fixture
def cluster() -> Iterator[PodCluster]:
    with ApiServer() as api:
        yield PodCluster(api)


@pytest.fixture
def doctor(cluster: PodCluster, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    kubeconfig = cluster.api.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str) -> tuple[int, str]:
        laptop = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": kubeconfig, "HOME": str(tmp_path)}
        ran = CliRunner(env=laptop).invoke(command, ["--all-nodes", *arguments])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return ran.exit_code, ran.stdout

    return run


def driver_pod(cluster: PodCluster, node: str, ready: str = "True", message: str = "") -> None:
    metadata = {"name": f"dranode-{node}", "namespace": "dranode", "labels": {"app.kubernetes.io/name": "dranode"}}
    condition = {"type": "Ready", "status": ready, "reason": "ContainersNotReady", "message": message}
    restarted = [{"name": "dranode", "restartCount": 4, "state": {"running": {}}}] if ready != "True" else []
    status = {"phase": "Running", "conditions": [condition], "containerStatuses": restarted}
    cluster.api.put("pods", {"metadata": metadata, "spec": {"nodeName": node}, "status": status})


def codes(text: str) -> dict[str, list[str]]:
    return {one["node"]: [finding["code"] for finding in one["findings"]] for one in json.loads(text)}


def test_healthy_nodes_have_no_findings_and_a_control_plane_without_the_driver_is_none(
    cluster: PodCluster, doctor: Any
) -> None:
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


def test_an_old_kubelet_and_an_old_runtime_are_seen_from_anywhere(cluster: PodCluster, doctor: Any) -> None:
    info = {"kubeletVersion": "v1.32.4", "containerRuntimeVersion": "containerd://1.6.38"}
    cluster.api.objects.edit("nodes", "worker-1", lambda node: node["status"].update(nodeInfo=info))
    _, text = doctor("-o", "json")
    assert codes(text)["worker-1"] == ["runtime-too-old", "kubelet-too-old"]


def test_there_is_one_table_with_what_to_do(cluster: PodCluster, doctor: Any) -> None:
    cluster.api.objects.remove("resourceslices", f"00000-{CPU}-worker-2-abcde")
    status, text = doctor()
    lines = text.splitlines()
    assert lines[0].split() == ["node", "verdict", "first", "what", "to", "do"]
    assert status == 1
    assert any(line.startswith("worker-2") and "1 fault stops it, 0" in line for line in lines)
    assert "kubectl exec -n dranode POD -- dranode doctor" in " ".join(text.split())


def test_without_a_server_it_says_how_to_name_one(tmp_path: Path) -> None:
    nowhere = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": "", "HOME": str(tmp_path)}
    ran = CliRunner(env=nowhere).invoke(command, ["--all-nodes"])
    assert isinstance(ran.exception, UsageError)
