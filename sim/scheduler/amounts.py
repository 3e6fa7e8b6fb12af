"""Defaulting and validation of what decides where pods run, as the API server does when a pod or node is created.

Sources: `SetDefaults_ResourceList` (amounts in thousandths), `SetDefaults_Pod` (requests from limits, ports of the
host's network), the admission plug-ins DefaultTolerationSeconds and Priority; validation of `v1` Pods and Nodes in
Kubernetes 1.36 (ValidateContainerResourceRequirements, validateOverhead, validatePodResources, ValidateNodeResources),
and 1.37 (ValidateNodeSelector, ValidateTolerations, validateTopologySpreadConstraints).
Objects read from a cluster already have the defaults and passed validation; those from files do not.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.api.errors import DocumentError
from dranode.api.field_errors import FieldError
from dranode.api.names import is_label_name
from dranode.api.quantity import Quantity
from dranode.api.resource import APIObject, ContainerResources, DeviceToleration
from dranode.api.slice_validation import selector_errors, term_errors
from dranode.api.validation import pod_errors, toleration_errors
from dranode.sim.scheduler.documents import (
    ContainerPort,
    LabelMatcher,
    PodNodeAffinity,
    ResourceList,
    SchedulingContainer,
    SchedulingNode,
    SchedulingPod,
    SchedulingPodSpec,
)
from dranode.sim.scheduler.requests import (
    CPU,
    HUGE_PAGES,
    MEMORY,
    STORAGE,
    Counting,
    Exact,
    for_whole_pods,
    is_extended,
    pod_requests,
    summed_limits,
)
from dranode.sim.scheduler.terms import PodTerms

DEFAULT_NAMESPACE: Final = "default"
_OUT_OF_REACH: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SECONDS: Final = 300
_THOUSANDTHS: Final = 1000
# The PriorityClasses that every cluster has.
_SYSTEM: Final[Mapping[str, int]] = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class PriorityClass(APIObject, frozen=True, kw_only=True):
    """`PriorityClass` of scheduling.k8s.io/v1."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


PriorityClasses: TypeAlias = Mapping[str, PriorityClass]  # by name


def with_defaults(pod: SchedulingPod, priorities: PriorityClasses) -> SchedulingPod:
    """Return the pod as the API server would store it."""
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
    """Return the pod with the amounts that the API server would store: in thousandths, with requests from limits."""
    spec = pod.spec
    spec = replace(
        spec,
        init_containers=tuple(map(_with_requests, spec.init_containers)),
        containers=tuple(map(_with_requests, spec.containers)),
        overhead=in_thousandths(spec.overhead),
    )
    if not spec.resources.requests and not spec.resources.limits:
        return replace(pod, spec=spec)
    resources = ContainerResources(
        requests=in_thousandths(spec.resources.requests), limits=in_thousandths(spec.resources.limits)
    )
    pod = replace(pod, spec=replace(spec, resources=resources))
    return replace(pod, spec=replace(pod.spec, resources=_pod_resources(pod)))


def in_thousandths(amounts: ResourceList) -> ResourceList:
    """Return the amounts as the API server stores them: rounded up to thousandths, negative ones down."""
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
    resources = container.resources
    limits, requests = in_thousandths(resources.limits), in_thousandths(resources.requests)
    if limits is resources.limits and requests is resources.requests and limits.keys() <= requests.keys():
        return container
    return replace(container, resources=replace(resources, limits=limits, requests={**limits, **requests}))


def _in_network_of_host(container: SchedulingContainer) -> SchedulingContainer:
    return replace(container, ports=tuple(map(_on_host, container.ports)))


def _on_host(port: ContainerPort) -> ContainerPort:
    return port if port.host_port else replace(port, host_port=port.container_port)


def _tolerations(tolerations: tuple[DeviceToleration, ...]) -> list[DeviceToleration]:
    """Return the default tolerations of five minutes for the taints that the pod does not tolerate itself."""
    return [
        DeviceToleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=_SECONDS)
        for key in _OUT_OF_REACH
        if not any(toleration.key in ("", key) and toleration.effect in ("", "NoExecute") for toleration in tolerations)
    ]


