"""The devices that the driver publishes for a machine's memory: ordinary memory and each size of huge pages, by group.

The capacity is called `size`, as in dra-driver-memory, and is in bytes. Its step is the page size; for ordinary memory
it is 1Mi, a multiple of every machine's base page. The huge pages are those that the kernel has reserved, and ordinary
memory is the rest. Memory that is reserved by option is in no device, and neither are huge pages in use outside pods.

NUMA nodes without CPUs (the memory of GPUs, or memory attached by CXL) are in no device, because a claim for memory
must not get the memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, assert_never

import msgspec

from dranode.api import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CPUSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    NodeAllocatableMapping,
    NodeAllocatableResource,
    Quantity,
    decode,
)
from dranode.driver import Grant, Holding, Impairment, Record
from dranode.memory.config import MemoryPolicy, MemorySharing
from dranode.memory.machine import HUGE_PAGES, MIB, MachineMemory, MemoryNode, kind_name, resource_name, short_name
from dranode.memory.options import ORDINARY, MemoryGroupBy, MemoryOptions

# The memory that an allocation result was given: `Grant.state` of this driver as a value, and its sources. The name of
# a device depends on the node's option `--memory-group-by`, and claims keep their memory when the option changes. So
# what they hold is counted by sources, which do not depend on it: the memory, or the huge pages of one size, of one
# NUMA node.


class GivenMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The memory of one allocation result.

    Attributes:
        nodes: its NUMA nodes (list format).
        size: bytes.
        page_size: bytes of a huge page; 0 for ordinary memory.
        policy: how memory comes from these nodes.
        sharing: which containers may use it at the same time.
    """

    nodes: CPUSet
    size: int
    page_size: int = 0
    policy: MemoryPolicy = MemoryPolicy.BIND
    sharing: MemorySharing = MemorySharing.CONTAINER

    @classmethod
    def of(cls, grant: Grant) -> GivenMemory | None:
        """Return what a recorded grant was given; None for admin access, and for a grant recovered without it.

        Raises:
            DocumentError: the state is not this driver's.
        """
        return None if grant.state is None else decode(cls, grant.state)


