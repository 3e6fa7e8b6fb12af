"""Amounts of resources that the API server accepts or refuses."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.check import check
from dranode.sim.cluster.pods import read_cluster_documents
from dranode.sim.fit.dump import read_dump
from dranode.sim.scheduler.amounts import check_node_amounts, check_pod, node_amount_errors, pod_scheduling_errors
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod

CONTAINER = "spec.containers[0].resources"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_GREATER = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}
APART = {"podAntiAffinity": {REQUIRED: [{"labelSelector": _GREATER, "topologyKey": "zone"}]}}


def errors(**spec: Any) -> list[str]:
    pod = decode(SchedulingPod, {"metadata": {"name": "p"}, "spec": spec})
    return [f"{error.path}: {error.message}" for error in pod_scheduling_errors(pod)]


def container(
    requests: Mapping[str, str | None] | None = None, limits: Mapping[str, str | None] | None = None, name: str = "c"
) -> list[dict[str, Any]]:
    return [{"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}}]


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        ({"cpu": "-1"}, {}, [f"{CONTAINER}.requests[cpu]: -1 is below 0"]),
        ({}, {"memory": "-1Gi"}, [f"{CONTAINER}.limits[memory]: -1Gi is below 0"]),
        ({"cpu": "2"}, {"cpu": "1500m"}, [f"{CONTAINER}.requests[cpu]: 2 is more than the limit of 1500m"]),
        ({"example.com/gpu": "1.5"}, {"example.com/gpu": "1.5"}, ["is not a whole number", "is not a whole number"]),
        ({"example.com/gpu": "1"}, {}, [f"{CONTAINER}.limits: a limit for example.com/gpu is required"]),
        ({"example.com/gpu": "1"}, {"example.com/gpu": "2"}, ["1 has to be equal to the limit of 2"]),
        ({"gpu": "1"}, {"gpu": "1"}, ['"gpu" is not a resource of containers'] * 2),
        ({"cpu!": "1"}, {}, ['"cpu!" is not the name of a resource']),
        ({"requests.example.com/gpu": "1"}, {}, ["is not the name of an extended resource"]),
        ({"hugepages-2Mi": "3Mi", "cpu": "1"}, {"hugepages-2Mi": "3Mi"}, ["3Mi is not a multiple of the page"] * 2),
        ({}, {"hugepages-2Mi": "4Mi"}, [f"{CONTAINER}: huge pages also need a request or a limit of cpu or memory"]),
        ({"hugepages-odd": "4Mi", "cpu": "1"}, {}, ["a limit for hugepages-odd is required", "is not a multiple"]),
    ],
)
def test_amounts_of_a_container_are_refused(
    requests: dict[str, str], limits: dict[str, str], expected: list[str]
) -> None:
    found = errors(containers=container(requests, limits))
    assert len(found) == len(expected)
    assert all(part in error for part, error in zip(expected, found, strict=True))


def test_amounts_that_a_cluster_accepts_are_accepted() -> None:
    amounts: dict[str, str | None] = {
        "cpu": "0.5",
        "memory": "1.5Gi",
        "ephemeral-storage": "0",
        "example.com/gpu": "2",
        "deviceclass.resource.kubernetes.io/gpu": "1",
        "hugepages-2Mi": "4Mi",
        "example.com/nothing": None,  # a value that a chart left empty counts as 0
    }
    limits = {**amounts, "cpu": "1"}
    pods = {"requests": {"cpu": "1"}, "limits": {"cpu": "4", "hugepages-2Mi": "8Mi", "memory": "4Gi"}}
    overhead = {"cpu": "100m", "memory": "64Mi"}
    first, second = container(amounts, limits), container(amounts, limits, "d")
    assert errors(containers=second, initContainers=first, resources=pods, overhead=overhead) == []


def test_amounts_of_init_containers_overhead_and_pods_are_checked_too() -> None:
    whole = {"limits": {"example.com/gpu": "-1"}}
    only = '"example.com/gpu" is not supported at pod level; only cpu, memory and huge pages are'
    assert errors(initContainers=container({"cpu": "-2"}), overhead={"memory": "-1"}, resources=whole) == [
        "spec.initContainers[0].resources.requests[cpu]: -2 is below 0",
        f"spec.resources.limits[example.com/gpu]: {only}",
        "spec.resources.limits[example.com/gpu]: -1 is below 0",
        "spec.overhead.limits[memory]: -1 is below 0",
    ]


def test_a_pods_request_may_not_be_less_than_its_containers() -> None:
    containers = container(
        {"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "5Gi", "hugepages-1Gi": "2Gi"}
    ) + container({"cpu": "2"}, {"hugepages-1Gi": "2Gi", "cpu": "2"}, "d")
    whole = {"requests": {"cpu": "3"}, "limits": {"memory": "4Gi", "hugepages-1Gi": "3Gi"}}
    assert errors(containers=containers, resources=whole) == [
        "spec.resources.requests[cpu]: 3 is less than the containers request",
        "spec.resources.limits[hugepages-1Gi]: 3Gi is less than the containers' limits",
        f"{CONTAINER}.limits[memory]: 5Gi is more than the limit of the whole pod, 4Gi",
    ]


def test_defaults_of_the_api_server_count_in_a_pods_request() -> None:
    asked = {"requests": {"cpu": "500m"}}
    (error,) = errors(containers=container({}, {"cpu": "1500m"}), resources=asked)
    assert error == "spec.resources.requests[cpu]: 500m is less than the containers request"
    (error,) = errors(containers=container({"cpu": "3"}), resources={"limits": {"cpu": "2"}})
    assert error == "spec.resources.requests[cpu]: 3 is more than the limit of 2"
    pages = {"limits": {"hugepages-2Mi": "4Mi"}}
    assert errors(containers=container({"memory": "1Gi"}), resources=pages) == []
    (error,) = errors(
        containers=container({"cpu": "1"}, {"hugepages-2Mi": "4Mi"}), resources={"requests": {"memory": "-1"}}
    )
    assert error == "spec.resources.requests[memory]: -1 is below 0"


def test_amounts_are_compared_after_they_are_rounded() -> None:
    assert errors(containers=container({"cpu": "1u"}, {"cpu": "1n"})) == []
    (error,) = errors(containers=container({"cpu": "1001u"}, {"cpu": "1m"}))
    assert error == f"{CONTAINER}.requests[cpu]: 2m is more than the limit of 1m"


def test_resource_names_of_nodes_are_judged_as_by_kubernetes() -> None:
    status = {"allocatable": {f"example.com/{'x' * 64}": "1.5", "services": "1.5", "storage": "1.5"}}
    node = decode(SchedulingNode, {"metadata": {"name": "n"}, "status": status})
    assert [error.path for error in node_amount_errors(node)] == ["status.allocatable[services]"]


def test_a_pod_with_a_negative_request_is_refused_with_its_place() -> None:
    pod = decode(SchedulingPod, {"spec": {"containers": container({"cpu": "-1"})}})
    with pytest.raises(DocumentError, match="below 0") as raised:
        check_pod(pod)
    assert raised.value.path == f"{CONTAINER}.requests[cpu]"


def test_amounts_of_a_node_are_never_negative_and_counts_are_whole() -> None:
    status = {"allocatable": {"cpu": "-4", "pods": "1.5", "odd": "3m"}, "capacity": {"example.com/gpu": "500m"}}
    node = decode(SchedulingNode, {"metadata": {"name": "n"}, "status": status})
    assert [f"{error.path}: {error.message}" for error in node_amount_errors(node)] == [
        "status.capacity[example.com/gpu]: 500m is not a whole number",
        "status.allocatable[cpu]: -4 is below 0",
        "status.allocatable[pods]: 1.5 is not a whole number",
    ]
    with pytest.raises(DocumentError, match="500m"):
        check_node_amounts(node)


@pytest.mark.parametrize(
    "reading",
    [read_dump, lambda documents: read_cluster_documents(documents, Features())],
    ids=["fit", "allocate"],
)
@pytest.mark.parametrize(
    ("kind", "fields", "place"),
    [
        ("Pod", {"spec": {"containers": container({"cpu": "-1"})}}, f"{CONTAINER}.requests[cpu]"),
        ("Pod", {"spec": {"containers": container({"cpu": "1", "memory": "1GB"})}}, f"{CONTAINER}.requests[memory]"),
        ("Pod", {"spec": {"containers": container() * 2}}, "spec.containers[1].name"),
        *(
            (
                "Pod",
                {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1, field: value}]}]}},
                f"spec.containers[0].ports[0].{field}",
            )
            for field, value in (("containerPort", 65536), ("hostPort", -1), ("protocol", "tcp"))
        ),
        ("Pod", {"spec": {"affinity": APART}}, f"spec.affinity.podAntiAffinity.{REQUIRED}[0]"),
        ("Node", {"status": {"allocatable": {"memory": "-1"}}}, "status.allocatable[memory]"),
    ],
)
def test_commands_refuse_documents_with_impossible_amounts(
    reading: Callable[[list[SourceDocument]], Any], kind: str, fields: dict[str, Any], place: str
) -> None:
    document = SourceDocument("f.yaml", 0, {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, **fields})
    with pytest.raises(DocumentError) as raised:
        reading([document])
    assert str(raised.value).startswith(f"f.yaml, document 1 ({kind} x): {place}: ")
    (result,) = check([document], {})
    assert place in [error.path for error in result.errors]
