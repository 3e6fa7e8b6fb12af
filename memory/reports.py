"""Reports the state of a node's memory to people: problems for `doctor`, and a table for `topology`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dranode.api import CPUSet, Quantity
from dranode.driver import HardwareProblem
from dranode.memory.counts import NodeCounts
from dranode.memory.machine import MIB, MachineMemory, folder_of, resource_name, short_name
from dranode.memory.options import ORDINARY, MemoryOptions

# Memory counts as fragmented if less than this percentage of a node's free memory is in runs as long as a huge page.
_FRAGMENTED_BELOW: Final = 50
# Pages of this size are often reserved while the machine runs.
_COMMON: Final = 2 * MIB
_NODES: Final = "/sys/devices/system/node"
_WHOLE_MACHINE: Final = "/sys/kernel/mm"


def memory_problems(
    machine: MachineMemory, options: MemoryOptions, counts: Sequence[NodeCounts]
) -> Iterator[HardwareProblem]:
    """Yield problems of the machine's memory that affect claims."""
    # Claims never get memory of other nodes.
    with_cpus = [node.id for node in machine.nodes if node.cpus]
    if not any(pool.total for node in machine.nodes for pool in node.pools.values()):
        yield from _no_pages(machine)
    elif not machine.limits_pages:
        yield HardwareProblem(
            "hugetlb-controller-missing",
            "the hugetlb controller is in no cgroup hierarchy where runtimes look for it, so no container is limited "
            "to the huge pages of its claims",
            "add hugetlb to cgroup.subtree_control (systemd does with Delegate=yes), or boot with a kernel that has "
            "CONFIG_CGROUP_HUGETLB",
        )
    if with_cpus and not any(size == ORDINARY and amount for (_, size), amount in options.reserved.items()):
        yield HardwareProblem(
            "memory-unreserved",
            "no ordinary memory is reserved, so claims may be given all that the system, kubelet and pods without "
            "claims need",
            f"pass --reserved-memory {','.join(f'{number}:1Gi' for number in with_cpus)}, with what kubelet reserves",
        )
    if _COMMON in machine.page_sizes:
        yield from (_fragmented(count) for count in counts if count.id in with_cpus and _is_fragmented(count))


def _no_pages(machine: MachineMemory) -> Iterator[HardwareProblem]:
    """Yield a problem if there are no huge pages. If a node does not count its pages, there is a warning already."""
    if machine.unseen_pages:
        return
    if not machine.page_sizes:
        yield HardwareProblem(
            "hugepages-unknown",
            "/sys/kernel/mm/hugepages shows no size of huge pages, so no claim gets any",
            "boot a kernel with CONFIG_HUGETLBFS, and check that the driver's pod sees the node's /sys",
        )
    else:
        sizes = " and ".join(map(resource_name, machine.page_sizes))
        what = f"no huge pages are reserved ({sizes}), so no claim gets any"
        yield HardwareProblem("hugepages-none", what, how_to_reserve(machine))


def how_to_reserve(machine: MachineMemory) -> str:
    """Return how to reserve pages on this machine: at boot, or on one node while it runs."""
    numbers = [node.id for node in machine.nodes if node.cpus] or [node.id for node in machine.nodes]
    largest, smallest = machine.page_sizes[-1], _COMMON if _COMMON in machine.page_sizes else machine.page_sizes[0]
    counts = ",".join(f"{number}:2" for number in numbers) if machine.numa else "2"
    at_boot = f"hugepagesz={short_name(largest).upper()} hugepages={counts}"
    pages = f"{_NODES}/node{numbers[0]}" if machine.numa else _WHOLE_MACHINE
    return (
        f"reserve some at boot, on the kernel's command line ({at_boot}), or {'on one node ' if machine.numa else ''}"
        f"while it runs (echo 512 > {pages}/hugepages/{folder_of(smallest)}/nr_hugepages), and restart kubelet, which "
        "counts them when it starts"
    )


def _is_fragmented(node: NodeCounts) -> bool:
    part = node.part_in_runs(_COMMON)
    return part is not None and part < _FRAGMENTED_BELOW


def _fragmented(node: NodeCounts) -> HardwareProblem:
    part = node.part_in_runs(_COMMON)
    return HardwareProblem(
        "memory-fragmented",
        f"only {part} % of the free memory of NUMA node {node.id} is in runs of 2Mi or more, so about "
        f"{node.runs[_COMMON] // _COMMON} more huge pages of that size can be reserved while it runs",
        "echo 1 > /proc/sys/vm/compact_memory before you reserve more, or reserve them at boot",
    )


# The table of a node's present memory, for `topology`.


def count_rows(
    counts: Iterable[NodeCounts], given: Mapping[tuple[int, int], int]
) -> Iterator[dict[str, str | int | None]]:
    """Yield a row for the ordinary memory of each node and one for each size of its huge pages.

    Args:
        counts: the present state of the nodes.
        given: the bytes that claims may get, by node and page size.
    """
    for node in counts:
        yield {
            "NUMA node": node.id,
            "memory": "memory",
            "all": str(_rounded(node.total)),
            "reserved pages": None,
            "free": None if node.free is None else str(_rounded(node.free)),
            "used by pods": None,
            "published": str(_rounded(given.get((node.id, ORDINARY), 0))),
            "could be added": None,
        }
        for size, pool in node.pools.items():
            yield {
                "NUMA node": node.id,
                "memory": resource_name(size),
                "all": None if pool.total is None else str(_rounded(pool.total * size)),
                "reserved pages": pool.total,
                "free": pool.free,
                "used by pods": pool.pods,
                "published": str(_rounded(given.get((node.id, size), 0))),
                "could be added": pool.addable,
            }


def count_remarks(counts: Iterable[NodeCounts]) -> Iterator[str]:
    """Yield how fragmented the free memory of each node is, and which numbers are unknown."""
    counts = tuple(counts)
    parts = {node.id: node.part_in_runs(2 * MIB) for node in counts}
    unknown = CPUSet(node for node, part in parts.items() if part is None)
    if unknown:
        nodes = f"NUMA node{'s' if len(unknown) > 1 else ''} {unknown}"
        yield f"{nodes}: the fragmentation of the memory is not known (/proc/buddyinfo, /proc/zoneinfo)"
    for node in counts:
        part = parts[node.id]
        if part is not None:
            yield f"NUMA node {node.id}: {part} % of the free memory is in runs of 2Mi or more"
        for size, pool in node.pools.items():
            pages = f"pages of {Quantity.binary(size)} are surplus"
            if pool.surplus is None and pool.total != 0:
                yield f"NUMA node {node.id}: it is not known how many {pages}, so claims get none"
            elif pool.surplus:
                yield f"NUMA node {node.id}: {pool.surplus} {pages}, and claims do not get them"
            if pool.promised:
                yield (
                    f"NUMA node {node.id}: {pool.promised} of the free pages of {Quantity.binary(size)} may be "
                    "promised to processes outside pods, and claims do not get them"
                )


def _rounded(size: int) -> Quantity:
    return Quantity.binary(size // MIB * MIB)
