"""Fills in what the API server does when a pod is created, so that a pod of a file is as a cluster would have it.

Source: `SetDefaults_Pod` (requests from limits, ports of the host's network), the admission plug-ins
DefaultTolerationSeconds and Priority; of a pod that comes from a cluster nothing is left to fill in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import APIDocument, ContainerResources, ObjectMeta
from dranode.sim.scheduler.documents import (
    ContainerPort,
    PodToleration,
    SchedulingContainer,
    SchedulingPod,
    SchedulingPodSpec,
)
from dranode.sim.scheduler.requests import CPU, MEMORY, Counting, Exact, pod_requests

DEFAULT_NAMESPACE: Final = "default"
_OUT_OF_REACH: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SECONDS: Final = 300
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
    spec = _with_priority(pod.spec, priorities)
    host = spec.host_network
    spec = replace(
        spec,
        init_containers=tuple(_container(container, host=host) for container in spec.init_containers),
        containers=tuple(_container(container, host=host) for container in spec.containers),
        tolerations=(*spec.tolerations, *_tolerations(spec.tolerations)),
    )
    metadata = replace(pod.metadata, namespace=pod.metadata.namespace or DEFAULT_NAMESPACE)
    defaulted = replace(pod, metadata=metadata, spec=spec)
    if not spec.resources.limits:
        return defaulted
    return replace(defaulted, spec=replace(spec, resources=_pod_resources(defaulted)))


def _container(container: SchedulingContainer, *, host: bool) -> SchedulingContainer:
    resources = container.resources
    requests = {**resources.limits, **resources.requests}
    ports = tuple(_on_host(port) for port in container.ports) if host else container.ports
    return replace(container, resources=replace(resources, requests=requests), ports=ports)


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
    """Requests for the whole pod where only limits are given: what its containers ask, else the limit."""
    resources = pod.spec.resources
    asked: Exact = pod_requests(pod, Counting(0, pod_level=False))
    requests = dict(resources.requests)
    for name in (CPU, MEMORY):
        if name in asked and name not in requests:
            requests[name] = Quantity(f"{math.ceil(asked[name] * 1000)}m")
    for name, limit in resources.limits.items():
        requests.setdefault(name, limit)
    return replace(resources, requests=requests)
