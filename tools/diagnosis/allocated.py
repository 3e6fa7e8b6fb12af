"""The state of an allocated claim by what the cluster says of it, for each of its drivers, ours and others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dranode.api.resource import ResourceClaim
from dranode.driver.claims.allocation import readable_results
from dranode.driver.claims.answers import NOT_ENFORCED
from dranode.driver.claims.status import PREPARE_FAILED, READY
from dranode.tools.diagnosis.causes import StopCause
from dranode.tools.diagnosis.station import Station, stopped, unseen, went

_UNREADY: Final = {
    PREPARE_FAILED: (StopCause.PREPARE_REFUSED, "do what the driver says; kubelet asks again by itself"),
    NOT_ENFORCED: (
        StopCause.NRI_OFF,
        "do what the driver says; containers are held to the claim once the runtime is connected",
    ),
}
_LESS: Final = (StopCause.DEVICE_UNHEALTHY, "recreate the pod on other devices, and see to the hardware")


def node_of(claim: ResourceClaim, driver: str) -> str:
    """Return the node on which a claim's devices of a driver are; empty if its allocation does not say.

    That is the one of its node selector, else the name of the pool, where a driver's pools are called like nodes.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ""
    terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else ()
    names = {
        value for term in terms for field in term.match_fields if field.key == "metadata.name" for value in field.values
    }
    if terms:
        return names.pop() if len(names) == 1 else ""
    pools = {result.pool for result in readable_results(allocation) if result.driver == driver}
    return pools.pop() if len(pools) == 1 else ""


def follow_allocated(claim: ResourceClaim, driver: str) -> Iterator[Station]:
    """Yield what is known of a claim's devices of one driver: which, who may use them, what it says of them."""
    results = [result for result in readable_results(claim.status.allocation) if result.driver == driver]
    devices = ", ".join(f"{result.device}{' (admin access)' if result.admin_access else ''}" for result in results)
    pools = ", ".join(sorted({result.pool for result in results}))
    users = ", ".join(map(str, claim.status.reserved_for))
    if not users:
        yield unseen("allocation", f"{devices} of pool {pools}, reserved for nobody at the moment")
    else:
        yield went("allocation", f"{devices} of pool {pools}, reserved for {users}")
    yield _said(claim, driver)


def _said(claim: ResourceClaim, driver: str) -> Station:
    conditions = list(ready_conditions(claim, driver))
    for condition in conditions:
        if condition.get("status") == "False":
            what = str(condition.get("message") or condition.get("reason")).rstrip(".")
            cause, fix = _UNREADY.get(str(condition.get("reason")), _LESS)
            return stopped("driver", cause, what, fix)
    for condition in conditions:
        if condition.get("reason") == NOT_ENFORCED:
            return went("driver", f"{driver} has prepared it, and says: {condition.get('message')}")
    if conditions:
        return went("driver", f"{driver} says that its devices are ready")
    return unseen("driver", f"{driver} says nothing of it in status.devices, which a driver need not")


def ready_conditions(claim: ResourceClaim, driver: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the conditions `Ready` in `status.devices`, of one driver or of all."""
    for entry in claim.status.devices:
        if isinstance(entry, Mapping) and driver in ("", entry.get("driver")):
            for condition in entry.get("conditions") or ():
                if isinstance(condition, Mapping) and condition.get("type") == READY:
                    yield condition
