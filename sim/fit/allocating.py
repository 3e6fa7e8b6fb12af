"""Places pods by their devices alone, for `allocate` and `bundle`: every node has enough of everything else.

Apart from devices, only nodeSelector, required node affinity and the node's own extended resources count. Nodes are not
scored by anything but their devices.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dranode.api.errors import capitalized
from dranode.api.quantity import Quantity
from dranode.api.resource import ContainerResources, Node, ObjectMeta, ResourceClaim
from dranode.sim.allocator.allocate import Allocator, failures, unfit
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.requests import AllocationError, Outcome, Reason
from dranode.sim.cluster.extended import extended_of, special_claims
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pods import ClusterDocuments, not_scheduled
from dranode.sim.cluster.workload import PodWithClaims, asked_by
from dranode.sim.fit.choice import PodChoice, RefusalCase, shared_outcomes
from dranode.sim.fit.demand import PodDemand, demand_for_claim
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.fit.node_check import NOT_AVAILABLE
from dranode.sim.fit.node_table import CANNOT_ALLOCATE
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import (
    NodeCapacityStatus,
    PodAffinities,
    SchedulingContainer,
    SchedulingNode,
    SchedulingPod,
    SchedulingPodSpec,
)
from dranode.sim.scheduler.requests import NOTHING, PODS, is_extended
from dranode.sim.scheduler.scores import DEVICES
from dranode.sim.scheduler.snapshot import PodInfo
from dranode.sim.scheduler.terms import Owners, PodTerms

_PLENTY: Final = Quantity("1M")


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The node of a pod, and the devices of its claims.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node, or None.
        outcomes: the results for the claims that were not allocated before, in the order of the pod.
        shared: the results for the claims that were; the pod has to go where their devices are.
        misses: if the pod fits nowhere, the nearest node of each group of nodes and what it lacks, the nearest first.
    """

    pod: str
    node: str | None
    outcomes: tuple[Outcome, ...]
    shared: tuple[Outcome, ...] = ()
    misses: tuple[tuple[str, Miss], ...] = ()


def allocate_in_turn(
    cluster: ClusterDocuments, pods: Iterable[PodWithClaims], features: Features, new_share_id: Callable[[], str]
) -> Iterator[PodPlacement]:
    """Place these pods of a cluster one after another, each on what the earlier ones left.

    A pod that shares a claim with an earlier pod goes where that claim was allocated. Finished pods, and pods that
    already have all their devices, are skipped.
    """
    allocator = Allocator(
        cluster.slices,
        cluster.classes,
        features,
        new_share_id=new_share_id,
        rules=cluster.rules,
        claims=asked_by(cluster.pods),
    )
    scheduler = Scheduler(allocator)
    state = _state(cluster, features)
    before = frozenset(state.allocations)
    pod_names = {pod.name for pod in cluster.pods if pod.pod is not None}
    for pod in pods:
        if pod.pod is not None and pod.pod.finished:
            continue
        if pod.missing:
            yield _lacking(pod)
            continue
        unplaced = [claim for claim in pod.claims if ClaimKey.of(claim) not in state.allocations]
        if pod.pod is None:
            demand = demand_for_claim(pod, pod_names, features)
        else:
            demand = _demand(pod, pod.pod, cluster, features)
        follows = any(ClaimKey.of(claim) not in before for claim in pod.claims)
        if pod.node and not unplaced:
            continue  # a running pod that has all its devices
        if not follows and not demand.extended and (not pod.claims or pod.pod is None):
            continue  # every claim was allocated before, so there is no question
        if pod.node:
            yield _refused(
                pod, unplaced, not_scheduled(pod.name, pod.node, [str(ClaimKey.of(claim)) for claim in unplaced])
            )
        elif pod.problem:
            yield _refused(pod, pod.claims, pod.problem)
        else:
            choice = scheduler.choose(state, demand)
            yield _placement(pod, demand, choice, state)
            if choice.node is not None:
                state = scheduler.bind(state, demand, choice.node, choice.outcomes)


def _state(cluster: ClusterDocuments, features: Features) -> ClusterState:
    claims = {ClaimKey.of(claim): claim for pod in cluster.pods for claim in pod.claims}
    nodes = tuple(map(_devices_alone, cluster.nodes))
    dump = ClusterDump(
        nodes, (), claims, {}, cluster.slices, cluster.classes, {}, Owners(()), frozenset(), cluster.rules
    )
    return ClusterState.of(dump, features)


def _devices_alone(node: Node) -> SchedulingNode:
    """Return the node with its labels, devices and own extended resources, and without anything else that decides."""
    allocatable = node.status.allocatable if isinstance(node, SchedulingNode) else {}
    extended = {name: _PLENTY for name, amount in allocatable.items() if is_extended(name) and amount.value}
    status = NodeCapacityStatus(
        declared_features=node.status.declared_features, allocatable={PODS: _PLENTY, **extended}
    )
    return SchedulingNode(metadata=node.metadata, status=status)


