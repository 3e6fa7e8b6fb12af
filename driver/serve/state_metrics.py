"""Metrics of states, which are read from every driver on request."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dranode.driver.claims.plugin import Health
from dranode.driver.serve.service import DriverService

# dra-driver-cpu's gauges: the part of their names after the driver's name, and their help texts.
OWN_GAUGES: Final = {
    "_resource_claims_active": "Claims on record.",
    "_allocated_cpus": "CPUs that claims hold.",
    "_available_cpus": "CPUs that a claim could get.",
    "_reserved_cpus": "CPUs that no claim ever gets.",
}


def prefix_of(driver: str) -> str:
    """Return the prefix of a driver's own metrics: `lamps_example_com` for `lamps.example.com`."""
    return re.sub(r"\W", "_", driver, flags=re.ASCII)


def own_gauges(service: DriverService) -> Iterator[Metric]:
    """Yield dra-driver-cpu's gauges for a driver, without those of CPUs if it does not pin to CPUs."""
    values = {"_resource_claims_active": len(service.node.store.book.records())}
    snapshot = service.snapshot()
    if snapshot is not None and snapshot.pins_cpus:
        values["_allocated_cpus"] = len(snapshot.held)
        values["_available_cpus"] = len(snapshot.online - snapshot.reserved - snapshot.held)
        values["_reserved_cpus"] = len(snapshot.reserved)
    for name, value in values.items():
        yield GaugeMetricFamily(f"{prefix_of(service.plugin.driver)}{name}", OWN_GAUGES[name], value)


def state_metrics(drivers: Iterable[DriverService]) -> Iterator[Metric]:
    """Yield the families that have samples, each with the samples of all drivers."""
    drivers = tuple(drivers)
    # The text format requires that all samples of a family are together.
    for family, read in STATE_FAMILIES:
        metric = family()
        for driver in drivers:
            for labels, value in read(driver):
                metric.add_metric((driver.plugin.driver, *labels), value)
        if metric.samples:
            yield metric


_Samples = Iterable[tuple[tuple[str, ...], float]]
_Read = Callable[["DriverService"], _Samples]


def _single(read: Callable[[DriverService], float | None]) -> _Read:
    def samples(service: DriverService) -> _Samples:
        value = read(service)
        return () if value is None else (((), value),)

    return samples


def _enforcement(name: str) -> _Read:
    def read(service: DriverService) -> float | None:
        pinning = service.pinning
        # Drivers that share the NRI plug-in would report its numbers several times.
        return getattr(pinning.status(), name) if pinning is not None and pinning.is_first else None

    return _single(read)


def _lifecycle(name: str) -> _Read:
    def read(service: DriverService) -> float | None:
        # Only an active instance looks after claims and hardware.
        return None if service.lifecycle is None else getattr(service.lifecycle.status(), name)

    return _single(read)


def _impaired(service: DriverService) -> float | None:
    return None if service.lifecycle is None else len(service.lifecycle.status().impaired)


def _synchronized(service: DriverService) -> float | None:
    return None if service.pinning is None else service.pinning.synchronized


def _held(service: DriverService) -> float | None:
    snapshot = service.snapshot()
    return len(snapshot.held) if snapshot is not None and snapshot.pins_cpus else None


def _free(service: DriverService) -> float | None:
    snapshot = service.snapshot()
    if snapshot is None or not snapshot.pins_cpus:
        return None
    return len(snapshot.online - snapshot.reserved - snapshot.held)


def _health(service: DriverService) -> _Samples:
    # With zeros, so that the series of a health exists before the first device has it.
    counts = dict.fromkeys(Health, 0)
    for device in service.listener.health.devices:
        counts[device.health] += 1
    return [((health.name.lower(),), count) for health, count in counts.items()]


def _writes(service: DriverService) -> _Samples:
    status = service.published()
    return [((verb,), getattr(status, verb)) for verb in ("created", "updated", "deleted")]


def _gauge(name: str, text: str, *labels: str) -> Callable[[], GaugeMetricFamily]:
    return lambda: GaugeMetricFamily(f"dranode_{name}", text, labels=("driver", *labels))


def _count(name: str, text: str, *labels: str) -> Callable[[], CounterMetricFamily]:
    return lambda: CounterMetricFamily(f"dranode_{name}", text, labels=("driver", *labels))


STATE_FAMILIES: Final[tuple[tuple[Callable[[], GaugeMetricFamily | CounterMetricFamily], _Read], ...]] = (
    (_gauge("ready", "Whether this instance is ready."), _single(lambda service: not service.missing())),
    (_gauge("active", "Whether this instance publishes and pins."), _single(lambda service: service.active)),
    (
        _gauge("can_prepare", "Whether claims can be prepared: ledger, hardware and CDI specs can be used."),
        _single(lambda service: service.node.impediment is None),
    ),
    (_gauge("devices", "Devices by health.", "health"), _health),
    (_gauge("claims", "Claims on record."), _single(lambda service: len(service.node.store.book.records()))),
    (_gauge("claims_impaired", "Claims that currently have less than they were given."), _single(_impaired)),
    (_gauge("claims_orphaned", "Claims that no longer exist but are still on record."), _lifecycle("orphans")),
    (
        _count("orphans_unprepared", "Claims that no longer existed and were unprepared."),
        _lifecycle("orphans_unprepared"),
    ),
    (
        _count("specs_rewritten", "CDI specs that were written again because they were missing or altered."),
        _lifecycle("specs_rewritten"),
    ),
    (_count("hardware_changes", "Times that the hardware had changed."), _lifecycle("hardware_changes")),
    (
        _gauge("ledger_bytes", "Size of the ledger with its journal."),
        _single(lambda service: service.node.store.size()),
    ),
    (_gauge("held_cpus", "CPUs that claims hold."), _single(_held)),
    (_gauge("free_cpus", "CPUs that a claim could get."), _single(_free)),
    (_count("slice_writes", "ResourceSlices written.", "verb"), _writes),
    (
        _count("slice_repairs", "Changes by others that were undone."),
        _single(lambda service: service.published().repairs),
    ),
    (_gauge("nri_synchronized", "Whether the container runtime has reported its containers."), _single(_synchronized)),
    (_count("nri_connections", "Connections to the container runtime."), _enforcement("connections")),
    (_count("nri_forced_reconnections", "Connections closed to repair CPU sets."), _enforcement("reconnections")),
    (_gauge("containers", "Known containers."), _enforcement("containers")),
    (_gauge("containers_waiting", "Containers whose CPU set is not correct yet."), _enforcement("waiting")),
    (_gauge("mask_lag_seconds", "How long the first of them has been waiting."), _enforcement("lag")),
    (_count("containers_refused", "Container creations and starts that were refused."), _enforcement("refused")),
    (_count("container_updates", "CPU sets sent to existing containers."), _enforcement("updates")),
    (_count("container_drifts", "Containers found on other CPUs than theirs."), _enforcement("drifts")),
    (_count("containers_unpinned", "Containers found without a CPU set."), _enforcement("unpinned")),
)
