"""What containers run on: the CPUs of their claims, or the shared pool, which is what claims and the system leave."""

from __future__ import annotations

from collections.abc import Iterable

from dranode.cpu.claim_env import CDI_KIND, CPUSET_PREFIX
from dranode.cpu.config import CFSQuota, Sharing
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import claim_treatment
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.held_claims import HeldClaim, HeldSnapshot
from dranode.driver.core.record import Record


def snapshot(topology: Topology, reserved: CPUSet, records: Iterable[Record]) -> HeldSnapshot:
    """The claims on record as NRI enforces them."""
    return HeldSnapshot(
        claims={record.uid: _held_claim(record) for record in records},
        online=topology.online,
        reserved=reserved,
        mems=str(CPUSet(topology.memory_nodes)),
        variable=CPUSET_PREFIX,
        cdi_kind=CDI_KIND,
    )


def _held_claim(record: Record) -> HeldClaim:
    treatment = claim_treatment(record.grants)
    return HeldClaim(
        claim=record.ref,
        cpus=CPUSet.parse(record.cpus),
        held=CPUSet.parse(record.held),
        pods=frozenset(pod.uid for pod in record.pods if pod.uid),
        shared_in_pod=treatment.sharing is Sharing.POD,
        mems=treatment.mems,
        lift_quota=treatment.cfs_quota is CFSQuota.UNLIMITED,
    )
