"""The options of `serve` as values."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from dranode.driver.core.claims.options import DriverOption
from dranode.driver.plugins import declared, default_drivers, installed

CONFIG_VARIABLE: Final = "DRANODE_CONFIG"


class CommandOption(NamedTuple):
    """One option.

    Attributes:
        flag: with its hyphens; it gives the parameter its name unless `name` does.
        help: for `--help`.
        default: a text, a whole number, whether a switch is on, names for one that `repeats`, or a function of it.
        variable: the environment variable; empty for none.
        choices: the texts that are allowed; empty for any.
        metavar: what stands for the value in `--help`.
        repeats: whether it is names between commas, and may be given several times.
        counts: whether its value is how often it is given.
        name: the parameter.
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
        """Return what the program calls it."""
        return self.name or self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Return whether it has no value but is on or off."""
        return isinstance(self.default, bool)

    @property
    def off(self) -> str:
        """Return the flag that turns a switch off."""
        return f"--no-{self.flag.removeprefix('--')}"


def _setting(flag: str, text: str, default: Any = "", **attributes: Any) -> CommandOption:
    """An option with its own variable."""
    variable = "DRANODE_" + flag.removeprefix("--").replace("-", "_").upper()
    return CommandOption(flag, text, default, variable, **attributes)


def default_node_name() -> str:
    """Return `NODE_NAME` from the downward API, else the host name in lower case."""
    return os.environ.get("NODE_NAME") or socket.gethostname().strip().lower()


def default_pod_uid() -> str:
    """Return `POD_UID` from the downward API, else none."""
    return os.environ.get("POD_UID", "")


SERVE: Final = (
    _setting("--kubeconfig", "Default: in-cluster.", metavar="FILE"),
    _setting("--kubelet-root", "kubelet's --root-dir.", "/var/lib/kubelet", metavar="DIR"),
    _setting("--cdi-dir", "Where CDI specs are written.", "/var/run/cdi", metavar="DIR"),
    _setting("--nri-socket", "The runtime's NRI.", "/var/run/nri/nri.sock", metavar="PATH|none"),
    _setting("--http-address", "/healthz, /readyz and /metrics.", "127.0.0.1:8080", metavar="HOST:PORT|none"),
    _setting("--metrics-address", "/metrics, here alone. Default: with the others.", metavar="HOST:PORT|none"),
    _setting("--pod-resources-socket", "Default: pod-resources/kubelet.sock under kubelet's root.", metavar="PATH"),
    _setting("--claim-status", "Write status.devices of prepared claims.", "on", choices=("on", "off")),
    _setting(
        "--pod-uid",
        "This pod's UID (default POD_UID); turns on the sockets of a rolling update.",
        default_pod_uid,
        metavar="UID",
    ),
    _setting("--log-format", "How to log.", "text", choices=("text", "json")),
    CommandOption("-v", "Log more; twice for every call's details.", 0, counts=True, name="verbosity"),
)
"""How `serve` reaches kubelet, the runtime and the cluster."""

STORE: Final = CommandOption(
    "--store", "Take claims from a folder of YAML files instead of an API server.", metavar="DIR"
)

MACHINE: Final = CommandOption(
    "--machine",
    "host (default), a folder or .tar archive that holds sys/, a YAML machine, or a description "
    "such as sockets=2,numa=2,l3=4,cores=4,threads=2 (each number per parent).",
    "host",
    metavar="M",
    name="root",
)


def drivers_setting() -> CommandOption:
    """`--drivers`: the short names of installed drivers, between commas, as often as one likes."""
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
    """Return the names in values that have them between commas; one may be empty."""
    return tuple(name.strip() for value in values for name in value.split(","))


def declared_settings() -> tuple[CommandOption, ...]:
    """The options that drivers declare."""
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
    """The options that `serve`, `slices` and `local` share: the drivers, the node, and what is published."""
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


def variables_of(settings: Iterable[CommandOption]) -> frozenset[str]:
    """The environment variables of these options."""
    return frozenset(setting.variable for setting in settings if setting.variable)


def unknown_prefixes() -> tuple[str, ...]:
    """The prefixes of the variables of drivers whose options cannot be read, so that their names are unknown."""
    return tuple(DriverOption.variable_prefix(driver) for driver in declared().problems)
