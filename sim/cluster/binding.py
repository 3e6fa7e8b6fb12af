"""Claims whose devices failed to bind (KEP-5007): kube-scheduler takes their devices back before it looks for others.

Source: `isClaimReadyForBinding` and PostFilter of DynamicResources, the same in 1.34 to 1.37. That binding takes longer
than kube-scheduler waits (10 minutes) is not looked at: a dump does not say what time it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dranode.api.resource import DeviceRequestAllocationResult, ResourceClaim
from dranode.driver.claims.allocation import readable_results
from dranode.sim.cluster.holdings import ClaimKey

_TRUE: Final = "True"


def binding_failure(claim: ResourceClaim, pod_uid: str, pod_group: str = "") -> str:
    """Return why the claim keeps the pod from all nodes, in one sentence; empty if its devices have not failed to bind.

    As in kube-scheduler, a device that is not bound yet ends the search for one that has failed.
    """
    if claim.status.allocation is None:
        return ""
    for result in readable_results(claim.status.allocation):
        if not result.binding_conditions:
            continue
        conditions = _conditions(claim, result)
        failed = next((name for name in result.binding_failure_conditions if _holds(conditions, name)), None)
        if failed is not None:
            return _sentence(claim, _then(claim, pod_uid, pod_group), result, conditions[failed])
        if not all(_holds(conditions, name) for name in result.binding_conditions):
            return ""
    return ""


def _then(claim: ResourceClaim, pod_uid: str, pod_group: str) -> str:
    users = claim.status.reserved_for
    if not users or (len(users) == 1 and users[0].uid == pod_uid):
        return "kube-scheduler takes the claim's devices back, and looks for others when it tries the pod again"
    if len(users) == 1 and users[0].is_pod_group and users[0].name == pod_group:
        # PodGroupPostFilter.
        return f"kube-scheduler takes the claim's devices back if no pod of {users[0]} has been scheduled"
    return "the claim keeps its devices, since it is reserved for others too"


def _sentence(
    claim: ResourceClaim, then: str, result: DeviceRequestAllocationResult, condition: Mapping[str, Any]
) -> str:
    why = ", ".join(str(condition[field]) for field in ("type", "reason", "message") if condition.get(field))
    return (
        f"resourceclaim not available on the node: device {result.driver}/{result.pool}/{result.device} of "
        f"{ClaimKey.of(claim)} failed to bind ({why}); {then}"
    )


def _conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, Mapping[str, Any]]:
    """The conditions of the first entry in `status.devices` that is about the device, by type."""
    for entry in claim.status.devices:
        if isinstance(entry, Mapping) and all(
            entry.get(field) == getattr(result, field) for field in ("driver", "pool", "device")
        ):
            listed = entry.get("conditions")
            conditions = listed if isinstance(listed, (list, tuple)) else ()
            return {str(each.get("type")): each for each in reversed(conditions) if isinstance(each, Mapping)}
    return {}


def _holds(conditions: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return conditions.get(name, {}).get("status") == _TRUE