class _Place(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a state that identify the memory; another version may have further fields."""

    nodes: CPUSet
    page_size: int = 0


def memory_sources(nodes: CPUSet, page_size: int) -> frozenset[str]:
    """Return the sources of memory on these NUMA nodes: `memory-numa0`, `hugepages-2m-numa1`."""
    return frozenset(f"{kind_name(page_size)}-numa{node}" for node in nodes)


def given_sources(state: Any) -> frozenset[str] | None:
    """Return the sources of the memory in a grant's state; None if the state names none.

    Raises:
        DocumentError: the state is not this driver's.
    """
    if state is None:
        return None
    place = decode(_Place, state)
    return memory_sources(place.nodes, place.page_size) or None


SIZE: Final = "size"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PAGE_SIZE: Final = "dra.memory/pageSize"
HUGE_TLB: Final = "dra.memory/hugeTLB"
SOCKET: Final = "dra.memory/socketID"

# The names under which dra-driver-memory, dra-driver-cpu and DraNet have published the NUMA node.
_NUMA_NODE_ELSEWHERE: Final = ("dra.memory/numaNode", "dra.cpu/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode")
# Every attribute that a device may have, with any options.
ATTRIBUTES: Final = frozenset(
    (
        *(NUMA_NODE, PAGE_SIZE, HUGE_TLB, SOCKET),
        *("resource.kubernetes.io/pageSize", "resource.kubernetes.io/hugeTLB"),
        *_NUMA_NODE_ELSEWHERE,
    )
)


class MemoryDevice(msgspec.Struct, frozen=True):
    """A device before it is turned into the API's form.

    Attributes:
        name: `memory-numa0`, `hugepages-2m-socket1`, `hugepages-1g-machine`.
        page_size: bytes; `ORDINARY` for ordinary memory.
        nodes: its NUMA nodes.
        sizes: the bytes of each node that claims may get.
        socket: the package; None if it is unknown, or if the device is that of the machine.
    """

    name: str
    page_size: int
    nodes: tuple[MemoryNode, ...]
    sizes: Mapping[int, int]
    socket: int | None = None

    @property
    def step(self) -> int:
        """Return the step of amounts, in bytes."""
        return self.page_size or MIB

    @property
    def size(self) -> int:
        """Return the bytes that claims may get."""
        return sum(self.sizes.values()) // self.step * self.step

    @property
    def mems(self) -> CPUSet:
        """Return the numbers of its NUMA nodes."""
        return CPUSet(node.id for node in self.nodes)

    @property
    def sources(self) -> frozenset[str]:
        """Return what it is made of (`Plugin.sources`)."""
        return memory_sources(self.mems, self.page_size)


class MemoryInventory(msgspec.Struct, frozen=True):
    """The machine and its devices.

    Attributes:
        machine: the machine as it was read.
        devices: the published devices.
        sizes: the bytes that claims may hold of each source (`memory_sources`), for any grouping. It includes NUMA
            nodes that are in no device, because claims keep their memory when a node's last CPU goes offline.
    """

    machine: MachineMemory
    devices: tuple[MemoryDevice, ...]
    sizes: Mapping[str, int]


def memory_inventory(machine: MachineMemory, options: MemoryOptions) -> MemoryInventory:
    """Return the machine with its devices."""
    sizes = {
        source: _handed_out(node, size, options)
        for node in machine.nodes
        for size in (ORDINARY, *machine.page_sizes)
        for source in memory_sources(CPUSet((node.id,)), size)
    }
    return MemoryInventory(machine, memory_devices(machine, options), sizes)


def memory_devices(machine: MachineMemory, options: MemoryOptions) -> tuple[MemoryDevice, ...]:
    """Return the machine's devices in the order in which the scheduler should try them, ordinary memory first.

    A device that is smaller than one step is left out.
    """
    sizes = (ORDINARY, *machine.page_sizes)
    devices = (
        _device(name, size, nodes, options) for size in sizes for name, nodes in _groups(machine, options.group_by)
    )
    return tuple(device for device in devices if device.size)


def published_memory(device: MemoryDevice, options: MemoryOptions) -> Device:
    """Return the device in the API's form."""
    return Device(
        name=device.name,
        attributes=_attributes(device, options),
        capacity={SIZE: _capacity(device)},
        allow_multiple_allocations=True,
        node_allocatable_resources=_node_resources(device) if options.node_allocatable_mapping else {},
    )


def memory_left_out(machine: MachineMemory, options: MemoryOptions) -> Iterator[str]:
    """Yield a sentence for each reason why memory is in no device."""
    without_cpus = CPUSet(node.id for node in machine.nodes if not node.cpus)
    if without_cpus:
        yield f"the memory of NUMA nodes without CPUs is in no device: {without_cpus}"
    reserved = CPUSet(
        node.id
        for node in machine.nodes
        if node.cpus and (node.id, ORDINARY) in options.reserved and _handed_out(node, ORDINARY, options) < MIB
    )
    if reserved:
        yield f"no claim gets ordinary memory of NUMA nodes {reserved}: --reserved-memory reserves all of it"
    without_socket = CPUSet(node.id for node in machine.nodes if node.cpus and node.socket is None)
    if without_socket and options.group_by is MemoryGroupBy.SOCKET:
        yield f"NUMA nodes {without_socket} are in no device: the kernel reports no package for them, or several"
    yield from (problem.what for problem in machine.pods.node_problems(machine.numbers))
    published = sum(device.size for device in memory_devices(machine, options) if not device.page_size)
    if machine.limit is not None and published > machine.limit:
        yield (
            f"the cgroup of all pods, or one above it, is limited to {Quantity.binary(machine.limit)} of memory, and "
            f"claims may get {Quantity.binary(published)}: keep the rest with --reserved-memory"
        )


def _groups(machine: MachineMemory, group_by: MemoryGroupBy) -> Iterator[tuple[str, tuple[MemoryNode, ...]]]:
    nodes = tuple(node for node in machine.for_pods if node.cpus)
    match group_by:
        case MemoryGroupBy.NUMA:
            yield from ((f"numa{node.id}", (node,)) for node in nodes)
        case MemoryGroupBy.SOCKET:
            for socket in sorted({node.socket for node in nodes if node.socket is not None}):
                yield f"socket{socket}", tuple(node for node in nodes if node.socket == socket)
        case MemoryGroupBy.MACHINE:
            yield "machine", nodes
        case _:
            assert_never(group_by)


def _device(group: str, size: int, nodes: tuple[MemoryNode, ...], options: MemoryOptions) -> MemoryDevice:
    sockets = {node.socket for node in nodes}
    return MemoryDevice(
        name=f"{kind_name(size)}-{group}",
        page_size=size,
        nodes=nodes,
        sizes={node.id: _handed_out(node, size, options) for node in nodes},
        socket=sockets.pop() if len(sockets) == 1 and options.group_by is not MemoryGroupBy.MACHINE else None,
    )


def _handed_out(node: MemoryNode, size: int, options: MemoryOptions) -> int:
    """Return how many bytes of a node claims may get, in ordinary memory or in huge pages of a size."""
    reserved = options.reserved.get((node.id, size), 0)
    if size:
        pool = node.pools.get(size)
        total = (pool.total - pool.others) * size if pool else 0
    else:
        total = node.total - sum(pool.total * page for page, pool in node.pools.items()) - node.unseen
    return max(0, total - reserved)


def _attributes(device: MemoryDevice, options: MemoryOptions) -> dict[str, DeviceAttribute | str | int]:
    page_size = short_name(device.page_size) if device.page_size else None
    huge = bool(device.page_size)
    values = {PAGE_SIZE: page_size, HUGE_TLB: huge, NUMA_NODE: _numa_node(device, options), SOCKET: device.socket}
    if options.compat_attributes:
        number = device.nodes[0].id if options.group_by is MemoryGroupBy.NUMA else None
        values |= {"resource.kubernetes.io/pageSize": page_size, "resource.kubernetes.io/hugeTLB": huge}
        values |= dict.fromkeys(_NUMA_NODE_ELSEWHERE, number)
    return {name: value for name, value in values.items() if value is not None}


def _numa_node(device: MemoryDevice, options: MemoryOptions) -> DeviceAttribute | int | None:
    """Return the standard attribute: a number, or with the option a list, with the node before those near it."""
    if options.group_by is MemoryGroupBy.NUMA:
        (node,) = device.nodes
        return DeviceAttribute(ints=(node.id, *node.near)) if options.numa_node_list else node.id
    return DeviceAttribute(ints=tuple(device.mems)) if options.numa_node_list else None


def _capacity(device: MemoryDevice) -> DeviceCapacity:
    step = Quantity.binary(device.step)
    if device.size >= 2 * device.step:
        policy = CapacityRequestPolicy(default=step, valid_range=CapacityRequestPolicyRange(min=step, step=step))
    else:
        # The API server accepts a range only if there is room for one step above its minimum.
        policy = CapacityRequestPolicy(default=step, valid_values=(step,))
    return DeviceCapacity(value=Quantity.binary(device.size), request_policy=policy)


def _node_resources(device: MemoryDevice) -> dict[str, NodeAllocatableResource]:
    name = resource_name(device.page_size) if device.page_size else "memory"
    mapping = NodeAllocatableMapping(capacity_key=SIZE, capacity_multiplier=Quantity(1))
    return {name: NodeAllocatableResource(mapping=mapping)}


# Claims on more memory than the machine has now.


SHRUNK: Final = "MemoryShrunk"


class _Shortage(msgspec.Struct, frozen=True):
    """Memory of which claims hold more than the machine has.

    Attributes:
        device: its device when a claim was given it.
        sources: what it is made of.
        held: the bytes of claims whose memory is inside these sources.
        has: the bytes that claims may get of it now.
    """

    device: str
    sources: frozenset[str]
    held: int
    has: int


def memory_impairments(inventory: MemoryInventory, records: Iterable[Record]) -> Iterator[Impairment]:
    """Yield the claims on memory that the machine no longer has, for any present grouping of devices.

    Memory is anonymous, so it is not known whose pages are missing: all claims on it are affected. A claim over several
    NUMA nodes counts for groups that contain all of them, because its memory may be on any of them.
    """
    holdings = tuple(record.holding(lambda _, state: given_sources(state)) for record in records)
    shortages = tuple(_shortages(inventory, holdings))
    for holding in holdings:
        named: set[frozenset[str]] = set()
        for device in holding.devices:
            # The shortage of the fewest nodes is the most precise one.
            shortage = next((item for item in shortages if device.sources and device.sources <= item.sources), None)
            if shortage is None or shortage.sources in named:
                continue
            named.add(shortage.sources)
            pages = "reserve the pages again, or " if shortage.device.startswith(HUGE_PAGES) else ""
            yield Impairment(
                holding.claim,
                SHRUNK,
                f"claims hold {Quantity.binary(shortage.held)} of {shortage.device}, but the machine has only "
                f"{Quantity.binary(shortage.has)} for claims now, so claim {holding.claim} may get less than its "
                f"{Quantity.binary(_within(holding, shortage.sources))}: {pages}recreate its pods",
            )


def _shortages(inventory: MemoryInventory, holdings: Iterable[Holding]) -> Iterator[_Shortage]:
    """Yield the shortages, those with the fewest NUMA nodes first."""
    holdings = tuple(holdings)
    groups = {device.sources: device.name for holding in holdings for device in holding.devices if device.sources}
    for sources, name in sorted(groups.items(), key=lambda group: (len(group[0]), group[1])):
        held = sum(_within(holding, sources) for holding in holdings)
        has = sum(inventory.sizes.get(source, 0) for source in sources)
        if held > has:
            yield _Shortage(name, sources, held, has)


def _within(holding: Holding, sources: frozenset[str]) -> int:
    """Return how much memory a claim holds that is inside these sources."""
    return sum(device.amount for device in holding.devices if device.sources and device.sources <= sources)


# The entry about memory in a claim's status.


def memory_description(grant: Grant) -> dict[str, Any]:
    """Return the grant's memory: `{"bytes": ..., "numaNodes": [...], "policy": ...}`; empty for admin access."""
    given = GivenMemory.of(grant)
    if given is None:
        return {}
    pages = {"pageSize": short_name(given.page_size)} if given.page_size else {}
    return {"bytes": given.size, "numaNodes": list(given.nodes), **pages, "policy": str(given.policy)}
