"""The options of `serve`, as values and as options of click, including those that other commands share.

Precedence: default < `--config FILE` < `DRANODE_*` environment < flag. click applies it, with the file as its default
map. The file is strict YAML with keys in camel case. Options that dra-driver-cpu has too have its names. Unknown keys
and `DRANODE_*` variables are refused, because a misspelled one would silently leave its option at the default.
"""

import difflib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from dranode.api.errors import DocumentError, UsageError
from dranode.driver.claims.options import FRAMEWORK_KEYS, DriverOption
from dranode.driver.machine.folder import HOST, HostRoot
from dranode.driver.machine.root import Root
from dranode.driver.plugins import declared, default_drivers, installed, open_machine

F = TypeVar("F", bound=Callable[..., Any])

CONFIG_VARIABLE: Final = "DRANODE_CONFIG"
_FILE_VERSION: Final = "v1alpha1"
# The key under which every driver has a section.
_SECTIONS: Final = "plugins"
_OURS: Final = "DRANODE_"
# These variables are not options: Kubernetes sets some for the Services of the namespace, such as `dranode` or
# `dranode-metrics`, and drivers set some in the containers of a claim.
_SERVICE: Final = "_SERVICE_HOST"
_OF_SERVICE: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT")
_OF_CLAIMS: Final = ("DRANODE_HELD_", "DRANODE_CPUSET_", "DRANODE_ISOLATION_", "DRANODE_SHARED_")


