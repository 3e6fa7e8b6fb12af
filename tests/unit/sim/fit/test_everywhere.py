"""What kube-scheduler's plug-ins say about a pod before they look at any node, in the words of 1.36.4 and 1.37.1."""

from typing import Any

import pytest

from dranode.api.manifests import SourceDocument
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.fit.demand import demand_of
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState

Document = dict[str, Any]
TAINT = {"key": "dedicated", "effect": "NoSchedule"}
NODES: list[Document] = [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}, "status": {}}
    for name, taints in (("a", [TAINT]), ("b", []))
]
CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}


def claim(*requests: Document) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": list(requests)}},
    }


def message(made: Document, features: Features, **spec: Any) -> str:
    """What is said of a pod with the claim, whichever way it is looked at."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [], "resourceClaims": [{"name": "c", "resourceClaimName": "c"}], **spec},
    }
    dump = read_dump([SourceDocument("case", 0, each) for each in (*NODES, CLASS, made, pod)])
    allocator = Allocator(dump.slices, dump.classes, features, new_share_id=lambda: "share")
    state, scheduler = ClusterState.of(dump, features), Scheduler(allocator)
    demand = demand_of(dump.pods[0], dump, features)
    placement, choice = scheduler.place(state, demand), scheduler.choose(state, demand)
    assert (placement.problem, placement.everywhere) == (choice.problem, True)
    return choice.message


EXACT = {"name": "big", "exactly": {"deviceClassName": "absent"}}
LISTED = {
    "name": "big",
    "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}, {"name": "y", "deviceClassName": "no"}],
}


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (EXACT, "request big: device class absent does not exist"),
        (LISTED, "request big/y: device class no does not exist"),
    ],
)
def test_a_missing_class_is_reported_for_all_nodes(request_: Document, problem: str) -> None:
    # Although one node has a taint, which kube-scheduler looks at later.
    assert message(claim(request_), Features()) == f"0/2 nodes are available: {problem}."


def test_lists_of_alternatives_need_their_gate() -> None:
    features = Features.parse("DRAPrioritizedList=false", release("1.36.4"))
    said = "resource claim default/c, request big: has subrequests, but the DRAPrioritizedList feature is disabled"
    assert message(claim(LISTED), features) == f"0/2 nodes are available: {said}."


def test_contradictory_terms_are_reported_before_a_missing_class() -> None:
    names = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in ("a", "b")]
    required = {"nodeSelectorTerms": [{"matchFields": names}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    said = message(claim(EXACT), Features(), affinity=affinity)
    assert said == "0/2 nodes are available: pod affinity terms conflict."
