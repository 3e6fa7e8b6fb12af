"""Simulating commands create the pods of Deployments and Jobs, and accept generated names and custom resources."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.driver.cli.commands import cli
from tests.fakes.clusters import CLASS, node_document, slice_document

DRA = "resource.k8s.io/v1"
TEMPLATE = {
    "apiVersion": DRA,
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu"},
    "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}},
}
POD_SPEC = {
    "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "g"}]}}],
    "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "gpu"}],
}
CLUSTER: list[dict[str, Any]] = [
    node_document("w"),
    CLASS,
    slice_document(
        "w",
        [{"name": f"gpu-{n}", "attributes": {"resource.kubernetes.io/numaNode": {"int": n // 2}}} for n in range(4)],
    ),
    TEMPLATE,
]
CUSTOM = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "net"}}


def deployment(replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD_SPEC}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def generated(kind: str, version: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"generateName": "one-"}, **rest}


def run(folder: Path, documents: list[dict[str, Any]], command: str, *options: str) -> Result:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return CliRunner().invoke(cli, [command, str(path), *options])


def test_allocate_gives_each_pod_of_a_deployment_a_device(tmp_path: Path) -> None:
    result = run(tmp_path, [*CLUSTER, deployment(3)], "allocate", "-o", "json")
    assert result.exit_code == 0, result.output
    devices = [each["allocation"]["devices"]["results"][0]["device"] for each in json.loads(result.stdout)]
    assert devices == ["gpu-0", "gpu-1", "gpu-2"]
    assert "(Deployment web) creates 3 pods: web-" in result.stderr


def test_fit_asks_for_each_pod_of_a_deployment(tmp_path: Path) -> None:
    result = run(tmp_path, [*CLUSTER, deployment(5)], "fit", "-o", "json")
    assert result.exit_code == 1
    assert [each["node"] for each in json.loads(result.stdout)["pods"]] == ["w", "w", "w", "w", None]


def test_report_shows_the_pods_of_a_deployment_as_waiting(tmp_path: Path) -> None:
    result = run(tmp_path, [*CLUSTER, deployment(5)], "report", "--html", str(tmp_path / "report.html"))
    assert "5 waiting" in result.stdout


def test_bundle_leaves_out_what_a_deployments_pods_would_take(tmp_path: Path) -> None:
    counts = []
    for replicas in (0, 2):
        result = run(tmp_path, [*CLUSTER, deployment(replicas)], "bundle", "-o", "json")
        assert result.exit_code == 0, result.output
        counts.append(json.loads(result.stdout)["templates"][0]["fits"])
    assert counts == [2, 1]


def test_a_daemon_set_has_a_pod_on_the_node_given_to_allocate(tmp_path: Path) -> None:
    daemon = deployment(0) | {"kind": "DaemonSet"}
    result = run(tmp_path, [*CLUSTER, daemon], "allocate", "-o", "json", "--node", "w")
    assert [each["node"] for each in json.loads(result.stdout)] == ["w"]


@pytest.mark.parametrize("command", ["allocate", "fit", "bundle", "report", "check"])
def test_a_custom_resource_makes_no_command_fail(tmp_path: Path, command: str) -> None:
    extra = ["--html", str(tmp_path / "r.html")] if command == "report" else []
    result = run(tmp_path, [*CLUSTER, CUSTOM, deployment(1)], command, *extra)
    assert result.exit_code == 0, result.output
    (note,) = [line for line in result.stderr.splitlines() if "NetworkAttachmentDefinition" in line]
    assert "NetworkAttachmentDefinition.k8s.cni.cncf.io: 1 object is ignored" in note


@pytest.mark.parametrize("command", ["allocate", "fit"])
def test_names_are_generated_as_the_api_server_would(tmp_path: Path, command: str) -> None:
    pods = [generated("Pod", "v1", spec=POD_SPEC) for _ in range(3)]
    result = run(tmp_path, [*CLUSTER, *pods], command, "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    names = [each["name"] for each in document] if command == "allocate" else [each["pod"] for each in document["pods"]]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {len("one-12345-g" if command == "allocate" else "default/one-12345")}


def test_two_jobs_with_a_generated_name_do_not_share_a_device(tmp_path: Path) -> None:
    spec = {"suspend": True, "template": {"spec": POD_SPEC}}
    jobs = [generated("Job", "batch/v1", spec=spec) for _ in range(2)]
    for job in jobs:
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    group = {
        "coveredResources": ["gpus"],
        "flavors": [{"name": "f", "resources": [{"name": "gpus", "nominalQuota": 9}]}],
    }
    kueue = "kueue.x-k8s.io/v1beta2"
    queues: list[dict[str, Any]] = [
        {"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "f"}},
        {
            "apiVersion": kueue,
            "kind": "ClusterQueue",
            "metadata": {"name": "cq"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {"apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "q"}, "spec": {"clusterQueue": "cq"}},
    ]
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {"deviceClassMappings": [{"name": "gpus", "deviceClassNames": ["gpu"]}]},
    }
    data = {"controller_manager_config.yaml": yaml.safe_dump(settings)}  # as in a cluster
    queues.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kueue-manager-config"}, "data": data})
    (tmp_path / "queues.yaml").write_text(yaml.safe_dump_all(queues), encoding="utf-8")
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump_all(CLUSTER[2:3]), encoding="utf-8")
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: w, slices: slices.yaml}]", encoding="utf-8")
    options = ("--queues", str(tmp_path / "queues.yaml"), "--nodes", str(tmp_path / "nodes.yaml"), "-o", "json")
    result = run(tmp_path, [CLUSTER[1], TEMPLATE, *jobs], "local", *options)
    assert result.exit_code == 0, result.output
    claims = json.loads(result.stdout)["claims"]
    assert len({each["name"] for each in claims}) == 2
    devices = [each["allocation"]["devices"]["results"][0]["device"] for each in claims]
    assert devices == ["gpu-0", "gpu-1"]


def test_all_files_of_queues_and_of_nodes_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"nodes: [{{name: {name}, slices: slices.yaml}}]", encoding="utf-8")
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump_all(CLUSTER[2:3]), encoding="utf-8")
    options = [option for name in ("a", "b") for option in ("--nodes", str(tmp_path / f"{name}.yaml"))]
    result = run(tmp_path, [*CLUSTER[1:2], TEMPLATE, deployment(6)], "local", *options, "-o", "json")
    assert [each["name"] for each in json.loads(result.stdout)["nodes"]] == ["a", "b"]
    assert result.exit_code == 0, result.output
    result = run(tmp_path, [*CLUSTER[1:2], TEMPLATE, deployment(6)], "local", *options, *options[:2])
    assert 'node "a" is in two files' in str(result.exception)
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**kueue, "kind": "ResourceFlavor", "metadata": {"name": "f"}}))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**kueue, "kind": "Nonsense", "metadata": {"name": "f"}}))
    queues = ("--queues", str(tmp_path / "one.yaml"), "--queues", str(tmp_path / "two.yaml"))
    assert "two.yaml" in str(run(tmp_path, [deployment(1)], "local", *queues).exception)
    template = {"spec": {"containers": [{"name": "c", "resource": {}}]}}
    made = {**kueue, "kind": "Workload", "metadata": {"name": "w"}, "spec": {"podSets": [{"template": template}]}}
    noted = run(tmp_path, [made], "local", *queues[:2]).stderr
    assert "spec.podSets[0].template.spec.containers[0].resource: there is no such field" in noted
