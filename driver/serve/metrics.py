"""Metrics for Prometheus: dra-driver-cpu's eight families under their names, and what else an operator watches.

The names of dra-driver-cpu's families begin with the driver's name, also for other drivers. All others begin with
`dranode_` and have the driver as a label. Events are counted here; states are read on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dranode.driver.claims.held import Holding
from dranode.driver.claims.hooks import Disturbance
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record, holdings
from dranode.driver.claims.usage import ClaimsUsage
from dranode.driver.serve.claim_metrics import device_metrics, disturbance_metrics, usage_metrics
from dranode.driver.serve.http_server import Page
from dranode.driver.serve.service import DriverService
from dranode.driver.serve.state_metrics import own_gauges, prefix_of, state_metrics

_CLAIM_SIZES: Final = tuple(2**exponent for exponent in range(11))
_CALL_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_NRI_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 2)

# How long a page is served again: in seconds, and as a multiple of the CPU time that it took. So all formats together
# take at most 1 % of one CPU.
_PAGE_SECONDS: Final = 1.0
_PAGE_BY_COST: Final = 100.0

# prometheus_client would add a `_created` sample to every counter and histogram.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of a process and its drivers."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cost: Callable[[], float] = time.thread_time
    ) -> None:
        """Count from now on; `clock` returns monotonic seconds, `cost` the CPU time of the calling thread."""
        self._clock, self._cost = clock, cost
        # The last page of each content type, and until when it is served again.
        self._pages: dict[str, tuple[Page, float]] = {}
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._calls = Histogram(
            "dranode_call_duration_seconds",
            "Time to answer kubelet's call, once for each of its claims.",
            ("driver", "call", "outcome"),
            buckets=_CALL_SECONDS,
            registry=self.registry,
        )
        self._nri = Histogram(
            "dranode_nri_request_duration_seconds",
            "Time to answer a request of the container runtime.",
            ("driver", "request"),
            buckets=_NRI_SECONDS,
            registry=self.registry,
        )
        self._drivers: list[DriverService] = []
        self.registry.register(_States(self._drivers))

    def add(self, service: DriverService) -> DriverMetrics:
        """Add a driver; returns its counters."""
        self._drivers.append(service)
        return DriverMetrics(service.plugin.driver, self.registry, self._calls, self._nri)

    def page(self, accept: str) -> Page:
        """Return the page of /metrics, in a format that the client accepts.

        It is made at most once a second, and only after a hundred times the CPU time of the last page, so that clients
        who ask all the time take no CPU time from claims.
        """
        encode, content_type = choose_encoder(accept)
        now = self._clock()
        page, until = self._pages.get(content_type, (None, now))
        if page is None or now >= until:
            before = self._cost()
            page = Page(encode(self.registry), content_type=content_type)
            # Each format is encoded separately, so all of them share the CPU time.
            kept = (self._cost() - before) * _PAGE_BY_COST * max(1, len(self._pages))
            self._pages[content_type] = (page, now + max(_PAGE_SECONDS, kept))
        return page


class DriverMetrics:
    """Counts the events of one driver."""

    def __init__(self, driver: str, registry: CollectorRegistry, calls: Histogram, nri: Histogram) -> None:
        """Count under the driver's name."""
        prefix = prefix_of(driver)
        self._driver = driver
        self._nri = nri
        # The counters of each call and outcome. A series that begins at 1 shows no increase to Prometheus, so each
        # series is made here and begins at 0.
        self._counted: dict[tuple[str, bool], tuple[Counter, Histogram]] = {}
        for call in ("prepare", "unprepare"):
            results = Counter(f"{prefix}_{call}_claims", f"Claims that were {call}d.", ("result",), registry=registry)
            # dra-driver-cpu defines this result, which never occurs; its dashboards may use it.
            results.labels("unknown")
            for succeeded, outcome in ((True, "success"), (False, "error")):
                self._counted[call, succeeded] = results.labels(outcome), calls.labels(driver, call, outcome)
        self._seconds = Histogram(
            f"{prefix}_prepare_claim_duration_seconds", "Time to prepare a claim.", registry=registry
        )
        self._sizes = Histogram(
            f"{prefix}_claim_allocated_cpus", "CPUs of a new claim.", buckets=_CLAIM_SIZES, registry=registry
        )

    def answered(self, call: str, succeeded: bool, seconds: float) -> None:  # noqa: FBT001 - see kubelet.service.Observe
        """Count the answer for one claim of a call, `prepare` or `unprepare`."""
        counter, histogram = self._counted[call, succeeded]
        counter.inc()
        histogram.observe(seconds)
        if call == "prepare":
            self._seconds.observe(seconds)

    def granted(self, record: Record) -> None:
        """Count a claim that was prepared for the first time."""
        if record.held:
            self._sizes.observe(len(record.held))

    def nri_answered(self, request: str, seconds: float) -> None:
        """Count an answer to the container runtime."""
        self._nri.labels(self._driver, request).observe(seconds)


class _States(Collector):
    """Collects the states of drivers on request."""

    def __init__(self, drivers: Iterable[DriverService]) -> None:
        self._drivers = drivers

    def collect(self) -> Iterator[Metric]:
        """Yield every state of every driver, one family at a time."""
        drivers = tuple(self._drivers)
        for driver in drivers:
            yield from own_gauges(driver)
        yield from state_metrics(drivers)
        yield from device_metrics(_shared(drivers))
        yield from usage_metrics(_used(drivers))
        yield from disturbance_metrics(_disturbed(drivers))


def _shared(drivers: Iterable[DriverService]) -> Iterator[tuple[str, Inventory, Iterable[Holding]]]:
    """Yield each driver whose claims share devices by amounts, with its devices and what claims hold of them."""
    for driver in drivers:
        known = driver.node.discovery.known
        if known is not None and driver.plugin.by_amounts:
            plugin = driver.plugin
            yield plugin.driver, known, holdings(driver.node.store.book.records(), plugin.sources)


def _disturbed(drivers: Iterable[DriverService]) -> Iterator[tuple[str, Disturbance]]:
    """Yield what has disturbed claims that want quiet CPUs."""
    for driver in drivers:
        # Two instances would report the same disturbances twice.
        if driver.active:
            yield from ((driver.plugin.driver, disturbance) for disturbance in driver.node.disturbances())


def _used(drivers: Iterable[DriverService]) -> Iterator[tuple[str, ClaimsUsage]]:
    """Yield how much the claims of each driver use, if the driver pins their containers."""
    for driver in drivers:
        # Two instances would report the same use twice.
        usage = None if driver.pinning is None or not driver.active else driver.pinning.usage.usage()
        if usage is not None:
            yield driver.plugin.driver, usage
