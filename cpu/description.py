"""What a claim's status says of its CPUs."""

from __future__ import annotations

from typing import Any

from dranode.cpu.devices import individual_cpu
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.grant import Grant
from dranode.driver.core.claims.record import Record


def description(grant: Grant, record: Record, topology: Topology) -> dict[str, Any]:
    """The CPUs that the grant's containers run on and their NUMA nodes; empty for admin access, which pins nothing.

    A grant of many scattered CPUs does not keep them for itself; it is described by those of its whole claim.
    """
    if grant.admin:
        return {}
    told = grant.attributes.get("dra.cpu/cpuset")
    single = individual_cpu(grant.device)
    if grant.cpus is not None:
        cpus = CPUSet.parse(grant.cpus)
    elif told is not None and told.string:
        cpus = CPUSet.parse(told.string)
    else:
        cpus = CPUSet.parse(record.cpus) if single is None else CPUSet((single,))
    nodes = {topology.cpus[cpu].numa for cpu in cpus if cpu in topology.cpus} - {None}
    return {"cpus": str(cpus), "numaNodes": sorted(node for node in nodes if node is not None)} if cpus else {}
