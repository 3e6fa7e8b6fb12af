"""The options of `serve`, and those of them that `slices` and `local` share.

Order: default < `--config FILE` < `DRANODE_*` environment < flag; click's own, with the file as its default map. The
file is strict YAML with camel-case keys, dra-driver-cpu's names where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import click

from dranode.driver.cli.settings import (
    CONFIG_VARIABLE,
    SERVE,
    STORE,
    CommandOption,
    between_commas,
    declared_settings,
    driver_settings,
    drivers_setting,
    variables_of,
)
from dranode.driver.core.api.errors import DocumentError, UsageError
from dranode.driver.core.claims.options import FRAMEWORK_KEYS
from dranode.driver.plugins import declared, installed

F = TypeVar("F", bound=Callable[..., Any])

_FILE_VERSION: Final = "v1alpha1"
# The key under which every driver has a section.
_SECTIONS: Final = "plugins"


def _read_config(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del parameter
    if value is not None:
        known = {option.name: option for option in ctx.command.params if option.name is not None}
        ctx.default_map = {**(ctx.default_map or {}), **config_file(value, known)}
    return value


def config_file(path: str, parameters: Mapping[str, click.Parameter]) -> dict[str, Any]:
    """Return the parameters that a configuration file sets.

    Raises:
        UsageError: the file cannot be read, a key is unknown or set twice, or a value has the wrong type.
    """
    from dranode.driver.machine.yaml_files import read_yaml  # YAML, which `serve` does without otherwise

    try:
        document = read_yaml(path)
    except DocumentError as error:
        raise UsageError(str(error)) from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: a configuration is a map of options, not a {type(document).__name__}")
    values: dict[str, Any] = {}
    keys = _keys()
    for place, key, value in _entries(path, document):
        if (place, key) not in keys:
            raise UsageError(f'{path}: the key "{key}"{_under(place)} {_hint(place, key, keys)}')
        name = keys[place, key]
        # A command ignores the keys of options that it does not have, so that one file serves every command.
        if name in parameters:
            values[name] = _checked(path, f"{_section(place)}{key}", value, parameters[name])
    return values


def _hint(place: str, key: str, keys: Iterable[tuple[str, str]]) -> str:
    """What a key that is unknown may have been meant to be."""
    alike = [known for known in keys if known[1].lower() == key.lower()]
    near = next((name for section, name in alike if section == place), None)
    if near:
        return f'is spelled "{near}" here'
    if alike:
        section, name = alike[0]
        return f'is unknown; "{name}" stands {_under(section).strip() or "at the top level"}'
    return f"is unknown; there are {', '.join(sorted(name for section, name in keys if section == place)) or 'none'}"


def _entries(path: str, document: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    """Section (a driver, or empty for the top level), key and value of everything that the file sets."""
    for key, value in document.items():
        if key == "apiVersion":
            if value != _FILE_VERSION:
                raise UsageError(f'{path}: unsupported apiVersion "{value}", want "{_FILE_VERSION}"')
        elif key == _SECTIONS:
            yield from _in_sections(path, value)
        else:
            yield "", str(key), value


def _in_sections(path: str, sections: object) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(sections, Mapping):
        raise UsageError(f"{path}: {_SECTIONS} must be a map of drivers, not {sections!r}")
    drivers = installed()
    for driver, section in sections.items():
        if driver not in drivers:
            raise UsageError(
                f'{path}: {_SECTIONS} has "{driver}", but the installed drivers are {", ".join(sorted(drivers))}'
            )
        # Which options a driver takes is unknown where they are unreadable; load_plugins refuses or warns.
        if driver in declared().problems:
            continue
        if not isinstance(section, Mapping):
            raise UsageError(f"{path}: {_section(driver)[:-1]} must be a map of options, not {section!r}")
        yield from ((driver, str(key), value) for key, value in section.items())


def _keys() -> dict[tuple[str, str], str]:
    """Section and key -> parameter."""
    keys = {("", key): name for key, name in FRAMEWORK_KEYS.items()}
    for each in declared().options:
        keys[each.section, each.key] = each.parameter
    return keys | {("", "apiVersion"): "", ("", _SECTIONS): ""}


def _section(driver: str) -> str:
    return f"{_SECTIONS}.{driver}." if driver else ""


def _under(driver: str) -> str:
    return f" under {_section(driver)[:-1]}" if driver else ""


def _checked(path: str, key: str, value: Any, parameter: click.Parameter) -> Any:
    kind: type = str
    if parameter.multiple:
        kind = list
    elif isinstance(parameter.type, click.types.BoolParamType):
        kind = bool
    elif isinstance(parameter.type, (click.types.IntParamType, click.IntRange)):
        kind = int
    if not isinstance(value, kind):
        raise UsageError(f"{path}: {key} must be a {kind.__name__}, not {value!r}")
    if isinstance(parameter.type, click.Choice) and value not in parameter.type.choices:
        raise UsageError(f'{path}: {key} must be one of {", ".join(parameter.type.choices)}, not "{value}"')
    return value


def _click_option(setting: CommandOption) -> Callable[[F], F]:
    attributes: dict[str, Any] = {
        "default": setting.default,
        "help": setting.help,
        "envvar": [setting.variable] if setting.variable else [],
    }
    flag = setting.flag
    if setting.choices:
        attributes["type"] = click.Choice(setting.choices)
    elif setting.is_switch:
        flag = f"{flag}/{setting.off}"
    elif setting.counts:
        attributes["count"] = True
    elif isinstance(setting.default, int):
        attributes["type"] = int
    elif setting.repeats:
        attributes |= {"multiple": True, "callback": _between_commas}
    if setting.metavar:
        attributes["metavar"] = setting.metavar
    return click.option(flag, setting.parameter, show_envvar=False, **attributes)


def _apply(options: tuple[Callable[[F], F], ...], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


class DriverCommand(click.Command):
    """A command that takes options of drivers: its help has them at the end, in a group for each driver."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and then those of each driver."""
        drivers = {each.parameter: each.driver for each in declared().options}
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            driver = drivers.get(parameter.name or "")
            if record is not None:
                groups.setdefault(f"Options of the driver {driver}" if driver else "Options", []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def variables() -> frozenset[str]:
    """The environment variables of all options, those of installed drivers among them."""
    return variables_of((*driver_settings(), *SERVE)) | {CONFIG_VARIABLE}


def which_drivers(function: F) -> F:
    """`--drivers`: the short names of installed drivers, between commas, as often as one likes."""
    return _click_option(drivers_setting())(function)


def names_of_drivers(text: str) -> Callable[[F], F]:
    """`--drivers` where a driver may also be named as it publishes; between commas."""
    return click.option("--drivers", multiple=True, metavar="NAME,...", callback=_between_commas, help=text)


def _between_commas(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    del ctx, parameter
    names = between_commas(values)
    if "" in names:
        raise UsageError(f'--drivers is "{",".join(values)}", which has an empty name; give it as in cpu,memory,gpu')
    return names


def plugin_options(function: F) -> F:
    """`--drivers`, and the options that drivers declare."""
    return _apply((which_drivers, *map(_click_option, declared_settings())), function)


def driver_options(function: F) -> F:
    """Add the options that `serve`, `slices` and `local` share: the drivers, the node, and what is published."""
    config = click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        envvar=CONFIG_VARIABLE,
        help="Read options from a YAML file; environment (DRANODE_*) and flags win over it.",
    )
    return _apply((config, *map(_click_option, driver_settings())), function)


def serve_options(function: F) -> F:
    """Add the options with which `serve` reaches kubelet, the runtime and the cluster."""
    return _apply(tuple(map(_click_option, SERVE)), function)


def store_option(function: F) -> F:
    """Add `--store`, of `serve` alone."""
    return _click_option(STORE)(function)