def _with_priority(spec: SchedulingPodSpec, priorities: PriorityClasses) -> SchedulingPodSpec:
    """Set the priority of the pod's PriorityClass, or of the cluster's default class."""
    if spec.priority is not None:
        return spec
    default = next((candidate.metadata.name for candidate in priorities.values() if candidate.global_default), "")
    name = spec.priority_class_name or default
    chosen = priorities.get(name)
    if chosen is None:
        return replace(spec, priority=_SYSTEM.get(name))
    policy = spec.preemption_policy or chosen.preemption_policy
    return replace(spec, priority=chosen.value, priority_class_name=name, preemption_policy=policy)


def _pod_resources(pod: SchedulingPod) -> ContainerResources:
    """Return the pod-level amounts with defaults.

    Limits of huge pages come from the containers. If there are pod-level limits, missing requests of CPU and memory
    come from the containers, and other missing requests from the limit.
    """
    resources = pod.spec.resources
    limits, requests = dict(resources.limits), dict(resources.requests)
    for name, most in summed_limits(pod).items():
        if name.startswith(HUGE_PAGES) and name not in requests:
            limits.setdefault(name, _quantity(most))
    if not limits:
        return resources
    of_containers: Exact = pod_requests(pod, Counting(0, pod_level=False))
    for name in (CPU, MEMORY):
        if name in of_containers:
            requests.setdefault(name, _quantity(of_containers[name]))
    for name, limit in limits.items():
        if for_whole_pods(name):
            requests.setdefault(name, limit)
    return replace(resources, limits=limits, requests=requests)


