"""The manual's page of metrics and Events names all that there are, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase

from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceCapacity
from dranode.cpu.devices import NOT_FOR_PODS, OFFLINE
from dranode.driver.claims import events
from dranode.driver.claims.held import ClaimRef, HeldDevice, Holding
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.serve import metrics
from dranode.driver.serve.claim_metrics import DISTURBANCE_FAMILIES, USAGE_FAMILIES, device_metrics
from dranode.driver.serve.state_metrics import OWN_GAUGES, STATE_FAMILIES

PAGE = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
ROW = re.compile(
    r"^\| `(?P<name>[\w]+)` \| (?P<type>gauge|counter|histogram) \| (?P<labels>[^|]*) ?\| (?P<text>[^|]+) \|$",
    re.MULTILINE,
)

SHARED = Device(name="d", capacity={"size": DeviceCapacity(value=Quantity("1"))}, allow_multiple_allocations=True)
HOLDS = Holding(ClaimRef("ns", "c", "u"), (HeldDevice("d", amount=1),))


def listed() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """What the page says of each metric, but for the label that all of ours have."""
    return {
        row["name"]: (row["type"], tuple(re.findall(r"`(\w+)`", row["labels"])), row["text"])
        for row in ROW.finditer(PAGE)
    }


def gauge(metric: Metric) -> GaugeMetricFamily:
    assert isinstance(metric, GaugeMetricFamily)
    return metric


def defined(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """What the code defines: families that are read, and metrics that are counted as they happen."""
    counted: list[MetricWrapperBase] = []
    register = MetricWrapperBase.__init__

    def spy(self: MetricWrapperBase, *arguments: object, **named: object) -> None:
        register(self, *arguments, **named)  # type: ignore[arg-type]
        if not named.get("_labelvalues"):
            counted.append(self)

    monkeypatch.setattr(MetricWrapperBase, "__init__", spy)
    made = metrics.Metrics()
    metrics.DriverMetrics("dra.cpu", made.registry, made._calls, made._nri)
    found = [(one._name, str(one._type), one._labelnames, one._documentation) for one in counted]
    found += [
        (one.name, one.type, one._labelnames, one.documentation)
        for one in (
            *(family() for family, _ in (*STATE_FAMILIES, *USAGE_FAMILIES, *DISTURBANCE_FAMILIES)),
            *map(gauge, device_metrics([("d", Inventory((SHARED,)), [HOLDS])])),
        )
    ]
    return {
        name: (kind, tuple(label for label in labels if label != "driver"), text) for name, kind, labels, text in found
    }


def test_every_metric_is_on_the_page_with_its_type_labels_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {f"dra_cpu{name}": ("gauge", (), text) for name, text in OWN_GAUGES.items()}
    assert listed() == defined(monkeypatch) | own


def test_every_expression_names_metrics_that_there_are() -> None:
    expressions = re.findall(r"^\| [^|]+\? \| `([^|]+)` \|$", PAGE, re.MULTILINE)
    assert len(expressions) >= 7
    for name in re.findall(r"dranode_[a-z_]+", " ".join(expressions)):
        assert re.sub(r"_(total|count)$", "", name) in listed(), name


def test_every_event_is_on_the_page() -> None:
    claim, pod = ClaimRef("ns", "c", "u"), PodSandbox(id="s", name="p", namespace="ns", uid="pu")
    happened: list[events.Occurrence] = [
        events.PrepareFailed(claim, (), "no"),
        events.DriftRepaired(pod, (), "no"),
        events.Unpinned(pod, (), "no"),
        events.QuotaStillCaps(pod, (), "no"),
        events.HugePagesStillCapped(pod, (), "no"),
        events.RecordQuarantined("u", "no"),
        events.ClaimImpaired(claim, (), OFFLINE, "no"),
        events.MetadataMissing(claim, "no"),
        events.ClaimImpaired(claim, (), NOT_FOR_PODS, "no"),
        events.OrphanUnprepared(claim, "no"),
        events.EnforcementLost("no"),
    ]
    silent = {events.ClaimRestored}
    assert {type(each) for each in happened} | silent == set(events.Occurrence.__args__)
    reasons = {event.reason for each in happened for event in events.events_of(each, "node")}
    table = PAGE[PAGE.index("## Events") :]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == reasons
