"""Fills in what the API server does when a pod is created, so that a pod of a file is as a cluster would have it.

Source: `SetDefaults_ResourceList` (amounts in thousandths), `SetDefaults_Pod` (requests from limits, ports of the
host's network), the admission plug-ins DefaultTolerationSeconds and Priority; of a pod that comes from a cluster
nothing is left to fill in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.api.quantity import Quantity
from dranode.api.resource import APIDocument, ContainerResources, ObjectMeta
from dranode.sim.scheduler.documents import (
    ContainerPort,
    PodToleration,
    ResourceList,
    SchedulingContainer,
    SchedulingPod,
    SchedulingPodSpec,
)
from dranode.sim.scheduler.requests import (
    CPU,
    HUGE_PAGES,
    MEMORY,
    Counting,
    Exact,
    for_whole_pods,
    pod_requests,
    summed_limits,
)

DEFAULT_NAMESPACE: Final = "default"
_OUT_OF_REACH: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SECONDS: Final = 300
_THOUSANDTHS: Final = 1000
# The classes that every cluster has.
_SYSTEM: Final[Mapping[str, int]] = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class PriorityClass(APIDocument, frozen=True, kw_only=True):
    """A name for a priority."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


PriorityClasses: TypeAlias = Mapping[str, PriorityClass]  # by name


def with_defaults(pod: SchedulingPod, priorities: PriorityClasses) -> SchedulingPod:
    """The pod as the API server would store it."""
    pod = with_default_amounts(pod)
    spec = _with_priority(pod.spec, priorities)
    spec = replace(spec, tolerations=(*spec.tolerations, *_tolerations(spec.tolerations)))
    if spec.host_network:
        spec = replace(
            spec,
            init_containers=tuple(map(_in_network_of_host, spec.init_containers)),
            containers=tuple(map(_in_network_of_host, spec.containers)),
        )
    metadata = replace(pod.metadata, namespace=pod.metadata.namespace or DEFAULT_NAMESPACE)
    return replace(pod, metadata=metadata, spec=spec)


def with_default_amounts(pod: SchedulingPod) -> SchedulingPod:
    """The pod with the amounts that the API server would store: in thousandths, and requests where limits are given."""
    spec = pod.spec
    init_containers, containers = (tuple(map(_with_requests, each)) for each in (spec.init_containers, spec.containers))
    spec = replace(spec, init_containers=init_containers, containers=containers, overhead=in_thousandths(spec.overhead))
    if not spec.resources.requests and not spec.resources.limits:
        return replace(pod, spec=spec)
    given = ContainerResources(
        requests=in_thousandths(spec.resources.requests), limits=in_thousandths(spec.resources.limits)
    )
    pod = replace(pod, spec=replace(spec, resources=given))
    return replace(pod, spec=replace(pod.spec, resources=_pod_resources(pod)))


def in_thousandths(amounts: ResourceList) -> ResourceList:
    """The amounts as the API server stores them: finer ones are rounded up, those below 0 away from it."""
    if all(isinstance(amount.value, int) for amount in amounts.values()):
        return amounts
    return {name: _in_thousandths(amount) for name, amount in amounts.items()}


def _in_thousandths(amount: Quantity) -> Quantity:
    thousandths = Fraction(amount.value) * _THOUSANDTHS
    if thousandths.denominator == 1:
        return amount
    rounded = math.ceil(abs(thousandths))
    return Quantity(f"{'-' if thousandths < 0 else ''}{rounded}m")


def _with_requests(container: SchedulingContainer) -> SchedulingContainer:
    given = container.resources
    limits, requests = in_thousandths(given.limits), in_thousandths(given.requests)
    if limits is given.limits and requests is given.requests and limits.keys() <= requests.keys():
        return container
    return replace(container, resources=replace(given, limits=limits, requests={**limits, **requests}))


def _in_network_of_host(container: SchedulingContainer) -> SchedulingContainer:
    return replace(container, ports=tuple(map(_on_host, container.ports)))


def _on_host(port: ContainerPort) -> ContainerPort:
    return port if port.host_port else replace(port, host_port=port.container_port)


def _tolerations(given: tuple[PodToleration, ...]) -> list[PodToleration]:
    """Return what every pod tolerates for five minutes, unless it says something of these taints itself."""
    return [
        PodToleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=_SECONDS)
        for key in _OUT_OF_REACH
        if not any(each.key in ("", key) and each.effect in ("", "NoExecute") for each in given)
    ]


def _with_priority(spec: SchedulingPodSpec, priorities: PriorityClasses) -> SchedulingPodSpec:
    """The priority of the class that the pod names, or of the one for those that name none."""
    if spec.priority is not None:
        return spec
    default = next((each.metadata.name for each in priorities.values() if each.global_default), "")
    name = spec.priority_class_name or default
    chosen = priorities.get(name)
    if chosen is None:
        return replace(spec, priority=_SYSTEM.get(name))
    policy = spec.preemption_policy or chosen.preemption_policy
    return replace(spec, priority=chosen.value, priority_class_name=name, preemption_policy=policy)


def _pod_resources(pod: SchedulingPod) -> ContainerResources:
    """The amounts of the whole pod: those given, and what its containers ask where only a part is given.

    Limits of huge pages come from the containers, requests, where there are limits, from them or else the limit.
    """
    given = pod.spec.resources
    limits, requests = dict(given.limits), dict(given.requests)
    for name, most in summed_limits(pod).items():
        if name.startswith(HUGE_PAGES) and name not in requests:
            limits.setdefault(name, _quantity(most))
    if not limits:
        return given
    asked: Exact = pod_requests(pod, Counting(0, pod_level=False))
    for name in (CPU, MEMORY):
        if name in asked:
            requests.setdefault(name, _quantity(asked[name]))
    for name, limit in limits.items():
        if for_whole_pods(name):
            requests.setdefault(name, limit)
    return replace(given, limits=limits, requests=requests)


def _quantity(amount: int | Fraction) -> Quantity:
    thousandths = math.ceil(amount * _THOUSANDTHS)
    return Quantity(f"{thousandths}m" if thousandths % _THOUSANDTHS else str(thousandths // _THOUSANDTHS))
