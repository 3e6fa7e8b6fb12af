"""The options of the memory driver."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from dranode.api import Quantity
from dranode.driver import UsageError
from dranode.memory.machine import MachineMemory, resource_name, size_of_resource

# The page size that stands for ordinary memory.
ORDINARY: Final = 0
_OPTION: Final = "--reserved-memory"

# Bytes that no claim gets, by NUMA node and page size.
ReservedMemory = Mapping[tuple[int, int], int]


class MemoryGroupBy(StrEnum):
    """The kinds of memory devices."""

    NUMA = "numa"
    SOCKET = "socket"
    MACHINE = "machine"


class MemoryOptions(msgspec.Struct, frozen=True):
    """Options for how a node's memory is published and given to claims.

    Attributes:
        group_by: what a device covers.
        reserved: bytes that no claim gets, by NUMA node and page size (`ORDINARY` for ordinary memory).
        exclusive: whether containers get only the huge pages of their claims.
        numa_node_list: publish numaNode as a list (needs DRAListTypeAttributes).
        compat_attributes: publish other drivers' names of attributes as well.
        node_allocatable_mapping: publish how claims count against the node (needs DRANodeAllocatableResources).
    """

    group_by: MemoryGroupBy = MemoryGroupBy.NUMA
    reserved: ReservedMemory = msgspec.field(default_factory=dict)
    exclusive: bool = False
    numa_node_list: bool = False
    compat_attributes: bool = False
    node_allocatable_mapping: bool = False


def read_memory_options(options: Mapping[str, object]) -> MemoryOptions:
    """Read the memory driver's options (snake case), as its factory gets them; a missing option has its default.

    Raises:
        UsageError: a value is invalid; the message names option and value.
    """
    group_by = str(options.get("group_by") or MemoryGroupBy.NUMA)
    if group_by not in list(MemoryGroupBy):
        raise UsageError(f'--memory-group-by is {" or ".join(MemoryGroupBy)}, not "{group_by}"')
    return MemoryOptions(
        group_by=MemoryGroupBy(group_by),
        reserved=parse_reserved(str(options.get("reserved_memory") or "")),
        exclusive=bool(options.get("hugepages_exclusive")),
        numa_node_list=bool(options.get("numa_node_list")),
        compat_attributes=bool(options.get("compat_attributes")),
        node_allocatable_mapping=bool(options.get("node_allocatable_mapping")),
    )


def parse_reserved(text: str) -> ReservedMemory:
    """Parse `--reserved-memory`: `0:1Gi,1:1Gi`, or kubelet's form `0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi`.

    Raises:
        UsageError: it has neither form, or has an entry twice.
    """
    reserved: dict[tuple[int, int], int] = {}
    for node, resource, amount in _entries(text):
        size = ORDINARY if resource == "memory" else size_of_resource(resource)
        if size is None:
            raise UsageError(
                f'{_OPTION} "{text}" has "{resource}", which is neither memory nor huge pages such as hugepages-2Mi'
            )
        if (node, size) in reserved:
            raise UsageError(f'{_OPTION} "{text}" reserves {resource} of NUMA node {node} twice; leave out one entry')
        reserved[node, size] = _bytes(text, resource, amount, size)
    return reserved


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield NUMA node, resource and amount of every entry."""
    node = None
    for entry in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        number, colon, rest = entry.partition(":")
        if colon:
            if not (number.isascii() and number.isdigit()):
                raise UsageError(f'{_OPTION} "{text}" has "{entry}", where "{number}" should be a NUMA node')
            node = int(number)
        resource, equals, amount = (rest if colon else entry).partition("=")
        if node is None or not (colon or equals):
            raise UsageError(f'{_OPTION} "{text}" has "{entry}" without a NUMA node; write it like 0:1Gi,1:1Gi')
        yield (node, resource.strip(), amount.strip()) if equals else (node, "memory", resource.strip())


def _bytes(text: str, resource: str, amount: str, size: int) -> int:
    try:
        value = Quantity(amount).value
    except ValueError as error:
        raise UsageError(f'{_OPTION} "{text}": {error}') from error
    if not isinstance(value, int) or value < 0:
        raise UsageError(f'{_OPTION} "{text}" reserves {amount} of {resource}, which is not a whole number of bytes')
    if size and value % size:
        raise UsageError(f'{_OPTION} "{text}" reserves {amount} of {resource}, which is not a whole number of pages')
    return value


def check_reserved_memory(options: MemoryOptions, machine: MachineMemory) -> None:
    """Refuse to reserve memory of a node, or huge pages of a size, that this machine does not have.

    Raises:
        UsageError: the node or the page size does not exist, or the node has less.
    """
    numbers = ", ".join(str(node.id) for node in machine.nodes)
    for (number, size), amount in options.reserved.items():
        node, what = machine.node(number), resource_name(size) if size else "memory"
        if node is None:
            raise UsageError(f"{_OPTION} names NUMA node {number}, but this machine has memory only on {numbers}")
        if size and size not in node.pools:
            sizes = ", ".join(map(resource_name, machine.page_sizes)) or "no huge pages"
            raise UsageError(f"{_OPTION} names {what} of NUMA node {number}, but the kernel has {sizes}")
        if not size and amount > node.total:
            raise UsageError(
                f"{_OPTION} reserves {Quantity.binary(amount)} of NUMA node {number}, "
                f"which has only {Quantity.binary(node.total)}"
            )
