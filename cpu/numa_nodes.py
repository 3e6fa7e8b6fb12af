"""Reads which NUMA node each CPU is on and which nodes have memory, from `/sys/devices/system/node`.

Source: Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dranode.cpu.kernel_files import CPU_ROOT, NODE_ROOT, KernelFiles
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.machine.numa import missing_nodes

_NODE: Final = ("cpulist", "cpumap")
_MEMORY: Final = re.compile(r"MemTotal:\s+([0-9]{1,18}) kB", re.ASCII)


def read_numa_nodes(files: KernelFiles, online: int) -> tuple[Mapping[int, int], Mapping[int, CPUSet], frozenset[int]]:
    """Return each CPU's NUMA node, the CPUs of each node that has any, and the nodes that have memory.

    Of two nodes that claim a CPU the lower has it; the first contradiction of each kind becomes one of the files'.

    Args:
        files: the machine's.
        online: the CPUs that are online, as bits.

    Raises:
        MachineError: a file cannot be read or parsed.
    """
    nodes = files.numbered(NODE_ROOT, "node")
    for sentence in missing_nodes(files.root):
        files.doubt("missing node", sentence)
    node_of: dict[int, int] = {}
    for node in nodes:
        claimed = _node_cpus(files, node) & online
        for cpu in CPUSet.of_mask(claimed):
            if cpu in node_of:
                files.doubt("node", f"the NUMA nodes {node_of[cpu]} and {node} both claim cpu{cpu}; the lower has it")
            else:
                node_of[cpu] = node
    for cpu in CPUSet.of_mask(online):
        if cpu not in node_of and (own := _own_node(files, cpu)) is not None:
            node_of[cpu] = own
    _doubt_unclaimed(files, CPUSet.of_mask(online & ~CPUSet(node_of).mask), nodes, node_of)
    if not node_of and not nodes:
        # A kernel without NUMA support has no folder for its one node, which mempolicy and cpusets call node 0.
        return dict.fromkeys(CPUSet.of_mask(online), 0), {0: CPUSet.of_mask(online)}, frozenset({0})
    masks: dict[int, int] = {}
    for cpu, node in node_of.items():
        masks[node] = masks.get(node, 0) | 1 << cpu
    by_first = sorted(masks, key=lambda node: masks[node] & -masks[node])
    return node_of, {node: CPUSet.of_mask(masks[node]) for node in by_first}, _memory_nodes(files, nodes)


def _doubt_unclaimed(files: KernelFiles, unclaimed: CPUSet, nodes: Sequence[int], node_of: Mapping[int, int]) -> None:
    if nodes and not node_of:
        files.doubt("no node", "no NUMA node claims a CPU, though there are nodes; the CPUs are on none")
    elif unclaimed and node_of:
        files.doubt("no node", f"no NUMA node claims the CPUs {unclaimed}, though others are claimed; they are on none")


def _node_cpus(files: KernelFiles, node: int) -> int:
    folder = f"{NODE_ROOT}/node{node}"
    for name in _NODE:
        if (cpus := files.mask(f"{folder}/{name}")) is not None:
            return cpus
    return CPUSet(files.numbered(folder, "cpu")).mask


def _own_node(files: KernelFiles, cpu: int) -> int | None:
    """Return the node that the CPU's folder links to; a dangling link, to an offline node, does not count."""
    folder = f"{CPU_ROOT}/cpu{cpu}"
    return min(
        (node for node in files.numbered(folder, "node") if files.root.exists(f"{folder}/node{node}")),
        default=None,
    )


def _memory_nodes(files: KernelFiles, nodes: Iterable[int]) -> frozenset[int]:
    listed = files.mask(f"{NODE_ROOT}/has_memory")
    if listed is not None:
        return frozenset(CPUSet.of_mask(listed))
    sizes = {node: _MEMORY.search(files.text(f"{NODE_ROOT}/node{node}/meminfo") or "") for node in nodes}
    return frozenset(node for node, size in sizes.items() if size is not None and int(size[1]) > 0)
