"""Decides what a claim's containers are held to: the NUMA nodes of its memory, and the amounts of its huge pages."""

from __future__ import annotations

from dranode.api import CPUSet
from dranode.driver import HeldClaim, HeldSnapshot, Part, Record
from dranode.memory.config import MemoryPolicy, MemorySharing
from dranode.memory.devices import GivenMemory
from dranode.memory.grant import CDI_KIND, CLAIM_PREFIX, PART_PREFIX
from dranode.memory.machine import MachineMemory
from dranode.memory.options import MemoryOptions


def memory_pool(machine: MachineMemory, options: MemoryOptions) -> HeldSnapshot:
    """Return the machine without a claim, as NRI enforces it; CPUs are another driver's business."""
    return HeldSnapshot(
        pins_cpus=False,
        mems=CPUSet(node.id for node in machine.for_pods),
        page_sizes=machine.page_sizes if machine.limits_pages else (),
        exclusive_pages=options.exclusive,
        unified_pages=machine.unified,
        variable=CLAIM_PREFIX,
        part_variable=PART_PREFIX,
        cdi_kind=CDI_KIND,
    )


def unread_memory_pool() -> HeldSnapshot:
    """Return what NRI can enforce of a machine of which nothing is known."""
    return memory_pool(MachineMemory(()), MemoryOptions())


def held_memory(record: Record) -> HeldClaim:
    """Return a record's claim, as NRI enforces it."""
    given = [GivenMemory.of(grant) for grant in record.grants]
    sharing = {each.sharing for each in given if each is not None}
    claim = HeldClaim(
        record.ref,
        pods=frozenset(pod.uid for pod in record.pods if pod.is_pod and pod.uid),
        shared_in_pod=sharing == {MemorySharing.POD},
    )
    return claim.with_parts(tuple(_part(index, each) for index, each in enumerate(given)))


def _part(index: int, given: GivenMemory | None) -> Part:
    """Return what one allocation result was given; a result with admin access holds nothing."""
    if given is None:
        return Part(index)
    return Part(
        index,
        nodes=given.nodes,
        binds=given.policy is not MemoryPolicy.PREFERRED,
        memory=0 if given.page_size else given.size,
        hugepages=((given.page_size, given.size),) if given.page_size else (),
    )
