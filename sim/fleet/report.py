"""A fleet after its pods were placed: used, free and stranded amounts, and the chosen alternatives.

Amounts are counted in units: shared capacity by its qualified name (`dra.cpu/cpu`), whole devices by their driver.
Memory and huge pages have Kubernetes' resource names. If the devices of a pool have capacity with different steps, each
step is a unit of its own, because capacity with one step cannot serve requests for the other. Free amounts of a driver
on a node are stranded if no claim of the run would get one of its devices there any more.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dranode.api.documents import encode, encode_json
from dranode.api.errors import number_of
from dranode.api.quantity import Quantity
from dranode.api.resource import AllocationResult, ResourceClaim, ResourceSlice
from dranode.driver.claims.grant import readable_results
from dranode.show.picture.devices import is_published_name, unit_of
from dranode.show.picture.fleet import FleetClaim, FleetPicture, WaitingPod
from dranode.show.picture.pictures import fleet_picture, shares_of
from dranode.sim.allocator.capacity import Counters, available_counters
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.requests import Outcome
from dranode.sim.allocator.state import Amount, PoolState
from dranode.sim.cluster.workload import PodWithClaims
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.fleet.placing import SCORING, PodResult
from dranode.sim.scheduler.documents import SchedulingNode

# How many different claims are tried on a node to find stranded amounts, the most frequent first.
MAX_TRIED: Final = 64

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """The amounts of one unit on a node.

    Attributes:
        total: the total amount.
        free: the amount that is not allocated.
        stranded: the free amount that no claim of the run could use; 0 or `free`.
    """

    total: Amount
    free: Amount
    stranded: Amount


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node at the end.

    Attributes:
        name: the node.
        machine: its machine or slices in `nodes.yaml`.
        units: the amounts by unit.
    """

    name: str
    machine: str
    units: Mapping[str, Unit]


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A fleet at the end.

    Attributes:
        slices: the ResourceSlices of the nodes.
        results: the node of each pod, in order.
        nodes: the nodes in the order of `nodes.yaml`.
        alternatives: how often each alternative of each prioritized list was chosen, by request; None counts failures.
        pods: the pods before the run, some with allocated claims.
        notes: one sentence for everything that the answer does not cover.
    """

    slices: tuple[ResourceSlice, ...]
    results: tuple[PodResult, ...]
    nodes: tuple[NodeReport, ...]
    alternatives: Mapping[str, Mapping[str | None, int]] = field(default_factory=dict)
    pods: tuple[PodWithClaims, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Return how many pods were placed, and on how many nodes."""
        chosen = [result.node for result in self.results if result.node is not None]
        pods, nodes = number_of(len(self.results), "pod"), number_of(len(self.nodes), "node")
        return f"{len(chosen)} of {pods} placed on {len(set(chosen))} of {nodes}"


def report_on(
    scheduler: Scheduler,
    state: ClusterState,
    *,
    slices: Sequence[ResourceSlice],
    nodes: Iterable[tuple[SchedulingNode, str]],
    results: Sequence[PodResult],
    pods: Iterable[PodWithClaims],
    notes: Iterable[str] = (),
) -> FleetReport:
    """Return the report on a fleet after placing pods.

    Args:
        scheduler: the scheduler that placed them.
        state: the fleet with the placed pods.
        slices: the ResourceSlices of the nodes.
        nodes: the nodes, each with its machine for people.
        results: the node of each pod.
        pods: the pods before the run.
        notes: what the answer does not cover.
    """
    claims = [outcome.claim for result in results for outcome in result.outcomes]
    return FleetReport(
        tuple(slices),
        tuple(results),
        tuple(_node_reports(scheduler, state, nodes, claims, _in_steps(slices))),
        _alternatives(results),
        tuple(pods),
        tuple(notes),
    )


def add_units(nodes: Iterable[NodeReport]) -> dict[str, Unit]:
    """Add up the amounts of several nodes, by unit."""
    total: dict[str, Unit] = {}
    for node in nodes:
        for name, unit in node.units.items():
            so_far = total.get(name, Unit(0, 0, 0))
            total[name] = Unit(so_far.total + unit.total, so_far.free + unit.free, so_far.stranded + unit.stranded)
    return total


def unit_amount(amount: Amount) -> str:
    """Format an amount for people, as bytes (`247Gi`) if it is a multiple of a MiB."""
    if isinstance(amount, int) and amount and amount % _MIB == 0:
        return str(Quantity.binary(amount))
    return f"{amount:,}" if isinstance(amount, int) else f"{float(amount):,.10g}"


