"""Notes what is odd about an answer although it is kube-scheduler's, so that it is not taken for a mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from dranode.api.resource import AllocationResult, DeviceAttribute, ResourceClaim
from dranode.driver.claims.grant import applies
from dranode.sim.allocator.capacity import steps_are_inexact
from dranode.sim.allocator.constraints import attribute_values, lookup
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.picks import DevicePick, Oddity

_OF_ODDITY: Final[Mapping[Oddity, str]] = {
    Oddity.ADMIN_BLOCKS: (
        "a device that was taken with admin access in this attempt counts as in use for its other requests, "
        "though an earlier admin access would not"
    ),
    Oddity.ADMIN_NEEDS_CAPACITY: (
        "admin access to a shared device needs capacity that is left, "
        "though admin access to other devices ignores that they are in use"
    ),
    Oddity.NO_FIXED_ORDER: (
        "this release of Kubernetes searches pools and slices in no fixed order, and in another order the answer is "
        "another one; this is the answer in the order of their names"
    ),
}
# These can only keep something from being found.
_ONLY_ON_FAILURE: Final = frozenset({Oddity.ADMIN_BLOCKS, Oddity.ADMIN_NEEDS_CAPACITY})


def notes_on_failure(oddities: Iterable[Oddity]) -> tuple[str, ...]:
    """Notes on a claim that does not fit."""
    return tuple(_OF_ODDITY[oddity] for oddity in Oddity if oddity in frozenset(oddities))


def notes_on_success(
    claim: ResourceClaim,
    picks: Sequence[DevicePick],
    allocation: AllocationResult,
    oddities: Iterable[Oddity],
    features: Features,
) -> tuple[str, ...]:
    """Notes on a claim that was allocated."""
    kept = frozenset(oddities) - _ONLY_ON_FAILURE
    return tuple(
        dict.fromkeys(
            (
                *notes_on_failure(kept),
                *_not_distinct(claim, picks),
                *_inexact_steps(picks, features),
                *_repeated_configs(allocation),
                *_waits(allocation),
            )
        )
    )


def _not_distinct(claim: ResourceClaim, picks: Sequence[DevicePick]) -> Iterator[str]:
    for constraint in claim.spec.devices.constraints:
        name = constraint.distinct_attribute
        if name is None:
            continue
        mine = [pick for pick in picks if applies(constraint.requests, pick.alternative.name)]
        for first, second in combinations(mine, 2):
            if _common(*(lookup(pick.candidate.device, pick.candidate.pool.driver, name) for pick in (first, second))):
                yield (
                    f"{first.candidate.device.name} and {second.candidate.device.name} have the same {name} in spite "
                    "of distinctAttribute: before 1.37, a device is compared only with the last one of its request"
                )


def _common(first: DeviceAttribute | None, second: DeviceAttribute | None) -> bool:
    mine, theirs = (attribute_values(each) if each is not None else None for each in (first, second))
    return mine is not None and theirs is not None and mine[0] == theirs[0] and bool(mine[1] & theirs[1])


def _inexact_steps(picks: Sequence[DevicePick], features: Features) -> Iterator[str]:
    for pick in picks:
        if pick.share is not None and steps_are_inexact(pick.candidate, pick.alternative.capacity, features):
            yield (
                f"{pick.candidate.device.name}: steps of a capacity are reckoned in whole numbers, each quantity "
                "rounded up, so a fractional request consumes more than its policy says"
            )


def _waits(allocation: AllocationResult) -> Iterator[str]:
    for result in allocation.devices.results:
        if result.binding_conditions:
            failing = ", ".join(result.binding_failure_conditions)
            yield (
                f"{result.device} has binding conditions: kube-scheduler binds the pod when the claim's status has "
                f"{', '.join(result.binding_conditions)} for it, and gives up after 10 minutes"
                f"{f', or when it has {failing}' if failing else ''}"
            )


def _repeated_configs(allocation: AllocationResult) -> Iterator[str]:
    entries = allocation.devices.config
    if any(one is other for one, other in combinations(entries, 2)):
        yield "a configuration of the claim stands once for each request that it names; 1.37 lists it once"
