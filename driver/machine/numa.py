"""A machine's NUMA nodes and their CPUs, from Documentation/ABI/stable/sysfs-devices-node."""

import re
from collections.abc import Mapping
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.machine.root import Root, all_names, names, read_attribute

NODES: Final = "sys/devices/system/node"
_CPU_FOLDERS: Final = "sys/devices/system/cpu"
_NODE: Final = re.compile(r"node(?P<id>[0-9]+)", re.ASCII)
_TOTAL: Final = r"(?a)MemTotal:\s+([0-9]{1,18}) kB"
_DISTANCE: Final = r"(?a)[0-9]{1,9}"
_CPU: Final = re.compile(r"cpu(?P<id>[0-9]+)", re.ASCII)


def node_cpus(root: Root) -> dict[int, CPUSet]:
    """Return the CPUs of every NUMA node that has any.

    They are read from the folder of the node, or from the folders of the CPUs if that does not show them.

    Raises:
        MachineError: the nodes cannot be listed, or this process cannot open any file.
    """
    listed = {node: _cpus(root, f"{NODES}/node{node}") for node in _nodes(root)}
    linked = _linked(root) if None in listed.values() else {}
    known = {node: linked.get(node, CPUSet()) if cpus is None else cpus for node, cpus in listed.items()}
    # A node may have only memory, such as high-bandwidth memory or that of a GPU.
    return {node: cpus for node, cpus in known.items() if cpus}


def node_memory(root: Root) -> dict[int, int]:
    """Return the bytes of memory of every NUMA node whose `meminfo` can be read.

    Raises:
        MachineError: the nodes cannot be listed, or this process cannot open any file.
    """
    texts = {node: read_attribute(root, f"{NODES}/node{node}/meminfo") or "" for node in _nodes(root)}
    totals = {node: re.search(_TOTAL, text) for node, text in texts.items()}
    # The kernel's kB are 1024 bytes.
    return {node: int(match[1]) * 1024 for node, match in totals.items() if match}


def node_distances(root: Root) -> dict[int, dict[int, int]]:
    """Return the distances between all NUMA nodes, 10 to itself; a node whose row cannot be used is missing.

    Raises:
        MachineError: the nodes cannot be listed, or this process cannot open any file.
    """
    nodes = _nodes(root)
    # A row has a distance for each node that is online, by number (drivers/base/node.c).
    rows = {node: (read_attribute(root, f"{NODES}/node{node}/distance") or "").split() for node in nodes}
    return {
        node: dict(zip(nodes, map(int, row), strict=True))
        for node, row in rows.items()
        if len(row) == len(nodes) and all(re.fullmatch(_DISTANCE, distance) for distance in row)
    }


def missing_nodes(root: Root) -> tuple[str, ...]:
    """Return a sentence if other files name NUMA nodes that have no folder, so that their CPUs are unknown.

    Raises:
        MachineError: the folders of the nodes or of the CPUs cannot be listed, or this process cannot open any file.
    """
    nodes = _nodes(root)
    try:
        named = frozenset(CPUSet.parse(read_attribute(root, f"{NODES}/online") or ""))
    except ValueError:
        named = frozenset()
    if missing := named.difference(nodes):
        return (f"the NUMA nodes {CPUSet(missing)} of /{NODES}/online are not known: they have no folder there",)
    # `online` may be unreadable, so the rows of distances are checked too: each has one entry for each online node.
    rows = [read_attribute(root, f"{NODES}/node{node}/distance") or "" for node in nodes]
    longest = max((len(row.split()) for row in rows), default=0)
    if longest > len(nodes):
        return (f"{longest - len(nodes)} of {longest} NUMA nodes are not known: they have no folder in /{NODES}",)
    # A kernel without NUMA has neither folders of nodes nor links to them.
    linked = frozenset() if nodes else frozenset(_linked(root))
    if linked:
        return (f"the NUMA nodes {CPUSet(linked)}, which CPUs name, are not known: they have no folder in /{NODES}",)
    return ()


def has_one_node(root: Root) -> bool:
    """Return whether the machine has only one NUMA node, so that nothing is remote; False if that is unknown.

    A kernel without NUMA has no folder of a node.
    """
    try:
        return len(_nodes(root)) <= 1 and not missing_nodes(root)
    except MachineError:
        return False


def _linked(root: Root) -> dict[int, CPUSet]:
    """Return the NUMA nodes that the folders of CPUs link to, and the CPUs that link to each."""
    linked: dict[int, CPUSet] = {}
    for cpu in (match for match in map(_CPU.fullmatch, all_names(root, _CPU_FOLDERS)) if match):
        for node in (match for match in map(_NODE.fullmatch, names(root, f"{_CPU_FOLDERS}/{cpu[0]}")) if match):
            number = int(node["id"])
            linked[number] = linked.get(number, CPUSet()) | CPUSet([int(cpu["id"])])
    return linked


def _nodes(root: Root) -> list[int]:
    return sorted(int(match["id"]) for match in map(_NODE.fullmatch, all_names(root, NODES)) if match)


def _cpus(root: Root, folder: str) -> CPUSet | None:
    """Return the CPUs of a node from one of its two files, or from its links to CPUs; None if there is nothing."""
    # A captured machine may lack either file.
    empty = None
    for name, parse in (("cpumap", CPUSet.parse_mask), ("cpulist", CPUSet.parse)):
        try:
            text = read_attribute(root, f"{folder}/{name}")
            cpus = None if text is None else parse(text)
        except ValueError:
            continue
        if cpus:
            return cpus
        empty = cpus if empty is None else empty
    return CPUSet(int(match["id"]) for match in map(_CPU.fullmatch, names(root, folder)) if match) or empty


def local_nodes(cpus: CPUSet, nodes: Mapping[int, CPUSet]) -> frozenset[int] | None:
    """Return the NUMA nodes that have any of these CPUs; None if no node of `nodes` has one."""
    return frozenset(node for node, on_node in nodes.items() if not on_node.isdisjoint(cpus)) or None
