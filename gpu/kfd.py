"""Reads AMD's KFD topology (`/sys/class/kfd/kfd/topology/nodes`): which nodes are GPUs, their memory and partitions.

A node's `location_id` has the PCI bus and function in its low 16 bits and, on a GPU in partitions, the partition's
number in bits 31 to 28; some kernels put that number into the function's bits instead. `unique_id` does not
lead from a partition to its GPU: newer kernels give every partition its own. A node may be missing: the kernel builds
the whole tree again when a GPU is added, and refuses to show a GPU that this process's cgroup may not use (EPERM).
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dranode.api.errors import MachineError
from dranode.driver.machine.root import Root, all_names, integer, names, read_attribute, why_unread

KFD_NODES: Final = "sys/class/kfd/kfd/topology/nodes"
# How often to read a topology that keeps changing. The last reading is used even if it is inconsistent.
_READINGS: Final = 4
# HSA_MEM_HEAP_TYPE: public and private frame buffer.
_FRAME_BUFFERS: Final = frozenset({1, 2})


class KFDNode(msgspec.Struct, frozen=True):
    """A GPU, or a partition of one, as KFD numbers it.

    Attributes:
        node: KFD's number.
        slot: PCI domain, bus and device (`0000:0c:00`), without the function.
        function: the PCI function as the kernel reports it, 0 to 7.
        part: the partition's number as the kernel reports it, 0 where it reports none.
        render: minor of the render node.
        memory: bytes of frame buffer.
    """

    node: int
    slot: str
    function: int
    part: int
    render: int | None
    memory: int | None


def kfd_nodes(root: Root) -> tuple[KFDNode, ...]:
    """Return the GPU nodes of the topology in KFD's order, without nodes that cannot be read.

    The kernel removes the whole tree and builds it again when a GPU is added, removed or divided, so a reading counts
    only if the tree has the same nodes afterwards.
    """
    for _ in range(1, _READINGS):
        before = _listed(root)
        nodes = _read(root, before)
        if _listed(root) == before:
            return nodes
    return _read(root, _listed(root))


def _listed(root: Root) -> tuple[str, ...]:
    nodes = (
        name for name in names(root, KFD_NODES) if name.isdecimal() and root.exists(f"{KFD_NODES}/{name}/properties")
    )
    return tuple(sorted(nodes, key=int))


def _read(root: Root, nodes: Iterable[str]) -> tuple[KFDNode, ...]:
    gpus: list[KFDNode] = []
    for name in nodes:
        fields = _properties(read_attribute(root, f"{KFD_NODES}/{name}/properties") or "")
        if not fields.get("simd_count"):
            continue
        location = fields.get("location_id", 0)
        render = fields.get("drm_render_minor", 0)
        gpus.append(
            KFDNode(
                node=int(name),
                slot=f"{fields.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}",
                function=location & 7,
                part=location >> 28 & 0xF,
                render=render if render > 0 else None,
                memory=_memory(root, name),
            )
        )
    return tuple(gpus)


def hidden_nodes(root: Root) -> tuple[int, ...]:
    """Return the numbers of nodes that exist and cannot be read.

    Raises:
        MachineError: the nodes of the topology cannot be listed, or this process cannot open any file.
    """
    nodes = filter(str.isdecimal, all_names(root, KFD_NODES))
    return tuple(int(name) for name in nodes if why_unread(root, f"{KFD_NODES}/{name}/properties"))


def by_address(root: Root, addresses: Iterable[str]) -> Mapping[str, Mapping[int, KFDNode]]:
    """Return the nodes of every GPU by PCI address, and by the number of the partition in order.

    A node belongs to function 0 of its slot if its function is not a GPU, because these bits are a partition's number
    then. If the kernel reports no numbers, partitions are numbered in the order of the nodes. If nodes are hidden too,
    such a GPU has none: its partitions would get other numbers once the hidden nodes are visible.
    """
    present = frozenset(addresses)
    by_gpu: dict[str, list[KFDNode]] = {}
    for node in kfd_nodes(root):
        exact, first = f"{node.slot}.{node.function}", f"{node.slot}.0"
        address = exact if exact in present else first
        if address in present:
            by_gpu.setdefault(address, []).append(node)
    for gpu_nodes in by_gpu.values():
        gpu_nodes.sort(key=lambda node: (node.part, node.function, node.node))
    numbered = {address: _numbered(gpu_nodes, int(address[-1], 16)) for address, gpu_nodes in by_gpu.items()}
    unnumbered = [address for address, nodes in numbered.items() if len(nodes) < len(by_gpu[address])]
    hidden = bool(unnumbered) and _hides_nodes(root)
    return {**numbered, **{address: {} if hidden else dict(enumerate(by_gpu[address])) for address in unnumbered}}


def _numbered(nodes: Iterable[KFDNode], function: int) -> Mapping[int, KFDNode]:
    """Return nodes by the number that the kernel reports; fewer than there are if it reports none."""
    return {node.part or node.function - function: node for node in nodes}


def _hides_nodes(root: Root) -> bool:
    try:
        return bool(hidden_nodes(root))
    except MachineError:
        return True


def _memory(root: Root, node: str) -> int | None:
    """Return the bytes of frame buffer; None if there is none, or if the type or size of a bank is unknown."""
    total = 0
    for bank in names(root, f"{KFD_NODES}/{node}/mem_banks"):
        fields = _properties(read_attribute(root, f"{KFD_NODES}/{node}/mem_banks/{bank}/properties") or "")
        kind, size = fields.get("heap_type"), fields.get("size_in_bytes")
        if kind is None or (kind in _FRAME_BUFFERS and size is None):
            return None
        if kind in _FRAME_BUFFERS:
            total += size or 0
    return total or None


def _properties(content: str) -> dict[str, int]:
    pairs = (line.partition(" ") for line in content.splitlines())
    values = {key: integer(value.strip(), 10) for key, _, value in pairs}
    return {key: value for key, value in values.items() if value is not None}
