"""`dranode topology`: shows the machine's CPUs and devices, who holds which, and how near they are to each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DranodeError, LedgerError, MachineError, UsageError
from dranode.api.resource import Device
from dranode.cpu.plugin import CPUPlugin
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.claims.hooks import HardwareReadings
from dranode.driver.claims.plugin import Plugin
from dranode.driver.cli.options import machine_option
from dranode.driver.machine.numa import node_cpus, node_distances, node_memory
from dranode.driver.machine.pci import PCIFunction, network_functions, read_function
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_installed
from dranode.show.ledger_reading import read_ledger
from dranode.show.output import console, emit, output_option, picture_options, report_oddities, write_pictures
from dranode.show.picture.node import node_picture
from dranode.show.terminal import columns, show_node
from dranode.show.views import driver_views, machine_picture, records_root

_CPUS: Final = "sys/devices/system/cpu"
_OF_CPUS: Final = ("cpus", "offline", "isolated", "nohz_full", "smt", "cores", "packages", "l3", "numa", "core_types")


@click.command(short_help="Show the CPUs and devices of a machine by NUMA node, and who holds them.")
@machine_option
@click.option(
    "--kubelet-root",
    envvar="DRANODE_KUBELET_ROOT",
    metavar="DIR",
    help="kubelet's root, where the records of claims are (default /var/lib/kubelet, on the host).",
)
@click.option(
    "--links",
    is_flag=True,
    help="Show instead how near GPUs, NICs, CPUs and memory are to each other.",
)
@picture_options
@output_option
def command(
    root: Root, kubelet_root: str | None, output: str, html: str | None, svg: str | None, *, links: bool
) -> None:
    """Show the machine's CPUs and devices in their NUMA nodes, and who holds which.

    --links shows the devices that installed drivers would publish and all network controllers. It does not read links
    other than PCIe, such as NVLink.

    \b
    Example:
      dranode topology
      dranode topology --machine sockets=2,numa=4,l3=2,cores=4,threads=2
      dranode topology --machine capture.tar.bz2 -o json
      dranode topology --svg node.svg
      dranode topology --links
    """
    if links:
        if html or svg or kubelet_root:
            raise UsageError("--links shows a table; leave out --html, --svg and --kubelet-root")
        show_links(root, output)
        return
    # A made-up machine may have devices but no CPUs. CPUs that cannot be read are an error.
    topology = read_topology(root) if root.exists(_CPUS) else None
    holders = read_holders(root, kubelet_root)
    views = driver_views(load_installed(root), records_root(root, kubelet_root))
    emit(topology_document(topology, holders) | {"readings": readings_document(views.readings)}, output)
    # The table shows warnings about CPUs in its heading.
    cpu_warnings = topology.warnings if topology is not None and output != "table" else ()
    for sentence in (*views.unseen, *views.warnings, *cpu_warnings):
        click.echo(f"dranode: {sentence}", err=True)
    write_pictures(html, svg, lambda: machine_picture("Node", root, views))
    if output == "table":
        picture = node_picture(views.drivers)
        show_node(console(), picture, marked=bool(picture.claims))
        show_readings(console(), [reading for readings in views.readings.values() for reading in readings])


def read_holders(root: Root, kubelet_root: str | None) -> Mapping[str, CPUSet]:
    """Return the CPUs that each claim on record holds, by `<namespace>/<claim>`; none if this is not the real machine.

    If the ledger at the default kubelet root cannot be read, there is a warning on stderr and no holders.

    Raises:
        LedgerError: the ledger at the given kubelet root cannot be read.
    """
    folder = records_root(root, kubelet_root)
    if folder is None:
        return {}
    try:
        records = read_ledger(folder / "plugins" / CPUPlugin.driver / "ledger.db").records
    except LedgerError as error:
        # Users who want to see only the hardware need not be root.
        if kubelet_root is not None:
            raise
        click.echo(f"dranode: it is unknown who holds what: {error}", err=True)
        return {}
    return {str(record.ref): record.held for record in records if record.held}


def topology_document(topology: Topology | None, holders: Mapping[str, CPUSet]) -> dict[str, Any]:
    """Return the machine as `topology -o json` prints it, with the holders by `<namespace>/<claim>`.

    CPU sets are in the list format of cpuset(7), and lists are sorted by the first CPU. Everything except the holders
    is null for a machine without CPU folder.
    """
    of_claims = {claim: str(cpus) for claim, cpus in holders.items()}
    if topology is None:
        return {**dict.fromkeys(_OF_CPUS), "holders": of_claims}
    return {
        "cpus": str(topology.online),
        "offline": str(topology.offline),
        "isolated": str(topology.isolated),
        "nohz_full": str(topology.nohz_full),
        "smt": topology.smt,
        "cores": [str(cpus) for cpus in topology.cores],
        "packages": [str(cpus) for cpus in topology.packages.values()],
        "l3": [str(cpus) for cpus in topology.l3],
        "numa": {str(node): str(cpus) for node, cpus in topology.numa.items()},
        "core_types": {name: str(cpus) for name, cpus in topology.core_types.items()},
        "holders": of_claims,
    }


if TYPE_CHECKING:
    from rich.console import Console

# The names, without domain, of attributes that contain a PCI address: the standard one, and one that drivers use.
_ADDRESSES: Final = ("pciBusID", "pciAddress")
_NETWORK: Final = "network"
_GI: Final = 1 << 30
_DISTANCE: Final = "/sys/devices/system/node does not have all distances for them"
_NO_NODES: Final = "/sys/devices/system/node has no NUMA node with CPUs or memory, as in a kernel without NUMA"
_NOT_SEEN: Final = "links other than PCIe, such as NVLink and xGMI"


def show_links(root: Root, output: str) -> None:
    """Show how near PCI devices are to each other, and where CPUs and memory are, as `nvidia-smi topo -m` does."""
    devices = list(_devices(root, load_installed(root)))
    nodes = _nodes(root)
    if not emit(_document(devices, nodes), output):
        _draw(devices, nodes)


def _devices(root: Root, plugins: Iterable[Plugin]) -> Iterator[PCIDevice]:
    """Yield the devices of drivers, then the network controllers that no driver publishes."""
    seen: set[str] = set()
    for plugin in plugins:
        try:
            inventory = plugin.discover()
        except DranodeError as error:
            click.echo(f"dranode: the devices of {plugin.driver} are unknown: {error}", err=True)
            continue
        report_oddities(plugin.driver, inventory.warnings)
        for device in inventory.devices:
            address = _address(device)
            if address and address not in seen:
                seen.add(address)
                yield PCIDevice(device.name, plugin.driver, read_function(root, address))
    for function in network_functions(root):
        if function.address not in seen:
            yield PCIDevice("/".join(function.network) or function.address, _NETWORK, function)


def _address(device: Device) -> str:
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2] in _ADDRESSES and attribute.string:
            return attribute.string
    return ""


def _nodes(root: Root) -> list[PlacedNode]:
    """Return the NUMA nodes; what cannot be read of them is named on stderr."""
    try:
        cpus, memory, distances = node_cpus(root), node_memory(root), node_distances(root)
    except MachineError as error:
        click.echo(f"dranode: the NUMA nodes are unknown: {error}", err=True)
        return []
    # Damaged files may list CPUs that do not exist. If it is unknown which exist, the CPU driver's error says so.
    with contextlib.suppress(MachineError):
        online = read_topology(root).online
        cpus = {number: listed & online for number, listed in cpus.items()}
    numbers = sorted({*cpus, *memory})
    if not numbers:
        click.echo(f"dranode: it is unknown where CPUs and memory are: {_NO_NODES}", err=True)
    unplaced = CPUSet(number for number in numbers if number not in distances)
    if unplaced and len(numbers) > 1:
        click.echo(f"dranode: it is unknown how far the NUMA nodes {unplaced} are from others: {_DISTANCE}", err=True)
    return [
        PlacedNode(number, cpus.get(number, CPUSet()), memory.get(number), distances.get(number, {}))
        for number in numbers
    ]


def _document(devices: Sequence[PCIDevice], nodes: Sequence[PlacedNode]) -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": device.name,
                "driver": None if device.owner == _NETWORK else device.owner,
                "pciAddress": device.function.address,
                "pcieRoot": device.function.bridges[0] if device.function.bridges else None,
                "numaNode": device.function.numa_node,
                "cpus": str(device.function.cpus) or None,
                "link": _link_document(device.function.link),
                "linkNow": _link_document(device.function.link_now),
                "proximity": {other.name: str(nearness) for other, nearness in zip(devices, row, strict=True)},
            }
            for device, row in zip(devices, _matrix(devices), strict=True)
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


def _not_seen(devices: Sequence[PCIDevice]) -> list[str]:
    """Return the kinds of links that may connect two of these devices and are not read."""
    return [_NOT_SEEN] if sum(device.owner != _NETWORK for device in devices) > 1 else []


def _draw(devices: Sequence[PCIDevice], nodes: Sequence[PlacedNode]) -> None:
    screen = console()
    rows = _matrix(devices)
    if devices:
        # Columns have numbers, because the names of many devices side by side would be too wide.
        table = columns("", "device", *map(str, range(len(devices))))
        places = columns("", "kind", "NUMA", "CPUs", "link", "now")
        for number, (device, row) in enumerate(zip(devices, rows, strict=True)):
            table.add_row(str(number), device.name, *map(str, row))
            function = device.function
            numa = "?" if function.numa_node is None else str(function.numa_node)
            links = (_link(function.link), _link(function.link_now))
            places.add_row(str(number), device.owner, numa, str(function.cpus) or "?", *links)
        screen.print(table)
        screen.print()
        shown = {nearness for row in rows for nearness in row}
        for nearness, meaning in MEANINGS.items():
            if nearness in shown:
                screen.print(f"{nearness:<6} {meaning}", markup=False)
        for unseen in _not_seen(devices):
            screen.print(f"Not checked: {unseen}. Devices may be closer to each other than shown.", markup=False)
        screen.print()
        screen.print(places)
    else:
        screen.print("No driver publishes a PCI device here, and there is no network controller on PCI.", markup=False)
    if nodes:
        screen.print()
        table = columns("NUMA node", "CPUs", "memory", *(f"to {node.number}" for node in nodes))
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
    """Return the drivers' tables as `-o json` prints them, by driver, without drivers that have none."""
    return {
        driver: [
            {"title": reading.title, "rows": list(map(dict, reading.rows)), "remarks": list(reading.remarks)}
            for reading in driver_readings
        ]
        for driver, driver_readings in readings.items()
        if driver_readings
    }


