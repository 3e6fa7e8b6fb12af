"""What the code declares, for the reference: options and metrics."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from prometheus_client.metrics import MetricWrapperBase

from dranode.driver.claims.options import FRAMEWORK_KEYS, DriverOption
from dranode.driver.cli.options import MACHINE, SERVE, STORE, CommandOption, driver_settings
from dranode.driver.plugins import declared
from dranode.driver.serve.claim_metrics import DEVICE_FAMILIES, DISTURBANCE_FAMILIES, USAGE_FAMILIES
from dranode.driver.serve.metrics import DriverMetrics, Metrics
from dranode.driver.serve.state_metrics import OWN_GAUGES, STATE_FAMILIES, prefix_of

# Type, labels and help.
MetricRow: TypeAlias = tuple[str, tuple[str, ...], str]

# A driver whose own metrics are shown.
OWN_DRIVER: Final = "dra.cpu"


# --- options ---


def options() -> str:
    """Return a page with every option of `serve` and of the drivers: flag, variable, key, values, defaults."""
    settings = {option.parameter: option for option in driver_settings()}
    by_driver: dict[str, list[DriverOption]] = {}
    for option in declared().options:
        by_driver.setdefault(option.driver, []).append(option)
    own = {option.parameter for option in declared().options}
    framework = [MACHINE, *(option for name, option in settings.items() if name not in own), *SERVE, STORE]
    keys = {parameter: key for key, parameter in FRAMEWORK_KEYS.items()}
    introduction = (
        "# Options\n\nEvery option of `dranode serve`. A flag overrides a variable, a variable overrides "
        "[the file](../configuration.md#the-options-of-serve-in-a-file) of `--config` or `DRANODE_CONFIG`, and the "
        "file overrides the default. An empty variable counts as unset.\n\n## Of `serve`\n"
    )
    parts = [introduction]
    parts += [_option(option, keys.get(option.parameter, "")) for option in framework]
    for driver, declarations in by_driver.items():
        parts.append(f"## Of the driver `{driver}`\n")
        parts += [_option(settings[option.parameter], _key(option)) for option in declarations]
    return "\n".join(parts)


def _key(option: DriverOption) -> str:
    return f"plugins.{option.section}.{option.key}" if option.section else option.key


def _option(option: CommandOption, key: str) -> str:
    anchor = option.flag.strip("-")
    facts = {
        "Flag": codes([option.flag, *([option.off] if option.is_switch else [])]),
        "Variable": codes([option.variable] if option.variable else []),
        "Key in the file": codes([key] if key else []),
        "Value": _value(option),
        "Default": _default(option),
    }
    lines = [f"- {name}: {value}" for name, value in facts.items() if value]
    return f"### `{option.flag}` {{ #{anchor} }}\n\n{plain(option.help)}\n\n" + "\n".join(lines) + "\n"


def _value(option: CommandOption) -> str:
    if option.choices:
        return codes(option.choices)
    if option.is_switch:
        return "`true` or `false` in a variable or the file"
    if option.counts:
        return "how often it is given; a number in the file"
    return codes([option.metavar]) if option.metavar else "a whole number" if isinstance(option.default, int) else ""


def _default(option: CommandOption) -> str:
    if option.is_switch:
        return "`true`" if option.default else "`false`"
    if callable(option.default):
        return plain((option.default.__doc__ or "").strip().removeprefix("Return ").rstrip("."))
    default = ",".join(option.default) if isinstance(option.default, tuple) else str(option.default)
    return codes([default] if default else [])


# --- metrics ---


def metric_rows() -> dict[str, MetricRow]:
    """Return the metrics of a driver except the process's, by name: type, labels without `driver`, and help."""
    made = Metrics()
    DriverMetrics(OWN_DRIVER, made.registry, made._calls, made._nri)  # noqa: SLF001 - as `Metrics.add` does it
    rows: dict[str, MetricRow] = {}
    for metric in made.registry._collector_to_names:  # noqa: SLF001 - there is no public list
        if isinstance(metric, MetricWrapperBase):
            rows[metric._name] = (str(metric._type), _labels(metric), metric._documentation)  # noqa: SLF001 - likewise
    families = [make() for make, _ in (*STATE_FAMILIES, *USAGE_FAMILIES, *DISTURBANCE_FAMILIES)]
    for family in (*families, *(make() for make in DEVICE_FAMILIES)):
        rows[family.name] = (family.type, _labels(family), family.documentation)
    for name, text in OWN_GAUGES.items():
        rows[f"{prefix_of(OWN_DRIVER)}{name}"] = ("gauge", (), text)
    return rows


def _labels(family: Any) -> tuple[str, ...]:
    return tuple(label for label in family._labelnames if label != "driver")  # noqa: SLF001 - likewise


def codes(words: Iterable[str]) -> str:
    """Return words as code, with commas between them."""
    return ", ".join(f"`{word}`" for word in words)


def plain(text: str) -> str:
    """Return a text escaped for a line or a table of a page."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
