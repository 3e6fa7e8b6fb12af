"""Finds containers and pods that would use a claim at the same time although its driver only allows one of them.

Drivers that pin containers (`Pins`) refuse the second container, unlike the scheduler and the API server. Containers of
one pod may share a claim if its configuration has `sharing: pod`; otherwise, one container may use it at a time.
Containers that name different requests of a claim do not share it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from dranode.api.field_errors import FieldError
from dranode.api.resource import DeviceClaim, DeviceClass
from dranode.driver.claims.grant import applies
from dranode.sim.allocator.explain import driver_of
from dranode.sim.scheduler.documents import SchedulingContainer, SchedulingPod

_POD: Final = "pod"
_ALWAYS: Final = "Always"


@dataclass(frozen=True, slots=True)
class ExclusiveUse:
    """The part of a claim that only one pod or one container may use.

    Attributes:
        requests: the names of these requests.
        shared_in_pod: whether all containers of one pod may use it at the same time.
    """

    requests: frozenset[str]
    shared_in_pod: bool


def exclusive_use(
    devices: DeviceClaim, classes: Mapping[str, DeviceClass], drivers: Collection[str]
) -> ExclusiveUse | None:
    """Return the exclusive part of a claim, or None; `drivers` are those that pin containers."""
    policies: dict[str, set[str]] = {}
    for request in devices.requests:
        for option in request.options.values():
            device_class = classes.get(option.device_class_name)
            driver = driver_of(device_class) if device_class is not None else None
            if device_class is None or driver not in drivers or getattr(option, "admin_access", None):
                continue
            configs = [config.opaque for config in device_class.spec.config]
            configs += [config.opaque for config in devices.config if applies(config.requests, request.name)]
            settings = [
                config.parameters["sharing"]
                for config in configs
                if config is not None
                and config.driver == driver
                and isinstance(config.parameters, Mapping)
                and config.parameters.get("sharing")
            ]
            policies.setdefault(request.name, set()).add(str(settings[-1]) if settings else "")
    if not policies:
        return None
    return ExclusiveUse(frozenset(policies), all(policy == {_POD} for policy in policies.values()))


def container_conflicts(pod: SchedulingPod, uses: Mapping[str, ExclusiveUse]) -> Iterator[tuple[str, FieldError]]:
    """Yield each claim, by the pod's name for it, that two containers may not share, where the second one names it.

    `uses` are by the pod's names for claims.
    """
    for name, use in uses.items():
        if use.shared_in_pod:
            continue
        for (_, first), (path, second) in _together(pod):
            if _requests(first, name, use) & _requests(second, name, use):
                index = next(number for number, entry in enumerate(second.resources.claims) if entry.name == name)
                yield (
                    name,
                    FieldError(
                        f"{path}.resources.claims[{index}]",
                        f"container {first.name} has the claim too, and only one container may use it at a time; to "
                        'share it, set "sharing: pod" in its configuration',
                    ),
                )
                break


def _requests(container: SchedulingContainer, claim: str, use: ExclusiveUse) -> frozenset[str]:
    """Return the requests that a container uses; without a request name, it uses all."""
    named = [entry.request for entry in container.resources.claims if entry.name == claim]
    return use.requests if "" in named else use.requests & set(named)


_Place = tuple[str, SchedulingContainer]


def _together(pod: SchedulingPod) -> Iterator[tuple[_Place, _Place]]:
    """Yield pairs of containers that run at the same time; init containers only run next to earlier sidecars."""
    sidecars: list[_Place] = []
    for index, container in enumerate(pod.spec.init_containers):
        place = (f"spec.initContainers[{index}]", container)
        yield from ((sidecar, place) for sidecar in sidecars)
        if container.restart_policy == _ALWAYS:
            sidecars.append(place)
    containers = [(f"spec.containers[{index}]", container_) for index, container_ in enumerate(pod.spec.containers)]
    for sidecar in sidecars:
        yield from ((sidecar, place) for place in containers)
    yield from combinations(containers, 2)


def claims_in_use(pod: SchedulingPod) -> frozenset[str]:
    """Return the pod's names for the claims that its containers use."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return frozenset(entry.name for container in containers for entry in container.resources.claims)


def pods_conflict(first: str, second: str) -> str:
    """Return why the second pod's containers do not start while the first pod uses the claim."""
    return (
        f"{first} and {second} both use the claim, and only containers of one pod may share it; "
        "give each pod its own claim with a ResourceClaimTemplate"
    )
