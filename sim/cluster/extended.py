"""Extended resources that a DeviceClass backs, and the claim that kube-scheduler creates for them.

Source: KEP-5004; kube-scheduler 1.36.4 and 1.37.1 (plugins/dynamicresources/extendeddynamicresources.go), and
`k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dranode.api.documents import API_VERSION
from dranode.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimSpec,
)
from dranode.sim.allocator.features import Features
from dranode.sim.scheduler.documents import SchedulingContainer, SchedulingPod
from dranode.sim.scheduler.requests import Amounts, Counting, amounts_of, is_extended, pod_requests

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
_ALWAYS: Final = "Always"
# The error of kube-scheduler, which tries again indefinitely.
NOT_BOUND: Final = (
    'running PreBind plugin "DynamicResources": nil or empty request mappings, no update of pod {} '
    "ExtendedResourceClaimStatus"
)


def extended_of(pod: SchedulingPod, classes: Iterable[DeviceClass], features: Features) -> dict[str, str]:
    """Return the DeviceClasses behind a pod's extended resources; empty while DRAExtendedResource is off."""
    if not features.extended_resource:
        return {}
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    if not any(_may_be_backed(name) for container in containers for name in container.resources.requests):
        return {}
    requests = amounts_of(pod_requests(pod, Counting(features.release.number[0], status=True)))
    return classes_behind(requests, classes)


def classes_behind(requests: Amounts, classes: Iterable[DeviceClass]) -> dict[str, str]:
    """Return the DeviceClasses behind the requested extended resources; of several classes, the newest counts."""
    named: dict[str, str] = {}
    for device_class in sorted(classes, key=_age):
        if device_class.spec.extended_resource_name is not None:
            named[device_class.spec.extended_resource_name] = device_class.metadata.name
        named[f"{IMPLICIT}{device_class.metadata.name}"] = device_class.metadata.name
    return {name: named[name] for name, amount in requests.items() if amount and _may_be_backed(name) and name in named}


def _age(device_class: DeviceClass) -> tuple[str, tuple[int, ...]]:
    """Return a sort key for which the last class wins: the newest, or of equal age the first by name."""
    name = device_class.metadata.name
    return device_class.metadata.creation_timestamp or "", tuple(-ord(character) for character in f"{name}\0")


def _may_be_backed(name: str) -> bool:
    return is_extended(name) or name.startswith(IMPLICIT)


def special_claim(pod: SchedulingPod, classes: Mapping[str, str]) -> ResourceClaim:
    """Return the claim that kube-scheduler creates for these resources of a pod, given with their classes."""
    requests = [request for name in sorted(classes) for request in _requests(pod, name, classes[name])]
    metadata = ObjectMeta(name=f"{pod.metadata.name}-extended-resources", namespace=pod.metadata.namespace)
    devices = DeviceClaim(requests=tuple(sorted(requests, key=lambda request: request.name)))
    return ResourceClaim(
        api_version=API_VERSION, kind="ResourceClaim", metadata=metadata, spec=ResourceClaimSpec(devices=devices)
    )


def special_claims(pod: SchedulingPod, classes: Mapping[str, str]) -> tuple[ResourceClaim, ...]:
    """Return the claim for these resources, if there are any."""
    return (special_claim(pod, classes),) if classes else ()


def _requests(pod: SchedulingPod, resource: str, device_class: str) -> Iterator[DeviceRequest]:
    """Yield a request for each container and sidecar, and one for the init container that needs the most devices.

    An init container first uses the devices of later containers, so its request covers only what it needs beyond them.
    """
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    inits = len(pod.spec.init_containers)
    staying: dict[int, DeviceRequest] = {}
    for index, container in enumerate(containers):
        count = _count(container, resource)
        if count and (index >= inits or container.restart_policy == _ALWAYS):
            staying[index] = _request(index, container, resource, device_class, count)
    ending: list[tuple[int, DeviceRequest]] = []
    for index, container in enumerate(containers[:inits]):
        if container.restart_policy == _ALWAYS:
            continue
        later = sum(_count(containers[number], resource) for number in staying if number >= index)
        count = _count(container, resource) - later
        if count > 0:
            ending.append((count, _request(index, container, resource, device_class, count)))
    if ending:
        # Of equal needs, max returns the first.
        yield max(ending, key=lambda pair: pair[0])[1]
    yield from staying.values()


def _count(container: SchedulingContainer, resource: str) -> int:
    quantity = container.resources.requests.get(resource)
    return int(quantity.value) if quantity is not None and quantity.whole else 0


def _request(index: int, container: SchedulingContainer, resource: str, device_class: str, count: int) -> DeviceRequest:
    place = sorted(container.resources.requests).index(resource)
    exactly = ExactDeviceRequest(device_class_name=device_class, allocation_mode="ExactCount", count=count)
    return DeviceRequest(name=f"container-{index}-request-{place}", exactly=exactly)


def backed_here(classes: Mapping[str, str], allocatable: Amounts) -> dict[str, str]:
    """Return the resources that the node does not offer itself, so that devices back them there."""
    return {name: device_class for name, device_class in classes.items() if not allocatable.get(name)}


def left_over(claims: Iterable[ResourceClaim], pod: SchedulingPod) -> ResourceClaim | None:
    """Return the claim of an earlier, failed attempt for the pod, which is deleted before the next one."""
    candidates = (
        claim
        for claim in claims
        if is_special(claim)
        and claim.metadata.namespace == pod.metadata.namespace
        and any(
            owner.uid == pod.metadata.uid and owner.name == pod.metadata.name
            for owner in claim.metadata.owner_references
        )
    )
    return next(candidates, None)


def is_special(claim: ResourceClaim) -> bool:
    """Return whether kube-scheduler created the claim for extended resources of a pod."""
    return claim.metadata.annotations.get(_ANNOTATION) == "true"


def cannot_be_bound(classes: Mapping[str, str], claims: Sequence[ResourceClaim], allocatable: Amounts) -> bool:
    """Return whether kube-scheduler chooses such a node and then fails to bind the pod to it.

    In 1.36.4 and 1.37.1, that happens to a pod with claims if the node itself offers all extended resources that a
    DeviceClass could back: kube-scheduler creates a claim without requests and then fails, because there are none.
    """
    return bool(classes and claims) and not backed_here(classes, allocatable)
