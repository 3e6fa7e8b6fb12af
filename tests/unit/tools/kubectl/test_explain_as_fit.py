"""`explain` uses the model of `fit` for pods that wait for something other than claims, and for clusters in files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranode.api.errors import DocumentError, UsageError
from dranode.driver.kube.errors import ApiError
from dranode.tools.diagnosis.steps import StopCause
from tests.fakes.apiserver import ApiServer, Fault
from tests.fakes.pods import CPU, GPU, PodCluster, cpus, request, result

KINDS = ("nodes", "pods", "resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates")


@pytest.fixture
def cluster() -> Iterator[PodCluster]:
    with ApiServer() as api:
        cluster = PodCluster(api)
        room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        for node in ("worker-1", "worker-2", "control-plane"):
            api.objects.edit("nodes", node, lambda one: one["status"].update(allocatable=room))
        yield cluster


def wanting(cluster: PodCluster, **requests: str) -> None:
    cluster.pod()
    wants = {name.replace("__", "/").replace("_", "."): amount for name, amount in requests.items()}
    cluster.api.objects.edit(
        "pods",
        "app",
        lambda pod: pod["spec"]["containers"][0].update(resources={"requests": wants, "limits": wants}),
        "default",
    )


def cluster_file(cluster: PodCluster, path: Path, *kinds: str) -> str:
    names = {"nodes": "Node", "pods": "Pod", "resourceslices": "ResourceSlice", "deviceclasses": "DeviceClass"}
    names |= {"resourceclaims": "ResourceClaim", "resourceclaimtemplates": "ResourceClaimTemplate"}
    items = [
        {**document, "kind": names[kind], "apiVersion": "v1" if kind in ("nodes", "pods") else "resource.k8s.io/v1"}
        for kind in kinds or KINDS
        for document in cluster.api.objects.all(kind)
    ]
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def test_a_pod_without_claims_is_explained_by_what_it_lacks(cluster: PodCluster, explain: Any) -> None:
    wanting(cluster, cpu="240")
    status, page = explain()
    (cause,) = page["causes"]
    assert (status, cause["cause"]) == (1, StopCause.UNSCHEDULABLE)
    assert "2 Insufficient cpu" in cause["what"]
    assert any("236 CPUs too few" in line for line in cause["details"])
    assert page["ways"][0]["stations"][1]["what"] == "it has none"


def test_the_schedulers_message_comes_with_the_reason_behind_it(cluster: PodCluster, explain: Any) -> None:
    wanting(cluster, cpu="240")
    said = cluster.unschedulable("0/3 nodes are available: 3 Insufficient cpu.")
    cluster.api.objects.edit("pods", "app", lambda pod: pod.update(status=said), "default")
    (cause,) = explain()[1]["causes"]
    assert "default-scheduler says: 0/3 nodes are available" in cause["what"]
    assert any("236 CPUs too few" in line for line in cause["details"])


def test_a_pod_whose_claims_fit_is_explained_by_what_it_lacks_otherwise(cluster: PodCluster, explain: Any) -> None:
    cluster.claim("mine", request(device_class=GPU))
    wanting(cluster, memory="1Ti")
    cluster.api.objects.edit(
        "pods",
        "app",
        lambda pod: pod["spec"].update(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]),
        "default",
    )
    (cause,) = explain()[1]["causes"]
    assert cause["what"].startswith("its claims fit on worker-1, worker-2, but no node fits")
    assert any("of memory too little" in line for line in cause["details"])


def test_a_pod_that_fits_by_now_has_no_cause(cluster: PodCluster, explain: Any) -> None:
    wanting(cluster, cpu="2")
    status, page = explain()
    step = page["ways"][0]["stations"][-1]
    assert (status, step["passed"]) == (0, "unseen")
    assert "it would fit on worker-" in step["what"]


def test_without_the_right_to_list_pods_the_rest_is_still_explained(cluster: PodCluster, explain: Any) -> None:
    wanting(cluster, cpu="240")
    said = '{"kind":"Status","message":"User u cannot list resource pods"}'
    cluster.api.faults.append(Fault(path="/api/v1/pods", status=403, times=9, body=said))
    _, page = explain()
    assert any(one.startswith("whether the pod fits by CPU, memory and everything else") for one in page["unasked"])


def test_an_extended_resource_that_no_node_has_is_named(cluster: PodCluster, explain: Any) -> None:
    wanting(cluster, example_com__fpga="1")
    (cause,) = explain()[1]["causes"]
    assert cause["cause"] == StopCause.RESOURCE_MISSING
    assert "no node has the extended resource example.com/fpga" in cause["what"]


def test_an_extended_resource_of_a_device_plugin_is_not_missing(cluster: PodCluster, explain: Any) -> None:
    room = {"cpu": "4", "memory": "8Gi", "pods": "110", "example.com/fpga": "1"}
    cluster.api.objects.edit("nodes", "worker-1", lambda one: one["status"].update(allocatable=room))
    wanting(cluster, example_com__fpga="2")
    (cause,) = explain()[1]["causes"]
    assert cause["cause"] == StopCause.UNSCHEDULABLE
    assert "Insufficient example.com/fpga" in cause["what"]


def test_claims_that_kube_scheduler_will_make_are_announced(cluster: PodCluster, explain: Any) -> None:
    named = {"extendedResourceName": "example.com/gpu"}
    cluster.api.objects.edit("deviceclasses", GPU, lambda one: one["spec"].update(named))
    for node in ("worker-1", "worker-2"):
        taken = [result("gpu-0", GPU, node), result("gpu-1", GPU, node)]
        cluster.claim(f"train-{node}", request(device_class=GPU, count=2), results=taken, node=node, pods=[node])
    wanting(cluster, example_com__gpu="1")
    _, page = explain()
    claims = page["ways"][0]["stations"][1]["what"]
    assert "for the extended resources that the pod requests, example.com/gpu (DeviceClass gpu.example.com)" in claims
    assert page["causes"][0]["cause"] == StopCause.DEVICES_IN_USE


def test_holders_of_unsuitable_devices_are_not_listed(cluster: PodCluster, explain: Any) -> None:
    for node in ("worker-1", "worker-2"):
        taken = [result("gpu-0", GPU, node), result("gpu-1", GPU, node)]
        cluster.claim(f"train-{node}", request(device_class=GPU, count=2), results=taken, node=node, pods=[node])
        share = [result("cpudevnuma000", CPU, node, shareID=node, consumedCapacity={f"{CPU}/cpu": "2"})]
        cluster.claim(f"busy-{node}", cpus("2"), results=share, node=node, pods=[f"b-{node}"])
    cluster.claim("mine", request(device_class=GPU))
    cluster.pod(claims={"gpu": "mine"})
    (cause,) = explain()[1]["causes"]
    (line,) = (each for each in cause["details"] if "holds" in each)
    assert "train-" in line
    assert "busy-" not in line


def test_no_holder_is_blamed_for_an_amount_that_is_never_allowed(cluster: PodCluster, explain: Any) -> None:
    for node in ("worker-1", "worker-2"):
        policy = {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}}
        capacity = {f"{CPU}/cpu": {"value": "8", "requestPolicy": policy}}
        device = {"name": "cpudevnuma000", "allowMultipleAllocations": True, "capacity": capacity}
        cluster.api.objects.remove("resourceslices", f"00000-{CPU}-{node}-abcde")
        cluster.slice(node, CPU, [device])
        share = [result("cpudevnuma000", CPU, node, shareID=node, consumedCapacity={f"{CPU}/cpu": "2"})]
        cluster.claim(f"busy-{node}", cpus("2"), results=share, node=node, pods=[f"b-{node}"])
    cluster.claim("mine", cpus("64"))
    cluster.pod(claims={"cpus": "mine"})
    (cause,) = explain()[1]["causes"]
    assert "does not allow 64 CPUs, only 1 to 4 in steps of 1" in cause["what"]
    assert not any("holds" in each for each in cause["details"])


@pytest.mark.parametrize("name", ["nosuch", "pod/nosuch", "claim/nosuch"])
def test_an_unknown_name_is_an_error(explain: Any, name: str) -> None:
    status, page = explain(name)
    assert status == 1
    assert "there is no " in page["causes"][0]["what"]


# --- files ---


def test_a_dump_is_explained_like_its_cluster(cluster: PodCluster, explain: Any, tmp_path: Path) -> None:
    for node in ("worker-1", "worker-2"):
        taken = [result("gpu-0", GPU, node), result("gpu-1", GPU, node)]
        cluster.claim(f"train-{node}", request(device_class=GPU, count=2), results=taken, node=node, pods=[node])
    cluster.claim("mine", request(device_class=GPU))
    cluster.pod(claims={"gpu": "mine"})
    file = cluster_file(cluster, tmp_path / "cluster.yaml")
    status, page = explain("default/app", file)
    assert (status, page["causes"]) == (1, explain("default/app")[1]["causes"])
    assert any("no Event is in" in sentence for sentence in page["unasked"])
    assert explain("claim/mine", file)[1]["causes"] == page["causes"]


def test_a_pod_of_a_dump_is_explained_by_the_model_of_fit(cluster: PodCluster, explain: Any, tmp_path: Path) -> None:
    wanting(cluster, cpu="240")
    _, page = explain("app", cluster_file(cluster, tmp_path / "cluster.yaml", "nodes", "pods"))
    (cause,) = page["causes"]
    assert any("236 CPUs too few" in line for line in cause["details"])


def test_a_name_that_a_dump_lacks_is_an_error(cluster: PodCluster, explain: Any, tmp_path: Path) -> None:
    cluster.pod()
    cluster.claim("other", cpus("1"))
    file = cluster_file(cluster, tmp_path / "cluster.yaml")
    status, page = explain("nosuch", file)
    assert (status, page["causes"][0]["cause"]) == (1, StopCause.POD_MISSING)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nosuch", "there is no pod default/nosuch, and it could not be read whether there is a claim of that name"),
        ("claim/nosuch", "the claim default/nosuch could not be read"),
    ],
)
def test_a_dump_without_claims_is_not_called_an_account_without_rights(
    cluster: PodCluster, explain: Any, tmp_path: Path, name: str, what: str
) -> None:
    cluster.pod()
    status, page = explain(name, cluster_file(cluster, tmp_path / "cluster.yaml", "nodes", "pods"))
    assert status == 1
    assert what in json.dumps(page)
    assert "add the output of kubectl get pods,resourceclaims" in json.dumps(page)
    assert "account" not in json.dumps(page)


def test_a_pod_without_metadata_in_a_dump_is_named(cluster: PodCluster, explain: Any, tmp_path: Path) -> None:
    cluster.pod()
    file = cluster_file(cluster, tmp_path / "cluster.yaml")
    nameless = tmp_path / "pod.yaml"
    nameless.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}}))
    with pytest.raises(ApiError, match=r"document 1 \(Pod\): metadata is missing"):
        explain("app", file, str(nameless))


def test_files_without_pods_and_claims_explain_nothing(cluster: PodCluster, explain: Any, tmp_path: Path) -> None:
    file = cluster_file(cluster, tmp_path / "cluster.yaml", "nodes")
    with pytest.raises(DocumentError, match="holds no Pod or ResourceClaim"):
        explain("app", file)
    with pytest.raises(UsageError, match="--store"):
        explain("app", file, "--store", str(tmp_path))
