"""What the code declares, for the reference: options, metrics, and what the driver reports of claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from prometheus_client.metrics import MetricWrapperBase

from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cpu.devices import OFFLINE
from dranode.driver.claims.events import Occurrence, events_of
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.options import FRAMEWORK_KEYS, DriverOption
from dranode.driver.claims.status import PREPARE_FAILED, PREPARED, READY
from dranode.driver.claims.users import PodSandbox
from dranode.driver.cli.options import MACHINE, SERVE, STORE, CommandOption, driver_settings
from dranode.driver.plugins import declared
from dranode.driver.serve.claim_metrics import DEVICE_FAMILIES, DISTURBANCE_FAMILIES, USAGE_FAMILIES
from dranode.driver.serve.metrics import DriverMetrics, Metrics
from dranode.driver.serve.state_metrics import OWN_GAUGES, STATE_FAMILIES, prefix_of
from dranode.memory.devices import SHRUNK

# Type, labels and what it says.
MetricRow: TypeAlias = tuple[str, tuple[str, ...], str]

_CLAIM: Final = ClaimRef("namespace", "claim", "uid")
_POD: Final = ResourceClaimConsumerReference(resource="pods", name="pod", uid="uid")
# A value for every field that an occurrence may have; a new one is an error here until it has its own.
_HAPPENED: Final[Mapping[str, Any]] = {
    "claim": _CLAIM,
    "claims": (_CLAIM,),
    "error": "",
    "pod": PodSandbox(id="sandbox", name="pod", namespace="namespace", uid="uid"),
    "pods": (_POD,),
    "reason": "",
    "sentence": "",
    "states": (),
    "uid": "uid",
}
# The reasons of this package's drivers why a claim has less than it was given; drivers of others have their own.
IMPAIRED: Final = (OFFLINE, SHRUNK)
# A driver whose own metrics are shown.
OWN_DRIVER: Final = "dra.cpu"


# --- options ---


def options() -> str:
    """Return a page with every option of `serve` and of the drivers: flag, variable, key, values, defaults."""
    settings = {each.parameter: each for each in driver_settings()}
    by_driver: dict[str, list[DriverOption]] = {}
    for each in declared().options:
        by_driver.setdefault(each.driver, []).append(each)
    own = {each.parameter for each in declared().options}
    framework = [MACHINE, *(each for name, each in settings.items() if name not in own), *SERVE, STORE]
    keys = {parameter: key for key, parameter in FRAMEWORK_KEYS.items()}
    introduction = (
        "# Options\n\nEvery option of `dranode serve`. A flag overrides a variable, a variable overrides "
        "[the file](../configuration.md#the-options-of-serve-in-a-file) of `--config` or `DRANODE_CONFIG`, and the "
        "file overrides the default. An empty variable counts as unset.\n\n## Of `serve`\n"
    )
    parts = [introduction]
    parts += [_option(each, keys.get(each.parameter, "")) for each in framework]
    for driver, declarations in by_driver.items():
        parts.append(f"## Of the driver `{driver}`\n")
        parts += [_option(settings[each.parameter], _key(each)) for each in declarations]
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
    """Return every metric of a driver but the process's: name -> type, labels without the driver's, what it says."""
    made = Metrics()
    DriverMetrics(OWN_DRIVER, made.registry, made._calls, made._nri)  # noqa: SLF001 - as `Metrics.add` does it
    rows: dict[str, MetricRow] = {}
    for each in made.registry._collector_to_names:  # noqa: SLF001 - the registry says it nowhere else
        if isinstance(each, MetricWrapperBase):
            rows[each._name] = (str(each._type), _labels(each), each._documentation)  # noqa: SLF001 - likewise
    families = [make() for make, _ in (*STATE_FAMILIES, *USAGE_FAMILIES, *DISTURBANCE_FAMILIES)]
    for family in (*families, *(make() for make in DEVICE_FAMILIES)):
        rows[family.name] = (family.type, _labels(family), family.documentation)
    for name, text in OWN_GAUGES.items():
        rows[f"{prefix_of(OWN_DRIVER)}{name}"] = ("gauge", (), text)
    return rows


def _labels(family: Any) -> tuple[str, ...]:
    return tuple(label for label in family._labelnames if label != "driver")  # noqa: SLF001 - only it knows them


# --- Events and conditions ---


def events() -> str:
    """Return a page with the Events and conditions by which a driver says what happened to claims."""
    introduction = (
        "# Events and conditions\n\nEvents are warnings of the component `dranode`. "
        "[What to do about each](../metrics.md#events).\n"
    )
    parts = [introduction, "## Events\n\n| reason | action | on | when |\n| --- | --- | --- | --- |"]
    parts += [f"| {codes([reason])} | `{action}` | {on} | {when} |" for reason, action, on, when in event_rows()]
    parts.append(
        "\n## Conditions in a claim's `status.devices`\n\n"
        "| type | status | reason | when |\n| --- | --- | --- | --- |\n"
        f"| `{READY}` | `True` | `{PREPARED}` | the device is prepared, and nothing of it is missing |\n"
        f"| `{READY}` | `False` | `{PREPARE_FAILED}` | the claim could not be prepared; the message says why |\n"
        f"| `{READY}` | `False` | {codes(IMPAIRED)}, or another driver's own | the claim lost hardware |\n"
    )
    return "\n".join(parts)


def event_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield reason, action, the kinds of objects that it is on, and when, of every Event."""
    for kind in Occurrence.__args__:
        fields = {field.name: _HAPPENED[field.name] for field in msgspec.structs.fields(kind)}
        when = plain((kind.__doc__ or "").partition("\n")[0].rstrip("."))
        for reason in IMPAIRED if {"reason", "states"} <= fields.keys() else ("",):
            happened = kind(**fields | ({"reason": reason} if reason else {}))
            events = events_of(happened, "node")
            if events:
                yield events[0].reason, events[0].action, ", ".join(each.regarding.kind for each in events), when


def codes(words: Iterable[str]) -> str:
    """Return words as code, with commas between them."""
    return ", ".join(f"`{word}`" for word in words)


def plain(text: str) -> str:
    """Return a text of the code as it stands in a line or a table of a page."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