def show_readings(screen: Console, readings: Iterable[HardwareReadings]) -> None:
    """Print each table under its title, and the driver's remarks after it."""
    for reading in readings:
        screen.print(f"\n{reading.title}", markup=False)
        if reading.rows:
            table = columns(*reading.rows[0])
            for row in reading.rows:
                table.add_row(*("-" if value is None else str(value) for value in row.values()))
            screen.print(table)
        for remark in reading.remarks:
            screen.print(remark, markup=False)


class Proximity(StrEnum):
    """What lies between two devices, from near to far, in the words of `nvidia-smi topo -m`."""

    SELF = "X"
    SWITCH = "PIX"
    SWITCHES = "PXB"
    ROOT = "PHB"
    NODE = "NODE"
    WITHIN_NODE = "<=NODE"
    SYSTEM = "SYS"
    UNKNOWN = "?"


MEANINGS: Mapping[Proximity, str] = {
    Proximity.SELF: "itself",
    Proximity.SWITCH: "at most one PCIe switch between them",
    Proximity.SWITCHES: "several PCIe switches, and no root complex",
    Proximity.ROOT: "a PCIe root complex",
    Proximity.NODE: "several root complexes of one NUMA node",
    Proximity.WITHIN_NODE: "the same NUMA node, or nearer: the machine does not show the root complexes",
    Proximity.SYSTEM: "the link between NUMA nodes",
    Proximity.UNKNOWN: "unknown: the machine does not show it",
}


