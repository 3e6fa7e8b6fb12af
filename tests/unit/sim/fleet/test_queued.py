"""Admitted workloads on real nodes with devices, through the allocator."""

from collections.abc import Mapping
from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.node_kinds import NodeKind, nodes_of
from dranode.sim.fleet.report import FleetReport
from dranode.sim.fleet.run import ImaginedFleet, admit
from dranode.sim.queues.report import QueueRun
from dranode.sim.scheduler.documents import SchedulingNode
from tests.fakes.queues import cluster_queue, document, flavor, group, local_queue, pod_set, sources, workload

DRIVER = "gpu.example.com"
GPUS = {"reserved-1": 2, "reserved-2": 1, "spot-1": 2}
CONFIGURATION = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "resources": {"deviceClassMappings": [{"name": "gpus", "deviceClassNames": ["dra.gpu"]}]},
}
REQUEST = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "dra.gpu"}}]}}
TEMPLATE = document("ResourceClaimTemplate", "one", {"spec": REQUEST}, "resource.k8s.io/v1")
GPU_CLASS = document("DeviceClass", "dra.gpu", {}, "resource.k8s.io/v1")
NO_AMOUNTS: Mapping[str, Quantity] = {}
SHARED = document("ResourceClaim", "shared", REQUEST, "resource.k8s.io/v1")
FROM_TEMPLATE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}


def _slice(node: str, gpus: int) -> ResourceSlice:
    devices = tuple(Device(name=f"gpu-{number}") for number in range(gpus))
    spec = ResourceSliceSpec(driver=DRIVER, pool=ResourcePool(name=node), node_name=node, devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name=node), spec=spec)


def _fleet(allocatable: Mapping[str, Quantity]) -> ImaginedFleet:
    kinds = [
        NodeKind(name=name, machine="m", labels={"tier": name.partition("-")[0]}, allocatable=allocatable)
        for name in GPUS
    ]
    published = (_slice(node, gpus) for node, gpus in GPUS.items())
    return ImaginedFleet(tuple((node, "m") for node in nodes_of(kinds)), tuple(published))


def _run(
    *documents: Mapping[str, Any],
    quota: tuple[int, int] = (9, 9),
    allocatable: Mapping[str, Quantity] = NO_AMOUNTS,
) -> tuple[QueueRun, FleetReport]:
    queue = cluster_queue(
        "q",
        group(["gpus", "cpu"], reserved=[quota[0], 99], spot=[quota[1], 99]),
        preemption={"withinClusterQueue": "LowerPriority"},
        flavorFungibility={"whenCanPreempt": "MayStopSearch"},
    )
    base = [flavor("reserved", tier="reserved"), flavor("spot", tier="spot"), queue, local_queue("door", "q")]
    read = sources([*base, CONFIGURATION, TEMPLATE, SHARED, GPU_CLASS, *documents])
    run, report = admit(_fleet(allocatable), read, Features())
    assert report is not None
    return run, report


def _devices(report: FleetReport) -> dict[str, list[str]]:
    """By pod, the devices that it got as `<node>/<device>`."""
    return {
        result.pod.removeprefix("default/"): [
            f"{each.pool}/{each.device}"
            for outcome in result.outcomes
            if outcome.allocation is not None
            for each in outcome.allocation.devices.results
        ]
        for result in report.results
    }


def _wants(name: str, pods: int, **more: Any) -> dict[str, Any]:
    return workload(name, "door", pod_set(count=pods, cpu=1, spec=FROM_TEMPLATE), **more)


def test_the_pods_of_a_workload_get_devices_of_the_nodes_of_its_flavor() -> None:
    _, fleet = _run(_wants("w", 3))
    assert _devices(fleet) == {
        "w-main-0": ["reserved-1/gpu-0"],
        "w-main-1": ["reserved-1/gpu-1"],
        "w-main-2": ["reserved-2/gpu-0"],
    }


def test_a_flavor_with_too_few_devices_is_left_for_the_next() -> None:
    run, fleet = _run(_wants("a", 2, created=1), _wants("b", 2, created=2))
    assert _devices(fleet) == {
        "a-main-0": ["reserved-1/gpu-0"],
        "a-main-1": ["reserved-1/gpu-1"],
        "b-main-0": ["spot-1/gpu-0"],
        "b-main-1": ["spot-1/gpu-1"],
    }
    failed = [row for row in run.attempts if row["workload"] == "b" and row["flavor"] == "reserved"]
    assert all("its pods cannot be placed: pod default/b-main-1: " in row["reason"] for row in failed)
    assert {row["next"] for row in failed} == {"spot"}


def test_a_preempted_workload_frees_its_devices() -> None:
    low = _wants("low", 3)
    flavors = {"gpus": "reserved", "cpu": "reserved"}
    assignment = {"name": "main", "flavors": flavors, "count": 3}
    low["status"] = {"admission": {"clusterQueue": "q", "podSetAssignments": [assignment]}}
    _, fleet = _run(low, _wants("high", 3, priority=1), quota=(3, 0))
    assert sorted(_devices(fleet)) == ["high-main-0", "high-main-1", "high-main-2"]


