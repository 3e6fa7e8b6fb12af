"""Metrics of what claims use of the CPUs and memory that they hold, labelled as kube-state-metrics labels pods.

Its `kube_pod_resourceclaim_info` has the labels `namespace`, `pod` and `resourceclaim_name`; the words for throttling
and pressure are those of cAdvisor's metrics. So all of them go together in one expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.usage import GAUGES, ClaimsUsage, Figure

_CLAIM: Final = ("driver", "namespace", "resourceclaim_name", "resourceclaim_uid")
_POD: Final = (*_CLAIM, "pod")
_NAMES: Final = {
    Figure.CPU: ("claim_cpu_usage_seconds", "CPU time of the pod's containers with the claim."),
    Figure.THROTTLED: ("claim_cpu_throttled_seconds", "How long they were held back by a CPU quota, summed over CPUs."),
    Figure.PERIODS: ("claim_cpu_cfs_periods", "Periods of their CPU quota in which they ran."),
    Figure.THROTTLED_PERIODS: ("claim_cpu_cfs_throttled_periods", "Periods in which they used up their CPU quota."),
    Figure.WAIT: ("claim_run_queue_wait_seconds", "How long their tasks were ready to run and waited for a CPU."),
    Figure.WAITING: ("claim_cpu_pressure_waiting_seconds", "How long at least one of their tasks waited for a CPU."),
    Figure.STALLED: ("claim_cpu_pressure_stalled_seconds", "How long all of their tasks waited for a CPU at once."),
    Figure.MEMORY: ("claim_memory_bytes", "Memory of the pod's containers with the claim: anonymous, and of files."),
    Figure.REMOTE_MEMORY: (
        "claim_remote_memory_bytes",
        "The part of it that is on NUMA nodes where the claim has no CPU, or no memory if it holds memory.",
    ),
    Figure.HUGEPAGES: ("claim_hugepages_bytes", "Huge pages that the pod's containers use, of the claim's sizes."),
}

_Samples = Iterable[tuple[tuple[str, ...], float]]
_Family = Callable[[], GaugeMetricFamily | CounterMetricFamily]


def usage_metrics(usages: Iterable[tuple[str, ClaimsUsage]]) -> Iterator[Metric]:
    """Yield the families that have samples, for what the claims of each driver use."""
    usages = tuple(usages)
    for family, read in USAGE_FAMILIES:
        made = family()
        for driver, usage in usages:
            for labels, value in read(usage):
                made.add_metric((driver, *labels), value)
        if made.samples:
            yield made


def _claim(claim: ClaimRef) -> tuple[str, str, str]:
    return claim.namespace, claim.name, claim.uid


def _held(usage: ClaimsUsage) -> _Samples:
    return ((_claim(claim), count) for claim, count in usage.held.items() if count)


def _idle(usage: ClaimsUsage) -> _Samples:
    return ((_claim(claim), is_idle) for claim, is_idle in usage.idle.items())


def _unread(usage: ClaimsUsage) -> _Samples:
    return (((figure.value,), count) for figure, count in usage.unread.items())


def _of_pods(figure: Figure) -> tuple[_Family, Callable[[ClaimsUsage], _Samples]]:
    def read(usage: ClaimsUsage) -> _Samples:
        return (((*_claim(each.claim), each.pod), each.values[figure]) for each in usage.pods if figure in each.values)

    make = GaugeMetricFamily if figure in GAUGES else CounterMetricFamily
    name, text = _NAMES[figure]
    return lambda: make(f"dranode_{name}", text, labels=_POD), read


USAGE_FAMILIES: Final[tuple[tuple[_Family, Callable[[ClaimsUsage], _Samples]], ...]] = (
    (lambda: GaugeMetricFamily("dranode_claim_held_cpus", "CPUs that the claim holds.", labels=_CLAIM), _held),
    (
        lambda: GaugeMetricFamily(
            "dranode_claim_idle", "Whether the claim used less than 1 % of its CPUs for a minute.", labels=_CLAIM
        ),
        _idle,
    ),
    *(_of_pods(figure) for figure in Figure),
    (
        lambda: GaugeMetricFamily(
            "dranode_claim_usage_unread",
            "Running containers with claims of which this could not be read.",
            labels=("driver", "figure"),
        ),
        _unread,
    ),
)
