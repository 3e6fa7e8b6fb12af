"""The faults of a node's memory that `doctor` reports, and how huge pages are reserved there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dranode.driver import HardwareProblem
from dranode.memory.counts import NodeCounts
from dranode.memory.machine import MachineMemory
from dranode.memory.options import ORDINARY, MemoryOptions
from dranode.memory.page_size import MIB, folder_of, resource_name, short_name

# Less than this part of a node's free memory, in percent, in runs of a huge page is called fragmented.
_WHOLE: Final = 50
# A size for which people reserve pages while a machine runs.
_COMMON: Final = 2 * MIB
_NODES: Final = "/sys/devices/system/node"


def memory_problems(
    machine: MachineMemory, options: MemoryOptions, counts: Sequence[NodeCounts]
) -> Iterator[HardwareProblem]:
    """Yield what is wrong with a node's memory, for claims of it."""
    reserve = ",".join(f"{node.id}:1Gi" for node in machine.nodes)
    if not any(pool.total for node in machine.nodes for pool in node.pools.values()):
        yield _no_pages(machine)
    elif not machine.limits_pages:
        yield HardwareProblem(
            "hugetlb-controller-missing",
            "the hugetlb controller is in no cgroup hierarchy where runtimes look for it, so no container is limited "
            "to the huge pages of its claims",
            "add hugetlb to cgroup.subtree_control (systemd does with Delegate=yes), or boot with a kernel that has "
            "CONFIG_CGROUP_HUGETLB",
        )
    if not any(size == ORDINARY and amount for (_, size), amount in options.reserved.items()):
        yield HardwareProblem(
            "memory-unreserved",
            "no ordinary memory is reserved, so claims may be given all that the system, kubelet and pods without "
            "claims need",
            f"pass --reserved-memory {reserve}, with what kubelet reserves",
        )
    if _COMMON in machine.page_sizes:
        yield from (_fragmented(each) for each in counts if _is_fragmented(each))


def _no_pages(machine: MachineMemory) -> HardwareProblem:
    if not machine.page_sizes:
        return HardwareProblem(
            "hugepages-unknown",
            "the kernel has no huge pages, so no claim gets any",
            "boot a kernel with CONFIG_HUGETLBFS",
        )
    sizes = " and ".join(map(resource_name, machine.page_sizes))
    return HardwareProblem(
        "hugepages-none", f"no huge pages are reserved, of {sizes}, so no claim gets any", how_to_reserve(machine)
    )


def how_to_reserve(machine: MachineMemory) -> str:
    """Return how pages are reserved on this machine: at boot and, of one node, while it runs."""
    numbers = [node.id for node in machine.nodes if node.cpus]
    largest, smallest = machine.page_sizes[-1], _COMMON if _COMMON in machine.page_sizes else machine.page_sizes[0]
    at_boot = f"hugepagesz={short_name(largest).upper()} hugepages={','.join(f'{number}:2' for number in numbers)}"
    path = f"{_NODES}/node{numbers[0] if numbers else 0}/hugepages/{folder_of(smallest)}/nr_hugepages"
    return (
        f"reserve some at boot, on the kernel's command line ({at_boot}), or of one node while it runs (echo 512 > "
        f"{path}), and restart kubelet, which counts them when it starts"
    )


def _is_fragmented(node: NodeCounts) -> bool:
    part = node.part_in_runs(_COMMON)
    return part is not None and part < _WHOLE


def _fragmented(node: NodeCounts) -> HardwareProblem:
    part = node.part_in_runs(_COMMON)
    return HardwareProblem(
        "memory-fragmented",
        f"of the free memory of NUMA node {node.id} {part} % lies in runs of 2Mi or more, so about "
        f"{node.runs[_COMMON] // _COMMON} more huge pages of that size can be reserved while it runs",
        "echo 1 > /proc/sys/vm/compact_memory before you reserve more, or reserve them at boot",
    )
