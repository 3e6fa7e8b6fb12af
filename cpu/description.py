"""The entry about CPUs in a claim's status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dranode.api.cpuset import CPUSet
from dranode.cpu.devices import individual_cpus
from dranode.cpu.policies import Isolation
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import treatment_of
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.record import Record

# A claim's status has room for 10 KiB.
_STAYS: Final = 8


def description(grant: Grant, record: Record, topology: Topology) -> dict[str, Any]:
    """Return the CPUs that the grant's containers run on, and their NUMA nodes; empty for admin access.

    A grant of many scattered CPUs does not record its own list, so it is described by the CPUs of its whole claim.
    """
    if grant.admin:
        return {}
    published = grant.attributes.get("dra.cpu/cpuset")
    device = individual_cpus(grant.device, topology)
    if grant.cpus is not None:
        cpus = grant.cpus
    elif published is not None and published.string:
        cpus = CPUSet.parse(published.string)
    else:
        cpus = record.cpus if device is None else device
    nodes = {topology.cpus[cpu].numa for cpu in cpus if cpu in topology.cpus} - {None}
    return {"cpus": str(cpus), "numaNodes": sorted(node for node in nodes if node is not None)} if cpus else {}


def isolation_description(grant: Grant, unmoved: Sequence[str] | None) -> dict[str, Any]:
    """Return how far the grant's CPUs are isolated, with some sentences on what stays; empty if not at all.

    `unmoved` is None where nobody has looked yet, and then nothing is said of it.

    Raises:
        DocumentError: the state is not this driver's.
    """
    isolation = treatment_of(grant).isolation
    if grant.admin or isolation is Isolation.CPUSET:
        return {}
    stays = {} if unmoved is None else {"stays": list(unmoved[:_STAYS]), "staysInAll": len(unmoved)}
    return {"isolation": isolation.value, **stays}
