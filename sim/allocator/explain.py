"""Explains why claims do not fit on a node, by what came nearest to fitting, and notes what is odd about answers.

Each request is looked at by itself: how far each device gets through the checks, and what stops it. Where every request
could be satisfied alone, each is looked at beside those before it; where that goes well too, it is a constraint.
"""

from __future__ import annotations

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
from dranode.api.resource import AllocationResult, DeviceAttribute, DeviceClass, DeviceConstraint, ResourceClaim
from dranode.driver.claims.grant import applies
from dranode.sim.allocator.capacity import (
    Counters,
    Shortage,
    available_counters,
    canonical,
    shortage,
    steps_are_inexact,
)
from dranode.sim.allocator.constraints import attribute_values, lookup
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.requests import AllocationError, AllocationRequest, Alternative, claim_name
from dranode.sim.allocator.result import DevicePick, Oddity, allocation
from dranode.sim.allocator.search import search
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated, Amount
from dranode.sim.allocator.taint_rules import untolerated


class Stage(IntEnum):
    """The stage that a device reaches, in the order in which the reasons come nearer to fitting."""

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
    """The distance of a node from fitting; greater is nearer.

    Attributes:
        satisfied: requests that could be satisfied alone, before the first that could not.
        stage: how far the best device got for that one.
        fraction: what part of the devices wanted, or of the capacity, is there.
        sentence: the same for people, without a full stop.
    """

    satisfied: int
    stage: Stage
    fraction: Fraction
    sentence: str


_DRIVER: Final = re.compile(r"""\bdevice\.driver\s*==\s*(["'])([^"'\\]+)\1""")
# How far a device gets, its name, and what stops it, which continues a sentence that begins with the name.
_Verdict: TypeAlias = tuple[Stage, Fraction, str, str]


def nearest_miss(
    claims: Sequence[ResourceClaim],
    requests: Sequence[tuple[AllocationRequest, ...]],
    pools: Sequence[Pool],
    allocated: Allocated,
    selectors: Selectors,
) -> Miss:
    """Return what keeps the claims from fitting into these pools.

    Raises:
        AllocationError: a selector cannot be evaluated on a device that the search did not come to.
    """
    explainer = _Explainer(pools, allocated, selectors)
    satisfied = 0
    for claim, claim_requests in zip(claims, requests, strict=True):
        for request in claim_requests:
            misses = [explainer.alternative(one, claim_name(claim), satisfied) for one in request.alternatives]
            if all(miss is not None for miss in misses):
                return max(miss for miss in misses if miss is not None)
            satisfied += 1
    for claim, claim_requests in zip(claims, requests, strict=True):
        for constraint in claim.spec.devices.constraints:
            if constraint.match_attribute is not None:
                sentence = explainer.match(constraint, claim_requests, claim_name(claim))
                if sentence:
                    return Miss(satisfied, Stage.CONSTRAINT, Fraction(1), sentence)
    return _beside(claims, requests, pools, allocated, selectors) or _constrained(claims, satisfied)


