"""Builds `status.allocation` from the devices of a claim: results, configurations and node selector.

Source: KEP-4381, KEP-4816 and kube-scheduler. It lists each configuration of a class once, with all requests of the
class. The configurations of the claim are listed differently since 1.37 (`releases.Change.CONFIGS_ONCE`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    NodeSelector,
    ResourceClaim,
)
from dranode.driver.claims.grant import main_request
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, node_place, only, union
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, AllocationRequest, Alternative, Reason


@dataclass(frozen=True, slots=True)
class DevicePick:
    """One device for one request.

    Attributes:
        alternative: the request or the alternative.
        number: the candidate's number in the attempt.
        candidate: the device.
        share: the consumed amounts by capacity if only a share is taken; None for a whole device.
    """

    alternative: Alternative
    number: int
    candidate: Candidate
    share: Mapping[str, Quantity] | None


class Oddity(Enum):
    """Surprising behavior of kube-scheduler that may have decided the answer."""

    ADMIN_BLOCKS = auto()
    ADMIN_NEEDS_CAPACITY = auto()
    NO_FIXED_ORDER = auto()


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of a search.

    Attributes:
        picks: the devices of each claim, in the order of its requests; None if the claims do not fit.
        oddities: surprising behavior of kube-scheduler on the way.
    """

    picks: tuple[tuple[DevicePick, ...], ...] | None
    oddities: frozenset[Oddity] = frozenset()


def allocation(
    claim: ResourceClaim,
    requests: Sequence[AllocationRequest],
    picks: Sequence[DevicePick],
    *,
    node: str,
    features: Features,
    share_id: Callable[[], str],
) -> AllocationResult:
    """Return `status.allocation` of a claim with these devices on the node; `share_id` generates share IDs."""
    active = active_alternatives(requests, picks)
    results = tuple(_result(pick, features, share_id) for pick in picks)
    config = (*_class_configs(active), *_claim_configs(claim, active, once=features.has(Change.CONFIGS_ONCE)))
    if features.has(Change.CONFIGS_ONCE):
        config = tuple(_without_needless_requests(entry, active) for entry in config)
    return AllocationResult(
        devices=DeviceAllocationResult(results=results, config=config),
        node_selector=_node_selector(picks, node, features),
    )


def active_alternatives(requests: Sequence[AllocationRequest], picks: Sequence[DevicePick]) -> tuple[Alternative, ...]:
    """Return the chosen alternative of each request: that of its first device, if its devices are of several."""
    chosen: dict[str, Alternative] = {}
    for pick in picks:
        chosen.setdefault(main_request(pick.alternative.name), pick.alternative)
    return tuple(chosen.get(request.name, request.alternatives[0]) for request in requests)


def _result(pick: DevicePick, features: Features, new_share_id: Callable[[], str]) -> DeviceRequestAllocationResult:
    device = pick.candidate.device
    binds = features.binding
    copies_tolerations = features.has(Change.TOLERATIONS_IN_RESULT) and not features.oldest
    skips_operations = features.experimental and features.release.gate("DRAOptionalNodeOperations") is not None
    return DeviceRequestAllocationResult(
        request=pick.alternative.name,
        driver=pick.candidate.pool.driver,
        pool=pick.candidate.pool.pool,
        device=device.name,
        admin_access=True if pick.alternative.admin else None,
        tolerations=pick.alternative.tolerations if copies_tolerations else (),
        binding_conditions=device.binding_conditions if binds else (),
        binding_failure_conditions=device.binding_failure_conditions if binds else (),
        share_id=None if pick.share is None else new_share_id(),
        consumed_capacity=pick.share or {},
        skip_node_operations=pick.candidate.slice.skip_node_operations if skips_operations else (),
    )


def _class_configs(active: Sequence[Alternative]) -> Iterator[DeviceAllocationConfiguration]:
    requests: dict[str, list[str]] = {}
    classes: dict[str, DeviceClass] = {}
    for alternative in active:
        name = alternative.device_class.metadata.name
        classes[name] = alternative.device_class
        requests.setdefault(name, []).append(alternative.name)
    for name, device_class in classes.items():
        for config in device_class.spec.config:
            yield DeviceAllocationConfiguration(
                source="FromClass", requests=tuple(requests[name]), opaque=config.opaque
            )


def _claim_configs(
    claim: ResourceClaim, active: Sequence[Alternative], *, once: bool
) -> Iterator[DeviceAllocationConfiguration]:
    for config in claim.spec.devices.config:
        entry = DeviceAllocationConfiguration(source="FromClaim", requests=config.requests, opaque=config.opaque)
        if not config.requests:
            yield entry
        for alternative in active:
            if alternative.name in config.requests or main_request(alternative.name) in config.requests:
                yield entry
                if once:
                    break


def _without_needless_requests(
    entry: DeviceAllocationConfiguration, active: Sequence[Alternative]
) -> DeviceAllocationConfiguration:
    """Return the entry with an empty list of requests if it names all of them, which means the same."""
    if all(
        alternative.name in entry.requests or main_request(alternative.name) in entry.requests for alternative in active
    ):
        return msgspec.structs.replace(entry, requests=())
    return entry


def _node_selector(picks: Sequence[DevicePick], node: str, features: Features) -> NodeSelector | None:
    if any(_is_bound(pick, features) for pick in picks):
        return only(node)
    return union(selector for _, selector in (node_place(pick.candidate) for pick in picks) if selector is not None)


def check_selectors(claim: ResourceClaim, picks: Sequence[DevicePick], features: Features) -> None:
    """Check that each device is on one node, or has a node selector with one term.

    The API server accepts several terms for a device, but kube-scheduler has no way to combine them.

    Raises:
        AllocationError: a device has more terms, and none before it is bound to the node.
    """
    for pick in picks:
        if _is_bound(pick, features):
            return
        _, selector = node_place(pick.candidate)
        if selector is not None and len(selector.node_selector_terms) > 1:
            pool = pick.candidate.pool
            raise AllocationError(
                f"create NodeSelector for claim {claim.metadata.name}: unsupported ResourceSlice.NodeSelector with "
                f"{len(selector.node_selector_terms)} terms",
                Reason.POOL_INVALID,
                detail=f"device {pool.driver}/{pool.pool}/{pick.candidate.device.name} may have only one",
            )


def _is_bound(pick: DevicePick, features: Features) -> bool:
    return bool(node_place(pick.candidate)[0]) or (features.beyond_stable and bool(pick.candidate.device.binds_to_node))
