"""How a claim's containers are treated beyond their CPU set: what `Grant.state` of the CPU driver holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dranode.cpu.config import CFSQuota, CPUPolicy, CPUSharing, Memory
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.documents import decode, encode
from dranode.driver.core.claims.grant import Grant


class Treatment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What becomes of the containers that have an allocation result, or a whole claim.

    Attributes:
        sharing: which of them may run at the same time.
        cfs_quota: whether their CPU limit is lifted.
        memory: local: `mems` becomes their `cpuset.mems`.
        mems: with local memory, the NUMA nodes of the CPUs (a list such as 0-1); else empty.
    """

    sharing: CPUSharing = CPUSharing.CONTAINER
    cfs_quota: CFSQuota = CFSQuota.KEEP
    memory: Memory = Memory.NONE
    mems: str = ""


def treatment_state(policy: CPUPolicy, mems: str) -> Any:
    """The plain JSON for `Grant.state`; None where all is as by default."""
    wanted = Treatment(sharing=policy.sharing, cfs_quota=policy.cfs_quota, memory=policy.memory, mems=mems)
    return encode(wanted) or None


def treatment_of(grant: Grant) -> Treatment:
    """How the containers of one allocation result are treated.

    Raises:
        DocumentError: the state is not this driver's.
    """
    return decode(Treatment, grant.state or {})


def claim_treatment(grants: Iterable[Grant]) -> Treatment:
    """How the containers of a whole claim are treated, since pinning is per claim.

    What its results agree on: several containers at a time, or local memory, only if every result says so; the quota is
    lifted if one does. Admin access has no say.

    Raises:
        DocumentError: a state is not this driver's.
    """
    each = [treatment_of(grant) for grant in grants if not grant.admin]
    if not each:
        return Treatment()
    local = all(one.memory is Memory.LOCAL for one in each)
    return Treatment(
        sharing=CPUSharing.POD if all(one.sharing is CPUSharing.POD for one in each) else CPUSharing.CONTAINER,
        cfs_quota=CFSQuota.UNLIMITED if any(one.cfs_quota is CFSQuota.UNLIMITED for one in each) else CFSQuota.KEEP,
        memory=Memory.LOCAL if local else Memory.NONE,
        mems=str(CPUSet.union(CPUSet.parse(one.mems) for one in each)) if local else "",
    )
