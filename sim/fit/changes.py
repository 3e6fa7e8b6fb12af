"""Answers on what would have to change, for people and for programs."""

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

# Of so many nodes people are shown who holds their devices.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that are needed; a change that was not asked for is empty.

    Attributes:
        rooms: how many pods like each fit.
        evictions: for each pod that fits nowhere.
        moves: likewise.
        fragments: likewise, the nodes whose devices are enough for it and are held by others.
        additions: for all of them together, by node.
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
        """Find what was asked for."""
        scheduler = questions.scheduler
        stuck = [answer for answer in answers if answer.choice.node is None]
        end = questions.after(answers[-1])
        return cls(
            {each.choice.pod: room_for(scheduler, each.before, each.demand) for each in answers if how_many},
            {each.choice.pod: evictions_for(scheduler, each.before, each.demand) for each in stuck if evict},
            {each.choice.pod: moves_for(scheduler, each.before, each.demand) for each in stuck if move},
            {
                each.choice.pod: fragments_of(scheduler, each.before, each.demand, each.placement)
                for each in stuck
                if move
            },
            additions_for(
                lambda slices: questions.with_slices((*questions.dump.slices, *slices)),
                end,
                [each.demand for each in stuck],
                models,
            ),
        )


def changes_document(changes: Changes) -> dict[str, Any]:
    """All of it as plain documents; what was not asked for is left out."""
    documents: dict[str, Any] = {
        "room": {pod: room_document(room) for pod, room in changes.rooms.items()},
        "evictions": {pod: eviction_document(plan) for pod, plan in changes.evictions.items()},
        "moves": {pod: move_document(plan) for pod, plan in changes.moves.items()},
        "fragments": {pod: list(map(fragment_document, each)) for pod, each in changes.fragments.items() if each},
        "additions": list(map(addition_document, changes.additions)),
    }
    return {name: document for name, document in documents.items() if document}


def show_changes(screen: Console, changes: Changes) -> None:
    """Print all of it."""
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
    """Return how many more fit, as a plain document."""
    return {"count": room.count, "more": room.more, "nodes": dict(room.nodes), "shared_claims": list(room.shared)}


def show_room(screen: Console, pod: str, room: Room) -> None:
    """Print how many more pods fit."""
    at_least = "at least " if room.more else ""
    count, nodes = number_of(room.count, "pod"), number_of(len(room.nodes), "node")
    screen.print(f"\nat its turn, {at_least}{count} like {pod} can be placed, on {nodes}", markup=False)
    if room.shared:
        screen.print(f"  all of them share {', '.join(room.shared)}, because the pod names it directly", markup=False)


def eviction_document(plan: EvictionPlan | None) -> dict[str, Any] | None:
    """An eviction plan as a plain document; None if there is none."""
    if plan is None:
        return None
    return {
        "node": plan.node,
        "pods": [{"pod": pod, "priority": priority} for pod, priority in zip(plan.pods, plan.priorities, strict=True)],
        "fewest": plan.least,
        "preemption": plan.preemption,
    }


def show_evictions(screen: Console, pod: str, plan: EvictionPlan | None) -> None:
    """Print which pods would have to go."""
    if plan is None:
        screen.print(f"\nno eviction makes room for {pod}", markup=False)
        return
    proven = "the minimum" if plan.least else "fewer may be enough; not all sets were tried"
    evictions = number_of(len(plan.pods), "eviction")
    screen.print(f"\n{pod} fits on {plan.node} after {evictions} ({proven}):", markup=False)
    for name, priority in zip(plan.pods, plan.priorities, strict=True):
        screen.print(f"  {name}, priority {priority}", markup=False)
    if plan.preemption:
        screen.print("  all are less important, so kube-scheduler may preempt them itself", markup=False)


def move_document(plan: MovePlan | None) -> dict[str, Any] | None:
    """A plan of moves as a plain document; None if there is none."""
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
    held = [{"claim": one.claim, "pods": list(one.pods), "devices": list(one.devices)} for one in fragment.held]
    return {"node": fragment.node, "devices": fragment.devices, "held": held}


def show_fragments(screen: Console, pod: str, fragments: Sequence[Fragment]) -> None:
    """Print which claims hold what the pod would need; of many nodes the first."""
    if not fragments:
        return
    screen.print(f"\nwithout these claims, {pod} would fit on {number_of(len(fragments), 'node')}:", markup=False)
    table = columns("node", "devices", "claim", "pods", "holds")
    for fragment in fragments[:_SHOWN]:
        for one in fragment.held:
            row = (fragment.node, str(fragment.devices), one.claim, ", ".join(one.pods), ", ".join(one.devices))
            table.add_row(*row)
    screen.print(table)
    if len(fragments) > _SHOWN:
        screen.print(f"  and {len(fragments) - _SHOWN} more nodes; -o json has them", markup=False)


def addition_document(addition: Addition) -> dict[str, Any]:
    """Return what a node to add would do, as a plain document."""
    return {
        "node": addition.model,
        "count": addition.count,
        "placed": list(addition.placed),
        "unplaced": dict(addition.unplaced),
    }


def show_additions(screen: Console, additions: Sequence[Addition]) -> None:
    """Print how many of each node would be needed."""
    table = columns("node to add", "how many", "then fit", "still do not")
    for addition in additions:
        table.add_row(addition.model, str(addition.count), str(len(addition.placed)), str(len(addition.unplaced)))
    screen.print()
    screen.print(table)
    for addition in additions:
        for pod, why in addition.unplaced.items():
            screen.print(f"  {pod} on {addition.model}: {why}", markup=False)


# Claims that fragment nodes: without them the devices of a node would be enough for the pod.


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The part of a node that a claim holds.

    Attributes:
        claim: `<namespace>/<name>`.
        pods: the bound pods that use it.
        devices: `<pool>/<device>`, each once.
    """

    claim: str
    pods: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A node that has devices left, too few or not the right ones, and would suit if it were empty.

    Attributes:
        node: its name.
        devices: how many devices it sees.
        held: who holds some of them, in the order of the claims' names.
    """

    node: str
    devices: int
    held: tuple[HeldDevices, ...]


def fragments_of(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand, placement: Placement
) -> tuple[Fragment, ...]:
    """The nodes that refuse the pod for their devices alone, and on which it would fit without the pods there."""
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
