"""Prints what drivers read of their hardware at the moment: `HardwareReadings` as tables and as documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dranode.driver.cli.terminal import columns
from dranode.driver.core.claims.plugin import HardwareReadings

if TYPE_CHECKING:
    from rich.console import Console


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
