"""The content of a node's picture: its CPUs in boxes, the devices of all drivers by NUMA node, and the holders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import Device
from dranode.driver.claims.held import Holding
from dranode.driver.claims.hooks import Layout
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record, holdings
from dranode.driver.claims.users import pods_among

if TYPE_CHECKING:
    from dranode.driver.claims.plugin import Plugin

# Names that drivers use for the NUMA node, in any domain; the standard one is `resource.kubernetes.io/numaNode`.
_NUMA_NAMES: Final = frozenset({"numa", "numaid", "numanode", "numanodeid"})


class PlacedDevice(msgspec.Struct, frozen=True):
    """A device with its NUMA node.

    Attributes:
        driver: its driver.
        name: its name.
        numa: its NUMA node; None if it does not report one.
        shared: whether several claims may share it.
        taints: `key=value:effect` of each taint.
        holders: the claims that hold it, as `<namespace>/<name>`, in order.
        part: the free part, such as `8Gi of 64Gi free`; empty if amounts are not counted.
    """

    driver: str
    name: str
    numa: int | None = None
    shared: bool = False
    taints: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    part: str = ""


class NodePicture(msgspec.Struct, frozen=True):
    """The content of a node's picture.

    Attributes:
        layout: its CPUs in boxes; None if no driver knows them.
        cpus: the CPUs of each claim, by `<namespace>/<name>`.
        devices: the devices other than CPUs, in order.
    """

    layout: Layout | None
    cpus: Mapping[str, CPUSet] = msgspec.field(default_factory=dict)
    devices: tuple[PlacedDevice, ...] = ()

    @property
    def claims(self) -> tuple[str, ...]:
        """Return the claims that hold CPUs or devices, sorted by their first CPU, then by device."""
        by_cpu = sorted(self.cpus, key=lambda claim: (self.cpus[claim].mask & -self.cpus[claim].mask, claim))
        return tuple(dict.fromkeys((*by_cpu, *(holder for device in self.devices for holder in device.holders))))


class DriverView(msgspec.Struct, frozen=True):
    """The devices of one driver on a node.

    Attributes:
        driver: its name.
        inventory: its devices.
        layout: its CPUs in boxes; None if its devices are not CPUs.
        holdings: the devices that claims hold.
        pods: the pods of each claim, both as `<namespace>/<name>`.
        others: other consumers of each claim, such as `podgroup NAME`.
        holders_known: False if the holdings are unknown, so that no device counts as free.
        by_amounts: whether claims share its devices by amounts, which are in the holdings (`Plugin.by_amounts`).
    """

    driver: str
    inventory: Inventory
    layout: Layout | None = None
    holdings: tuple[Holding, ...] = ()
    pods: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    holders_known: bool = True
    by_amounts: bool = False

    @classmethod
    def of(
        cls,
        driver: str,
        inventory: Inventory,
        layout: Layout | None,
        records: Iterable[Record] | None,
        plugin: Plugin | None = None,
    ) -> DriverView:
        """Return the view of a driver with its devices and its records, which are None if they cannot be read.

        `plugin` is the driver, if it is installed on this machine.
        """
        by_amounts = plugin is not None and plugin.by_amounts
        if records is None:
            return cls(driver, inventory, layout, holders_known=False, by_amounts=by_amounts)
        records = tuple(records)
        pods = {
            str(record.ref): tuple(f"{record.namespace}/{pod.name}" for pod in pods_among(record.pods))
            for record in records
        }
        others = {str(record.ref): tuple(str(user) for user in record.pods if not user.is_pod) for record in records}
        held_devices = holdings(records, plugin.sources if plugin is not None else _own_name)
        return cls(driver, inventory, layout, held_devices, pods, others, by_amounts=by_amounts)


def _own_name(device: str, state: Any) -> frozenset[str]:
    del state
    return frozenset((device,))


def node_picture(views: Iterable[DriverView]) -> NodePicture:
    """Return a picture of all drivers of a node, with the CPUs of the first driver that has a layout."""
    layout: Layout | None = None
    cpus: dict[str, CPUSet] = {}
    devices: list[PlacedDevice] = []
    for view in views:
        layout = layout if layout is not None else view.layout
        for holding in view.holdings:
            if holding.cpus:
                claim = str(holding.claim)
                cpus[claim] = cpus.get(claim, CPUSet()) | holding.cpus
        if view.layout is None:
            devices += _placed(view)
    return NodePicture(layout, cpus, tuple(devices))


def numa_of(device: Device) -> int | None:
    """Return the NUMA node in a device's attributes, by any of its usual names; None if there is none."""
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2].lower() in _NUMA_NAMES:
            numbers = (attribute.int_,) if attribute.int_ is not None else attribute.ints or ()
            # The kernel reports an unknown NUMA node as -1.
            number = next((number for number in numbers if number >= 0), None)
            if number is not None:
                return number
    return None


def held_amounts(holding: Holding, view: DriverView) -> dict[str, dict[str, Quantity]]:
    """Return a claim's recorded amounts of devices that are shared by amounts, by device and capacity.

    Devices with several capacities are left out, because a record does not name the capacity of an amount. A claim on a
    device that had another name counts for each device with some of its sources.
    """
    return {
        device.name: {name.removeprefix(f"{view.driver}/"): Quantity.binary(amount)}
        for device in view.inventory.devices
        if len(device.capacity) == 1 and (amount := holding.amount(view.inventory.sources_of(device.name)))
        for name in device.capacity
    }


def _placed(view: DriverView) -> Iterable[PlacedDevice]:
    for device in view.inventory.devices:
        sources = view.inventory.sources_of(device.name)
        yield PlacedDevice(
            driver=view.driver,
            name=device.name,
            numa=numa_of(device),
            shared=bool(device.allow_multiple_allocations),
            taints=tuple(taint.text for taint in device.taints),
            holders=tuple(
                sorted(
                    str(holding.claim)
                    for holding in view.holdings
                    if any(device_.of(sources) for device_ in holding.devices)
                )
            ),
            part=_part(device, view),
        )


def _part(device: Device, view: DriverView) -> str:
    sizes = [capacity.value for capacity in device.capacity.values()]
    if not view.by_amounts or not view.holders_known or len(sizes) != 1:
        return ""
    held = sum(holding.amount(view.inventory.sources_of(device.name)) for holding in view.holdings)
    return f"{Quantity.binary(max(0, int(sizes[0].value - held)))} of {sizes[0]} free"
