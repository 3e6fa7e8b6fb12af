"""Counts a pod's requests as kube-scheduler does.

Source: `k8s.io/component-helpers/resource` (PodRequests) and `CalculateResource` of kube-scheduler, 1.36.4 and 1.37.1.

Init containers run one after another, but sidecars (restartPolicy Always) keep running next to later containers
(KEP-753). Pod-level requests replace those of the containers (KEP-2837). During an in-place resize, the maximum of the
desired, allocated and actual amounts counts (KEP-1287).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Final, TypeAlias

from dranode.sim.scheduler.documents import (
    ContainerStatus,
    NodeAllocatableClaimStatus,
    ResourceList,
    SchedulingContainer,
    SchedulingPod,
)

Exact: TypeAlias = dict[str, int | Fraction]
Amounts: TypeAlias = Mapping[str, int]
"""Millicores of `cpu`, bytes of memory and storage, counts of everything else."""

CPU: Final = "cpu"
MEMORY: Final = "memory"
STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
NOTHING: Final[Amounts] = MappingProxyType({})
# The amounts that a container without a request counts for scoring (DefaultMilliCPURequest, DefaultMemoryRequest).
NON_ZERO: Final[Mapping[str, int | Fraction]] = MappingProxyType({CPU: Fraction(1, 10), MEMORY: 200 << 20})
HUGE_PAGES: Final = "hugepages-"
_ALWAYS: Final = "Always"
# Since 1.37, the statuses of all containers are added up before the sum is compared with the spec.
_ADDED_FIRST: Final = 37


@dataclass(frozen=True, slots=True)
class Counting:
    """How a pod's requests are counted.

    Attributes:
        minor: the minor release of Kubernetes.
        status: whether the allocated and actual amounts of an in-place resize count.
        pod_level: whether pod-level requests count.
        missing: the amounts that count for a container without a request.
    """

    minor: int
    status: bool = False
    pod_level: bool = True
    missing: Mapping[str, int | Fraction] = field(default_factory=lambda: MappingProxyType({}))


def pod_requests(pod: SchedulingPod, counting: Counting, claims: Iterable[NodeAllocatableClaimStatus] = ()) -> Exact:
    """Return a pod's requests in exact amounts; `claims` are the node resources that its devices map (KEP-5517)."""
    amounts = _containers(pod, counting, tuple(claims))
    if counting.pod_level and has_pod_level_requests(pod):
        amounts.update(_pod_level(pod, counting))
    _add(amounts, _exact(pod.spec.overhead))
    return amounts


def container_limits(pod: SchedulingPod, claims: Iterable[NodeAllocatableClaimStatus]) -> Exact:
    """Return the sum of the containers' limits, with the additions of devices to existing limits and huge pages."""
    limits = summed_limits(pod)
    devices = {
        name: amount for name, amount in _devices(claims).items() if name in limits or name.startswith(HUGE_PAGES)
    }
    return _sum(limits, devices)


def summed_limits(pod: SchedulingPod) -> Exact:
    """Return the containers' limits, summed like requests."""
    return _aggregate(pod, Counting(0), lambda container, _: _exact(container.resources.limits))


def amounts_of(exact: Mapping[str, int | Fraction]) -> dict[str, int]:
    """Round up to the units that the scheduler compares; resources that it ignores are left out."""
    return {
        name: math.ceil(value * 1000) if name == CPU else math.ceil(value)
        for name, value in exact.items()
        if name in (CPU, MEMORY, STORAGE) or is_scalar(name)
    }


def is_scalar(name: str) -> bool:
    """Return whether the scheduler counts the resource in whole numbers: extended resources, huge pages, volumes."""
    return "/" in name or name.startswith((HUGE_PAGES, "attachable-volumes-"))


def is_extended(name: str) -> bool:
    """Return whether the resource is an extended resource, which a device plugin or a DeviceClass can back."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def has_pod_level_requests(pod: SchedulingPod) -> bool:
    """Return whether the pod has requests at pod level that the scheduler supports."""
    return any(for_whole_pods(name) for name in pod.spec.resources.requests)


def for_whole_pods(name: str) -> bool:
    """Return whether the resource is supported at pod level."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES)