def _demand(pod: PodWithClaims, document: SchedulingPod, cluster: ClusterDocuments, features: Features) -> PodDemand:
    """Return the pod with only its claims, its allowed nodes, and the extended resources that devices back."""
    extended = extended_of(document, cluster.classes, features)

    def asking(containers: Sequence[SchedulingContainer]) -> tuple[SchedulingContainer, ...]:
        return tuple(
            SchedulingContainer(
                name=container.name,
                restart_policy=container.restart_policy,
                resources=ContainerResources(
                    requests={name: amount for name, amount in container.resources.requests.items() if name in extended}
                ),
            )
            for container in containers
        )

    spec = document.spec
    required = msgspec.structs.replace(
        spec.affinity.node_affinity, preferred_during_scheduling_ignored_during_execution=()
    )
    bare = SchedulingPod(
        metadata=document.metadata,
        spec=SchedulingPodSpec(
            node_selector=spec.node_selector,
            resource_claims=spec.resource_claims,
            init_containers=asking(spec.init_containers),
            containers=asking(spec.containers),
            affinity=PodAffinities(node_affinity=required),
        ),
    )
    info = PodInfo(bare, NOTHING, (0, 0), PodTerms(), frozenset())
    return PodDemand(info, pod.claims, pod.entries, extended=extended)


def _placement(pod: PodWithClaims, demand: PodDemand, choice: PodChoice, before: ClusterState) -> PodPlacement:
    claims = [(claim, before.allocations.get(ClaimKey.of(claim))) for claim in pod.claims]
    misses = _misses(choice)
    outcomes = choice.outcomes
    if choice.node is None:
        unplaced = [claim for claim, allocation in claims if allocation is None]
        outcomes = _failed((*unplaced, *special_claims(demand.pod, demand.extended)), choice, misses, len(before.nodes))
    why = next((outcome.error for outcome in outcomes if outcome.error), "the pod may not run where the claim is")
    return PodPlacement(pod.name, choice.node, outcomes, shared_outcomes(choice, claims, why), misses)


def _misses(choice: PodChoice) -> tuple[tuple[str, Miss], ...]:
    """Return the nearest node of each group of nodes that lack devices, and what it lacks, the nearest first."""
    cases = (group.nearest for group in choice.groups if group.reasons == (CANNOT_ALLOCATE,))
    misses = [(case.node, case.miss) for case in cases if case.miss is not None]
    return tuple(sorted(misses, key=lambda pair: pair[1], reverse=True))


def _failed(
    claims: Sequence[ResourceClaim], choice: PodChoice, misses: Sequence[tuple[str, Miss]], nodes: int
) -> tuple[Outcome, ...]:
    errors = [group.nearest.refusal for group in choice.groups if _ends_there(group.nearest)]
    if choice.error is not None:
        return failures(claims, None, choice.error)
    if choice.problem:
        return failures(claims, None, AllocationError(choice.problem, Reason.INCOMPLETE_CLAIM))
    if errors and not misses:
        ending = AllocationError(errors[0].reasons[0], Reason.POOL_INVALID, "node", errors[0].detail)
        return failures(claims, None, ending)
    return unfit(claims, _sentence(nodes, misses), choice.oddities)


def _sentence(nodes: int, misses: Sequence[tuple[str, Miss]]) -> str:
    if not nodes:
        return "there is no node to run on: the documents have no Node and no ResourceSlice of one"
    if not misses:
        return "the pod may run on no node"
    nearest, miss = misses[0]
    if nodes == 1:
        return f"does not fit on node {nearest}: {miss.sentence}"
    return f"none of {nodes} nodes fits. Closest: {nearest}. {capitalized(miss.sentence)}"


def _ends_there(case: RefusalCase) -> bool:
    """Return whether the attempt ended with an error on these nodes."""
    return case.refusal.plugin == DEVICES and case.refusal.reasons[0] not in (CANNOT_ALLOCATE, NOT_AVAILABLE)


def _refused(pod: PodWithClaims, claims: Sequence[ResourceClaim], error: str) -> PodPlacement:
    outcomes = (Outcome(claim, error=error, reason=Reason.INCOMPLETE_CLAIM, scope="fatal") for claim in claims)
    return PodPlacement(pod.name, None, tuple(outcomes))


def _lacking(pod: PodWithClaims) -> PodPlacement:
    """Return the failure of a pod with claims that no document has; if it is bound, it may hold unknown devices."""
    lacking = ", ".join(map(str, pod.missing))
    error = (
        f"{lacking} is missing from the documents, so what pod {pod.name} on node {pod.node} holds is unknown"
        if pod.node
        else f"{lacking} is missing, so none of the claims of pod {pod.name} is allocated"
    )
    namespace = pod.name.partition("/")[0]
    named = [ResourceClaim(metadata=ObjectMeta(name=missing.name, namespace=namespace)) for missing in pod.missing]
    return _refused(pod, [*named, *(claim for claim in pod.claims if claim.status.allocation is None)], error)