class CommandOption(NamedTuple):
    """One option.

    Attributes:
        flag: with its hyphens; the parameter is named after it, unless `name` is set.
        help: the text in `--help`.
        default: a text, a number, whether a switch is on, names if it `repeats`, or a function that returns a text.
        variable: the environment variable; empty for none.
        choices: the allowed values; empty for any.
        metavar: the placeholder of the value in `--help`.
        repeats: whether it takes names separated by commas, and may be given several times.
        counts: whether its value is how often it is given.
        name: the name of the parameter.
    """

    flag: str
    help: str
    default: str | bool | int | tuple[str, ...] | Callable[[], str] = ""
    variable: str = ""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    repeats: bool = False
    counts: bool = False
    name: str = ""

    @property
    def parameter(self) -> str:
        """Return the name of the command's parameter."""
        return self.name or self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Return whether it is on or off and takes no value."""
        return isinstance(self.default, bool)

    @property
    def off(self) -> str:
        """Return the flag that turns a switch off."""
        return f"--no-{self.flag.removeprefix('--')}"


def _setting(flag: str, text: str, default: Any = "", **attributes: Any) -> CommandOption:
    """Make an option with an environment variable of the same name."""
    variable = "DRANODE_" + flag.removeprefix("--").replace("-", "_").upper()
    return CommandOption(flag, text, default, variable, **attributes)


def default_node_name() -> str:
    """Return `NODE_NAME` from the downward API, else the host name in lower case."""
    # kubelet names its node like this too, unless it has --hostname-override.
    return os.environ.get("NODE_NAME") or socket.gethostname().strip().lower()


def default_pod_uid() -> str:
    """Return `POD_UID` from the downward API, else an empty text."""
    return os.environ.get("POD_UID", "")


SERVE: Final = (
    _setting("--kubeconfig", "The kubeconfig (default: the pod's own account).", metavar="FILE"),
    _setting("--kubelet-root", "kubelet's --root-dir.", "/var/lib/kubelet", metavar="DIR"),
    _setting("--cdi-dir", "Where CDI specs are written.", "/var/run/cdi", metavar="DIR"),
    _setting("--nri-socket", "The runtime's NRI socket.", "/var/run/nri/nri.sock", metavar="PATH|none"),
    _setting("--http-address", "Serves /healthz, /readyz and /metrics.", "127.0.0.1:8080", metavar="HOST:PORT|none"),
    _setting(
        "--metrics-address", "A separate address for /metrics (default: that of the others).", metavar="HOST:PORT|none"
    ),
    _setting(
        "--pod-resources-socket",
        "kubelet's pod-resources socket (default: pod-resources/kubelet.sock in its root).",
        metavar="PATH",
    ),
    _setting("--claim-status", "Write status.devices of prepared claims.", "on", choices=("on", "off")),
    _setting(
        "--pod-uid",
        "This pod's UID (default POD_UID); turns on the sockets of a rolling update.",
        default_pod_uid,
        metavar="UID",
    ),
    _setting("--log-format", "How to log.", "text", choices=("text", "json")),
    CommandOption("-v", "Log more; give it twice for the details of every call.", 0, counts=True, name="verbosity"),
)
"""How `serve` reaches kubelet, the runtime and the cluster."""

STORE: Final = CommandOption(
    "--store", "Read claims from a folder of YAML files instead of an API server.", metavar="DIR"
)

MACHINE: Final = CommandOption(
    "--machine",
    "host (default), a folder or .tar archive that holds sys/, a YAML machine, a description "
    "such as sockets=2,numa=2,l3=4,cores=4,threads=2,memory=64Gi,gpus=4:nvidia,nics=2, or scratch:DIR, a folder that "
    "drivers may write to. Keys of a description, each number per parent: sockets, numa, l3, cores, threads; per NUMA "
    "node: memory, hugepages-2Mi, hugepages-1Gi; of the machine: gpus, nics, interrupts; per GPU: vfs "
    "(docs/machines.md).",
    "host",
    metavar="M",
    name="root",
)


def drivers_setting() -> CommandOption:
    """Return `--drivers`: the short names of installed drivers, separated by commas; it may be repeated."""
    default = default_drivers()
    known = ", ".join(sorted(installed()))
    return CommandOption(
        "--drivers",
        f"The drivers: {known}; may be repeated (default {','.join(default)}).",
        default,
        "DRANODE_DRIVERS",
        metavar="NAME,...",
        repeats=True,
    )


def between_commas(values: Iterable[str]) -> tuple[str, ...]:
    """Return the names in values that separate them by commas; a name may be empty."""
    return tuple(name.strip() for value in values for name in value.split(","))


def declared_settings() -> tuple[CommandOption, ...]:
    """Return the options that drivers declare."""
    return tuple(map(_of_driver, declared().options))


def _of_driver(declared: DriverOption) -> CommandOption:
    option = declared.option
    return CommandOption(
        declared.flag,
        option.help,
        option.default,
        declared.variable,
        option.choices,
        option.metavar,
        name=declared.parameter,
    )


def driver_settings() -> tuple[CommandOption, ...]:
    """Return the options that `serve`, `slices` and `local` share: the drivers, the node, and what is published."""
    return (
        drivers_setting(),
        _setting(
            "--node-name",
            "The node (default NODE_NAME, else the lower-cased host name).",
            default_node_name,
            metavar="NAME",
        ),
        _setting("--device-taints", "Taint unhealthy devices.", default=False),
        *declared_settings(),
    )


def unknown_prefixes() -> tuple[str, ...]:
    """Return the prefixes of the variables of drivers whose options cannot be read, so that their names are unknown."""
    return tuple(DriverOption.variable_prefix(driver) for driver in declared().problems)


def _read_config(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del parameter
    # The option is eager, so the defaults are in place before click reads the other options.
    if value is not None:
        known = {option.name: option for option in ctx.command.params if option.name is not None}
        ctx.default_map = {**(ctx.default_map or {}), **config_file(value, known)}
    return value


def config_file(path: str, parameters: Mapping[str, click.Parameter]) -> dict[str, Any]:
    """Return the parameters that a configuration file sets.

    Raises:
        UsageError: the file cannot be read, a key is unknown or set twice, or a value has the wrong type.
    """
    from dranode.driver.machine.yaml_files import read_yaml  # PyYAML, which `serve` does not need without a file

    try:
        document = read_yaml(path)
    except DocumentError as error:
        raise UsageError(str(error)) from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise UsageError(f"{path} is not a map of options; write each as in groupBy: socket")
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
    """Say how an unknown key is spelled, or where it belongs."""
    # A key in the wrong case or in the wrong section is answered with the right one.
    alike = [known for known in keys if known[1].lower() == key.lower()]
    near = next((name for section, name in alike if section == place), None)
    if near:
        return f'is spelled "{near}" here'
    if alike:
        section, name = alike[0]
        return f'is unknown; "{name}" belongs {_under(section).strip() or "at the top level"}'
    return f"is unknown; there are {', '.join(sorted(name for section, name in keys if section == place)) or 'none'}"


def _entries(path: str, document: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield section (a driver, or empty for the top level), key and value of everything that the file sets."""
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
        # The options of this driver could not be read, so its keys cannot be checked. `load_plugins` reports that.
        if driver in declared().problems:
            continue
        if not isinstance(section, Mapping):
            raise UsageError(f"{path}: {_section(driver)[:-1]} must be a map of options, not {section!r}")
        yield from ((driver, str(key), value) for key, value in section.items())


def _keys() -> dict[tuple[str, str], str]:
    """Return the parameter of each section and key."""
    keys = {("", key): name for key, name in FRAMEWORK_KEYS.items()}
    for option in declared().options:
        keys[option.section, option.key] = option.parameter
    return keys | {("", "apiVersion"): "", ("", _SECTIONS): ""}


def _section(driver: str) -> str:
    return f"{_SECTIONS}.{driver}." if driver else ""


def _under(driver: str) -> str:
    return f" under {_section(driver)[:-1]}" if driver else ""


def _checked(path: str, key: str, value: Any, parameter: click.Parameter) -> Any:
    # click alone would take any value for a text: a list would become "['a', 'b']".
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


