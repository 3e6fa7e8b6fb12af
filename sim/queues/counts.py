"""Counts what one pod of a pod set uses of its quota.

Containers are added up like in kube-scheduler. DRA devices of ResourceClaimTemplates, and of extended resources that a
DeviceClass backs, count under the name that `deviceClassMappings` gives their DeviceClass (Kueue's KEP-2941). Kueue
first refuses claims that it cannot count, and templates that match too few devices of the cluster.

Source: pkg/controller/core/workload_controller.go and pkg/dra/claims.go of Kueue 0.20.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from msgspec.structs import replace

from dranode.api.resource import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaimSpec,
    ResourceSlice,
)
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import NEWEST_STABLE
from dranode.sim.cel.expression import Selector, compile_selector
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError
from dranode.sim.scheduler.amounts import with_default_amounts
from dranode.sim.scheduler.documents import SchedulingPod, SchedulingPodSpec
from dranode.sim.scheduler.requests import CPU, Counting, pod_requests

RequestCounts = dict[str, int]


class UncountableError(Exception):
    """A pod whose quota cannot be counted; the text says why."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The rules that turn devices into quota.

    Attributes:
        mapped: the resource name under which quota counts a DeviceClass.
        templates: the claim specs of the templates, by `<namespace>/<name>`.
        classes: all DeviceClasses.
        published: the cluster's ResourceSlices; None if unknown.
    """

    mapped: Mapping[str, str]
    templates: Mapping[str, ResourceClaimSpec]
    classes: tuple[DeviceClass, ...] = ()
    published: tuple[ResourceSlice, ...] | None = None

    def behind(self, extended: str) -> str | None:
        """Return the DeviceClass for an extended resource: the newest, or the first by name of several."""
        serving = [item for item in self.classes if item.spec.extended_resource_name == extended]
        if not serving:
            return None
        newest = max(item.metadata.creation_timestamp or "" for item in serving)
        return min(item.metadata.name for item in serving if (item.metadata.creation_timestamp or "") == newest)


def pod_counts(spec: SchedulingPodSpec, namespace: str, devices: Devices) -> RequestCounts:
    """Return what one pod counts, by resource name.

    Raises:
        UncountableError: a template is missing, a class is not mapped to a name, or a request is for all devices.
    """
    # Only what containers request counts as devices; overhead keeps its name (kubernetes-sigs/kueue#14154).
    overhead = {resource: ceil(amount.value) for resource, amount in spec.overhead.items() if devices.behind(resource)}
    counts = dict(overhead)
    for resource, number in _containers(spec).items():
        name = devices.mapped.get(devices.behind(resource) or "", resource)
        counts[name] = counts.get(name, 0) + number - overhead.get(resource, 0)
    for claim in spec.resource_claims:
        if claim.resource_claim_template_name is None:
            continue  # refused by `refusal_of_claims`; a workload that is admitted nevertheless counts no devices of it
        template = devices.templates.get(f"{namespace}/{claim.resource_claim_template_name}")
        if template is None:
            raise UncountableError(f'ResourceClaimTemplate "{claim.resource_claim_template_name}" does not exist')
        for name, number in _claim(template, devices).items():
            counts[name] = counts.get(name, 0) + number
    return counts


def _claim(spec: ResourceClaimSpec, devices: Devices) -> RequestCounts:
    counts: RequestCounts = {}
    for request in map(_countable, spec.devices.requests):
        # Admin access takes no device from others (kubernetes-sigs/kueue#13642).
        if request.admin_access:
            continue
        name = devices.mapped.get(request.device_class_name)
        if name is None:
            raise UncountableError(f'no deviceClassMappings entry names DeviceClass "{request.device_class_name}"')
        counts[name] = counts.get(name, 0) + (request.count or 1)  # the API server changes 0 to 1
    return counts


def _countable(request: DeviceRequest) -> ExactDeviceRequest:
    exactly = request.exactly
    if exactly is None:
        raise UncountableError(f"request {request.name}: Kueue does not support prioritized lists (firstAvailable)")
    if exactly.allocation_mode == "All" and not exactly.admin_access:
        raise UncountableError("a request for all devices of a class cannot be counted before it is allocated")
    return exactly


def refusal_of_claims(spec: SchedulingPodSpec, namespace: str, devices: Devices) -> str:
    """Return why Kueue refuses a pod because of its claims, before it checks quota; empty if it does not."""
    for claim in spec.resource_claims:
        if claim.resource_claim_name is not None:
            return (
                f'the pods name the ResourceClaim "{claim.resource_claim_name}", which Kueue does not admit; '
                "use a ResourceClaimTemplate"
            )
    for claim in spec.resource_claims:
        template = devices.templates.get(f"{namespace}/{claim.resource_claim_template_name}")
        refusal = _mismatch(template, devices) if template is not None else ""
        if refusal:
            return f"ResourceClaimTemplate {claim.resource_claim_template_name}, {refusal}"
    return ""


def _mismatch(spec: ResourceClaimSpec, devices: Devices) -> str:
    """Return the first request with selectors that too few devices of the cluster match; empty if all match enough."""
    counted: set[tuple[int, int]] = set()
    for request in spec.devices.requests:
        exactly = request.exactly
        if exactly is None or not any(selector.cel for selector in exactly.selectors):
            continue
        where = f"request {request.name}"
        try:
            of_request = _compiled(exactly.selectors)
            if devices.published is None:
                continue
            device_class = next(
                (item for item in devices.classes if item.metadata.name == exactly.device_class_name), None
            )
            if device_class is None:
                return f'{where}: DeviceClass "{exactly.device_class_name}" does not exist'
            where = f"{where}, DeviceClass {exactly.device_class_name}"
            selectors = (*_compiled(device_class.spec.selectors), *of_request)
            needed = exactly.count or 1
            matching = _matching(selectors, devices.published, counted, needed)
        except (CELCompileError, CELRuntimeError) as error:
            return f"{where}: a selector fails: {error}"
        if matching < needed:
            return (
                f"{where}: {matching} device{'s'[: matching != 1]} of the cluster match{'es'[: 2 * (matching == 1)]}, "
                f"but {needed} are requested"
            )
    return ""


def _compiled(selectors: Iterable[DeviceSelector]) -> tuple[Selector, ...]:
    declared = Features.of(NEWEST_STABLE).stored_expressions
    return tuple(compile_selector(item.cel.expression, declared) for item in selectors if item.cel is not None)


def _matching(
    selectors: tuple[Selector, ...], published: Iterable[ResourceSlice], counted: set[tuple[int, int]], needed: int
) -> int:
    """Add the first `needed` devices that match all selectors to `counted`, and return their number."""
    count = 0
    for place, slice_ in enumerate(published):
        for number, device in enumerate(slice_.spec.devices):
            if count == needed:
                return count
            if (place, number) not in counted and all(item.matches(slice_.spec.driver, device) for item in selectors):
                counted.add((place, number))
                count += 1
    return count


def _containers(spec: SchedulingPodSpec) -> RequestCounts:
    """Return what the containers of a pod request together."""
    # The pod of a Job does not exist yet, so Kueue applies the API server's defaults itself, except that a limit of the
    # whole pod goes before the requests of its containers (UseLimitsAsMissingRequestsInPod of Kueue 0.20).
    whole = replace(spec.resources, requests={**spec.resources.limits, **spec.resources.requests})
    pod = with_default_amounts(SchedulingPod(spec=replace(spec, resources=whole)))
    requests = pod_requests(pod, Counting(NEWEST_STABLE.number[0]))
    return {name: ceil(value * 1000 if name == CPU else value) for name, value in requests.items()}
