"""Machines with memory for tests, and claims as the framework passes them to the driver."""

from collections.abc import Iterable, Mapping
from typing import Any

from dranode.api.quantity import Quantity
from dranode.api.resource import DeviceAllocationConfiguration, DeviceRequestAllocationResult
from dranode.api.resource import OpaqueDeviceConfiguration as Opaque
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Config, configs_for
from dranode.driver.claims.held import ClaimRef, Held, HeldDevice, Holding
from dranode.memory.config import parse_memory_config
from dranode.memory.devices import MemoryDevice, MemoryInventory, memory_devices, memory_inventory
from dranode.memory.grant import grant_memory
from dranode.memory.options import MemoryOptions
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import CPU, NODE

GIB = 1 << 30
MIB = 1 << 20
# Two NUMA nodes of 16 GiB on two sockets, with 512 pages of 2 MiB and one of 1 GiB each.
TWO_NODES = "sockets=2,cores=4"


def node_files(node: int, cpus: str, gib: int = 4, **files: str) -> dict[str, str]:
    """The files of a NUMA node, and `files` with `__` in place of slashes."""
    return {
        f"{NODE}/node{node}/cpulist": cpus,
        f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal:       {gib << 20} kB\nNode {node} MemFree: 1 kB\n",
        **{f"{NODE}/node{node}/{name.replace('__', '/')}": text for name, text in files.items()},
    }


def pages(node: int, kib: int, total: int, free: int | None = None, surplus: int = 0) -> dict[str, str]:
    """The files of a NUMA node's huge pages of one size."""
    folder = f"{NODE}/node{node}/hugepages/hugepages-{kib}kB"
    return {
        f"{folder}/nr_hugepages": f"{total}\n",
        f"{folder}/free_hugepages": f"{total if free is None else free}\n",
        f"{folder}/surplus_hugepages": f"{surplus}\n",
    }


def one_node(**files: str) -> dict[str, str]:
    """A machine of one NUMA node with two CPUs and 4 GiB."""
    return {f"{CPU}/online": "0-1", **node_files(0, "0-1", 4, **files)}


def devices(description: str = TWO_NODES, options: MemoryOptions | None = None) -> tuple[MemoryDevice, ...]:
    """The devices of a synthetic machine."""
    return memory_devices(read_memory(open_machine(description)), options or MemoryOptions())


def inventory(description: str = TWO_NODES, options: MemoryOptions | None = None) -> MemoryInventory:
    """A synthetic machine with its devices."""
    return memory_inventory(read_memory(open_machine(description)), options or MemoryOptions())


def result(device: str, size: str | None, request: str = "mem", **fields: Any) -> DeviceRequestAllocationResult:
    """An allocation result of the memory driver."""
    consumed = {} if size is None else {"size": Quantity(size)}
    return DeviceRequestAllocationResult(
        request=request, driver="dra.memory", pool="worker1", device=device, consumed_capacity=consumed, **fields
    )


def config(requests: tuple[str, ...] = (), **fields: Any) -> DeviceAllocationConfiguration:
    """A `MemoryConfig` as an allocation contains it."""
    document = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", **fields}
    return DeviceAllocationConfiguration(
        source="FromClaim", requests=requests, opaque=Opaque(driver="dra.memory", parameters=document)
    )


def claim(
    results: Iterable[DeviceRequestAllocationResult], configs: Iterable[DeviceAllocationConfiguration] = ()
) -> AllocatedClaim:
    """A claim with its configurations parsed."""
    documents = list(configs)
    return AllocatedClaim(
        ClaimRef("default", "claim", "uid-1"),
        tuple(AllocatedResult(each, tuple(map(_parsed, configs_for(each, documents)))) for each in results),
    )


def _parsed(config: Config) -> Config:
    return Config(config.source, parse_memory_config(config), config.path)


def holding(**amounts: Mapping[str, int]) -> Held:
    """What other claims hold: amounts by device, by claim name."""
    return Held.of(
        Holding(
            ClaimRef("default", name, f"uid-{name}"),
            tuple(HeldDevice(device, amount=amount) for device, amount in held.items()),
        )
        for name, held in amounts.items()
    )


def granted(asked: AllocatedClaim, held: Held | None = None, on: tuple[MemoryDevice, ...] = ()) -> ClaimGrant:
    """What the claim is granted."""
    return grant_memory(asked, held or Held(), on or devices())