class PCIDevice(msgspec.Struct, frozen=True):
    """A device on PCI.

    Attributes:
        name: the device's name, or those of its network interfaces.
        owner: the driver that publishes it; `network` for a network controller that no driver publishes.
        function: where it is.
    """

    name: str
    owner: str
    function: PCIFunction


class PlacedNode(msgspec.Struct, frozen=True):
    """A NUMA node.

    Attributes:
        number: the kernel's number.
        cpus: the node's CPUs.
        memory: the bytes of its memory; None if unknown.
        distances: the distance to every NUMA node, by number; empty if unknown.
    """

    number: int
    cpus: CPUSet
    memory: int | None
    distances: Mapping[int, int]


def proximity(device: PCIFunction, other: PCIFunction) -> Proximity:
    """Return what lies between two functions, derived from the bridges above them and their NUMA nodes."""
    if device.address == other.address:
        return Proximity.SELF
    if device.bridges and other.bridges and device.bridges[0] == other.bridges[0]:
        return _below_one_root(device.bridges, other.bridges)
    if device.numa_node is None or other.numa_node is None:
        return Proximity.UNKNOWN
    if device.numa_node != other.numa_node:
        return Proximity.SYSTEM
    return Proximity.NODE if device.bridges and other.bridges else Proximity.WITHIN_NODE


def _matrix(devices: Sequence[PCIDevice]) -> list[list[Proximity]]:
    """Return what lies between each device and every other one, in a row for each device."""
    return [[proximity(device.function, other.function) for other in devices] for device in devices]


def _below_one_root(bridges: Sequence[str], others: Sequence[str]) -> Proximity:
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(bridges, others, strict=False))))
    if common == 1:
        return Proximity.ROOT
    # The last bridge that they share may be a switch's upstream port. Below it, each has one downstream port of that
    # switch.
    return Proximity.SWITCH if max(len(bridges), len(others)) - common <= 1 else Proximity.SWITCHES
