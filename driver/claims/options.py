"""The options of drivers: each driver declares its own, and their names follow from the driver's name.

A driver `lamps` lists them under the entry point group `dranode.options`, by the name that it has in `dranode.plugins`.
Its option `colour-map` is the flag `--lamps-colour-map`, the variable `DRANODE_LAMPS_COLOUR_MAP`, the key `colourMap`
in the section `plugins: lamps:` of the configuration file, and `options["colour_map"]` for the driver. An option may
have a flag of its own instead, which its variable follows, and a key at the top level of the file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

# The framework's own keys in the configuration file, and the options that they set. Keys that dra-driver-cpu also has
# have the same name as there.
FRAMEWORK_KEYS: Final[Mapping[str, str]] = {
    "drivers": "drivers",
    "hostnameOverride": "node_name",
    "kubeconfig": "kubeconfig",
    "kubeletRootDir": "kubelet_root",
    "cdiDir": "cdi_dir",
    "nriSocket": "nri_socket",
    "bindAddress": "http_address",
    "metricsAddress": "metrics_address",
    "podResourcesSocket": "pod_resources_socket",
    "claimStatus": "claim_status",
    "podUID": "pod_uid",
    "deviceTaints": "device_taints",
    "logFormat": "log_format",
    "verbosity": "verbosity",
}
# The flags of all commands that also have the drivers' options, so that a driver cannot declare one of them.
FRAMEWORK_FLAGS: Final = frozenset((
    "--add", "--all-nodes", "--as", "--as-group", "--as-uid", "--await-daemonset", "--cdi-dir",
    "--certificate-authority", "--claim-status", "--client-certificate", "--client-key", "--cluster", "--config",
    "--containerd-config", "--context", "--crio-config", "--device-taints", "--drivers", "--dry-run", "--evict",
    "--feature-gates", "--force", "--help", "--how-many", "--html", "--http-address", "--insecure-skip-tls-verify",
    "--keep", "--kubeconfig", "--kubelet-config", "--kubelet-root", "--kubernetes", "--log-format", "--machine",
    "--manifests", "--metrics-address", "--move", "--namespace", "--no-device-taints", "--node-name", "--nodes",
    "--nri-socket", "--output", "--password", "--pod", "--pod-resources-socket", "--pod-uid", "--queues",
    "--request-timeout", "--root", "--scores", "--server", "--service-account", "--state", "--store", "--svg",
    "--through-driver", "--timeout", "--tls-server-name", "--token", "--user", "--username", "--verbose",
))  # fmt: skip
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)


class Option:
    """An option that a driver declares; an invalid declaration raises ValueError.

    Attributes:
        name: lower-case words with hyphens, without the driver's name: `colour-map`.
        help: one sentence for `--help`.
        default: a text, a whole number, or a bool for a switch (`--lamps-dim/--no-lamps-dim`).
        choices: the allowed texts; empty for any.
        metavar: the placeholder of the value in `--help`.
        gate: the feature gate without which an API server drops what is published while the option is on.
        reserves: whether it is a list of CPUs (`0-1,8`) that no claim gets; `doctor` compares it with kubelet's.
        unshared: the value with which every device can be allocated to one claim only.
        flag: its flag, instead of the one with the driver's name; the variable follows from it.
        top_key: its key at the top level of the file, instead of the one in the driver's section.
    """

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - as click calls it
        *,
        default: str | bool | int = "",
        choices: tuple[str, ...] = (),
        metavar: str = "",
        gate: str = "",
        reserves: bool = False,
        unshared: str = "",
        flag: str = "",
        top_key: str = "",
    ) -> None:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f'the option "{name}" is not lower-case words with hyphens, such as colour-map')
        if not help.strip():
            raise ValueError(f'the option "{name}" has no help')
        if choices and default not in choices:
            raise ValueError(f'the option "{name}" is {" or ".join(choices)}, not "{default}", its default')
        if flag and _NAME.fullmatch(flag.removeprefix("--")) is None:
            raise ValueError(f'the flag "{flag}" of the option "{name}" is not one such as --colour-map')
        self.name, self.help, self.default, self.choices, self.metavar = name, help, default, choices, metavar
        self.gate, self.reserves, self.unshared = gate, reserves, unshared
        self.flag, self.top_key = flag, top_key


class DriverOption(NamedTuple):
    """An option under the name of its driver."""

    driver: str
    option: Option

    @property
    def field(self) -> str:
        """Return its name for the driver: `colour_map`."""
        return self.option.name.replace("-", "_")

    @property
    def flag(self) -> str:
        """Return its flag: `--lamps-colour-map`."""
        return self.option.flag or f"--{_words(self.driver)}-{self.option.name}"

    @property
    def parameter(self) -> str:
        """Return its name among the options of all drivers."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Return its environment variable: `DRANODE_LAMPS_COLOUR_MAP`."""
        return f"DRANODE_{self.parameter.upper()}"

    @staticmethod
    def variable_prefix(driver: str) -> str:
        """Return the prefix of a driver's variables."""
        return f"DRANODE_{_words(driver).replace('-', '_').upper()}_"

    @property
    def section(self) -> str:
        """Return the section of the configuration file that has its key: its driver's, or empty for the top level."""
        return "" if self.option.top_key else self.driver

    @property
    def key(self) -> str:
        """Return its key in the configuration file: `colourMap`."""
        first, *others = self.option.name.split("-")
        return self.option.top_key or first + "".join(word.capitalize() for word in others)

    @property
    def names(self) -> Iterator[str]:
        """Yield the names that no other option may have: its flags, and its key at the top level of the file."""
        yield self.flag
        # click adds the second flag for a switch.
        if isinstance(self.option.default, bool):
            yield f"--no-{self.flag.removeprefix('--')}"
        if not self.section:
            yield f"{self.key}:"


