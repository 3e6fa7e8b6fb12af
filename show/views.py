"""Reads the drivers' devices on a machine, and from their ledgers the claims that hold them, for pictures."""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from dranode.api.errors import DranodeError, LedgerError
from dranode.driver.claims.hooks import HardwareReadings, Reports
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import Record, ledger_problems
from dranode.driver.cli.options import default_node_name
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root
from dranode.show.ledger_reading import had_ledger, read_ledger
from dranode.show.picture.fleet import FleetPicture
from dranode.show.picture.node import DriverView
from dranode.show.picture.pictures import views_picture

KUBELET_ROOT: Final = "/var/lib/kubelet"


class Views(msgspec.Struct, frozen=True):
    """The drivers of a machine.

    Attributes:
        drivers: the drivers with their devices and holdings.
        unseen: one sentence for everything that could not be read.
        warnings: the drivers' warnings about the hardware that are not in a picture.
        readings: the current readings of their hardware, by driver.
    """

    drivers: tuple[DriverView, ...]
    unseen: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    readings: Mapping[str, tuple[HardwareReadings, ...]] = msgspec.field(default_factory=dict)


def records_root(root: Root, kubelet_root: str | None) -> Path | None:
    """Return the kubelet root with the records: the given one, the host's, or None for another machine."""
    if kubelet_root is None and not isinstance(root, HostRoot):
        return None
    return Path(kubelet_root or KUBELET_ROOT)


def driver_views(plugins: Iterable[Plugin], kubelet_root: Path | None) -> Views:
    """Read the hardware of these drivers and all records below `kubelet_root`, if it is not None.

    Holdings are shown even if the hardware of a driver cannot be read, or the driver is not installed.
    """
    views: list[DriverView] = []
    unseen: list[str] = []
    warnings: list[str] = []
    readings: dict[str, tuple[HardwareReadings, ...]] = {}
    plugins = tuple(plugins)
    for plugin in plugins:
        inventory, layout = Inventory(()), None
        try:
            inventory = plugin.discover()
            if isinstance(plugin, Reports):
                layout = plugin.layout(inventory)
                readings[plugin.driver] = tuple(plugin.readings(inventory))
        except DranodeError as error:
            unseen.append(f"the devices of {plugin.driver} are unknown: {error}")
        drawn = layout.warnings if layout is not None else ()
        warnings += (f"{plugin.driver}: {warning}" for warning in inventory.warnings if warning not in drawn)
        records = _records(plugin.driver, kubelet_root, unseen)
        views.append(DriverView.of(plugin.driver, inventory, layout, records, plugin))
    for driver in _others(kubelet_root, {plugin.driver for plugin in plugins}, unseen):
        unseen.append(f"the devices of {driver} are unknown: no such driver is installed here")
        views.append(DriverView.of(driver, Inventory(()), None, _records(driver, kubelet_root, unseen)))
    return Views(tuple(views), tuple(unseen), tuple(warnings), readings)


def machine_picture(title: str, root: Root, views: Views) -> FleetPicture:
    """Return the picture of a machine from the views of its drivers."""
    notes = (*views.unseen, *views.warnings)
    node = default_node_name() if isinstance(root, HostRoot) else "machine"
    return views_picture(f"{title} {node}", node, [("now", views.drivers)], notes=notes, taken=time_now())


def time_now() -> str:
    """Return the current time for pictures: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _records(driver: str, kubelet_root: Path | None, unseen: list[str]) -> tuple[Record, ...] | None:
    if kubelet_root is None:
        return ()
    try:
        contents = read_ledger(kubelet_root / "plugins" / driver / "ledger.db")
    except LedgerError as error:
        # Not an error, because a user without root may still view the machine.
        unseen.append(f"it is unknown who holds what of {driver}: {error}")
        return None
    unseen += (f"{driver}: {problem}" for problem in ledger_problems(contents.loss, contents.records, driver))
    return contents.records


def _others(kubelet_root: Path | None, known: set[str], unseen: list[str]) -> list[str]:
    """The drivers that have or had a ledger and are not among those that are known."""
    if kubelet_root is None:
        return []
    plugins = kubelet_root / "plugins"
    try:
        # Path.glob passes over folders that may not be looked into.
        names = sorted(os.listdir(plugins))  # noqa: PTH208 - names alone
        return [name for name in names if name not in known and had_ledger(plugins / name / "ledger.db")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Not an error, because a user without root may still view the machine.
        unseen.append(
            f"which other drivers have claims is not known: {error.filename} cannot be accessed: {error.strerror}; "
            "try as root"
        )
        return []
