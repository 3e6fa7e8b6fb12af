"""A node as a picture shows it: its CPUs in boxes, every driver's devices where they sit, and who holds what."""

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
from dranode.driver.claims.uses import pods_among

if TYPE_CHECKING:
    from dranode.driver.claims.plugin import Plugin

# How drivers call the attribute, in any domain; `resource.kubernetes.io/numaNode` is the standard one.
_NUMA_NAMES: Final = frozenset({"numa", "numaid", "numanode", "numanodeid"})


class PlacedDevice(msgspec.Struct, frozen=True):
    """A device and where it sits.

    Attributes:
        driver: whose it is.
        name: what it is called.
        numa: its NUMA node; None if it does not say.
        shared: whether several claims may have it.
        taints: `key=value:effect` of each taint.
        holders: the claims that have it, by `<namespace>/<name>`, in order.
        part: how much of it they have, such as `8Gi of 64Gi`; empty where that is not counted.
    """

    driver: str
    name: str
    numa: int | None = None
    shared: bool = False
    taints: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    part: str = ""


class NodePicture(msgspec.Struct, frozen=True):
    """The drawing of one node.

    Attributes:
        layout: its CPUs in boxes; None where no driver knows them.
        cpus: the CPUs that each claim holds, by `<namespace>/<name>`.
        devices: those that are not CPUs, in order.
    """

    layout: Layout | None
    cpus: Mapping[str, CPUSet] = msgspec.field(default_factory=dict)
    devices: tuple[PlacedDevice, ...] = ()

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims that hold something: by their first CPU, then by device."""
        by_cpu = sorted(self.cpus, key=lambda claim: (self.cpus[claim].mask & -self.cpus[claim].mask, claim))
        return tuple(dict.fromkeys((*by_cpu, *(holder for device in self.devices for holder in device.holders))))


class DriverView(msgspec.Struct, frozen=True):
    """The devices of one driver on a node.

    Attributes:
        driver: its name.
        inventory: what it found.
        layout: the boxes that it knows; its devices are then the CPUs in them.
        holdings: what claims hold of it.
        pods: the pods of each claim, both by `<namespace>/<name>`.
        others: who else may use a claim, by its `<namespace>/<name>`: `podgroup NAME`.
        holders_known: False where it is unknown what claims hold, so that nothing is known to be free.
        by_amounts: whether claims share its devices by amounts, which their holdings have (`Plugin.by_amounts`).
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
        """Return what a driver has, by what it found and what it has on record; None if that cannot be read.

        `plugin` is the driver, where it is installed here.
        """
        by_amounts = plugin is not None and plugin.by_amounts
        if records is None:
            return cls(driver, inventory, layout, holders_known=False, by_amounts=by_amounts)
        records = tuple(records)
        pods = {
            str(record.ref): tuple(f"{record.namespace}/{pod.name}" for pod in pods_among(record.pods))
            for record in records
        }
        others = {str(record.ref): tuple(str(each) for each in record.pods if not each.is_pod) for record in records}
        held = holdings(records, plugin.sources if plugin is not None else _own_name)
        return cls(driver, inventory, layout, held, pods, others, by_amounts=by_amounts)


def _own_name(device: str, state: Any) -> frozenset[str]:
    del state
    return frozenset((device,))


def node_picture(views: Iterable[DriverView]) -> NodePicture:
    """Put the drivers of a node into one picture, with the boxes of the first that knows any."""
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
    """Return the NUMA node that a device names in its attributes, whatever its driver calls it; None if it does not."""
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2].lower() in _NUMA_NAMES:
            numbers = (attribute.int_,) if attribute.int_ is not None else attribute.ints or ()
            # The kernel says -1 where it does not know.
            number = next((number for number in numbers if number >= 0), None)
            if number is not None:
                return number
    return None


def held_amounts(holding: Holding, view: DriverView) -> dict[str, dict[str, Quantity]]:
    """Return how much a claim holds of devices that are shared by amounts, by device and capacity, by its record.

    Of a device with several capacities nobody can say which of them an amount is of. A claim on a device that had
    another name counts against each that has some of its sources.
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
            taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in device.taints),
            holders=tuple(
                sorted(str(each.claim) for each in view.holdings if any(held.of(sources) for held in each.devices))
            ),
            part=_part(device, view),
        )


def _part(device: Device, view: DriverView) -> str:
    sizes = [capacity.value for capacity in device.capacity.values()]
    if not view.by_amounts or not view.holders_known or len(sizes) != 1:
        return ""
    held = sum(each.amount(view.inventory.sources_of(device.name)) for each in view.holdings)
    return f"{Quantity.binary(max(0, int(sizes[0].value - held)))} of {sizes[0]} free"
