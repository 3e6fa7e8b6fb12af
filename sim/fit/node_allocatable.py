"""Devices that map resources of their node, such as CPU and memory: what they add to a pod's requests (KEP-5517).

Source: DynamicResources of kube-scheduler 1.37.1. The gate DRANodeAllocatableResources is alpha; 1.36 has other fields.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Final

from dranode.api.quantity import Quantity
from dranode.api.resource import AllocationResult, Device, NodeAllocatableMapping, PoolID
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.requests import AllocationError, Reason
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.demand import PodDemand
from dranode.sim.scheduler.documents import MappedAmount, NodeAllocatableClaimStatus, OverheadAmount, SchedulingPod
from dranode.sim.scheduler.filters import Refusal, lacking
from dranode.sim.scheduler.requests import CPU, MEMORY, STORAGE, Counting, amounts_of, container_limits, pod_requests
from dranode.sim.scheduler.resources import shortages
from dranode.sim.scheduler.scores import DEVICES
from dranode.sim.scheduler.snapshot import NodeInfo

MAPPINGS_SINCE: Final = 37
SHARED_MAPPING: Final = "node allocatable resource claim {} has a mapped device and cannot be shared across pods"
_PAGES: Final = "hugepages-"


def claim_statuses(
    demand: PodDemand, allocations: Mapping[ClaimKey, AllocationResult], pools: Iterable[Pool]
) -> tuple[NodeAllocatableClaimStatus, ...]:
    """Return the node resources that the devices of each claim map, on a node with these pools, sorted by claim.

    Raises:
        AllocationError: a mapping needs an amount that the allocation lacks, or a claim has devices with mappings here
            and other devices elsewhere. Both end the attempt for all nodes, as in kube-scheduler.
    """
    candidates = {(pool.id, candidate.device.name): candidate for pool in pools for candidate in pool.candidates}
    devices = {key: candidate.device for key, candidate in candidates.items() if candidate.reachable}
    elsewhere = candidates.keys() - devices.keys()
    statuses = []
    for key, allocation in allocations.items():
        _require_all(key, allocation, devices, elsewhere)
        status = _status(demand, key, allocation, devices)
        if status is not None:
            statuses.append(status)
    return tuple(sorted(statuses, key=lambda status: status.resource_claim_name))


def has_mappings(pools: Iterable[Pool]) -> bool:
    """Return whether any device of the pools maps a resource of its node."""
    return any(
        candidate.reachable and candidate.device.node_allocatable_resources
        for pool in pools
        for candidate in pool.candidates
    )


def refusal_for(
    demand: PodDemand, info: NodeInfo, statuses: tuple[NodeAllocatableClaimStatus, ...], minor: int
) -> Refusal | None:
    """Return why the node has too little for the pod and its devices; None if it has enough."""
    uncovered = next(_uncovered(demand.pod, statuses, minor), None)
    if uncovered is not None:
        return Refusal(DEVICES, (uncovered,))
    total = amounts_of(pod_requests(demand.pod, Counting(minor), statuses))
    checked = {name: amount for name, amount in total.items() if name in (CPU, MEMORY, STORAGE) or _PAGES in name}
    short = tuple(shortage for shortage in shortages(checked, info) if shortage.resource in checked)
    return lacking(DEVICES, short)


def _require_all(
    key: ClaimKey,
    allocation: AllocationResult,
    devices: Mapping[tuple[PoolID, str], Device],
    elsewhere: AbstractSet[tuple[PoolID, str]],
) -> None:
    """Refuse a claim with some devices on this node and some elsewhere, if one of the former maps a node resource.

    `elsewhere` are devices in the pools of this node that belong to other nodes.
    """
    results = [
        (result, devices.get((PoolID(result.driver, result.pool), result.device)))
        for result in readable_results(allocation)
    ]
    if any(device is not None and device.node_allocatable_resources for _, device in results):
        for result, device in results:
            if device is None:
                why = f"not found in pool {result.pool} for driver {result.driver}"
                if (PoolID(result.driver, result.pool), result.device) in elsewhere:
                    why = "does not match node"
                where = f"claim {key}, device {result.device}, driver {result.driver}"
                raise AllocationError(f"{where}: device {result.device} {why}", Reason.INCOMPLETE_CLAIM)


def _status(
    demand: PodDemand,
    key: ClaimKey,
    allocation: AllocationResult,
    devices: Mapping[tuple[PoolID, str], Device],
) -> NodeAllocatableClaimStatus | None:
    mapped: dict[str, int | Fraction] = {}
    per_pod: dict[str, int | Fraction] = {}
    per_container: dict[str, int | Fraction] = {}
    for result in readable_results(allocation):
        device = devices.get((PoolID(result.driver, result.pool), result.device))
        for name, resource in (device.node_allocatable_resources if device is not None else {}).items():
            if resource.mapping is not None:
                amount = _mapped(key, result.device, name, resource.mapping, result.consumed_capacity)
                if amount is not None:
                    mapped[name] = mapped.get(name, 0) + amount
            for field, total in (("perPod", per_pod), ("perContainer", per_container)):
                overhead = (resource.overhead or {}).get(field)
                if overhead is not None:
                    total[name] = total.get(name, 0) + overhead.value
    if not mapped and not per_pod and not per_container:
        return None
    return NodeAllocatableClaimStatus(
        resource_claim_name=key.name,
        containers=tuple(_containers(demand, key)),
        mapping=tuple(MappedAmount(name=name, quantity=_quantity(mapped[name])) for name in sorted(mapped)),
        overhead=tuple(
            OverheadAmount(
                name=name,
                per_pod=_quantity(per_pod[name]) if name in per_pod else None,
                per_container=_quantity(per_container[name]) if name in per_container else None,
            )
            for name in sorted(per_pod.keys() | per_container.keys())
        ),
    )


def _mapped(
    key: ClaimKey, device: str, name: str, mapping: NodeAllocatableMapping, consumed: Mapping[str, Quantity]
) -> int | Fraction | None:
    if not mapping.capacity_key:
        return mapping.device_multiplier.value if mapping.device_multiplier is not None else None
    if not consumed:
        raise AllocationError(
            f"claim {key}, device {device}: it consumes no capacity, but its capacity {mapping.capacity_key} maps "
            f"{name} of the node",
            Reason.INCOMPLETE_CLAIM,
        )
    amount = consumed.get(mapping.capacity_key)
    if amount is None:
        return None
    return amount.value * (mapping.capacity_multiplier.value if mapping.capacity_multiplier is not None else 1)


def _quantity(amount: int | Fraction) -> Quantity:
    """Return the amount as a quantity, rounded up to a billionth like every quantity of the API server."""
    if isinstance(amount, int):
        return Quantity(amount)
    return Quantity(f"{-(-amount.numerator * 10**9 // amount.denominator)}n")


def _containers(demand: PodDemand, key: ClaimKey) -> Iterator[str]:
    """Yield the containers that use the claim, once per use."""
    names = {entry for entry, claim in demand.entries.items() if claim == key}
    spec = demand.pod.spec
    for container in (*spec.init_containers, *spec.containers):
        for use in container.resources.claims:
            if use.name in names:
                yield container.name


def _uncovered(pod: SchedulingPod, statuses: tuple[NodeAllocatableClaimStatus, ...], minor: int) -> Iterator[str]:
    """Yield the pod-level requests that do not cover the containers and devices, in kube-scheduler's words."""
    if not statuses:
        return
    pod_level = pod.spec.resources
    parts = pod_requests(pod, Counting(minor, pod_level=False), statuses)
    overhead = {name: quantity.value for name, quantity in pod.spec.overhead.items()}
    for name, amount in pod_level.requests.items():
        covered = name in (CPU, MEMORY) or name.startswith(_PAGES)
        if covered and name in parts and parts[name] - overhead.get(name, 0) > amount.value:
            yield (
                f"pod level request for {name} is insufficient to cover the aggregated container "
                "and node-allocatable DRA requests"
            )
    limits = container_limits(pod, statuses)
    for name, limit in pod_level.limits.items():
        if name.startswith(_PAGES) and limits.get(name, 0) > limit.value:
            yield (
                f"pod level limit for {name} is insufficient to cover the aggregated container "
                "and node-allocatable DRA limits"
            )
    yield from _uncovered_containers(pod, statuses)


def _uncovered_containers(pod: SchedulingPod, statuses: tuple[NodeAllocatableClaimStatus, ...]) -> Iterator[str]:
    for container in pod.spec.containers:
        for name, limit in container.resources.limits.items():
            most = pod.spec.resources.limits.get(name)
            if name.startswith(_PAGES) or most is None:
                continue
            devices = sum(_of_container(status, name) for status in statuses if container.name in status.containers)
            if limit.value + devices > most.value:
                yield (
                    f"pod level limit for {name} is insufficient to cover the limit and DRA overhead "
                    f"for container {container.name}"
                )


def _of_container(status: NodeAllocatableClaimStatus, name: str) -> int | Fraction:
    amount: int | Fraction = sum(
        mapped.quantity.value for mapped in status.mapping if mapped.name == name and mapped.quantity is not None
    )
    for overhead in status.overhead:
        if overhead.name == name:
            amount += sum(extra.value for extra in (overhead.per_pod, overhead.per_container) if extra is not None)
    return amount
