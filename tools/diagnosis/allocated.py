"""What the API server knows about an allocated claim: its node, who may use it, and what its drivers report."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.driver.claims.answers import NOT_ENFORCED
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.status import PREPARE_FAILED, READY
from dranode.tools.diagnosis.steps import Step, StopCause, passed, stopped, unseen

_UNREADY: Final = {
    PREPARE_FAILED: (StopCause.PREPARE_REFUSED, "fix this; kubelet tries again by itself"),
    NOT_ENFORCED: (
        StopCause.NRI_OFF,
        "fix this; containers are held to the claim once the runtime is connected",
    ),
}
_UNHEALTHY: Final = (StopCause.DEVICE_UNHEALTHY, "recreate the pod on other devices, and check the hardware")


def node_of(claim: ResourceClaim, driver: str) -> str:
    """Return the node of a claim's devices of one driver; empty if its allocation does not say.

    This is the node in the allocation's node selector. Without a selector it is the name of the pool, because many
    drivers name pools after nodes.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ""
    if allocation.node_selector is not None and allocation.node_selector.node_selector_terms:
        names = selected_nodes(allocation)
        return names.pop() if len(names) == 1 else ""
    pools = {result.pool for result in readable_results(allocation) if result.driver == driver}
    return pools.pop() if len(pools) == 1 else ""


def selected_nodes(allocation: AllocationResult) -> set[str]:
    """Return the nodes that an allocation's node selector names; none if it selects by labels."""
    terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else ()
    return {
        value for term in terms for field in term.match_fields if field.key == "metadata.name" for value in field.values
    }


def follow_allocated(claim: ResourceClaim, driver: str) -> Iterator[Step]:
    """Yield what is known about a claim's devices of one driver: their names, who may use them, and their status."""
    results = [result for result in readable_results(claim.status.allocation) if result.driver == driver]
    devices = ", ".join(f"{result.device}{' (admin access)' if result.admin_access else ''}" for result in results)
    pools = ", ".join(sorted({result.pool for result in results}))
    users = ", ".join(map(str, claim.status.reserved_for))
    if not users:
        yield unseen("allocation", f"{devices} of pool {pools}, not reserved for any pod at the moment")
    else:
        yield passed("allocation", f"{devices} of pool {pools}, reserved for {users}")
    yield _driver_status(claim, driver)


def _driver_status(claim: ResourceClaim, driver: str) -> Step:
    """Return the step that the driver reports in `status.devices`."""
    conditions = list(ready_conditions(claim, driver))
    for condition in conditions:
        if condition.get("status") == "False":
            what = str(condition.get("message") or condition.get("reason")).rstrip(".")
            cause, fix = _UNREADY.get(str(condition.get("reason")), _UNHEALTHY)
            return stopped("driver", cause, what, fix)
    for condition in conditions:
        if condition.get("reason") == NOT_ENFORCED:
            return passed("driver", f"{driver} has prepared it, and reports: {condition.get('message')}")
    if conditions:
        return passed("driver", f"{driver} reports that its devices are ready")
    return unseen("driver", f"{driver} does not report anything about it in status.devices, which is optional")


def ready_conditions(claim: ResourceClaim, driver: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the `Ready` conditions in `status.devices`, of one driver or of all."""
    for entry in claim.status.devices:
        if isinstance(entry, Mapping) and driver in ("", entry.get("driver")):
            for condition in entry.get("conditions") or ():
                if isinstance(condition, Mapping) and condition.get("type") == READY:
                    yield condition
