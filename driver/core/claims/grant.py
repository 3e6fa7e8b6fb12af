"""A claim as far as it concerns one driver, and what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from dranode.cdi.spec import ContainerEdits
from dranode.driver.core.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.core.api.resource import DeviceAttribute, DeviceRequestAllocationResult
from dranode.driver.core.claims.configs import Config
from dranode.driver.core.claims.held import ClaimRef


class AllocatedResult(msgspec.Struct, frozen=True):
    """One allocation result of this driver with the configurations that apply to it; later override earlier ones."""

    result: DeviceRequestAllocationResult
    configs: tuple[Config, ...] = ()


class AllocatedClaim(msgspec.Struct, frozen=True):
    """A claim as far as it concerns this driver: who it is and what was allocated, in the order of the allocation."""

    ref: ClaimRef
    results: tuple[AllocatedResult, ...]


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The devices, CPUs and edits that one allocation result was given.

    Attributes:
        request: `<request>` or `<request>/<subrequest>`, as in the result.
        pool: the result's pool.
        device: the result's device.
        share_id: the result's share, for a device that is allocated several times.
        admin: admin access: the device may be held by others, and this grant holds nothing.
        edits: what a container that names this request gets, beyond the claim's own edits.
        attributes: device metadata for the workload (KEP-5304), beside the attributes that are published.
        state: plug-in state that `configure` and `restore` need; plain JSON.
        cpus: the CPUs on which containers run that name this request alone, perhaps none, where the claim's
            requests are distinguished by `edits`; None where every container with the claim runs on all of it.
        held: the CPUs of this request that no other claim gets, where `cpus` is not None. Both are cpu-lists in JSON.
        with_pool: whether containers with this grant run on the shared pool besides, whatever that is at the moment.
        amount: how much the claim holds of a device that several claims share, in the driver's own unit; `Held.amount`
            adds it up by `Plugin.sources`. 0 where the driver counts nothing.
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    admin: bool = False
    edits: ContainerEdits | None = None
    attributes: Mapping[str, DeviceAttribute] = {}
    state: Any = None
    cpus: CPUSet | None = None
    held: CPUSet = NO_CPUS
    with_pool: bool = False
    amount: int = 0

    def __post_init__(self) -> None:
        # As in a record: what is left out is a default by its identity.
        if not self.held:
            msgspec.structs.force_setattr(self, "held", NO_CPUS)

    @classmethod
    def of(
        cls,
        result: DeviceRequestAllocationResult,
        *,
        edits: ContainerEdits | None = None,
        attributes: Mapping[str, DeviceAttribute] | None = None,
        state: Any = None,
        amount: int = 0,
    ) -> Self:
        """The grant of a result, with what is particular to it."""
        return cls(
            request=result.request,
            pool=result.pool,
            device=result.device,
            share_id=result.share_id,
            admin=bool(result.admin_access),
            edits=edits,
            attributes=attributes or {},
            state=state,
            amount=amount,
        )


class ClaimGrant(msgspec.Struct, frozen=True):
    """The grants of a claim.

    Attributes:
        grants: one for each result, in the order of the results.
        edits: what every container with the claim gets, whichever request it names.
        cpus: the CPUs on which the claim's containers run (CPU drivers only).
        held: the CPUs that no other claim gets; a superset of `cpus`.
    """

    grants: tuple[Grant, ...]
    edits: ContainerEdits | None = None
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    held: CPUSet = msgspec.field(default_factory=CPUSet)
