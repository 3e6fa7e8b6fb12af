"""Metrics of what has disturbed claims that want quiet CPUs, with the labels of `usage_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from dranode.driver.claims.hooks import Disturbance

_LABELS: Final = ("driver", "namespace", "resourceclaim_name", "resourceclaim_uid")
_Family = Callable[[], CounterMetricFamily]


def _counter(name: str, text: str) -> _Family:
    return lambda: CounterMetricFamily(f"dranode_{name}", text, labels=_LABELS)


DISTURBANCE_FAMILIES: Final[tuple[tuple[_Family, Callable[[Disturbance], float | None]], ...]] = (
    (
        _counter("claim_device_interrupts", "Interrupts of devices on CPUs that the claim wants quiet."),
        lambda each: each.count,
    ),
    (
        _counter(
            "claim_cpu_busy_seconds", "CPU time of all tasks, own and others', on CPUs that the claim wants quiet."
        ),
        lambda each: each.busy,
    ),
)


def disturbance_metrics(disturbed: Iterable[tuple[str, Disturbance]]) -> Iterator[Metric]:
    """Yield the families that have samples, for the claims of each driver."""
    disturbed = tuple(disturbed)
    for family, read in DISTURBANCE_FAMILIES:
        made = family()
        for driver, each in disturbed:
            value = read(each)
            if value is not None:
                made.add_metric((driver, each.claim.namespace, each.claim.name, each.claim.uid), value)
        if made.samples:
            yield made