def _containers(pod: SchedulingPod, counting: Counting, claims: tuple[NodeAllocatableClaimStatus, ...]) -> Exact:
    devices = _devices(claims)
    if not counting.status:
        return _sum(_aggregate(pod, counting, lambda container, _: _spec(container)), devices)
    infeasible = is_infeasible(pod)
    if counting.minor < _ADDED_FIRST:
        return _sum(
            _aggregate(pod, counting, lambda container, status: _greatest(container, status, infeasible=infeasible)),
            devices,
        )
    spec = _sum(_aggregate(pod, counting, lambda container, _: _spec(container)), devices)
    status = pod.status
    if (
        status.allocated_resources is not None
        and status.resources is not None
        and status.resources.requests is not None
    ):
        promised, actual = _exact(status.allocated_resources), _exact(status.resources.requests)
    else:
        promised = _sum(
            _aggregate(pod, counting, lambda container, status: _promised(container, status, infeasible=infeasible)),
            devices,
        )
        actual = _aggregate(pod, counting, lambda container, status: _actual(container, status, infeasible=infeasible))
    return _max(promised, actual) if infeasible else _max(spec, promised, actual)


def _aggregate(
    pod: SchedulingPod,
    counting: Counting,
    amounts_of_container: Callable[[SchedulingContainer, ContainerStatus | None], Exact],
) -> Exact:
    all_statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses) if counting.status else ()
    statuses = {status.name: status for status in all_statuses}

    def asked(container: SchedulingContainer, *, resized: bool = True) -> Exact:
        return {
            **counting.missing,
            **amounts_of_container(container, statuses.get(container.name) if resized else None),
        }

    total: Exact = {}
    for container in pod.spec.containers:
        _add(total, asked(container))
    sidecars: Exact = {}
    peak: Exact = {}
    for container in pod.spec.init_containers:
        if container.restart_policy == _ALWAYS:
            _add(total, asked(container))
            _add(sidecars, asked(container))
            peak = _max(peak, sidecars)
        else:
            once = asked(container, resized=counting.minor >= _ADDED_FIRST)
            peak = _max(peak, _sum(once, sidecars))
    return _max(total, peak)


def _spec(container: SchedulingContainer) -> Exact:
    return _exact(container.resources.requests)


def _promised(container: SchedulingContainer, status: ContainerStatus | None, *, infeasible: bool) -> Exact:
    if status is not None and status.allocated_resources is not None:
        return _exact(status.allocated_resources)
    return {} if infeasible else _spec(container)


def _actual(container: SchedulingContainer, status: ContainerStatus | None, *, infeasible: bool) -> Exact:
    if status is not None and status.resources is not None and status.resources.requests is not None:
        return _exact(status.resources.requests)
    return _promised(container, status, infeasible=infeasible)


def _greatest(container: SchedulingContainer, status: ContainerStatus | None, *, infeasible: bool) -> Exact:
    """Return the amounts of a container in 1.36, which compares the spec and status of each container by itself."""
    if status is None or status.resources is None:
        return _spec(container)
    in_status = _max(_exact(status.resources.requests or {}), _exact(status.allocated_resources or {}))
    return in_status if infeasible else _max(_spec(container), in_status)


def _pod_level(pod: SchedulingPod, counting: Counting) -> Exact:
    requests = _exact(pod.spec.resources.requests)
    status = pod.status
    if counting.status and status.resources is not None:
        in_status = _max(_exact(status.resources.requests or {}), _exact(status.allocated_resources or {}))
        effective = in_status if is_infeasible(pod) else _max(requests, in_status)
        requests = {name: effective.get(name, 0) for name in requests} if counting.minor < _ADDED_FIRST else effective
    return {name: amount for name, amount in requests.items() if for_whole_pods(name)}


def is_infeasible(pod: SchedulingPod) -> bool:
    """Return whether kubelet reported that the pod's resize can never be done."""
    pending = next((item for item in pod.status.conditions if item.type == "PodResizePending"), None)
    return pending is not None and pending.reason == "Infeasible"


def _devices(claims: Iterable[NodeAllocatableClaimStatus]) -> Exact:
    total: Exact = {}
    for claim in claims:
        for mapped in claim.mapping:
            if mapped.quantity is not None:
                _add(total, {mapped.name: mapped.quantity.value})
        for overhead in claim.overhead:
            amount: int | Fraction = overhead.per_pod.value if overhead.per_pod is not None else 0
            if overhead.per_container is not None:
                amount += overhead.per_container.value * len(claim.containers)
            _add(total, {overhead.name: amount})
    return total


def _exact(resources: ResourceList) -> Exact:
    return {name: quantity.value for name, quantity in resources.items()}


def _add(total: Exact, more: Mapping[str, int | Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _sum(first: Exact, second: Exact) -> Exact:
    total = dict(first)
    _add(total, second)
    return total


def _max(first: Exact, *others: Exact) -> Exact:
    result = dict(first)
    for other in others:
        for name, amount in other.items():
            if name not in result or amount > result[name]:
                result[name] = amount
    return result