class _Option(click.Option):
    """An option whose errors name the environment variable if the value comes from there, as in a DaemonSet."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = ctx.get_parameter_source(self.name or "") if ctx is not None else None
        if source is ParameterSource.ENVIRONMENT and self.envvar:
            return f"the environment variable {self.envvar[0]}"
        return super().get_error_hint(ctx)


def _click_option(setting: CommandOption) -> Callable[[F], F]:
    attributes: dict[str, Any] = {
        "default": setting.default,
        "help": setting.help,
        "show_default": setting.default != "" and isinstance(setting.default, str),
        "envvar": [setting.variable] if setting.variable else [],
    }
    flag = setting.flag
    # A switch is tested before a number, because a bool is an int in Python.
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
    return click.option(flag, setting.parameter, cls=_Option, show_envvar=False, **attributes)


def _apply(options: tuple[Callable[[F], F], ...], function: F) -> F:
    # click lists options in the reverse of the order in which decorators are applied.
    for option in reversed(options):
        function = option(function)
    return function


class DriverCommand(click.Command):
    """A command with options of drivers, which its help shows at the end, in a group for each driver."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and then those of each driver."""
        drivers = {option.parameter: option.driver for option in declared().options}
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
    """Return the environment variables of all options, including those of installed drivers."""
    return frozenset({CONFIG_VARIABLE, *(setting.variable for setting in (*driver_settings(), *SERVE))} - {""})


def names_of_drivers(text: str) -> Callable[[F], F]:
    """Return a decorator that adds `--drivers`, which also accepts the names under which drivers publish."""
    return click.option("--drivers", multiple=True, metavar="NAME,...", callback=_between_commas, help=text)


def _between_commas(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    del ctx, parameter
    names = between_commas(values)
    if "" in names:
        raise UsageError(f'--drivers is "{",".join(values)}", which has an empty name; give it as in cpu,memory,gpu')
    return names


def plugin_options(function: F) -> F:
    """Add `--drivers` and the options that drivers declare."""
    return _apply(tuple(map(_click_option, (drivers_setting(), *declared_settings()))), function)


def driver_options(function: F) -> F:
    """Add the options that `serve`, `slices` and `local` share: the drivers, the node, and what is published."""
    config = click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        envvar=CONFIG_VARIABLE,
        help="Read options from a YAML file; environment (DRANODE_*) and flags override it.",
    )
    return _apply((config, *map(_click_option, driver_settings())), function)


def serve_options(function: F) -> F:
    """Add the options with which `serve` reaches kubelet, the runtime and the cluster."""
    return _apply(tuple(map(_click_option, SERVE)), function)


def serve_option(flag: str) -> Callable[[F], F]:
    """Return a decorator that adds one option of `serve`, for a command that reads what `serve` has written."""
    return _click_option(next(setting for setting in SERVE if setting.flag == flag))


def store_option(function: F) -> F:
    """Add `--store`, which only `serve` has."""
    return _click_option(STORE)(function)


def check_environment(environment: Mapping[str, str], known: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse variables that look like options but are not; see `unknown_variables`.

    Raises:
        UsageError: a variable is unknown; the message names the nearest known one.
    """
    for sentence in unknown_variables(environment, known, others):
        raise UsageError(sentence)


def unknown_variables(
    environment: Mapping[str, str], known: Iterable[str], others: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a sentence for each variable that looks like an option but is not, with the nearest known one.

    Args:
        environment: names and values.
        known: the names of the options' variables.
        others: prefixes of variables that may belong to options that are not known here.
    """
    names = sorted(known)
    services = tuple(
        name.removesuffix(_SERVICE) + end for name in environment if name.endswith(_SERVICE) for end in _OF_SERVICE
    )
    for name in sorted(set(environment) - set(names)):
        if name.startswith(_OURS) and not name.startswith((*_OF_CLAIMS, *services, *others)):
            # The common prefix would make every name look similar.
            ends = [known_name.removeprefix(_OURS) for known_name in names]
            near = difflib.get_close_matches(name.removeprefix(_OURS), ends, 1)
            hint = f"did you mean {_OURS}{near[0]}?" if near else f"there are {', '.join(names)}"
            yield f"the environment variable {name} is unknown: {hint}"


def _open(ctx: click.Context, parameter: click.Parameter, value: str) -> Root:
    del ctx, parameter
    # Only the host is opened here: a node that serves its own hardware loads nothing of the other forms.
    return HostRoot() if value == HOST else open_machine(value)


def machine_option(function: F) -> F:
    """Add the option `--machine M`; the command gets the machine's file tree as `root`."""
    return click.option(
        MACHINE.flag,
        MACHINE.parameter,
        default=MACHINE.default,
        metavar=MACHINE.metavar,
        callback=_open,
        help=MACHINE.help,
    )(function)
