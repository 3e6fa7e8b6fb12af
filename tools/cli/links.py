"""What `dranode topology` shows for any driver: its readings and, with `--links`, how near its devices are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DranodeError, MachineError
from dranode.api.resource import Device
from dranode.driver.claims.plugin import HardwareReadings, Plugin
from dranode.driver.machine.numa import node_cpus, node_distances, node_memory
from dranode.driver.machine.pci import PCIFunction, network_functions, read_function
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_installed
from dranode.show.output import console, emit, report_oddities
from dranode.show.picture.proximity import MEANINGS, PCIDevicePlace, PlacedNode, matrix
from dranode.show.terminal import columns

if TYPE_CHECKING:
    from rich.console import Console

# The attributes, without their domain, by which drivers publish a PCI address: the standard one, and others' own.
_ADDRESSES: Final = ("pciBusID", "pciAddress")
_NETWORK: Final = "network"
_GI: Final = 1 << 30
# Between devices of drivers; network controllers have none.
_DISTANCE: Final = "/sys/devices/system/node has no row of distances to all nodes for each"
_NO_NODES: Final = "/sys/devices/system/node has no NUMA node with CPUs or memory, as in a kernel without NUMA"
_NOT_SEEN: Final = "links beside PCIe, such as NVLink and xGMI"


def show_links(root: Root, output: str) -> None:
    """Show what lies between the machine's PCI devices, and where CPUs and memory are, as `nvidia-smi topo -m` does.

    The devices are those that installed drivers would publish, and all network controllers.
    """
    devices = list(_devices(root, load_installed(root)))
    nodes = _nodes(root)
    if not emit(_document(devices, nodes), output):
        _draw(devices, nodes)


def _devices(root: Root, plugins: Iterable[Plugin]) -> Iterator[PCIDevicePlace]:
    """Yield the devices of drivers and then the network controllers that no driver publishes."""
    seen: set[str] = set()
    for plugin in plugins:
        try:
            inventory = plugin.discover()
        except DranodeError as error:
            click.echo(f"dranode: the devices of {plugin.driver} are not known: {error}", err=True)
            continue
        report_oddities(plugin.driver, inventory.warnings)
        for device in inventory.devices:
            address = _address(device)
            if address and address not in seen:
                seen.add(address)
                yield _placed(read_function(root, address), device.name, plugin.driver)
    for function in network_functions(root):
        if function.address not in seen:
            yield _placed(function, "/".join(function.network) or function.address, _NETWORK)


def _placed(function: PCIFunction, name: str, owner: str) -> PCIDevicePlace:
    return PCIDevicePlace(
        name,
        owner,
        function.address,
        function.bridges,
        function.numa_node,
        function.cpus,
        function.link,
        function.link_now,
    )


def _address(device: Device) -> str:
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2] in _ADDRESSES and attribute.string:
            return attribute.string
    return ""


def _nodes(root: Root) -> list[PlacedNode]:
    """Return the NUMA nodes; those that are not to be seen are told of on stderr."""
    try:
        cpus, memory, distances = node_cpus(root), node_memory(root), node_distances(root)
    except MachineError as error:
        click.echo(f"dranode: the NUMA nodes are not known: {error}", err=True)
        return []
    numbers = sorted({*cpus, *memory})
    if not numbers:
        click.echo(f"dranode: where CPUs and memory are is not known: {_NO_NODES}", err=True)
    unplaced = CPUSet(number for number in numbers if number not in distances)
    if unplaced and len(numbers) > 1:
        click.echo(f"dranode: how far the NUMA nodes {unplaced} are from others is not known: {_DISTANCE}", err=True)
    return [
        PlacedNode(number, cpus.get(number, CPUSet()), memory.get(number), distances.get(number, {}))
        for number in numbers
    ]


def _document(devices: Sequence[PCIDevicePlace], nodes: Sequence[PlacedNode]) -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": device.name,
                "driver": None if device.owner == _NETWORK else device.owner,
                "pciAddress": device.address,
                "pcieRoot": device.bridges[0] if device.bridges else None,
                "numaNode": device.numa_node,
                "cpus": str(device.cpus) or None,
                "link": _link_document(device.link),
                "linkNow": _link_document(device.link_now),
                "proximity": {other.name: str(each) for other, each in zip(devices, row, strict=True)},
            }
            for device, row in zip(devices, matrix(devices), strict=True)
        ],
        "numaNodes": [
            {
                "number": node.number,
                "cpus": str(node.cpus) or None,
                "memoryBytes": node.memory,
                "distances": {str(other): distance for other, distance in node.distances.items()},
            }
            for node in nodes
        ],
        "notSeen": _not_seen(devices),
    }


def _not_seen(devices: Sequence[PCIDevicePlace]) -> list[str]:
    """Return what may bring two of these devices nearer to each other and is not looked at."""
    return [_NOT_SEEN] if sum(device.owner != _NETWORK for device in devices) > 1 else []


def _draw(devices: Sequence[PCIDevicePlace], nodes: Sequence[PlacedNode]) -> None:
    screen = console()
    rows = matrix(devices)
    if devices:
        # Columns are numbered: names of many devices side by side need a screen that nobody has.
        table = columns("", "device", *map(str, range(len(devices))))
        places = columns("", "of", "NUMA", "CPUs", "link", "now")
        for number, (device, row) in enumerate(zip(devices, rows, strict=True)):
            table.add_row(str(number), device.name, *map(str, row))
            numa = "?" if device.numa_node is None else str(device.numa_node)
            links = (_link(device.link), _link(device.link_now))
            places.add_row(str(number), device.owner, numa, str(device.cpus) or "?", *links)
        screen.print(table)
        screen.print()
        for each in dict.fromkeys(sorted({each for row in rows for each in row}, key=list(MEANINGS).index)):
            screen.print(f"{each:<6} {MEANINGS[each]}", markup=False)
        for unseen in _not_seen(devices):
            screen.print(f"Not looked at: {unseen}. Devices may be nearer to each other than this.", markup=False)
        screen.print()
        screen.print(places)
    else:
        screen.print("No driver publishes a PCI device here, and there is no network controller on PCI.", markup=False)
    if nodes:
        screen.print()
        table = columns("NUMA node", "CPUs", "its memory", *(f"to {node.number}" for node in nodes))
        for node in nodes:
            memory = "?" if node.memory is None else f"{node.memory / _GI:.1f} GiB"
            distances = (str(node.distances.get(other.number, "?")) for other in nodes)
            table.add_row(str(node.number), str(node.cpus) or "-", memory, *distances)
        screen.print(table)


def _link(link: tuple[float | None, int | None]) -> str:
    speed, width = link
    return "?" if speed is None or width is None else f"{speed:g} GT/s x{width}"


def _link_document(link: tuple[float | None, int | None]) -> dict[str, float | int | None]:
    speed, width = link
    return {"gigatransfers": speed, "lanes": width}


def readings_document(readings: Mapping[str, tuple[HardwareReadings, ...]]) -> dict[str, Any]:
    """Return the tables of drivers that have any as `-o json` prints them, by driver."""
    return {
        driver: [
            {"title": each.title, "rows": list(map(dict, each.rows)), "remarks": list(each.remarks)} for each in theirs
        ]
        for driver, theirs in readings.items()
        if theirs
    }


def show_readings(screen: Console, readings: Iterable[HardwareReadings]) -> None:
    """Print each table under its title, and what it does not say."""
    for each in readings:
        screen.print(f"\n{each.title}", markup=False)
        if each.rows:
            table = columns(*each.rows[0])
            for row in each.rows:
                table.add_row(*("-" if value is None else str(value) for value in row.values()))
            screen.print(table)
        for remark in each.remarks:
            screen.print(remark, markup=False)
