"""A fleet after its pods were placed: what is full, what is stranded, which alternatives were taken.

Amounts are counted in units: CPUs, bytes and the like by the qualified name of a shared capacity (`dra.cpu/cpu`),
devices that are taken whole by their driver. Memory and huge pages have Kubernetes' names of resources. Where the
devices of one pool are shared out in different steps, each step is a unit of its own: one is of no use to who asks for
the other. What is free on a node is stranded if no claim of the run that could use the driver's devices would still fit
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dranode.driver.core.api.documents import encode, encode_json
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.driver.core.api.units import is_published_name, unit_of
from dranode.driver.core.claims.allocation import readable_results
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.counters import Counters, available_counters
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.outcome import Outcome
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.state import Allocated, Amount, PoolState
from dranode.sim.allocator.taint_rules import DeviceTaintRule
from dranode.sim.cluster.place import SCORING, Fleet
from dranode.sim.cluster.pods import PodPlacement, place_pods
from dranode.sim.cluster.workload import PodWithClaims, asked_by

# So many different claims are tried on each state of a node to see what is stranded, the most frequent first.
MAX_TRIED: Final = 64

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """The amount of one unit that a node has.

    Attributes:
        total: in all.
        free: not allocated.
        stranded: free, but of no use to any claim of the run; 0 or `free`.
    """

    total: Amount
    free: Amount
    stranded: Amount


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node at the end.

    Attributes:
        name: the node.
        machine: what it is, as `nodes.yaml` says.
        units: by unit.
    """

    name: str
    machine: str
    units: Mapping[str, Unit]


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A fleet at the end.

    Attributes:
        slices: what the nodes published.
        placements: where each pod went, in order.
        nodes: in the order of `nodes.yaml`.
        alternatives: for each prioritized list, by request, how often each alternative was taken; None: how often none.
        pods: the pods as they were before, some of them with claims that were allocated.
    """

    slices: tuple[ResourceSlice, ...]
    placements: tuple[PodPlacement, ...]
    nodes: tuple[NodeReport, ...]
    alternatives: Mapping[str, Mapping[str | None, int]] = field(default_factory=dict)
    pods: tuple[PodWithClaims, ...] = ()


def run_fleet(
    slices: Sequence[ResourceSlice],
    classes: Sequence[DeviceClass],
    nodes: Sequence[tuple[Node, str]],
    pods: Sequence[PodWithClaims],
    *,
    features: Features,
    new_share_id: Callable[[], str],
    rules: Sequence[DeviceTaintRule] = (),
    scores: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> FleetReport:
    """Place all pods, in order, on nodes, and report on the fleet.

    Args:
        slices: what the nodes publish.
        classes: the DeviceClasses.
        nodes: each node and what it is, for people.
        pods: the pods with their claims, some of which may be allocated.
        features: the allocator's feature gates.
        new_share_id: makes the `shareID` of a share of a device (KEP-5075).
        rules: the DeviceTaintRules (KEP-5055).
        scores: whether each placement has the scores of the nodes (KEP-4816).
        progress: called with a sentence on what happens next.
    """
    allocator = Allocator(slices, classes, features, new_share_id=new_share_id, rules=rules, claims=asked_by(pods))
    allocated = Allocated.of(claim for pod in pods for claim in pod.claims)
    fleet = Fleet(allocator, [node for node, _ in nodes], allocated)
    placements = []
    for number, placement in enumerate(place_pods(fleet, pods, scores=scores), start=1):
        placements.append(placement)
        progress(f"pod {number} of {len(pods)}: {placement.pod}")
    progress("looking for what is stranded")
    return report_on(fleet, slices, nodes, placements, pods)


def report_on(
    fleet: Fleet,
    slices: Sequence[ResourceSlice],
    nodes: Sequence[tuple[Node, str]],
    placements: Sequence[PodPlacement],
    pods: Sequence[PodWithClaims],
) -> FleetReport:
    """The report on a fleet on which these pods are placed; `nodes` gives each node and what it is, for people."""
    claims = [outcome.claim for placement in placements for outcome in placement.outcomes]
    slices = tuple(slices)
    return FleetReport(
        slices,
        tuple(placements),
        tuple(_node_reports(fleet, nodes, claims, _in_steps(slices))),
        _alternatives(placements),
        tuple(pods),
    )


def add_units(nodes: Iterable[NodeReport]) -> dict[str, Unit]:
    """The units of several nodes together, by unit."""
    total: dict[str, Unit] = {}
    for node in nodes:
        for name, unit in node.units.items():
            known = total.get(name, Unit(0, 0, 0))
            total[name] = Unit(known.total + unit.total, known.free + unit.free, known.stranded + unit.stranded)
    return total


def unit_amount(amount: Amount) -> str:
    """Return an amount for people: as Kubernetes writes bytes (`247Gi`) where it can be nothing else."""
    if isinstance(amount, int) and amount and amount % _MIB == 0:
        return str(Quantity.binary(amount))
    return f"{amount:,}" if isinstance(amount, int) else f"{float(amount):,.10g}"


def fleet_document(report: FleetReport, *, scores: bool) -> dict[str, Any]:
    """The report in the form of `dranode local -o json`; with `scores`, the nodes' scores for each pod."""
    document = {
        "slices": [encode(one) for one in report.slices],
        "claims": [_claim(outcome) for placement in report.placements for outcome in placement.outcomes],
        "unprepared": True,
        "nodes": [
            {
                "name": node.name,
                "machine": node.machine,
                "free": {name: _plain(unit.free) for name, unit in node.units.items()},
                "stranded": {name: _plain(unit.stranded) for name, unit in node.units.items()},
            }
            for node in report.nodes
        ],
    }
    if scores:
        document["scoring"] = SCORING
        document["scores"] = [
            {"pod": placement.pod, "node": score.node, "raw": score.raw, "score": score.score}
            for placement in report.placements
            for score in placement.scores
        ]
    return document


