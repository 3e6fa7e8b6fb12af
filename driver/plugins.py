"""Finds drivers (`dranode.plugins`), their options, and machines other than the host by entry points."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from dranode.api.errors import UsageError, in_words
from dranode.driver.claims.options import Declarations, declarations
from dranode.driver.claims.plugin import Plugin
from dranode.driver.machine.root import Root

log = logging.getLogger(__name__)

GROUP: Final = "dranode.plugins"
# Its objects are tuples of `Option`, in modules with few imports, because every start of the program loads them.
OPTIONS_GROUP: Final = "dranode.options"
# The drivers that run by default. Only this package's entry points count, so that another package cannot add one.
DEFAULT_GROUP: Final = "dranode.default"
# Opens a machine that is not the host. Nodes do not need this, so the code is only loaded when it is used.
MACHINES_GROUP: Final = "dranode.machines"
_PACKAGE: Final = "dranode."


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of all installed drivers, by short name; this package's own win over others."""
    return _by_name(GROUP)


def default_drivers() -> tuple[str, ...]:
    """Return the short names of the drivers that run by default."""
    return tuple(point.name for point in _entry_points(DEFAULT_GROUP) if _is_ours(point))


@cache
def declared() -> Declarations:
    """Return the options of all installed drivers; this package's own come first, so that they keep their names."""
    ordered = sorted(_by_name(OPTIONS_GROUP).values(), key=lambda point: (not _is_ours(point), point.name))
    return declarations((point.name, _loaded(point)) for point in ordered)


def open_machine(text: str) -> Root:
    """Open the machine of `--machine TEXT`, if it is not the host (docs/machines.md).

    Raises:
        UsageError: the text is not a description of a machine, or the file that it names does not exist.
        DocumentError: a machine in YAML is invalid.
        MachineError: a folder or an archive cannot be read or has no `sys/`.
    """
    root: Root = _by_name(MACHINES_GROUP)["open"].load()(text)
    return root


def load_plugins(names: Iterable[str], root: Root, options: Mapping[str, Any]) -> list[Plugin]:
    """Create the drivers with these names, for the machine under `root`.

    An entry point is a function `(root, options) -> Plugin`. Its options are all of the driver's own, in snake case,
    and those of the framework that the command has, but never another driver's.

    Args:
        names: short names; duplicates are ignored.
        root: the machine's files.
        options: the values of the command's options, by the names of its parameters.

    Raises:
        UsageError: a driver is not installed, cannot be imported, declares invalid options, or rejects their values.
    """
    unique = list(dict.fromkeys(names))
    for driver, problem in sorted(declared().problems.items()):
        if driver not in unique:
            log.warning("driver=%s: %s", driver, problem)
    return [_create(name, root, options) for name in unique]


def published_names(names: Iterable[str], root: Root) -> tuple[str, ...]:
    """Return the names under which drivers publish, for a list of short names and such names."""
    return tuple(load_plugins((name,), root, {})[0].driver if name in installed() else name for name in names)


def load_installed(root: Root) -> list[Plugin]:
    """Return every installed driver with its default options; log those that cannot be created, and leave them out."""
    plugins: list[Plugin] = []
    for name in installed():
        try:
            plugins.append(_create(name, root, {}))
        except Exception as error:  # noqa: BLE001 - a third party's module may raise anything, and must stop no other driver
            log.warning("driver=%s is left out: %s", name, in_words(error))
    return plugins


def _create(name: str, root: Root, options: Mapping[str, Any]) -> Plugin:
    points = installed()
    if name not in points:
        raise UsageError(f'no driver "{name}" is installed; installed: {", ".join(sorted(points)) or "none"}')
    if name in declared().problems:
        raise UsageError(declared().problems[name])
    try:
        create = points[name].load()
    except (ImportError, AttributeError) as error:
        place, kind = points[name].value, type(error).__name__
        raise UsageError(f'the driver "{name}" cannot be loaded ({place}): {kind}: {error}') from error
    plugin: Plugin = create(root, dict(_options_of(name, options)))
    return plugin


def _options_of(driver: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the framework's options, then the driver's own, so that these replace options with the same name."""
    of_drivers = {option.parameter for option in declared().options}
    yield from ((name, value) for name, value in options.items() if name not in of_drivers)
    for option in declared().of(driver):
        yield option.field, options.get(option.parameter, option.option.default)


def _by_name(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(_entry_points(group), key=_is_ours)}


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001 - a third party's module may raise anything, and must stop no other driver
        return error


def _is_ours(point: EntryPoint) -> bool:
    # By its module, because reading the metadata of its package takes longer.
    return point.value.startswith(_PACKAGE)
