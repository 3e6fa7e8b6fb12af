"""The changes that would make room for pods, for people and for programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from dranode.api.errors import number_of
from dranode.show.terminal import columns
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.additions import Addition, NodeModel, Room, additions_for, room_for
from dranode.sim.fit.choice import Placement
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.evictions import EvictionPlan, MovePlan, evictions_for, moves_for
from dranode.sim.fit.questions import ClusterQuestions, PodAnswer
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.scores import DEVICES

# People see who holds the devices of so many nodes.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes that would make room; those that were not requested are empty.

    Attributes:
        rooms: how many more pods like each pod fit.
        evictions: the evictions for each pod that fits nowhere.
        moves: the moves for each pod that fits nowhere.
        fragments: for each pod that fits nowhere, the nodes with enough devices that other claims hold.
        additions: the nodes to add for all pods that fit nowhere together, by node.
    """

    rooms: Mapping[str, Room]
    evictions: Mapping[str, EvictionPlan | None]
    moves: Mapping[str, MovePlan | None]
    fragments: Mapping[str, tuple[Fragment, ...]]
    additions: tuple[Addition, ...]

    @classmethod
    def of(
        cls,
        questions: ClusterQuestions,
        answers: Sequence[PodAnswer],
        models: Sequence[NodeModel],
        *,
        how_many: bool,
        evict: bool,
        move: bool,
    ) -> Changes:
        """Find the requested changes."""
        scheduler = questions.scheduler
        stuck = [answer for answer in answers if answer.choice.node is None]
        end = questions.after(answers[-1])
        return cls(
            {pod.choice.pod: room_for(scheduler, pod.before, pod.demand) for pod in answers if how_many},
            {pod.choice.pod: evictions_for(scheduler, pod.before, pod.demand) for pod in stuck if evict},
            {pod.choice.pod: moves_for(scheduler, pod.before, pod.demand) for pod in stuck if move},
            {pod.choice.pod: fragments_of(scheduler, pod.before, pod.demand, pod.placement) for pod in stuck if move},
            additions_for(questions, end, [pod.demand for pod in stuck], models),
        )


def changes_document(changes: Changes) -> dict[str, Any]:
    """Return the requested changes as plain documents; those without an answer are left out."""
    documents: dict[str, Any] = {
        "room": {pod: room_document(room) for pod, room in changes.rooms.items()},
        "evictions": {pod: eviction_document(plan) for pod, plan in changes.evictions.items()},
        "moves": {pod: move_document(plan) for pod, plan in changes.moves.items()},
        "fragments": {pod: list(map(fragment_document, nodes)) for pod, nodes in changes.fragments.items() if nodes},
        "additions": list(map(addition_document, changes.additions)),
    }
    return {name: document for name, document in documents.items() if document}


def show_changes(screen: Console, changes: Changes) -> None:
    """Print the changes."""
    for pod, room in changes.rooms.items():
        show_room(screen, pod, room)
    for pod, plan in changes.evictions.items():
        show_evictions(screen, pod, plan)
    for pod, moves in changes.moves.items():
        show_fragments(screen, pod, changes.fragments.get(pod, ()))
        show_moves(screen, pod, moves)
    if changes.additions:
        show_additions(screen, changes.additions)


def room_document(room: Room) -> dict[str, Any]:
    """Return how many more pods fit, as a plain document."""
    return {"count": room.count, "more": room.more, "nodes": dict(room.nodes), "shared_claims": list(room.shared)}


def show_room(screen: Console, pod: str, room: Room) -> None:
    """Print how many more pods fit."""
    at_least = "at least " if room.more else ""
    count, nodes = number_of(room.count, "pod"), number_of(len(room.nodes), "node")
    screen.print(f"\nat its turn, {at_least}{count} like {pod} can be placed, on {nodes}", markup=False)
    if room.shared:
        screen.print(f"  all of them share {', '.join(room.shared)}, because the pod names it directly", markup=False)


def eviction_document(plan: EvictionPlan | None) -> dict[str, Any] | None:
    """Return an eviction plan as a plain document; None without a plan."""
    if plan is None:
        return None
    return {
        "node": plan.node,
        "pods": [{"pod": pod, "priority": priority} for pod, priority in zip(plan.pods, plan.priorities, strict=True)],
        "fewest": plan.least,
        "preemption": plan.preemption,
    }


def show_evictions(screen: Console, pod: str, plan: EvictionPlan | None) -> None:
    """Print which pods would have to be evicted."""
    if plan is None:
        screen.print(f"\nno eviction makes room for {pod}", markup=False)
        return
    proven = "the minimum" if plan.least else "fewer may be enough; not all sets were tried"
    evictions = number_of(len(plan.pods), "eviction")
    screen.print(f"\n{pod} fits on {plan.node} after {evictions} ({proven}):", markup=False)
    for name, priority in zip(plan.pods, plan.priorities, strict=True):
        screen.print(f"  {name}, priority {priority}", markup=False)
    if plan.preemption:
        screen.print("  all have a lower priority, so kube-scheduler may preempt them itself", markup=False)


