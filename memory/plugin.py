"""The memory driver, `dra.memory`; its entry point in the group `dranode.plugins` is `memory`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dranode.driver import (
    AllocatedClaim,
    ClaimGrant,
    Config,
    Grant,
    HardwareProblem,
    HardwareReadings,
    Held,
    Impairment,
    Inventory,
    PinnedClaim,
    Pins,
    PinSnapshot,
    Plugin,
    PodsCgroup,
    Record,
    Reports,
    Root,
    Stop,
    pods_cgroup_changes,
)
from dranode.memory.config import parse_memory_config
from dranode.memory.counts import read_counts
from dranode.memory.devices import (
    ATTRIBUTES,
    given_sources,
    memory_description,
    memory_impairments,
    memory_inventory,
    memory_left_out,
    published_memory,
)
from dranode.memory.grant import grant_memory, memory_pool, pinned_memory, unread_memory_pool
from dranode.memory.options import MemoryOptions, check_reserved_memory, read_memory_options
from dranode.memory.reports import count_remarks, count_rows, memory_problems
from dranode.memory.sysfs import read_memory


class MemoryPlugin(Plugin, Reports, Pins):
    """Memory as devices; `Inventory.hardware` is a `MemoryInventory`.

    Args:
        root: the machine's files.
        options: how its memory is published and handed out.
    """

    driver = "dra.memory"
    by_amounts = True

    def __init__(self, root: Root, options: MemoryOptions) -> None:
        self.options = options
        self._root = root
        self._checked = False
        self._pods: PodsCgroup | None = None

    def attribute_names(self) -> frozenset[str]:
        """Return the names of all attributes."""
        return ATTRIBUTES

    def discover(self) -> Inventory:
        """Read the machine's memory.

        Raises:
            MachineError: the machine's files are missing, damaged or contradict each other.
            UsageError: the reserved memory does not exist.
        """
        machine = read_memory(self._root)
        self._pods = machine.pods
        # Only the first reading checks the option: huge pages may be freed later.
        if not self._checked:
            check_reserved_memory(self.options, machine)
            self._checked = True
        memory = memory_inventory(machine, self.options)
        return Inventory(
            devices=tuple(published_memory(device, self.options) for device in memory.devices),
            hardware=memory,
            warnings=(*machine.warnings, *memory_left_out(machine, self.options)),
            sources={device.name: device.sources for device in memory.devices},
        )

    def sources(self, device: str, state: Any) -> frozenset[str] | None:
        """Return the NUMA nodes and the page size of a grant's memory, however devices were grouped then."""
        del device
        return given_sources(state)

    def parse_config(self, config: Config) -> Any:
        """Decode a `MemoryConfig`."""
        return parse_memory_config(config)

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Decide which memory the claim gets (`dranode.memory.grant`)."""
        return grant_memory(claim, held, inventory.hardware.devices)

    def describe(self, grant: Grant, record: Record, inventory: Inventory) -> Mapping[str, Any]:
        """Return the grant's size in bytes, its NUMA nodes, its page size and its policy."""
        del record, inventory
        return memory_description(grant)

    def pool(self, inventory: Inventory) -> PinSnapshot:
        """Return the machine's NUMA nodes, and the sizes of huge pages that can be limited for containers."""
        return memory_pool(inventory.hardware.machine, self.options)

    def unread_pool(self) -> PinSnapshot:
        """Return a machine without known memory; containers keep the memory that they have."""
        return unread_memory_pool()

    def pinned(self, record: Record) -> PinnedClaim:
        """Return the NUMA nodes and huge pages to which a claim's containers are limited."""
        return pinned_memory(record)

    def impairments(self, inventory: Inventory, records: Iterable[Record]) -> Iterable[Impairment]:
        """Return the claims that hold more than the machine has now."""
        return memory_impairments(inventory.hardware, records)

    def problems(self, inventory: Inventory) -> Iterable[HardwareProblem]:
        """Return why claims may get no memory or huge pages here, or not on every node, and how to reserve them."""
        machine = inventory.hardware.machine
        yield from machine.pods.node_problems(machine.numbers)
        yield from memory_problems(machine, self.options, read_counts(self._root, machine))

    def watch(self, stop: Stop) -> Iterator[None]:
        """Yield every minute, and when the NUMA nodes change from which pods may take memory, until `stop` is set."""
        yield from pods_cgroup_changes(self._root, lambda: self._pods or PodsCgroup(), stop)

    def readings(self, inventory: Inventory) -> Iterable[HardwareReadings]:
        """Return the present memory of each NUMA node, with its huge pages of every size."""
        counts = read_counts(self._root, inventory.hardware.machine)
        given: dict[tuple[int, int], int] = {}
        for device in inventory.hardware.devices:
            given.update({(node, device.page_size): size for node, size in device.sizes.items()})
        return (HardwareReadings("Memory", tuple(count_rows(counts, given)), tuple(count_remarks(counts))),)


def plugin(root: Root, options: Mapping[str, object]) -> Plugin:
    """Make the memory driver for the machine under `root`, with the options of `dranode.memory.declared`.

    Raises:
        UsageError: an option has an invalid value.
    """
    return MemoryPlugin(root, read_memory_options(options))