def _claim(outcome: Outcome) -> dict[str, Any]:
    return {
        "namespace": outcome.claim.metadata.namespace,
        "name": outcome.claim.metadata.name,
        "uid": outcome.claim.metadata.uid,
        "node": outcome.node if outcome.allocation is not None else None,
        "allocation": encode(outcome.allocation) if outcome.allocation is not None else None,
        "devices": [],
        "cdi_files": [],
        "cpus": None,
        "error": outcome.error,
    }


def _plain(amount: Amount) -> int | float:
    return amount if isinstance(amount, int) else float(amount)


def _node_reports(
    fleet: Fleet, nodes: Iterable[tuple[Node, str]], claims: Iterable[ResourceClaim], in_steps: Collection[str]
) -> Iterator[NodeReport]:
    tried = _most_frequent(claims)
    by_state: dict[int, Mapping[str, Unit]] = {}
    for node, machine in nodes:
        name = node.metadata.name
        state = fleet.state(name)
        if state not in by_state:
            useful = frozenset(driver for claim in tried for driver in fleet.drivers(name, (claim,)))
            by_state[state] = _units(fleet.pools(name), useful, in_steps)
        yield NodeReport(name, machine, by_state[state])


def _most_frequent(claims: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    examples: dict[bytes, ResourceClaim] = {}
    counts: Counter[bytes] = Counter()
    for claim in claims:
        key = encode_json(claim.spec)
        examples.setdefault(key, claim)
        counts[key] += 1
    return [examples[key] for key, _ in counts.most_common(MAX_TRIED)]


def _in_steps(slices: Iterable[ResourceSlice]) -> frozenset[str]:
    """Return the units of which some pool has devices with different steps."""
    steps: dict[tuple[str, str, str], set[Quantity | None]] = {}
    for each in slices:
        driver = each.spec.driver
        for device in each.spec.devices:
            for name, capacity in device.capacity.items() if device.allow_multiple_allocations else ():
                unit = unit_of(device, name, driver)
                if is_published_name(unit):
                    steps.setdefault((driver, each.spec.pool.name, unit), set()).add(capacity.step)
    return frozenset(name for (_, _, name), different in steps.items() if len(different) > 1)


def _units(
    pools: Iterable[tuple[Pool, PoolState]], useful: frozenset[str], in_steps: Collection[str]
) -> dict[str, Unit]:
    total: dict[str, Amount] = {}
    free: dict[str, Amount] = {}
    owner: dict[str, str] = {}
    for pool, state in pools:
        for unit, amount, remaining in _amounts(pool, state, in_steps):
            owner[unit] = pool.id.driver
            total[unit] = total.get(unit, 0) + amount
            free[unit] = free.get(unit, 0) + remaining
    return {unit: Unit(total[unit], free[unit], 0 if owner[unit] in useful else free[unit]) for unit in sorted(total)}


def _amounts(pool: Pool, state: PoolState, in_steps: Collection[str]) -> Iterator[tuple[str, Amount, Amount]]:
    """Unit, amount and what is free of it, for each device of the node itself."""
    remaining = available_counters(pool, state)
    for candidate in pool.candidates:
        device, driver = candidate.device, pool.id.driver
        if candidate.slice.node_name is None:
            continue
        if not device.allow_multiple_allocations:
            available = device.name not in state.devices and Counters(dict(remaining)).draw(device) is None
            yield driver, 1, int(available)
            continue
        consumed = state.consumed_of(device, driver)
        whole = device.name in state.devices
        for name, capacity in device.capacity.items():
            unit, step = unit_of(device, name, driver), capacity.step
            if unit in in_steps and step is not None:
                unit = f"{unit} in steps of {step}"
            yield unit, capacity.value.value, 0 if whole else max(0, capacity.value.value - consumed.get(name, 0))


def _alternatives(placements: Iterable[PodPlacement]) -> dict[str, dict[str | None, int]]:
    taken: dict[str, dict[str | None, int]] = {}
    for placement in placements:
        for outcome in placement.outcomes:
            names = {result.request for result in readable_results(outcome.allocation)}
            for request in outcome.claim.spec.devices.requests:
                if request.first_available:
                    counts = taken.setdefault(request.name, {})
                    for alternative in request.first_available:
                        counts.setdefault(alternative.name, 0)
                    chosen = next(
                        (
                            alternative.name
                            for alternative in request.first_available
                            if f"{request.name}/{alternative.name}" in names
                        ),
                        None,
                    )
                    counts[chosen] = counts.get(chosen, 0) + 1
    return taken