class Declarations(NamedTuple):
    """The declarations of the installed drivers.

    Attributes:
        options: the options of all drivers, grouped by driver, in the order of their declaration.
        problems: why the options of a driver are left out, one sentence by driver.
    """

    options: tuple[DriverOption, ...] = ()
    problems: Mapping[str, str] = {}

    def of(self, driver: str) -> tuple[DriverOption, ...]:
        """Return the options of one driver."""
        return tuple(option for option in self.options if option.driver == driver)


def declarations(declared: Iterable[tuple[str, object]]) -> Declarations:
    """Check what drivers declare, in this order; if a declaration is not valid, all options of its driver are left out.

    Args:
        declared: pairs of a driver and the value of its entry point, or the error of loading it.
    """
    holders = dict.fromkeys((*FRAMEWORK_FLAGS, *(f"{key}:" for key in FRAMEWORK_KEYS)), "dranode itself")
    options: list[DriverOption] = []
    problems: dict[str, str] = {}
    for driver, value in declared:
        problem = _problem(driver, value)
        own = [DriverOption(driver, option) for option in value] if isinstance(value, tuple) and not problem else []
        # Also within one driver: its flag `--no-x` may collide with another of its options.
        taken: dict[str, str] = {}
        for name in (name for option in own for name in option.names):
            holder = holders.get(name) or taken.get(name)
            if holder is not None and problem is None:
                problem = _collision(name, driver, holder)
            taken[name] = f'the driver "{driver}"'
        # Without this driver's options the others still work. It does not serve then.
        if problem is not None:
            # Its names are not entered in `holders`: a driver that is left out must not take another one's options with
            # it.
            problems[driver] = problem
            continue
        holders |= taken
        options += own
    return Declarations(tuple(options), problems)


def _words(driver: str) -> str:
    """Return the short name of a driver as a part of a flag, in which only letters, digits and hyphens are usual."""
    return re.sub("[^a-z0-9]+", "-", driver.lower())


def _problem(driver: str, value: object) -> str | None:
    if isinstance(value, Exception):
        return f'the options of the driver "{driver}" cannot be loaded: {type(value).__name__}: {value}'
    if not isinstance(value, tuple) or not all(isinstance(option, Option) for option in value):
        kind = type(value).__name__
        return f'the options of the driver "{driver}" are not a tuple of dranode.driver.Option, but a {kind}'
    return None


def _collision(name: str, driver: str, holder: str) -> str:
    declared = f"the flag {name}" if name.startswith("--") else f'the key "{name.removesuffix(":")}"'
    if holder == f'the driver "{driver}"':
        return f'the driver "{driver}" declares {declared} twice; rename one of its options'
    return (
        f'{declared} is declared by the driver "{driver}" and by {holder}; rename the option, or uninstall one of them'
    )
