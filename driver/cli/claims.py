"""`dranode claims`: the claims on record on this node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dranode.driver.cli.output import console, emit, fail, output_option
from dranode.driver.core.record import Record
from dranode.driver.ledger import Damaged, read_ledger
from dranode.driver.terminal import columns


@click.command(short_help="The claims on record on this node.")
@click.option("--kubelet-root", default="/var/lib/kubelet", metavar="DIR", envvar="DRANODE_KUBELET_ROOT")
@click.option("--driver", "drivers", multiple=True, metavar="NAME", help="Only this driver (dra.cpu).")
@output_option
def command(kubelet_root: str, drivers: tuple[str, ...], output: str) -> None:
    """Show every claim that a driver has on record: what it was given and who may use it.

    \b
    Example:
      dranode claims
      dranode claims --kubelet-root state/kubelet -o json
    """
    plugins = Path(kubelet_root) / "plugins"
    if not plugins.is_dir():
        fail(f"{plugins} is not there; name kubelet's root with --kubelet-root")
    found = sorted(path.parent.name for path in plugins.glob("*/ledger.db"))
    rows: list[dict[str, Any]] = []
    for driver in (one for one in found if not drivers or one in drivers):
        contents = read_ledger(plugins / driver / "ledger.db")
        rows += [_row(driver, record) for record in contents.records]
        rows += [_damaged(driver, damaged) for damaged in contents.damaged]
    rows.sort(key=lambda row: (row["namespace"], row["name"], row["uid"], row["driver"]))
    if not emit(rows, output):
        _draw(rows)


def _row(driver: str, record: Record) -> dict[str, Any]:
    return {
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
        "driver": driver,
        "devices": [grant.device for grant in record.grants],
        "cpus": record.cpus or None,
        "held": record.held or None,
        "state": record.state.value,
        "pods": [pod.name for pod in record.pods],
    }


def _damaged(driver: str, row: Damaged) -> dict[str, Any]:
    return {
        "namespace": "",
        "name": "",
        "uid": row.uid,
        "driver": driver,
        "devices": list(row.devices or ()),
        "cpus": None,
        "held": None,
        "state": "quarantined",
        "pods": [],
    }


def _draw(rows: list[dict[str, Any]]) -> None:
    if not rows:
        console().print("No claim is on record.")
        return
    table = columns("claim", "driver", "devices", "cpus", "held", "state", "pods")
    for row in rows:
        claim = f"{row['namespace']}/{row['name']}" if row["name"] else row["uid"]
        table.add_row(
            claim,
            row["driver"],
            ", ".join(row["devices"]),
            row["cpus"] or "-",
            row["held"] or "-",
            row["state"],
            ", ".join(row["pods"]),
        )
    console().print(table)
