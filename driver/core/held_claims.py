"""The claims on record as enforcement sees them: one immutable snapshot, published whenever a claim comes or goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.held import ClaimRef
from dranode.driver.core.record import claim_device


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """One claim on record.

    Attributes:
        claim: its identity.
        cpus: the CPUs on which its containers run.
        held: the CPUs that nobody else gets; empty if it holds nothing (admin access), and then anybody may share it.
        pods: UIDs of the pods that it was reserved for at its last Prepare.
        shared_in_pod: every container of one pod may use it at a time; else one container.
        mems: `cpuset.mems` of its containers (list format); empty if they take memory from anywhere.
        lift_quota: its containers have no CFS quota.
    """

    claim: ClaimRef
    cpus: CPUSet
    held: CPUSet
    pods: frozenset[str] = frozenset()
    shared_in_pod: bool = False
    mems: str = ""
    lift_quota: bool = False


@dataclass(frozen=True)
class HeldSnapshot:
    """What is on record at one moment, and the machine that it is on record for.

    Attributes:
        claims: all claims on record by UID, those without a container included.
        online: the CPUs that are online.
        reserved: the CPUs that are never given to claims.
        mems: the machine's memory nodes (list format); empty if unknown.
        variable: the prefix of the variable that CDI injects, before the claim's UID; empty if there is none.
        cdi_kind: the kind of this driver's CDI devices; empty if there are none.
    """

    claims: Mapping[str, HeldClaim] = field(default_factory=dict)
    online: CPUSet = field(default_factory=CPUSet)
    reserved: CPUSet = field(default_factory=CPUSet)
    mems: str = ""
    variable: str = ""
    cdi_kind: str = ""

    @cached_property
    def held(self) -> CPUSet:
        """The CPUs that claims hold."""
        return CPUSet.union(claim.held for claim in self.claims.values())

    @cached_property
    def shared(self) -> CPUSet:
        """The CPUs of containers without a claim; the reserved ones if claims leave no other, and perhaps none."""
        free = self.online - self.held
        return (free - self.reserved) or free

    @cached_property
    def by_pod(self) -> Mapping[str, tuple[HeldClaim, ...]]:
        """The claims of every pod, by the pod's UID."""
        pods: dict[str, tuple[HeldClaim, ...]] = {}
        for claim in self.claims.values():
            for uid in claim.pods:
                pods[uid] = (*pods.get(uid, ()), claim)
        return pods

    def claims_of_devices(self, devices: Iterable[str]) -> Iterator[str]:
        """The UIDs of the claims whose CDI devices these are; other drivers' devices are passed over.

        A claim's devices are `<kind>=claim-<uid>` and `<kind>=claim-<uid>-<index>`.
        """
        prefix = f"{self.cdi_kind}={claim_device('')}"
        if not self.cdi_kind:
            return
        for device in devices:
            if not device.startswith(prefix):
                continue
            uid = device.removeprefix(prefix)
            whole, _, index = uid.rpartition("-")
            yield whole if uid not in self.claims and index.isdecimal() and whole in self.claims else uid
