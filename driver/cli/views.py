"""What drivers have on a machine, and which claims hold it by their ledgers: what pictures are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import DranodeError, LedgerError
from dranode.driver.core.claims.doubt import doubts
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import Record
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger_reading import read_ledger
from dranode.driver.node.ledger_rows import Contents
from dranode.driver.picture.fleet import FleetPicture
from dranode.driver.picture.node import DriverView

KUBELET_ROOT: Final = "/var/lib/kubelet"


@dataclass(frozen=True, slots=True)
class Views:
    """What was seen of a machine's drivers.

    Attributes:
        drivers: each driver whose hardware could be read.
        unseen: one sentence each for what could not.
    """

    drivers: tuple[DriverView, ...]
    unseen: tuple[str, ...] = ()


def records_root(root: Root, kubelet_root: str | None) -> Path | None:
    """The kubelet root whose records count: the one asked for, the host's own, or none for another machine."""
    if kubelet_root is None and not isinstance(root, HostRoot):
        return None
    return Path(kubelet_root or KUBELET_ROOT)


def driver_views(plugins: Iterable[Plugin], kubelet_root: Path | None) -> Views:
    """Read the hardware of these drivers and, below `kubelet_root`, their records; None where there are none."""
    views: list[DriverView] = []
    unseen: list[str] = []
    for plugin in plugins:
        try:
            inventory = plugin.discover()
        except DranodeError as error:
            unseen.append(f"the devices of {plugin.driver} are not known: {error}")
            continue
        records: tuple[Record, ...] = ()
        try:
            contents = _contents(plugin.driver, kubelet_root)
            records = contents.records
            unseen += (f"{plugin.driver}: {each}" for each in doubts(contents.doubt, records, plugin.driver))
        except LedgerError as error:
            # Whoever only looks at the machine need not be root.
            unseen.append(f"who holds what of {plugin.driver} is not known: {error}")
        views.append(DriverView.of(plugin.driver, inventory, plugin.layout(inventory), records))
    return Views(tuple(views), tuple(unseen))


def machine_picture(title: str, root: Root, views: Views) -> FleetPicture:
    """Return the picture of the machine whose drivers were seen."""
    from dranode.driver.cli.options import default_node_name
    from dranode.driver.picture.pictures import views_picture

    node = default_node_name() if isinstance(root, HostRoot) else "of --machine"
    return views_picture(f"{title} {node}", node, [("now", views.drivers)], notes=views.unseen, taken=time_now())


def time_now() -> str:
    """Return the time as pictures say it: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _contents(driver: str, kubelet_root: Path | None) -> Contents:
    if kubelet_root is None:
        return Contents((), ())
    return read_ledger(kubelet_root / "plugins" / driver / "ledger.db")