def _beside(
    claims: Sequence[ResourceClaim],
    requests: Sequence[tuple[AllocationRequest, ...]],
    pools: Sequence[Pool],
    allocated: Allocated,
    selectors: Selectors,
) -> Miss | None:
    """Return what the first request lacks that does not fit beside those before it, constraints left aside."""
    free = [
        replace(claim, spec=replace(claim.spec, devices=replace(claim.spec.devices, constraints=())))
        for claim in claims
    ]
    wanted = [(number, request) for number, of_claim in enumerate(requests) for request in of_claim]
    before: tuple[tuple[DevicePick, ...], ...] = tuple(() for _ in claims)
    for count, (number, request) in enumerate(wanted, start=1):
        parts = tuple(tuple(one for claim, one in wanted[:count] if claim == which) for which in range(len(claims)))
        try:
            picks = search(free, parts, pools, allocated, selectors).picks
        except AllocationError:
            return None
        if picks is None:
            taken = allocated.with_allocations(
                allocation(claim, of_claim, mine, node="", features=selectors.features, share_id=lambda: "")
                for claim, of_claim, mine in zip(free, parts, before, strict=True)
            )
            explainer = _Explainer(pools, taken, selectors)
            misses = [
                explainer.alternative(one, claim_name(claims[number]), len(wanted)) for one in request.alternatives
            ]
            known = [miss for miss in misses if miss is not None]
            if not known:
                return None
            nearest = max(known)
            # By its place: pods whose claims ask for the same share the answer, and their claims have other names.
            where = f" of claim {number + 1} of {len(claims)}" if len(claims) > 1 else ""
            sentence = nearest.sentence.replace(f"request {request.name}", f"request {request.name}{where}", 1)
            return Miss(len(wanted), Stage.TOGETHER, nearest.fraction, f"after the earlier requests, {sentence}")
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
    claims: Sequence[ResourceClaim],
    requests: Sequence[tuple[AllocationRequest, ...]],
    pools: Sequence[Pool],
    selectors: Selectors,
) -> frozenset[tuple[str, str, str]]:
    """Return the devices that a request chooses, and those that share counters with them, by driver, pool and name.

    Raises:
        AllocationError: a selector cannot be evaluated on one of them.
    """
    candidates = [candidate for pool in pools for candidate in pool.candidates]
    chosen = [
        candidate
        for claim, claim_requests in zip(claims, requests, strict=True)
        for request in claim_requests
        for alternative in request.alternatives
        for candidate in candidates
        if selectors.exclusion(alternative, candidate, claim_name(claim)) is None
    ]
    counted = {
        (candidate.pool, each.counter_set) for candidate in chosen for each in candidate.device.consumes_counters
    }
    sharing = (
        candidate
        for candidate in candidates
        if any((candidate.pool, each.counter_set) in counted for each in candidate.device.consumes_counters)
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
        """Return what a request lacks by itself; None if nothing."""
        driver = driver_of(alternative.device_class)
        own = [candidate for candidate in self.candidates if driver is None or candidate.pool.driver == driver]
        verdicts = [self._verdict(alternative, candidate, claim) for candidate in own]
        free = sum(verdict[0] is Stage.FREE for verdict in verdicts)
        chosen = [verdict for verdict in verdicts if verdict[0] > Stage.OTHER_NODE]
        needed = len(chosen) if alternative.count is None else alternative.count
        if free >= max(needed, 1):
            return None
        head = f"request {alternative.name} needs {_wanted(alternative, needed)}"
        if not own:
            broken = [pool for pool in self.broken if driver is None or pool.id.driver == driver]
            if broken:
                return Miss(satisfied, Stage.SELECTOR, Fraction(0), f"{head}; pool {broken[0].id} is not complete")
            nobody = "no device is published here" if driver is None else f"driver {driver} publishes none here"
            return Miss(satisfied, Stage.NO_DEVICE, Fraction(0), f"{head}; {nobody}")
        others = [verdict for verdict in verdicts if verdict[0] is not Stage.FREE]
        if not others:
            there = "there is only 1" if free == 1 else f"there are only {free}"
            return Miss(satisfied, Stage.FREE, Fraction(free, needed), f"{head}; {there}")
        stage, fraction, name, why = max(others)
        alike = Counter(verdict[0] for verdict in others)[stage]
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
                (set_, counter), left = short
                return (
                    Stage.COUNTERS,
                    Fraction(0),
                    device.name,
                    f"lacks counter {set_}/{counter}: {_amount(left)} is left",
                )
        lacking = self._shortage(alternative, candidate, consumed)
        if lacking is not None:
            return Stage.CAPACITY, _part(lacking), device.name, _shortage(lacking, alternative.capacity)
        taint = untolerated(device, alternative.tolerations) if self.features.device_taints else None
        if taint is not None:
            why = f"has the taint {taint.key}:{taint.effect}, which is not tolerated"
            return Stage.TAINT, Fraction(0), device.name, why
        return Stage.FREE, Fraction(1), device.name, ""

    def _shortage(
        self, alternative: Alternative, candidate: Candidate, consumed: Mapping[str, Amount]
    ) -> Shortage | None:
        if not self.features.consumable_capacity:
            return None
        return shortage(candidate, alternative.capacity, consumed, self.features)

    def match(self, constraint: DeviceConstraint, requests: Sequence[AllocationRequest], claim: str) -> str:
        """Return which value comes nearest to serving all requests of the constraint.

        Nothing if one serves them all.
        """
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
            value: [one.name for one in bound if counts[one.name] < (one.count or 1)]
            for value, counts in served.items()
        }
        if not lacking:
            return f"no free device has {name}, which matchAttribute asks for"
        value = min(lacking, key=lambda each: len(lacking[each]))
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
    """Return the one driver whose devices a class names in its selectors, as in `device.driver == "dra.gpu"`."""
    expressions = [selector.cel.expression for selector in device_class.spec.selectors if selector.cel is not None]
    drivers = {match[2] for expression in expressions for match in _DRIVER.finditer(expression)}
    return drivers.pop() if len(drivers) == 1 else None