def _quantity(amount: int | Fraction) -> Quantity:
    thousandths = math.ceil(amount * _THOUSANDTHS)
    return Quantity(f"{thousandths}m" if thousandths % _THOUSANDTHS else str(thousandths // _THOUSANDTHS))


# Returns what is wrong with the name of a resource; empty if nothing is.
_NameProblem = Callable[[str], str]
_COUNTED: Final = (
    r"pods|configmaps|persistentvolumeclaims|replicationcontrollers|resourcequotas|secrets|"
    r"services(\.loadbalancers|\.nodeports)?"
)
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_COMPARING: Final = ("Lt", "Gt")
_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")
_PORTS: Final = range(1, 65536)
_NO_PORT: Final = "is not within 1 and 65535"
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_WEIGHTS: Final = range(1, 101)
_CONTAINERS_ONLY: Final = Counting(0, pod_level=False)


def check_pod(pod: SchedulingPod, head: str = "", *, stored: bool = False) -> None:
    """Fail if the API server would reject what `pod_scheduling_errors` checks, or the pod's claims.

    `head` is the path prefix of a pod template; `stored` is whether an API server has accepted the template.

    Raises:
        DocumentError: a claim is not named, for example, or an amount is below 0, not whole, or above its limit.
    """
    check_selectors(pod, head)
    stored = stored or bool(pod.metadata.uid)
    for error in (*pod_errors(pod, lambda _: None), *pod_scheduling_errors(pod, stored=stored)):
        raise DocumentError(error.message, f"{head}{error.path}")


def check_selectors(pod: SchedulingPod, head: str = "") -> None:
    """Fail if a label selector of the pod has an operator that does not exist, or too many or too few values.

    Raises:
        DocumentError: that is so; with the path after `head`.
    """
    where = ""
    try:
        PodTerms.of(pod)
        for index, constraint in enumerate(pod.spec.topology_spread_constraints):
            where = f"spec.topologySpreadConstraints[{index}].labelSelector"
            LabelMatcher(constraint.label_selector)
    except DocumentError as error:
        raise DocumentError(error.problem, f"{head}{where or error.path}") from error


def check_node_amounts(node: SchedulingNode) -> None:
    """Fail if the API server would reject the node's amounts.

    Raises:
        DocumentError: an amount is below 0 or not a whole number.
    """
    for error in node_amount_errors(node):
        raise DocumentError(error.message, error.path)


def pod_scheduling_errors(pod: SchedulingPod, *, stored: bool = False) -> Iterator[FieldError]:
    """Yield every error in node affinity, tolerations, spread, requests and limits, defaults included.

    A stored pod is checked for its amounts alone: API servers before 1.33 accepted, for example, label values in node
    affinity that no label can have.
    """
    if not stored:
        yield from _placement_errors(pod)
    yield from _amount_errors(pod)


def _placement_errors(pod: SchedulingPod) -> Iterator[FieldError]:
    yield from _container_errors(pod)
    yield from _affinity_errors(pod.spec.affinity.node_affinity, "spec.affinity.nodeAffinity")
    for index, toleration in enumerate(pod.spec.tolerations):
        where = f"spec.tolerations[{index}]"
        if not toleration.key and toleration.operator != "Exists":
            yield FieldError(f"{where}.operator", "without a key, the operator must be Exists")
        if toleration.operator in _COMPARING:
            problem = "needs the gate TaintTolerationComparisonOperators, which is alpha and not simulated"
            yield FieldError(f"{where}.operator", f"{toleration.operator} {problem}")
        else:
            yield from toleration_errors(toleration, where, _EFFECTS)
    for index, constraint in enumerate(pod.spec.topology_spread_constraints):
        where = f"spec.topologySpreadConstraints[{index}]"
        if constraint.max_skew <= 0:
            yield FieldError(f"{where}.maxSkew", f"{constraint.max_skew} must be greater than zero")
        if constraint.when_unsatisfiable not in _UNSATISFIABLE:
            problem = f'"{constraint.when_unsatisfiable}" is neither {" nor ".join(_UNSATISFIABLE)}'
            yield FieldError(f"{where}.whenUnsatisfiable", problem)


def _container_errors(pod: SchedulingPod) -> Iterator[FieldError]:
    """Yield the errors in names of containers, and in their ports, which may be taken on a node."""
    names: set[str] = set()
    for field, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            where = f"spec.{field}[{index}]"
            if container.name in names:
                yield FieldError(f"{where}.name", f'"{container.name}" is a duplicate')
            names.add(container.name)
            for number, port in enumerate(container.ports):
                if port.container_port not in _PORTS:
                    yield FieldError(f"{where}.ports[{number}].containerPort", f"{port.container_port} {_NO_PORT}")
                if port.host_port and port.host_port not in _PORTS:
                    yield FieldError(f"{where}.ports[{number}].hostPort", f"{port.host_port} {_NO_PORT}")
                if port.protocol not in _PROTOCOLS:
                    problem = f'"{port.protocol}" is not one of {", ".join(_PROTOCOLS)}'
                    yield FieldError(f"{where}.ports[{number}].protocol", problem)


def _affinity_errors(affinity: PodNodeAffinity, path: str) -> Iterator[FieldError]:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        yield from selector_errors(required, f"{path}.requiredDuringSchedulingIgnoredDuringExecution")
    for index, term in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        where = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        if term.weight not in _WEIGHTS:
            yield FieldError(f"{where}.weight", f"{term.weight} is not within 1 and 100")
        yield from term_errors(term.preference, f"{where}.preference")


def _amount_errors(pod: SchedulingPod) -> Iterator[FieldError]:
    written, spec = pod.spec, with_default_amounts(pod).spec
    for field, as_written, defaulted in (
        ("initContainers", written.init_containers, spec.init_containers),
        ("containers", written.containers, spec.containers),
    ):
        for index, (before, after) in enumerate(zip(as_written, defaulted, strict=True)):
            where = f"spec.{field}[{index}].resources"
            yield from _requirements(before.resources, after.resources, where, _of_container)
    yield from _requirements(written.resources, spec.resources, "spec.resources", _of_pod)
    yield from _whole(spec, written.resources.requests)
    overhead = ContainerResources(limits=spec.overhead)
    yield from _requirements(overhead, overhead, "spec.overhead", _of_container)


def node_amount_errors(node: SchedulingNode) -> Iterator[FieldError]:
    """Yield every error in the node's capacity and allocatable amounts."""
    for field, amounts in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        yield from allocatable_errors(amounts, f"status.{field}")


def allocatable_errors(amounts: ResourceList, path: str) -> Iterator[FieldError]:
    """Yield every error in amounts of a node; the API server does not check the names of its resources."""
    return _amounts(in_thousandths(amounts), path, lambda _: "")


def _requirements(
    written: ContainerResources, resources: ContainerResources, path: str, name_problem: _NameProblem
) -> Iterator[FieldError]:
    """Yield what is wrong with the requests and limits of a container or pod, by themselves and together.

    An error in an amount is reported only where the document sets it, not where it was defaulted.
    """
    requests, limits = resources.requests, resources.limits
    set_amounts = (
        (f"{path}.limits", {name: limits[name] for name in written.limits}),
        (f"{path}.requests", {name: requests[name] for name in written.requests}),
    )
    for where, amounts in set_amounts:
        yield from _amounts(amounts, where, name_problem)
    for name, request in requests.items():
        limit = limits.get(name)
        where = f"{path}.requests[{name}]"
        may_differ = not (is_extended(name) or name.startswith(HUGE_PAGES))
        if limit is None and not may_differ:
            yield FieldError(f"{path}.limits", f"a limit for {name} is required, equal to the request of {request}")
        elif limit is not None and request > limit:
            yield FieldError(where, f"{request} is more than the limit of {limit}")
        elif limit is not None and request != limit and not may_differ:
            yield FieldError(where, f"{request} has to be equal to the limit of {limit}")
    for where, amounts in set_amounts:
        yield from _pages(amounts, where)
    names = {*requests, *limits}
    if any(name.startswith(HUGE_PAGES) for name in names) and not names & {CPU, MEMORY}:
        yield FieldError(path, "huge pages also need a request or a limit of cpu or memory")


def _pages(amounts: ResourceList, path: str) -> Iterator[FieldError]:
    for name, amount in amounts.items():
        if name.startswith(HUGE_PAGES) and not _divisible(name, amount):
            yield FieldError(f"{path}[{name}]", f"{amount} is not a multiple of the page size")


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
    """Return whether the resource is an integer; extended ones are, if a ResourceQuota could name them."""
    return re.fullmatch(_COUNTED, name) is not None or (is_extended(name) and is_label_name(f"requests.{name}"))


def _whole(spec: SchedulingPodSpec, written: ResourceList) -> Iterator[FieldError]:
    """Yield pod-level amounts that do not cover the containers; `written` are the requests that the document sets."""
    requests, limits, pod = spec.resources.requests, spec.resources.limits, SchedulingPod(spec=spec)
    if not requests and not limits:
        return
    for name, amount in pod_requests(pod, _CONTAINERS_ONLY).items():
        if name in written and amount > requests[name].value:
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
        if name in (CPU, MEMORY, STORAGE) or name.startswith(HUGE_PAGES):
            return ""
        return f'"{name}" is not a resource of containers; use cpu, memory, or a name with a domain'
    # Names with kubernetes.io are reserved for Kubernetes, which may define more of them.
    if (is_extended(name) or "kubernetes.io/" in name) and is_label_name(f"requests.{name}"):
        return ""
    return f'"{name}" is not the name of an extended resource'


def _of_pod(name: str) -> str:
    if for_whole_pods(name):
        return ""
    return f'"{name}" is not supported at pod level; only cpu, memory and huge pages are'


def _divisible(name: str, amount: Quantity) -> bool:
    try:
        size = Quantity(name.removeprefix(HUGE_PAGES)).value
    except ValueError:
        return False
    return isinstance(size, int) and size > 0 and math.ceil(amount.value) % size == 0
