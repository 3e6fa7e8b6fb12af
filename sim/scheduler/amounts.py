"""The rules by which the API server takes or refuses amounts of resources: of containers, whole pods, overhead, nodes.

Source: validation of `v1` Pods and Nodes in Kubernetes 1.36 (ValidateContainerResourceRequirements, validateOverhead,
validatePodResources, ValidateNodeResources). Objects of a cluster passed it; files were written by anybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from dranode.api.errors import DocumentError
from dranode.api.names import is_label_name
from dranode.api.quantity import Quantity
from dranode.api.resource import ContainerResources
from dranode.api.validation import FieldError
from dranode.sim.scheduler.defaults import in_thousandths, with_default_amounts
from dranode.sim.scheduler.documents import ResourceList, SchedulingNode, SchedulingPod, SchedulingPodSpec
from dranode.sim.scheduler.requests import (
    CPU,
    HUGE_PAGES,
    MEMORY,
    PODS,
    STORAGE,
    Counting,
    for_whole_pods,
    is_extended,
    pod_requests,
    summed_limits,
)

# What is wrong with the name of a resource, or nothing.
_NameProblem = Callable[[str], str]
_THOUSANDTHS: Final = 1000
_COUNTED: Final = frozenset(
    {
        PODS,
        "configmaps",
        "persistentvolumeclaims",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    }
)
_CONTAINERS_ONLY: Final = Counting(0, pod_level=False)


def check_pod_amounts(pod: SchedulingPod, head: str = "") -> None:
    """Refuse a pod whose amounts the API server would refuse; `head` stands before its paths where it is a template.

    Raises:
        DocumentError: one is below 0, no whole number, above its limit, or of a resource that there is not; says where.
    """
    for error in pod_amount_errors(pod):
        raise DocumentError(error.message, f"{head}{error.path}")


def check_node_amounts(node: SchedulingNode) -> None:
    """Refuse a node whose amounts the API server would refuse.

    Raises:
        DocumentError: one is below 0 or no whole number; says where.
    """
    for error in node_amount_errors(node):
        raise DocumentError(error.message, error.path)


def pod_amount_errors(pod: SchedulingPod) -> Iterator[FieldError]:
    """Yield every error in what the pod asks for, and in what the API server fills in where it does not."""
    written, spec = pod.spec, with_default_amounts(pod).spec
    for field, given, filled in (
        ("initContainers", written.init_containers, spec.init_containers),
        ("containers", written.containers, spec.containers),
    ):
        for index, (before, after) in enumerate(zip(given, filled, strict=True)):
            where = f"spec.{field}[{index}].resources"
            yield from _requirements(before.resources, after.resources, where, _of_container)
    yield from _requirements(written.resources, spec.resources, "spec.resources", _of_pod)
    yield from _whole(spec, written.resources.requests)
    overhead = ContainerResources(limits=spec.overhead)
    yield from _requirements(overhead, overhead, "spec.overhead", _of_container)


def node_amount_errors(node: SchedulingNode) -> Iterator[FieldError]:
    """Yield every error in what the node has and what may be taken of it."""
    for field, amounts in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        yield from allocatable_errors(amounts, f"status.{field}")


def allocatable_errors(amounts: ResourceList, path: str) -> Iterator[FieldError]:
    """Yield every error in amounts of a node, whose names nobody checks."""
    return _amounts(in_thousandths(amounts), path, lambda _: "")


def _requirements(
    written: ContainerResources, resources: ContainerResources, path: str, name_problem: _NameProblem
) -> Iterator[FieldError]:
    """Yield what is wrong with the requests and limits of a container or pod, each by itself and together.

    What is wrong with an amount is said where it is written, not where it was filled in.
    """
    requests, limits = resources.requests, resources.limits
    given = (
        (f"{path}.limits", {name: limits[name] for name in written.limits}),
        (f"{path}.requests", {name: requests[name] for name in written.requests}),
    )
    for where, amounts in given:
        yield from _amounts(amounts, where, name_problem)
    for name, request in requests.items():
        limit = limits.get(name)
        where = f"{path}.requests[{name}]"
        may_differ = not (is_extended(name) or name.startswith(HUGE_PAGES))
        if limit is None and not may_differ:
            yield FieldError(f"{path}.limits", f"a limit of {name} is required, as large as the request, {request}")
        elif limit is not None and request > limit:
            yield FieldError(where, f"{request} is more than the limit of {limit}")
        elif limit is not None and request != limit and not may_differ:
            yield FieldError(where, f"{request} differs from the limit of {limit}, with which it has to be the same")
    for where, amounts in given:
        yield from _pages(amounts, where)
    names = {*requests, *limits}
    if any(name.startswith(HUGE_PAGES) for name in names) and not names & {CPU, MEMORY}:
        yield FieldError(path, "huge pages need a request or a limit of cpu or memory beside them")


def _pages(amounts: ResourceList, path: str) -> Iterator[FieldError]:
    for name, amount in amounts.items():
        if name.startswith(HUGE_PAGES) and not _divisible(name, amount):
            yield FieldError(f"{path}[{name}]", f"{amount} is no multiple of the size of the pages")


def _amounts(amounts: ResourceList, path: str, name_problem: _NameProblem) -> Iterator[FieldError]:
    for name, amount in amounts.items():
        where = f"{path}[{name}]"
        problem = name_problem(name)
        if problem:
            yield FieldError(where, problem)
        if amount.value < 0:
            yield FieldError(where, f"{amount} is below 0")
        elif _counted(name) and math.ceil(amount.value * _THOUSANDTHS) % _THOUSANDTHS:
            yield FieldError(where, f"{amount} is not a whole number")


def _counted(name: str) -> bool:
    """Return whether there are whole numbers of it; Kubernetes takes a name for extended that a quota may have."""
    return name in _COUNTED or (is_extended(name) and is_label_name(f"requests.{name}"))


def _whole(spec: SchedulingPodSpec, written: ResourceList) -> Iterator[FieldError]:
    """Yield where what is said for the whole pod (`written` of its requests) does not hold what containers ask."""
    requests, limits, pod = spec.resources.requests, spec.resources.limits, SchedulingPod(spec=spec)
    if not requests and not limits:
        return
    for name, asked in pod_requests(pod, _CONTAINERS_ONLY).items():
        if name in written and asked > requests[name].value:
            where = f"spec.resources.requests[{name}]"
            yield FieldError(where, f"{requests[name]} is less than the containers request")
    for name, most in summed_limits(pod).items():
        if name.startswith(HUGE_PAGES) and name in limits and most > limits[name].value:
            yield FieldError(f"spec.resources.limits[{name}]", f"{limits[name]} is less than the containers' limits")
    for index, container in enumerate(spec.containers):
        for name, limit in container.resources.limits.items():
            if name in limits and limit > limits[name]:
                where = f"spec.containers[{index}].resources.limits[{name}]"
                yield FieldError(where, f"{limit} is more than the limit of the whole pod, {limits[name]}")


def _of_container(name: str) -> str:
    if not is_label_name(name):
        return f'"{name}" is not the name of a resource'
    if "/" not in name:
        known = name in (CPU, MEMORY, STORAGE) or name.startswith(HUGE_PAGES)
        return "" if known else f'"{name}" is no resource of containers; there are cpu, memory, and names with a domain'
    # Names of kubernetes.io are Kubernetes' own.
    known = is_extended(name) or "kubernetes.io/" in name
    return "" if known and is_label_name(f"requests.{name}") else f'"{name}" is not the name of an extended resource'


def _of_pod(name: str) -> str:
    if for_whole_pods(name):
        return ""
    return f'"{name}" cannot be asked for a whole pod; only cpu, memory and huge pages can'


def _divisible(name: str, amount: Quantity) -> bool:
    try:
        size = Quantity(name.removeprefix(HUGE_PAGES)).value
    except ValueError:
        return False
    return isinstance(size, int) and size > 0 and math.ceil(amount.value) % size == 0
