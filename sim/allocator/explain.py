"""Explains why claims do not fit on a node, by the device that came closest, and notes surprising answers.

First, each request is checked by itself: how many checks each device passes, and which one it fails. If every request
fits alone, each is checked after those before it. If that works as well, a constraint is the cause.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from itertools import combinations
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.api.capacity_policy import allowed_amounts
from dranode.api.errors import number_of
from dranode.api.quantity import Quantity
from dranode.api.resource import AllocationResult, DeviceClass, DeviceConstraint, ResourceClaim
from dranode.driver.claims.grant import applies
from dranode.sim.allocator.capacity import (
    Counters,
    Shortage,
    available_counters,
    canonical,
    consumptions,
    shortage,
    steps_are_inexact,
)
from dranode.sim.allocator.constraints import attribute_values, common_values, lookup
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.requests import AllocationError, AllocationRequest, Alternative, DeviceDemand, claim_name
from dranode.sim.allocator.result import DevicePick, Oddity, allocation
from dranode.sim.allocator.search import search
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated, Amount
from dranode.sim.allocator.taint_rules import untolerated


class Stage(IntEnum):
    """The check that a device fails; higher stages are closer to fitting."""

    NO_DEVICE = -1
    SELECTOR = 0
    OTHER_NODE = 1
    IN_USE = 2
    COUNTERS = 3
    CAPACITY = 4
    TAINT = 5
    FREE = 6
    TOGETHER = 7
    CONSTRAINT = 8


@dataclass(frozen=True, slots=True, order=True)
class Miss:
    """How far a node is from fitting; greater is closer.

    Attributes:
        satisfied: how many requests fit alone, before the first that does not.
        stage: the stage of the best device for that request.
        fraction: the available part of the requested devices or capacity.
        sentence: the explanation for people, without a full stop.
    """

    satisfied: int
    stage: Stage
    fraction: Fraction
    sentence: str


_DRIVER: Final = re.compile(r"""\bdevice\.driver\s*==\s*(["'])([^"'\\]+)\1""")
# The stage of a device, its fraction, its name, and a predicate for a sentence that begins with the name.
_Verdict: TypeAlias = tuple[Stage, Fraction, str, str]


def nearest_miss(demand: DeviceDemand, pools: Sequence[Pool], allocated: Allocated, selectors: Selectors) -> Miss:
    """Return why the claims do not fit into these pools.

    Raises:
        AllocationError: a selector cannot be evaluated on a device that the search did not reach.
    """
    explainer = _Explainer(pools, allocated, selectors)
    satisfied = 0
    for claim, requests in demand.pairs:
        for request in requests:
            misses = [explainer.alternative(item, claim_name(claim), satisfied) for item in request.alternatives]
            if all(miss is not None for miss in misses):
                return max(miss for miss in misses if miss is not None)
            satisfied += 1
    for claim, requests in demand.pairs:
        for constraint in claim.spec.devices.constraints:
            if constraint.match_attribute is not None:
                sentence = explainer.match(constraint, requests, claim_name(claim))
                if sentence:
                    return Miss(satisfied, Stage.CONSTRAINT, Fraction(1), sentence)
    return _after_earlier(demand, pools, allocated, selectors) or _constrained(demand.claims, satisfied)


def _after_earlier(
    demand: DeviceDemand, pools: Sequence[Pool], allocated: Allocated, selectors: Selectors
) -> Miss | None:
    """Return what the first request lacks that fits alone, but not after those before it; constraints are ignored."""
    claims = demand.claims
    unconstrained = tuple(
        replace(claim, spec=replace(claim.spec, devices=replace(claim.spec.devices, constraints=())))
        for claim in claims
    )
    in_order = [(number, request) for number, of_claim in enumerate(demand.requests) for request in of_claim]
    before: tuple[tuple[DevicePick, ...], ...] = tuple(() for _ in claims)
    for count, (number, request) in enumerate(in_order, start=1):
        parts = tuple(tuple(item for owner, item in in_order[:count] if owner == claim) for claim in range(len(claims)))
        try:
            picks = search(DeviceDemand(unconstrained, parts), pools, allocated, selectors).picks
        except AllocationError:
            return None
        if picks is None:
            after = allocated.with_allocations(
                allocation(claim, of_claim, devices, node="", features=selectors.features, share_id=lambda: "")
                for claim, of_claim, devices in zip(unconstrained, parts, before, strict=True)
            )
            explainer = _Explainer(pools, after, selectors)
            name = claim_name(claims[number])
            misses = [explainer.alternative(item, name, len(in_order)) for item in request.alternatives]
            nearest = max((miss for miss in misses if miss is not None), default=None)
            if nearest is None:
                return None
            # The claim is named by its position, because pods with equal claims of other names share the answer.
            where = f" of claim {number + 1} of {len(claims)}" if len(claims) > 1 else ""
            sentence = nearest.sentence.replace(f"request {request.name}", f"request {request.name}{where}", 1)
            return Miss(len(in_order), Stage.TOGETHER, nearest.fraction, f"after the earlier requests, {sentence}")
        before = picks
    return None


def _constrained(claims: Sequence[ResourceClaim], satisfied: int) -> Miss:
    kinds = {
        f"matchAttribute {spec.match_attribute}"
        if spec.match_attribute
        else f"distinctAttribute {spec.distinct_attribute}"
        for claim in claims
        for spec in claim.spec.devices.constraints
    }
    under = f" under {' and '.join(sorted(kinds))}" if kinds else ""
    stage = Stage.CONSTRAINT if kinds else Stage.TOGETHER
    return Miss(satisfied, stage, Fraction(1), f"each request fits alone, but not all of them together{under}")


def usable_devices(
    demand: DeviceDemand, pools: Sequence[Pool], selectors: Selectors
) -> frozenset[tuple[str, str, str]]:
    """Return the devices that a request chooses and those that share counters with them, by driver, pool and name.

    Raises:
        AllocationError: a selector cannot be evaluated on one of them.
    """
    candidates = [candidate for pool in pools for candidate in pool.candidates]
    chosen = [
        candidate
        for claim, requests in demand.pairs
        for request in requests
        for alternative in request.alternatives
        for candidate in candidates
        if selectors.exclusion(alternative, candidate, claim_name(claim)) is None
    ]
    counted = {
        (candidate.pool, consumption.counter_set)
        for candidate in chosen
        for consumption in candidate.device.consumes_counters
    }
    sharing = (
        candidate
        for candidate in candidates
        if any(
            (candidate.pool, consumption.counter_set) in counted for consumption in candidate.device.consumes_counters
        )
    )
    return frozenset(
        (candidate.pool.driver, candidate.pool.pool, candidate.device.name) for candidate in (*chosen, *sharing)
    )


class _Explainer:
    def __init__(self, pools: Sequence[Pool], allocated: Allocated, selectors: Selectors) -> None:
        self.pools = {pool.id: pool for pool in pools}
        self.candidates = [candidate for pool in pools if pool.usable for candidate in pool.candidates]
        self.broken = [pool for pool in pools if not pool.usable]
        self.allocated = allocated
        self.selectors = selectors
        self.features = selectors.features

    def alternative(self, alternative: Alternative, claim: str, satisfied: int) -> Miss | None:
        """Return what a request lacks by itself; None if it fits."""
        driver = driver_of(alternative.device_class)
        candidates = [candidate for candidate in self.candidates if driver is None or candidate.pool.driver == driver]
        verdicts = [self._verdict(alternative, candidate, claim) for candidate in candidates]
        free = sum(verdict[0] is Stage.FREE for verdict in verdicts)
        chosen = [verdict for verdict in verdicts if verdict[0] > Stage.OTHER_NODE]
        needed = len(chosen) if alternative.count is None else alternative.count
        if free >= max(needed, 1):
            return None
        head = f"request {alternative.name} needs {_needs(alternative, needed)}"
        if not candidates:
            broken = [pool for pool in self.broken if driver is None or pool.id.driver == driver]
            if broken:
                return Miss(satisfied, Stage.SELECTOR, Fraction(0), f"{head}; pool {broken[0].id} is not complete")
            none = "no device is published here" if driver is None else f"driver {driver} publishes none here"
            return Miss(satisfied, Stage.NO_DEVICE, Fraction(0), f"{head}; {none}")
        unfit = [verdict for verdict in verdicts if verdict[0] is not Stage.FREE]
        if not unfit:
            too_few = "there is only 1" if free == 1 else f"there are only {free}"
            return Miss(satisfied, Stage.FREE, Fraction(free, needed), f"{head}; {too_few}")
        stage, fraction, name, why = max(unfit)
        alike = Counter(verdict[0] for verdict in unfit)[stage]
        more = f" ({alike - 1} more like it)" if alike > 1 else ""
        if len(verdicts) == 1:
            nearest = f"the only one, {name}, {why}"
        elif stage is Stage.CAPACITY and alternative.count == 1 and len(alternative.capacity) == 1:
            nearest = f"the largest, {name}, {why}"
        elif free:
            nearest = f"only {free} of {len(verdicts)} fit{'s' if free == 1 else ''}: {name} {why}{more}"
        else:
            nearest = f"none of {len(verdicts)} fits; the closest, {name}, {why}{more}"
        part = fraction if alternative.count == 1 else Fraction(free, max(needed, 1))
        return Miss(satisfied, stage, part, f"{head}; {nearest}")

    def _verdict(self, alternative: Alternative, candidate: Candidate, claim: str) -> _Verdict:
        name = candidate.device.name
        exclusion = self.selectors.exclusion(alternative, candidate, claim)
        if exclusion is not None:
            stage = Stage.SELECTOR if exclusion.where.startswith("request") else Stage.NO_DEVICE
            why = f"is excluded by selector #{exclusion.index} of {exclusion.where}: {exclusion.expression}"
            return stage, Fraction(exclusion.index, 100), name, why
        if not candidate.reachable:
            return Stage.OTHER_NODE, Fraction(0), name, "is for other nodes"
        if not candidate.servable:
            why = "needs a node that declares DRAOptionalNodeOperations, and this one does not"
            return Stage.OTHER_NODE, Fraction(0), name, why
        if candidate.device.binding_conditions and not self.features.binding:
            return Stage.OTHER_NODE, Fraction(0), name, "has binding conditions, and DRADeviceBindingConditions is off"
        if name in self.allocated.pool(candidate.pool).devices and not alternative.admin:
            return Stage.IN_USE, Fraction(0), name, "is in use"
        return self._usable(alternative, candidate)

    def _usable(self, alternative: Alternative, candidate: Candidate) -> _Verdict:
        device, state = candidate.device, self.allocated.pool(candidate.pool)
        consumed = state.consumed_of(device, candidate.pool.driver)
        if device.consumes_counters and not self.features.partitionable_devices:
            return Stage.COUNTERS, Fraction(0), device.name, "consumes counters, and DRAPartitionableDevices is off"
        if device.consumes_counters and not consumed:
            short = Counters(available_counters(self.pools[candidate.pool], state)).draw(device)
            if short is not None:
                (set_, counter), available = short
                why = f"lacks counter {set_}/{counter}: {_amount(available)} is left"
                return Stage.COUNTERS, Fraction(0), device.name, why
        if self.features.consumable_capacity:
            lacking = shortage(candidate, alternative.capacity, consumed, self.features)
            if lacking is not None:
                return Stage.CAPACITY, _part(lacking), device.name, _shortage(lacking, alternative.capacity)
        taint = untolerated(device.taints, alternative.tolerations) if self.features.device_taints else None
        if taint is not None:
            why = f"has the taint {taint.key}:{taint.effect}, which is not tolerated"
            return Stage.TAINT, Fraction(0), device.name, why
        return Stage.FREE, Fraction(1), device.name, ""

    def match(self, constraint: DeviceConstraint, requests: Sequence[AllocationRequest], claim: str) -> str:
        """Return the value with devices for the most requests of the constraint; empty if one has enough for all."""
        name = constraint.match_attribute or ""
        bound = [
            alternative
            for request in requests
            for alternative in request.alternatives[:1]
            if applies(constraint.requests, alternative.name)
        ]
        served: dict[str, Counter[str]] = {}
        for alternative in bound:
            for value in self._values(alternative, claim, name):
                served.setdefault(value, Counter())[alternative.name] += 1
        lacking = {
            value: [item.name for item in bound if counts[item.name] < (item.count or 1)]
            for value, counts in served.items()
        }
        if not lacking:
            return f"no free device has {name}, which matchAttribute needs"
        value = min(lacking, key=lambda candidate: len(lacking[candidate]))
        if not lacking[value]:
            return ""
        return (
            f"no value of {name} (matchAttribute) serves every request: the closest, {value}, has too few devices for "
            f"{', '.join(lacking[value])}"
        )

    def _values(self, alternative: Alternative, claim: str, name: str) -> Iterator[str]:
        for candidate in self.candidates:
            attribute = lookup(candidate.device, candidate.pool.driver, name)
            values = attribute_values(attribute) if attribute is not None else None
            if values is not None and self._verdict(alternative, candidate, claim)[0] is Stage.FREE:
                for value in values[1]:
                    yield f"{values[0]} {value}"


def driver_of(device_class: DeviceClass) -> str | None:
    """Return the driver that a class names in its selectors, as in `device.driver == "dra.gpu"`; None if not one."""
    expressions = [selector.cel.expression for selector in device_class.spec.selectors if selector.cel is not None]
    drivers = {match[2] for expression in expressions for match in _DRIVER.finditer(expression)}
    return drivers.pop() if len(drivers) == 1 else None


def _amount(amount: Amount) -> str:
    """Format an amount for people, in Ki, Mi and so on if it is a multiple of 1024."""
    if isinstance(amount, int) and amount and amount % 1024 == 0:
        return canonical(Quantity(f"{amount // 1024}Ki")).text
    return canonical(Quantity(amount if isinstance(amount, int) else f"{float(amount):f}")).text


def _part(lacking: Shortage) -> Fraction:
    if lacking.available is None or not lacking.needed:
        return Fraction(0)
    return Fraction(max(lacking.available, 0)) / Fraction(lacking.needed)


def _shortage(lacking: Shortage, requested: Mapping[str, Quantity]) -> str:
    """Return how much of a capacity is free, with its name unless the request is for only one capacity."""
    if lacking.needed is None:
        return f"has no capacity {lacking.name}"
    needed = _amount(lacking.needed)
    if lacking.available is None:
        allowed = f", only {allowed_amounts(lacking.policy)}" if lacking.policy is not None else ""
        return f"does not allow {_of_capacity(needed, lacking.name)}{allowed}"
    short = _amount(lacking.needed - lacking.available)
    free = _amount(lacking.available) if lacking.available > 0 else "none"
    few = "few" if short.isdigit() else "little"
    amount = free if len(requested) == 1 else _of_capacity(free, lacking.name)
    as_requested = any(quantity.value == lacking.needed for quantity in requested.values())
    rounded = "" if as_requested else f" for the {needed} that it takes"
    return f"has {amount} free ({short} too {few}{rounded})"


def _needs(alternative: Alternative, needed: int) -> str:
    """Return what a request needs: `2 devices of class gpu`, `40 CPUs from one device`."""
    amounts = [_of_capacity(str(quantity), name) for name, quantity in alternative.capacity.items()]
    if amounts and alternative.count == 1:
        return f"{' and '.join(amounts)} from one device"
    devices = "all devices" if alternative.count is None else number_of(needed, "device")
    capacity = f" with {' and '.join(amounts)} each" if amounts else ""
    return f"{devices} of class {alternative.device_class.metadata.name}{capacity}"


def _of_capacity(amount: str, name: str) -> str:
    """Return an amount with its unit: `40 CPUs`, `10Gi of memory`."""
    kind = name.rpartition("/")[2]
    return f"{amount} CPU{'' if amount == '1' else 's'}" if kind == "cpu" else f"{amount} of {kind}"


_OF_ODDITY: Final[Mapping[Oddity, str]] = {
    Oddity.ADMIN_BLOCKS: (
        "a device taken with admin access counts as in use for the other requests of this attempt, "
        "though earlier admin access does not count"
    ),
    Oddity.ADMIN_NEEDS_CAPACITY: (
        "admin access to a shared device needs free capacity, though admin access to other devices ignores their use"
    ),
    Oddity.NO_FIXED_ORDER: (
        "this release of Kubernetes searches pools and slices in random order, and another order gives another answer; "
        "this answer is for the order of their names"
    ),
}
# These can only prevent an allocation.
_ONLY_ON_FAILURE: Final = frozenset({Oddity.ADMIN_BLOCKS, Oddity.ADMIN_NEEDS_CAPACITY})


def notes_on_failure(oddities: Iterable[Oddity]) -> tuple[str, ...]:
    """Return notes on a claim that does not fit."""
    return tuple(_OF_ODDITY[oddity] for oddity in Oddity if oddity in frozenset(oddities))


def notes_on_success(
    claim: ResourceClaim,
    picks: Sequence[DevicePick],
    allocation: AllocationResult,
    oddities: Iterable[Oddity],
    features: Features,
) -> tuple[str, ...]:
    """Return notes on a claim that was allocated."""
    relevant = frozenset(oddities) - _ONLY_ON_FAILURE
    return tuple(
        dict.fromkeys(
            (
                *notes_on_failure(relevant),
                *_not_distinct(claim, picks),
                *_inexact_steps(picks, features),
                *_too_little(picks, features),
                *_repeated_configs(allocation),
                *_waits(allocation),
            )
        )
    )


def _not_distinct(claim: ResourceClaim, picks: Sequence[DevicePick]) -> Iterator[str]:
    for constraint in claim.spec.devices.constraints:
        name = constraint.distinct_attribute
        if name is None:
            continue
        devices = [pick.candidate for pick in picks if applies(constraint.requests, pick.alternative.name)]
        attributes = [(device, lookup(device.device, device.pool.driver, name)) for device in devices]
        values = [(device, attribute_values(attribute)) for device, attribute in attributes if attribute is not None]
        for (first, of_first), (second, of_second) in combinations(values, 2):
            if common_values(of_first, of_second):
                yield (
                    f"{first.device.name} and {second.device.name} have the same {name} despite distinctAttribute: "
                    "before 1.37, a device is compared only with the last one of its request"
                )


def _inexact_steps(picks: Sequence[DevicePick], features: Features) -> Iterator[str]:
    for pick in picks:
        if pick.share is not None and steps_are_inexact(pick.candidate, pick.alternative.capacity, features):
            yield (
                f"{pick.candidate.device.name}: kube-scheduler rounds the steps of a capacity up to whole numbers, so "
                "a fractional request consumes more than its policy says"
            )


def _too_little(picks: Sequence[DevicePick], features: Features) -> Iterator[str]:
    for pick in picks:
        requests = pick.alternative.capacity
        amounts = consumptions(pick.candidate, requests, features) if pick.share is not None else {}
        for name, amount in amounts.items():
            if amount.value < 0 or (name in requests and amount < requests[name]):
                yield (
                    f"{pick.candidate.device.name}: {requests.get(name)} of {name} counts as {amount}, because before "
                    "1.37, amounts below 0 are accepted, and those beyond 64 bits wrap around"
                )


def _waits(allocation: AllocationResult) -> Iterator[str]:
    for result in allocation.devices.results:
        if result.binding_conditions:
            failing = ", ".join(result.binding_failure_conditions)
            yield (
                f"{result.device} has binding conditions: kube-scheduler binds the pod when the claim's status has "
                f"{', '.join(result.binding_conditions)} for it, and gives up after 10 minutes"
                f"{f', or when it has {failing}' if failing else ''}"
            )


def _repeated_configs(allocation: AllocationResult) -> Iterator[str]:
    entries = allocation.devices.config
    if any(first is second for first, second in combinations(entries, 2)):
        yield "a configuration of the claim is listed once for each request that it names; 1.37 lists it once"
