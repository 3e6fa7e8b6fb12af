"""The place of a pod, and what keeps kube-scheduler from looking for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dranode.driver.claims.consumers import MOST_CONSUMERS
from dranode.sim.allocator.outcome import AllocationError, Outcome
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pods import passed_by
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.filters import Refusal
from dranode.sim.scheduler.scores import NodeTotal


@dataclass(frozen=True)
class Placement:
    """The placement of a pod by kube-scheduler.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node; None if there is none. Of several with the same score, which is a lottery, the first.
        tied: all nodes that kube-scheduler may choose.
        scores: of the nodes that the pod fits on, in the order of the nodes; empty where there is no choice.
        refusals: of the others, by name.
        problem: why no node is looked at, in one sentence; empty if they are.
        everywhere: whether a plug-in of kube-scheduler says so, and so of all nodes.
        outcomes: what the claims get on the node that were not allocated before.
        error: the error of a claim that ended the attempt for all nodes, which is the problem; None if there was none.
        devices: the raw score of KEP-4816 of each node that the pod fits on; empty if it asks for no devices.
    """

    pod: str
    node: str | None
    tied: tuple[str, ...] = ()
    scores: tuple[NodeTotal, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    everywhere: bool = False
    outcomes: tuple[Outcome, ...] = ()
    error: AllocationError | None = None
    devices: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def obstacle(demand: PodDemand, state: ClusterState) -> str:
    """Return why the scheduler looks at no node for the pod, in one sentence; empty if it does."""
    pod = demand.pod
    if demand.missing:
        return f"pod {pod.key} lacks {', '.join(demand.missing)}"
    if pod.spec.node_name:
        return _bound(demand, state)
    if demand.problem:
        return demand.problem
    if demand.left_over:
        return f"pod {pod.key} waits until ResourceClaim {demand.left_over} of an attempt before is deleted"
    for claim in demand.claims:
        key = ClaimKey.of(claim)
        if key in demand.shared:
            continue  # the group uses it, however many pods it has
        if key in state.allocations and _entries(key, state) >= MOST_CONSUMERS:
            return f"resourceclaim in use: {key} has {MOST_CONSUMERS} pods already, which is the most"
    return ""


def _entries(key: ClaimKey, state: ClusterState) -> int:
    """Return how many entries `status.reservedFor` has by the bound pods: those of a PodGroup are one together."""
    demands = (state.demands[user] for user in state.users(key))
    return len({each.pod.spec.pod_group if key in each.shared else each.pod.key for each in demands})


def _bound(demand: PodDemand, state: ClusterState) -> str:
    """A pod that names its node passes the scheduler by, which alone allocates claims."""
    name = demand.pod.spec.node_name
    waiting = [str(ClaimKey.of(claim)) for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]
    if waiting:
        return passed_by(demand.pod.key, name, waiting)
    return f"pod {demand.pod.key} is bound to {name} already"
