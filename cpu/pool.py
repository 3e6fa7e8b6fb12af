"""The CPUs that containers run on: those of their claims, or the shared pool that claims and the system leave."""

from __future__ import annotations

from msgspec.structs import replace

from dranode.cpu.claim_env import CDI_KIND, CPUSET_PREFIX, REQUEST_PREFIX
from dranode.cpu.config import CFSQuota, CPUSharing
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import claim_treatment, treatment_of
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.expected_cpus import given_cpus
from dranode.driver.core.claims.grant import Grant
from dranode.driver.core.claims.record import Record
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot, Part


def pool(topology: Topology, reserved: CPUSet) -> HeldSnapshot:
    """Return the machine without a claim, as NRI enforces it: what pods may use of it."""
    nodes = CPUSet(topology.memory_nodes)
    return replace(unread_pool(topology.for_pods, reserved), mems=nodes - topology.pods.lacks_nodes(nodes))


def unread_pool(online: CPUSet, reserved: CPUSet) -> HeldSnapshot:
    """Return what NRI can enforce of a machine of which no more is known than these CPUs."""
    return HeldSnapshot(
        online=online,
        reserved=reserved,
        variable=CPUSET_PREFIX,
        part_variable=REQUEST_PREFIX,
        cdi_kind=CDI_KIND,
    )


def held_claim(record: Record) -> HeldClaim:
    """Return a record's claim, as NRI enforces it."""
    treatment = claim_treatment(record.grants)
    given = given_cpus(record)
    return HeldClaim(
        claim=record.ref,
        cpus=given.whole,
        held=record.held,
        pods=frozenset(pod.uid for pod in record.pods if pod.is_pod and pod.uid),
        shared_in_pod=treatment.sharing is CPUSharing.POD,
        mems=treatment.mems,
        lift_quota=treatment.cfs_quota is CFSQuota.UNLIMITED,
        with_pool=any(grant.with_pool for grant in record.grants),
        parts=tuple(_part(index, cpus, record.grants[index]) for index, cpus in given.parts.items()),
    )


def _part(index: int, cpus: CPUSet, grant: Grant) -> Part:
    """Return what one allocation result was given."""
    return Part(index, cpus, grant.held, treatment_of(grant).mems, grant.with_pool)
