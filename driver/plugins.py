"""What is found through entry points: drivers (`dranode.plugins`), their options, and machines other than the host."""

from __future__ import annotations

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
# Its objects are tuples of `Option`, in modules that import little: every start of the program loads them.
OPTIONS_GROUP: Final = "dranode.options"
# The drivers that run where no driver is named: what this package itself says, whatever else is installed.
DEFAULT_GROUP: Final = "dranode.default"
# Opens a machine that is not the host: a node needs none of them, so the code is not loaded there.
MACHINES_GROUP: Final = "dranode.machines"
_PACKAGE: Final = "dranode."


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def installed() -> dict[str, EntryPoint]:
    """The entry points of all installed drivers, by short name; this package's own, where another has that name too."""
    return _by_name(GROUP)


def default_drivers() -> tuple[str, ...]:
    """The short names of the drivers that run where no driver is named."""
    return tuple(point.name for point in _entry_points(DEFAULT_GROUP) if _is_ours(point))


@cache
def declared() -> Declarations:
    """The options of all installed drivers; this package's own are taken in first, so that no other can take a name."""
    ordered = sorted(_by_name(OPTIONS_GROUP).values(), key=lambda point: (not _is_ours(point), point.name))
    return declarations((point.name, _loaded(point)) for point in ordered)


def open_machine(text: str) -> Root:
    """Open the machine that `--machine TEXT` names, if it is not the host (docs/machines.md).

    Raises:
        UsageError: the text is not a form of a machine, names nothing, or is an invalid description.
        DocumentError: a YAML machine breaks its rules.
        MachineError: a folder or an archive cannot be read or holds no `sys/`.
    """
    root: Root = _by_name(MACHINES_GROUP)["open"].load()(text)
    return root


def load_plugins(names: Iterable[str], root: Root, options: Mapping[str, Any]) -> list[Plugin]:
    """Make the drivers of these names, for the machine under `root`.

    An entry point is a function `(root, options) -> Plugin`. It gets the driver's own options in snake case, all of
    them, and those of the framework that there are; never another driver's.

    Args:
        names: short names; one that stands there twice is made once.
        root: the machine's files.
        options: what the command was given, by the names that its parameters have.

    Raises:
        UsageError: no driver of that name is installed, it cannot be imported, its options are not declared as they
            should be, or it refuses their values.
    """
    wanted = list(dict.fromkeys(names))
    for driver, problem in sorted(declared().problems.items()):
        if driver not in wanted:
            log.warning("driver=%s: %s", driver, problem)
    return [_made(name, root, options) for name in wanted]


def published_names(names: Iterable[str], root: Root) -> tuple[str, ...]:
    """Return the names under which drivers publish, of drivers that are named so or by their short names."""
    return tuple(load_plugins((name,), root, {})[0].driver if name in installed() else name for name in names)


def load_installed(root: Root) -> list[Plugin]:
    """Every installed driver with its default options; one that cannot be made is left out with a warning."""
    plugins: list[Plugin] = []
    for name in installed():
        try:
            plugins.append(_made(name, root, {}))
        except Exception as error:  # noqa: BLE001 - a third party's module may raise anything, and must stop no other driver
            log.warning("driver=%s is left out: %s", name, in_words(error))
    return plugins


def _made(name: str, root: Root, options: Mapping[str, Any]) -> Plugin:
    points, found = installed(), declared()
    if name not in points:
        raise UsageError(f'no driver "{name}" is installed; installed: {", ".join(sorted(points)) or "none"}')
    if name in found.problems:
        raise UsageError(found.problems[name])
    try:
        create = points[name].load()
    except (ImportError, AttributeError) as error:
        place, kind = points[name].value, type(error).__name__
        raise UsageError(f'the driver "{name}" cannot be loaded ({place}): {kind}: {error}') from error
    plugin: Plugin = create(root, dict(_options_of(name, found, options)))
    return plugin


def _options_of(driver: str, declared_all: Declarations, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The framework's options, then the driver's own, so that its own count where both are called the same."""
    drivers = {option.parameter for option in declared_all.options}
    yield from ((name, value) for name, value in options.items() if name not in drivers)
    for each in declared_all.of(driver):
        yield each.field, options.get(each.parameter, each.option.default)


def _by_name(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(_entry_points(group), key=_is_ours)}


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001 - a third party's module may raise anything, and must stop no other driver
        return error


def _is_ours(point: EntryPoint) -> bool:
    # By where it leads, which says so without its package's metadata.
    return point.value.startswith(_PACKAGE)