def move_document(plan: MovePlan | None) -> dict[str, Any] | None:
    """Return a plan of moves as a plain document; None without a plan."""
    if plan is None:
        return None
    return {
        "node": plan.node,
        "moves": [
            {"pod": move.pod, "from": move.source, "to": move.target, "claims": list(move.claims)}
            for move in plan.moves
        ],
        "before": plan.position,
        "bound": plan.bound,
        "optimal": plan.optimal,
    }


def show_moves(screen: Console, pod: str, plan: MovePlan | None) -> None:
    """Print which pods would have to move."""
    if plan is None:
        screen.print(f"\nfound no moves of other pods that make room for {pod}", markup=False)
        return
    proven = "the minimum" if plan.optimal else f"at least {plan.bound} are needed"
    screen.print(f"\n{pod} fits on {plan.node} after {number_of(len(plan.moves), 'move')} ({proven}):", markup=False)
    table = columns("pod", "from", "to", "holds")
    for move in plan.moves:
        table.add_row(move.pod, move.source, move.target, "; ".join(move.claims))
    screen.print(table)
    if plan.position:
        screen.print(f"  place the first {plan.position} of them again before {pod}", markup=False)


def fragment_document(fragment: Fragment) -> dict[str, Any]:
    """Return who holds the devices of a node, as a plain document."""
    held = [{"claim": part.claim, "pods": list(part.pods), "devices": list(part.devices)} for part in fragment.held]
    return {"node": fragment.node, "devices": fragment.devices, "held": held}


def show_fragments(screen: Console, pod: str, fragments: Sequence[Fragment]) -> None:
    """Print which claims hold devices that the pod would need, for the first nodes."""
    if not fragments:
        return
    screen.print(f"\nwithout these claims, {pod} would fit on {number_of(len(fragments), 'node')}:", markup=False)
    table = columns("node", "devices", "claim", "pods", "holds")
    for fragment in fragments[:_SHOWN]:
        for part in fragment.held:
            row = (fragment.node, str(fragment.devices), part.claim, ", ".join(part.pods), ", ".join(part.devices))
            table.add_row(*row)
    screen.print(table)
    if len(fragments) > _SHOWN:
        screen.print(f"  and {len(fragments) - _SHOWN} more nodes; -o json has them", markup=False)


def addition_document(addition: Addition) -> dict[str, Any]:
    """Return the effect of adding nodes as a plain document."""
    return {
        "node": addition.model,
        "count": addition.count,
        "placed": list(addition.placed),
        "unplaced": dict(addition.unplaced),
    }


def show_additions(screen: Console, additions: Sequence[Addition]) -> None:
    """Print how many nodes of each kind would be needed."""
    table = columns("node to add", "how many", "then fit", "still do not")
    for addition in additions:
        table.add_row(addition.model, str(addition.count), str(len(addition.placed)), str(len(addition.unplaced)))
    screen.print()
    screen.print(table)
    for addition in additions:
        for pod, why in addition.unplaced.items():
            screen.print(f"  {pod} on {addition.model}: {why}", markup=False)


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The devices of a node that a claim holds.

    Attributes:
        claim: `<namespace>/<name>`.
        pods: the bound pods that use it.
        devices: `<pool>/<device>`, without repetition.
    """

    claim: str
    pods: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A node that would fit a pod if other claims did not hold its devices.

    Attributes:
        node: the node.
        devices: how many devices it can use.
        held: the claims that hold some of them, by name.
    """

    node: str
    devices: int
    held: tuple[HeldDevices, ...]


def fragments_of(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand, placement: Placement
) -> tuple[Fragment, ...]:
    """Return the nodes that refuse the pod only for their devices, and on which it would fit without the other pods."""
    short = [name for name, refusal in placement.refusals.items() if refusal.plugin == DEVICES]
    fragments = (_fragment(scheduler, state, demand, name) for name in sorted(short))
    return tuple(fragment for fragment in fragments if fragment is not None)


def _fragment(scheduler: Scheduler, state: ClusterState, demand: PodDemand, node: str) -> Fragment | None:
    emptied = state.without_pods(frozenset(state.nodes[node].pods))
    if not scheduler.suits(emptied, demand, node):
        return None
    devices = scheduler.devices_of(state, node)
    holders: dict[ClaimKey, list[str]] = defaultdict(list)
    for pool in {device[0] for device in devices}:
        for holding in state.holdings.pools.get(pool, ()):
            if (pool, holding.result.device) in devices:
                holders[holding.claim].append(f"{pool.pool}/{holding.result.device}")
    held = tuple(
        HeldDevices(str(claim), tuple(sorted(state.users(claim))), tuple(sorted(set(names))))
        for claim, names in sorted(holders.items())
    )
    return Fragment(node, len(devices), held)