def test_devices_that_others_have_are_not_allocated_again() -> None:
    result = {"request": "r", "driver": DRIVER, "pool": "reserved-1", "device": "gpu-0"}
    taken = document("ResourceClaim", "taken", REQUEST, "resource.k8s.io/v1")
    taken["status"] = {"allocation": {"devices": {"results": [result]}}}
    _, fleet = _run(_wants("w", 2), taken)
    assert _devices(fleet) == {"w-main-0": ["reserved-1/gpu-1"], "w-main-1": ["reserved-2/gpu-0"]}


def test_a_flavor_with_too_little_cpu_is_left_for_the_next() -> None:
    first, second = (_wants(name, 2, created=created) for name, created in (("a", 1), ("b", 2)))
    run, fleet = _run(first, second, allocatable={"cpu": Quantity("1"), "memory": Quantity("8Gi")})
    assert _devices(fleet) == {"a-main-0": ["reserved-1/gpu-0"], "a-main-1": ["reserved-2/gpu-0"]}
    assert run.waiting == ("b",)
    reasons = [row["reason"] for row in run.attempts if row["workload"] == "b"]
    assert any("Insufficient cpu" in reason for reason in reasons)


def test_a_preempted_workload_frees_its_cpu() -> None:
    low = _admitted(_wants("low", 3), count=3, gpus=True)
    high = _wants("high", 2, priority=1)
    _, fleet = _run(low, high, quota=(3, 0), allocatable={"cpu": Quantity("2"), "memory": Quantity("8Gi")})
    assert sorted(_devices(fleet)) == ["high-main-0", "high-main-1"]


def test_a_shared_claim_is_allocated_once() -> None:
    shares = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    pods = pod_set(count=2, cpu=1, spec=shares)
    run, fleet = _run(*(_admitted(workload(name, "door", pods), count=2) for name in ("a", "b")))
    assert run.waiting == ()
    assert [devices for devices in _devices(fleet).values() if devices] == [["reserved-1/gpu-0"]]


def test_a_shared_claim_stays_allocated_until_the_last_workload_has_left() -> None:
    shares = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    low, middle = (
        workload(name, "door", pod_set(cpu=cpu, spec=shares), priority=priority)
        for name, cpu, priority in (("low", 50, 0), ("middle", 40, 1))
    )
    high = workload("high", "door", pod_set(count=2, cpu=25, spec=FROM_TEMPLATE), priority=2)
    _, fleet = _run(_admitted(low), _admitted(middle), high)
    got = _devices(fleet)
    assert (got["high-main-0"], got["high-main-1"]) == (["reserved-1/gpu-1"], ["reserved-2/gpu-0"])
    assert "low-main-0" not in got


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, "no node has the labels disk=ssd, tier=reserved"),
        ({"nodeName": "spot-1"}, "nodeName spot-1 bypasses kube-scheduler"),
    ],
)
def test_a_flavor_without_nodes_admits_no_pods_at_all(spec: dict[str, Any], why: str) -> None:
    run, _ = _run(workload("w", "door", pod_set(cpu=1, spec=spec)))
    assert run.waiting == ("w",)
    assert f"pod default/w-main-0: {why}" in run.attempts[0]["reason"]


def test_an_invalid_template_is_refused_also_without_nodes() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "dra.gpu", "count": -2}}
    template = document(
        "ResourceClaimTemplate", "t", {"spec": {"devices": {"requests": [request]}}}, "resource.k8s.io/v1"
    )
    with pytest.raises(DocumentError, match=r"exactly.count: -2 must be greater than zero"):
        admit(None, sources([template]), Features())


def test_a_missing_claim_is_reported() -> None:
    pods = pod_set(cpu=1, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "nope"}]})
    run, _ = _run(_admitted(workload("w", "door", pods)))
    assert "lacks ResourceClaim nope" in run.attempts[0]["reason"]


def test_a_workload_that_can_never_fit_preempts_nobody() -> None:
    never = {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "dra.gpu", "selectors": [{"cel": {"expression": "false"}}]}}
        ]
    }
    template = document("ResourceClaimTemplate", "never", {"spec": {"devices": never}}, "resource.k8s.io/v1")
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "never"}]}
    low, high = (
        _admitted(_wants("low", 3), count=3, gpus=True),
        workload("high", "door", pod_set(cpu=1, spec=spec), priority=1),
    )
    gpus = document("DeviceClass", "dra.gpu", {}, "resource.k8s.io/v1")
    queue = cluster_queue(
        "q", group(["gpus", "cpu"], reserved=[3, 99]), preemption={"withinClusterQueue": "LowerPriority"}
    )
    base = [
        flavor("reserved", tier="reserved"),
        queue,
        local_queue("door", "q"),
        CONFIGURATION,
        TEMPLATE,
        gpus,
        template,
    ]
    nodes = tuple(
        (SchedulingNode(metadata=ObjectMeta(name=name, labels={"tier": "reserved"})), "") for name in ("a", "b")
    )
    fleet = ImaginedFleet(nodes, (_slice("a", 2), _slice("b", 2)))
    run, _ = admit(fleet, sources([*base, low, high]), Features())
    assert run.waiting == ("high",)
    assert "0 devices of the cluster match" in next(row["reason"] for row in run.attempts if row["workload"] == "high")


def _admitted(waiting: dict[str, Any], *, count: int = 1, gpus: bool = False) -> dict[str, Any]:
    flavors = {"cpu": "reserved"} | ({"gpus": "reserved"} if gpus else {})
    assignment = {"name": "main", "flavors": flavors, "count": count}
    return {**waiting, "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [assignment]}}}
