"""Says what keeps a pod from every node, whichever it is, before kube-scheduler looks at one (PreFilter).

Source: kube-scheduler 1.36.4 and 1.37.1, plug-ins NodeAffinity and DynamicResources, which run in this order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from dranode.api.resource import DeviceRequest, ResourceClaim
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.filters import CONTRADICTION
from dranode.sim.scheduler.node_affinity import named_nodes


def refused_everywhere(
    pod: SchedulingPod, claims: Iterable[ResourceClaim], classes: Collection[str], features: Features
) -> str:
    """Return why no node is looked at, in kube-scheduler's words; empty if they are.

    Args:
        pod: the pod.
        claims: those of its claims that are not allocated.
        classes: the names of all DeviceClasses.
        features: the gates.
    """
    named = named_nodes(pod)
    if named is not None and not named:
        return CONTRADICTION
    return next((problem for claim in claims for problem in _problems(claim, classes, features)), "")


def _problems(claim: ResourceClaim, classes: Collection[str], features: Features) -> Iterator[str]:
    for request in claim.spec.devices.requests:
        if request.first_available and not features.prioritized_list:
            where = f"resource claim {ClaimKey.of(claim)}, request {request.name}"
            yield f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled"
        for name, device_class in _classes(request):
            if device_class not in classes:
                yield f"request {name}: device class {device_class} does not exist"


def _classes(request: DeviceRequest) -> Iterator[tuple[str, str]]:
    """Yield the class of the request or of each alternative, by its name."""
    if request.exactly is not None:
        yield request.name, request.exactly.device_class_name
    else:
        for alternative in request.first_available:
            yield f"{request.name}/{alternative.name}", alternative.device_class_name
