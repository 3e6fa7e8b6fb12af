"""The entry about CPUs in a claim's status."""

from __future__ import annotations

from typing import Any

from dranode.cpu.devices import individual_cpu
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.grant import Grant
from dranode.driver.core.claims.record import Record


def description(grant: Grant, record: Record, topology: Topology) -> dict[str, Any]:
    """Return the CPUs that the grant's containers run on, and their NUMA nodes; empty for admin access.

    A grant of many scattered CPUs does not record its own list, so it is described by the CPUs of its whole claim.
    """
    if grant.admin:
        return {}
    published = grant.attributes.get("dra.cpu/cpuset")
    single = individual_cpu(grant.device)
    if grant.cpus is not None:
        cpus = grant.cpus
    elif published is not None and published.string:
        cpus = CPUSet.parse(published.string)
    else:
        cpus = record.cpus if single is None else CPUSet((single,))
    nodes = {topology.cpus[cpu].numa for cpu in cpus if cpu in topology.cpus} - {None}
    return {"cpus": str(cpus), "numaNodes": sorted(node for node in nodes if node is not None)} if cpus else {}