def _amount(amount: Amount) -> str:
    """An amount for people, in Ki, Mi ... where it is a round number of these."""
    if isinstance(amount, int) and amount and amount % 1024 == 0:
        return canonical(Quantity(f"{amount // 1024}Ki")).text
    return canonical(Quantity(amount if isinstance(amount, int) else f"{float(amount):f}")).text


def _part(lacking: Shortage) -> Fraction:
    if lacking.available is None or not lacking.needed:
        return Fraction(0)
    return Fraction(max(lacking.available, 0)) / Fraction(lacking.needed)


def _shortage(lacking: Shortage, asked: Mapping[str, Quantity]) -> str:
    """What the device has of a capacity; it names the capacity where the request asks for several or none."""
    if lacking.needed is None:
        return f"has no capacity {lacking.name}"
    needed = _amount(lacking.needed)
    if lacking.available is None:
        allowed = f", only {allowed_amounts(lacking.policy)}" if lacking.policy is not None else ""
        return f"does not allow {_of_capacity(needed, lacking.name)}{allowed}"
    short = _amount(lacking.needed - lacking.available)
    free = _amount(lacking.available) if lacking.available > 0 else "none"
    few = "few" if short.isdigit() else "little"
    rest = free if len(asked) == 1 else _of_capacity(free, lacking.name)
    rounded = "" if any(one.value == lacking.needed for one in asked.values()) else f" for the {needed} that it takes"
    return f"has {rest} free ({short} too {few}{rounded})"


def _wanted(alternative: Alternative, needed: int) -> str:
    """What a request asks for: `2 devices of class gpu`, `40 CPUs from one device`."""
    amounts = [_of_capacity(str(quantity), name) for name, quantity in alternative.capacity.items()]
    if amounts and alternative.count == 1:
        return f"{' and '.join(amounts)} from one device"
    devices = "all devices" if alternative.count is None else number_of(needed, "device")
    each = f" with {' and '.join(amounts)} each" if amounts else ""
    return f"{devices} of class {alternative.device_class.metadata.name}{each}"


def _of_capacity(amount: str, name: str) -> str:
    """An amount with what it is of: `40 CPUs`, `10Gi of memory`."""
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
# These can only keep something from being found.
_ONLY_ON_FAILURE: Final = frozenset({Oddity.ADMIN_BLOCKS, Oddity.ADMIN_NEEDS_CAPACITY})


def notes_on_failure(oddities: Iterable[Oddity]) -> tuple[str, ...]:
    """Notes on a claim that does not fit."""
    return tuple(_OF_ODDITY[oddity] for oddity in Oddity if oddity in frozenset(oddities))


def notes_on_success(
    claim: ResourceClaim,
    picks: Sequence[DevicePick],
    allocation: AllocationResult,
    oddities: Iterable[Oddity],
    features: Features,
) -> tuple[str, ...]:
    """Notes on a claim that was allocated."""
    kept = frozenset(oddities) - _ONLY_ON_FAILURE
    return tuple(
        dict.fromkeys(
            (
                *notes_on_failure(kept),
                *_not_distinct(claim, picks),
                *_inexact_steps(picks, features),
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
        mine = [pick for pick in picks if applies(constraint.requests, pick.alternative.name)]
        for first, second in combinations(mine, 2):
            if _common(*(lookup(pick.candidate.device, pick.candidate.pool.driver, name) for pick in (first, second))):
                yield (
                    f"{first.candidate.device.name} and {second.candidate.device.name} have the same {name} "
                    "despite distinctAttribute: before 1.37, a device is compared only with the last one of its request"
                )


def _common(first: DeviceAttribute | None, second: DeviceAttribute | None) -> bool:
    mine, theirs = (attribute_values(each) if each is not None else None for each in (first, second))
    return mine is not None and theirs is not None and mine[0] == theirs[0] and bool(mine[1] & theirs[1])


def _inexact_steps(picks: Sequence[DevicePick], features: Features) -> Iterator[str]:
    for pick in picks:
        if pick.share is not None and steps_are_inexact(pick.candidate, pick.alternative.capacity, features):
            yield (
                f"{pick.candidate.device.name}: kube-scheduler counts steps of a capacity in whole numbers, rounded "
                "up, so a fractional request consumes more than its policy says"
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
    if any(one is other for one, other in combinations(entries, 2)):
        yield "a configuration of the claim is listed once for each request that it names; 1.37 lists it once"
