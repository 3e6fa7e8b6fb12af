"""Counts how many more pods like a given one fit, and the nodes to add for pods that fit nowhere."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from dranode.api.errors import DocumentError, number_of
from dranode.api.resource import ResourceSliceSpec
from dranode.sim.cluster.node_kinds import NodeKind, node_of, slice_template, stamped
from dranode.sim.fit.choice import no_choice
from dranode.sim.fit.daemons import copied_pods, daemons
from dranode.sim.fit.demand import PodDemand, copy_of
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.snapshot import NodeInfo

LIKE: Final = "like:"
_HOSTNAME: Final = "kubernetes.io/hostname"
_MOST_NODES: Final = 500


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A node that could be added.

    Attributes:
        name: its name in the nodes.yaml.
        node: the node; each copy gets its own name and `kubernetes.io/hostname`.
        slices: templates of the ResourceSlices that it publishes.
        copied: the pods that each copy has too, beside those of the DaemonSets among the documents; None if it is no
            copy of a node.
    """

    name: str
    node: SchedulingNode
    slices: tuple[ResourceSliceSpec, ...]
    copied: tuple[SchedulingPod, ...] | None = None

    def nodes(self, count: int) -> tuple[SchedulingNode, ...]:
        """Return `count` nodes, named `new-<name>-0` and so on."""
        return tuple(self._named(f"new-{self.name}-{number}") for number in range(count))

    def _named(self, name: str) -> SchedulingNode:
        labels = {**self.node.metadata.labels, _HOSTNAME: name}
        return replace(self.node, metadata=replace(self.node.metadata, name=name, labels=labels))


@dataclass(frozen=True, slots=True)
class Addition:
    """The effect of adding nodes of one model.

    Attributes:
        model: the name of the model.
        count: how many nodes are needed for all pods that fit on such a node; 0 if none does.
        placed: the pods that fit then.
        unplaced: the other pods, each with kube-scheduler's message about one such node and what the node lacks.
    """

    model: str
    count: int
    placed: tuple[str, ...]
    unplaced: Mapping[str, str]


def model_of_kind(kind: NodeKind, slices: Iterable[ResourceSliceSpec]) -> NodeModel:
    """Return the model of an entry of a `nodes.yaml`."""
    return NodeModel(kind.name, node_of(kind, kind.name), tuple(slices))


def model_like(name: str, dump: ClusterDump) -> NodeModel:
    """Return a model of a node of the cluster, without its pods except those that come with every node.

    Raises:
        DocumentError: there is no such node.
    """
    node = next((node for node in dump.nodes if node.metadata.name == name), None)
    if node is None:
        raise DocumentError(f"the documents have no Node {name} to copy")
    slices = [slice_template(slice_.spec) for slice_ in dump.slices if slice_.spec.node_name == name]
    return NodeModel(f"like-{name}", node, tuple(slices), copied_pods(dump, name))


def additions_for(
    questions: ClusterQuestions, state: ClusterState, pods: Sequence[PodDemand], models: Iterable[NodeModel]
) -> tuple[Addition, ...]:
    """Return the effect of each model on pods that fit nowhere; a node is added whenever the next pod does not fit.

    Raises:
        DocumentError: a model lacks the amount of a resource that a pod requests.
    """
    added = []
    for model in models:
        _require_amounts(model, pods)
        added.append(_added(questions, state, pods, model))
    return tuple(added)


def _with_node(
    questions: ClusterQuestions, scheduler: Scheduler, model: NodeModel, state: ClusterState, node: SchedulingNode
) -> ClusterState:
    """Return the state with a new node. The pods that come with it are placed first, as far as they fit."""
    state = state.with_nodes([NodeInfo.of(node)])
    for demand in daemons(questions.dump, questions.features, node, model.copied or ()):
        choice = scheduler.choose(state, demand)
        if choice.node is not None:
            state = scheduler.bind(state, demand, choice.node, choice.outcomes)
    return state


