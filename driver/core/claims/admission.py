"""The part of a claim that is this driver's, and what of it is refused before anything is decided."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dranode.driver.core.api.errors import ClaimError, DocumentError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.allocation import results_of
from dranode.driver.core.claims.answers import Refused
from dranode.driver.core.claims.configs import configs_for
from dranode.driver.core.claims.grant import AllocatedClaim, AllocatedResult
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import uid_problem


def allocated(ref: ClaimRef, claim: ResourceClaim, plugin: Plugin) -> AllocatedClaim:
    """The part of a claim that is this driver's, configurations decoded; other drivers' parts are never read.

    Raises:
        ClaimError: the claim has another UID or an impossible one, is not allocated, or a result or a configuration
            of ours is not valid.
    """
    if claim.metadata.uid != ref.uid:
        raise ClaimError(
            f"claim {ref} is now another claim: its UID is {claim.metadata.uid or 'missing'}, "
            f"and {ref.uid} was asked for; recreate the pod"
        )
    problem = uid_problem(ref.uid)
    if problem is not None:
        raise ClaimError(f"claim {ref} cannot be prepared, for its UID {problem}; recreate the claim")
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimError(
            f"claim {ref} has no allocation, so there is nothing to prepare; recreate its pod, so that the scheduler "
            "allocates it"
        )
    try:
        ours = tuple(
            (result, configs_for(result, allocation.devices.config, claim.spec.devices))
            for result in results_of(allocation, plugin.driver)
        )
    except DocumentError as error:
        raise ClaimError(f"claim {ref} cannot be prepared, for its allocation cannot be read: {error}") from error
    return AllocatedClaim(
        ref,
        tuple(
            AllocatedResult(
                result, tuple(replace(config, parameters=plugin.parse_config(config)) for config in configs)
            )
            for result, configs in ours
        ),
    )


def twins(refs: Iterable[ClaimRef]) -> dict[str, Refused]:
    """A refusal for every UID under which one call names several claims: it has one answer, which could be of any."""
    by_uid: dict[str, dict[ClaimRef, None]] = {}
    for ref in refs:
        by_uid.setdefault(ref.uid, {})[ref] = None
    return {
        uid: Refused(
            f"claims {' and '.join(map(str, same))} were asked for in one call with the same UID {uid}, so neither is "
            "prepared; recreate their pods"
        )
        for uid, same in by_uid.items()
        if len(same) > 1
    }


def check_pools(claim: AllocatedClaim, pool: str | None) -> None:
    """Refuse what was allocated from another pool than `pool`, the one in which this node's devices are published.

    Device names repeat from node to node, so the devices of another pool may be here by name and are not meant. None
    compares nothing.

    Raises:
        ClaimError: a result is of another pool.
    """
    for result in (each.result for each in claim.results):
        if pool is not None and result.pool != pool:
            raise ClaimError(
                f'request "{result.request}" of claim {claim.ref} was allocated device "{result.device}" of pool '
                f'"{result.pool}", but this node\'s pool is "{pool}"; delete the claim so that it is allocated anew'
            )


def counting(claim: AllocatedClaim) -> AllocatedClaim:
    """The claim with the configurations that count. The record's fingerprint is of all, as it has always been."""
    return replace(
        claim,
        results=tuple(
            replace(each, configs=tuple(config for config in each.configs if not config.repeated))
            for each in claim.results
        ),
    )