def fleet_document(report: FleetReport, *, scores: bool) -> dict[str, Any]:
    """Return the report in the form of `dranode local -o json`, optionally with the scores of the nodes."""
    document = {
        "slices": [encode(slice_) for slice_ in report.slices],
        "claims": [_claim(outcome) for result in report.results for outcome in result.outcomes],
        "pods": [
            {"pod": result.pod, "node": result.node, "error": result.sentence or None} for result in report.results
        ],
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
            {"pod": result.pod, "node": score.node, "raw": score.raw, "score": score.score, "total": score.total}
            for result in report.results
            for score in result.scores
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
    scheduler: Scheduler,
    state: ClusterState,
    nodes: Iterable[tuple[SchedulingNode, str]],
    claims: Iterable[ResourceClaim],
    in_steps: Collection[str],
) -> Iterator[NodeReport]:
    tried = _most_frequent(claims)
    units_by_devices: dict[Hashable, Mapping[str, Unit]] = {}
    for node, machine in nodes:
        name = node.metadata.name
        devices = scheduler.devices_left(state, name)
        if devices not in units_by_devices:
            useful = frozenset(driver for claim in tried for driver in scheduler.useful_drivers(state, name, claim))
            units_by_devices[devices] = _units(scheduler.pools(state, name), useful, in_steps)
        yield NodeReport(name, machine, units_by_devices[devices])


def _most_frequent(claims: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    examples: dict[bytes, ResourceClaim] = {}
    counts: Counter[bytes] = Counter()
    for claim in claims:
        key = encode_json(claim.spec)
        examples.setdefault(key, claim)
        counts[key] += 1
    return [examples[key] for key, _ in counts.most_common(MAX_TRIED)]


def _in_steps(slices: Iterable[ResourceSlice]) -> frozenset[str]:
    """Return the units with different steps in one pool."""
    steps: dict[tuple[str, str, str], set[Quantity | None]] = {}
    for slice_ in slices:
        driver = slice_.spec.driver
        for device in slice_.spec.devices:
            for name, capacity in device.capacity.items() if device.allow_multiple_allocations else ():
                unit = unit_of(device, name, driver)
                if is_published_name(unit):
                    steps.setdefault((driver, slice_.spec.pool.name, unit), set()).add(capacity.step)
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
    """Yield unit, total and free amount for each device that belongs to the node."""
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
        fully_allocated = device.name in state.devices
        for name, capacity in device.capacity.items():
            unit, step = unit_of(device, name, driver), capacity.step
            if unit in in_steps and step is not None:
                unit = f"{unit} in steps of {step}"
            yield (
                unit,
                capacity.value.value,
                0 if fully_allocated else max(0, capacity.value.value - consumed.get(name, 0)),
            )


def _alternatives(results: Iterable[PodResult]) -> dict[str, dict[str | None, int]]:
    counts_by_request: dict[str, dict[str | None, int]] = {}
    for placed in results:
        for outcome in placed.outcomes:
            names = {result.request for result in readable_results(outcome.allocation)}
            for request in outcome.claim.spec.devices.requests:
                if request.first_available:
                    counts = counts_by_request.setdefault(request.name, {})
                    for alternative in request.first_available:
                        counts.setdefault(alternative.name, 0)
                    chosen = next((name.partition("/")[2] for name in request.options if name in names), None)
                    counts[chosen] = counts.get(chosen, 0) + 1
    return counts_by_request


def report_picture(report: FleetReport) -> FleetPicture:
    """Return the picture of a fleet."""
    before: dict[str, FleetClaim] = {}
    for pod in report.pods:
        for claim in pod.claims:
            if claim.status.allocation is not None:
                _enter(before, pod.name, claim, claim.status.allocation)
    after = dict(before)
    for result in report.results:
        for outcome in (*result.outcomes, *result.shared):
            _enter(after, result.pod, outcome.claim, outcome.allocation or outcome.claim.status.allocation)
    return fleet_picture(
        report.headline,
        report.slices,
        [("before", tuple(before.values())), ("after", tuple(after.values()))],
        known={node.name: () for node in report.nodes},
        waiting=tuple(_waiting(report)),
        facts=tuple(_facts(report)),
    )


def _enter(claims: dict[str, FleetClaim], pod: str, claim: ResourceClaim, allocation: AllocationResult | None) -> None:
    name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    pods = (*(claims[name].pods if name in claims else ()), pod)
    claims[name] = FleetClaim(name, tuple(dict.fromkeys(pods)), shares_of(allocation))


def _waiting(report: FleetReport) -> Iterator[WaitingPod]:
    for result in report.results:
        if result.node is None:
            claims = (outcome.claim for outcome in (*result.outcomes, *result.shared))
            names = tuple(f"{claim.metadata.namespace}/{claim.metadata.name}" for claim in claims)
            yield WaitingPod(result.pod, names, (result.error, *result.details))


def _facts(report: FleetReport) -> Iterator[str]:
    for name, unit in add_units(report.nodes).items():
        if unit.stranded:
            yield f"{unit_amount(unit.stranded)} of {name} are stranded: free, but no claim of the run fits there"
    for request, counts in report.alternatives.items():
        chosen = ", ".join(f"{name or 'none fits'} {count}" for name, count in counts.items())
        yield f"request {request}, alternatives taken: {chosen}"
