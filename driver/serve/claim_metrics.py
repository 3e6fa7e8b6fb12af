"""Metrics of claims: what they use of their CPUs and memory, what they hold of shared devices, and what disturbs them.

The labels `namespace`, `pod` and `resourceclaim_name` are those of `kube_pod_resourceclaim_info` in kube-state-metrics,
and the words for throttling and pressure are those of cAdvisor, so that one expression can combine all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dranode.driver.claims.held import ClaimRef, Held, Holding
from dranode.driver.claims.hooks import Disturbance
from dranode.driver.claims.plugin import Inventory
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
    Figure.MEMORY: ("claim_memory_bytes", "Anonymous and file memory of the pod's containers with the claim."),
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
        metric = family()
        for driver, usage in usages:
            for labels, value in read(usage):
                metric.add_metric((driver, *labels), value)
        # Without samples, only the lines HELP and TYPE would be on the page.
        if metric.samples:
            yield metric


def _claim(claim: ClaimRef) -> tuple[str, str, str]:
    return claim.namespace, claim.name, claim.uid


def _held(usage: ClaimsUsage) -> _Samples:
    # A claim that only holds memory would have a series that is always 0.
    return ((_claim(claim), count) for claim, count in usage.held.items() if count)


def _unread(usage: ClaimsUsage) -> _Samples:
    # With zeros: an alert needs the series before the first failure.
    return (((figure.value,), count) for figure, count in usage.unread.items())


def _of_pods(figure: Figure) -> tuple[_Family, Callable[[ClaimsUsage], _Samples]]:
    def read(usage: ClaimsUsage) -> _Samples:
        return (((*_claim(pod.claim), pod.pod), pod.values[figure]) for pod in usage.pods if figure in pod.values)

    # The name of a counter gets the suffix `_total` from prometheus_client.
    make = GaugeMetricFamily if figure in GAUGES else CounterMetricFamily
    name, text = _NAMES[figure]
    return lambda: make(f"dranode_{name}", text, labels=_POD), read


USAGE_FAMILIES: Final[tuple[tuple[_Family, Callable[[ClaimsUsage], _Samples]], ...]] = (
    (lambda: GaugeMetricFamily("dranode_claim_held_cpus", "CPUs that the claim holds.", labels=_CLAIM), _held),
    (
        lambda: GaugeMetricFamily(
            "dranode_claim_idle", "Whether the claim used less than 1 % of its CPUs for a minute.", labels=_CLAIM
        ),
        lambda usage: ((_claim(claim), is_idle) for claim, is_idle in usage.idle.items()),
    ),
    *(_of_pods(figure) for figure in Figure),
    (
        lambda: GaugeMetricFamily(
            "dranode_claim_usage_unread",
            "Running containers with claims for which this figure could not be read.",
            labels=("driver", "figure"),
        ),
        _unread,
    ),
)


# Metrics of devices that claims share by amounts, such as memory: their capacity, and how much of it each claim holds.


_DEVICE_LABELS: Final = ("driver", "device")
_CLAIM_LABELS: Final = ("driver", "namespace", "resourceclaim_name", "resourceclaim_uid", "device")


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> Callable[[], GaugeMetricFamily]:
    return lambda: GaugeMetricFamily(f"dranode_{name}", text, labels=labels)


DEVICE_FAMILIES: Final = (
    _gauge("device_capacity", "Capacity of a device that claims share by amounts: bytes of memory.", _DEVICE_LABELS),
    _gauge("device_held_capacity", "The part of it that claims hold.", _DEVICE_LABELS),
    _gauge("claim_held_capacity", "The part of a device's capacity that the claim holds.", _CLAIM_LABELS),
)


def device_metrics(shared: Iterable[tuple[str, Inventory, Iterable[Holding]]]) -> Iterator[Metric]:
    """Yield the families that have samples.

    A claim may have been given a device under another name, with other options of the driver. It counts against each
    device that has some of the same sources.

    Args:
        shared: each driver's name, its devices, and what claims hold of them.
    """
    capacity, held, of_claim = (make() for make in DEVICE_FAMILIES)
    for driver, inventory, holdings in shared:
        # The same index as for decisions, so that the metric agrees with what a Prepare would count.
        claims = Held.of(holdings)
        for holding in claims.holdings.values():
            claim, amounts = holding.claim, Counter[str]()
            for held_device in holding.devices:
                amounts[held_device.name] += held_device.amount
            for name, amount in amounts.items():
                if amount:
                    of_claim.add_metric((driver, claim.namespace, claim.name, claim.uid, name), amount)
        for device in inventory.devices:
            # If a device has several capacities, a claim's amount does not say which one it belongs to.
            sizes = [size.value.value for size in device.capacity.values()]
            if device.allow_multiple_allocations and len(sizes) == 1:
                capacity.add_metric((driver, device.name), float(sizes[0]))
                held.add_metric((driver, device.name), claims.amount(inventory.sources_of(device.name)))
    yield from (family for family in (capacity, held, of_claim) if family.samples)


# Metrics of what has disturbed claims that want quiet CPUs.


_CounterFamily = Callable[[], CounterMetricFamily]


def _counter(name: str, text: str) -> _CounterFamily:
    return lambda: CounterMetricFamily(f"dranode_{name}", text, labels=_CLAIM)


DISTURBANCE_FAMILIES: Final[tuple[tuple[_CounterFamily, Callable[[Disturbance], float | None]], ...]] = (
    (
        _counter("claim_device_interrupts", "Interrupts of devices on CPUs that the claim wants quiet."),
        lambda disturbance: disturbance.count,
    ),
    (
        _counter(
            "claim_cpu_busy_seconds",
            "CPU time of all tasks, the claim's and others', on CPUs that the claim wants quiet.",
        ),
        lambda disturbance: disturbance.busy,
    ),
)


def disturbance_metrics(disturbed: Iterable[tuple[str, Disturbance]]) -> Iterator[Metric]:
    """Yield the families that have samples, for the claims of each driver."""
    disturbed = tuple(disturbed)
    for family, read in DISTURBANCE_FAMILIES:
        metric = family()
        for driver, disturbance in disturbed:
            value = read(disturbance)
            # Unknown is not 0: the kernel may not count it.
            if value is not None:
                metric.add_metric((driver, *_claim(disturbance.claim)), value)
        if metric.samples:
            yield metric
