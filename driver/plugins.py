"""Drivers by name, found through the entry point group `dranode.plugins`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dranode.driver.core.api.errors import UsageError
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.machine.root import Root

GROUP = "dranode.plugins"


def installed() -> dict[str, EntryPoint]:
    """The entry points of all installed drivers, by short name (`cpu`, `gpu`, ...)."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_plugins(names: Iterable[str], root: Root, options: Mapping[str, Any]) -> list[Plugin]:
    """Make the drivers of these names, for the machine under `root`.

    An entry point is a function `(root, options) -> Plugin`; `options` are those of `serve` in snake case.

    Raises:
        UsageError: no driver of that name is installed, or it refuses the options.
    """
    points = installed()
    plugins: list[Plugin] = []
    for name in dict.fromkeys(names):
        if name not in points:
            raise UsageError(f'no driver "{name}" is installed; there is {", ".join(sorted(points)) or "none"}')
        plugins.append(points[name].load()(root, options))
    return plugins