def _added(questions: ClusterQuestions, state: ClusterState, pods: Sequence[PodDemand], model: NodeModel) -> Addition:
    nodes = model.nodes(min(len(pods), _MOST_NODES))
    slices = stamped(model.slices, [node.metadata.name for node in nodes])
    scheduler = questions.with_slices((*questions.dump.slices, *slices))
    count = 0
    placed: list[str] = []
    unplaced: dict[str, str] = {}
    for demand in pods:
        choice = scheduler.choose(state, demand)
        if choice.node is None and count < len(nodes):
            larger = _with_node(questions, scheduler, model, state, nodes[count])
            again = scheduler.choose(larger, demand)
            if again.node is None:
                unplaced[demand.pod.key] = _message_for_one_node(scheduler, larger, demand, nodes[count].metadata.name)
                continue
            choice, state, count = again, larger, count + 1
        if choice.node is None:
            unplaced[demand.pod.key] = f"more than {number_of(len(nodes), 'node')} would be needed"
            continue
        placed.append(demand.pod.key)
        state = scheduler.bind(state, demand, choice.node, choice.outcomes)
    return Addition(model.name, count, tuple(placed), unplaced)


def _message_for_one_node(scheduler: Scheduler, state: ClusterState, demand: PodDemand, node: str) -> str:
    """Return kube-scheduler's message if this were the only node, and what the node lacks."""
    placement = scheduler.place(state, demand)
    refusals = {name: refusal for name, refusal in placement.refusals.items() if name == node}
    cases = scheduler.cases(state, demand, refusals)
    choice = no_choice(demand.pod.key, placement.problem, cases, 1, everywhere=placement.everywhere)
    details = (f"{group.detail}." for group in choice.groups if group.detail)
    return " ".join((choice.message, *details))


def _require_amounts(model: NodeModel, pods: Iterable[PodDemand]) -> None:
    allocatable = model.node.status.allocatable
    for demand in pods:
        for name in ("cpu", "memory"):
            if demand.info.requests.get(name) and name not in allocatable:
                raise DocumentError(
                    f'node "{model.name}" has no amount of {name}, which pod {demand.pod.key} requests; add one, as in '
                    "allocatable: {cpu: 30, memory: 120Gi}"
                )


# If nodes depend on each other, every pod needs all nodes evaluated again, so the limit is lower.
MOST_TOGETHER: Final = 1_000
MOST_ALONE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Room:
    """The number of pods that fit.

    Attributes:
        count: how many pods fit.
        nodes: how many fit on each node; nodes without any are left out.
        more: whether counting stopped at the limit, so that more may fit.
        shared: claims that all these pods would share, because the pod names them directly.
    """

    count: int
    nodes: Mapping[str, int]
    more: bool = False
    shared: tuple[str, ...] = ()


def room_for(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> Room:
    """Count the pods like this one that fit next to all bound pods, including this one.

    If neither pods nor pools reach beyond one node, the nodes are filled one by one; else kube-scheduler's choice is
    followed pod by pod.
    """
    if scheduler.far_reaching(state, demand):
        nodes, more = _pod_by_pod(scheduler, state, demand)
    else:
        nodes, more = _node_by_node(scheduler, state, demand)
    named = {entry.name for entry in demand.pod.spec.resource_claims if entry.resource_claim_name is not None}
    shared = tuple(str(key) for entry, key in demand.entries.items() if entry in named)
    return Room(sum(nodes.values()), nodes, more, shared)


def _pod_by_pod(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> tuple[dict[str, int], bool]:
    nodes: Counter[str] = Counter()
    for number in range(MOST_TOGETHER):
        copy = copy_of(demand, number)
        choice = scheduler.choose(state, copy)
        if choice.node is None:
            return dict(nodes), False
        nodes[choice.node] += 1
        state = scheduler.bind(state, copy, choice.node, choice.outcomes)
    return dict(nodes), True


def _node_by_node(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> tuple[dict[str, int], bool]:
    nodes: dict[str, int] = {}
    number = 0
    for name in scheduler.fits(state, demand, state.nodes):
        begun = number
        while number < MOST_ALONE:
            copy = copy_of(demand, number)
            fits = scheduler.fits(state, copy, [name])
            if name not in fits:
                break
            state = scheduler.bind(state, copy, name, fits[name])
            number += 1
        if number > begun:
            nodes[name] = number - begun
    return nodes, number >= MOST_ALONE
