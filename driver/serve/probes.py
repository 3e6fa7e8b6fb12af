"""The HTTP pages for kubelet's probes and for Prometheus.

Alive: no thread of the process has died. Ready: kubelet has registered every driver, its slices are published, and, if
it pins containers, the container runtime has listed them.
"""

import socket
from collections.abc import Callable

from dranode.driver.process.threads import Fatal
from dranode.driver.serve.http_server import HTTPPages, Make, bind_address, verdict
from dranode.driver.serve.metrics import Metrics
from dranode.driver.serve.service import DriverService, ServiceCounters


class Probes:
    """The HTTP pages of a process: for kubelet's probes and for Prometheus, at one address or at two."""

    def __init__(self, address: str, metrics_address: str, ending: Callable[[], str | None], fatal: Fatal) -> None:
        """Bind the addresses; `start` answers.

        Args:
            address: `HOST:PORT`, or `none`.
            metrics_address: a separate address for metrics only; empty if they are at the address of the probes.
            ending: returns why the process ends, if it does.
            fatal: ends the process with a sentence.

        Raises:
            UsageError: a text is not an address.
            DranodeError: an address cannot be bound.
        """
        self._listeners: list[socket.socket] = []
        self._pages: list[HTTPPages] = []
        self._probes = self._bound(address, "--http-address")
        self._beside = not metrics_address
        self._for_metrics = self._probes if self._beside else self._bound(metrics_address, "--metrics-address")
        self._ending = ending
        self._fatal = fatal
        self._drivers: list[DriverService] = []
        self._metrics: Metrics | None = None

    def _bound(self, address: str, option: str) -> socket.socket | None:
        try:
            listener = bind_address(address, option)
        except BaseException:
            # The other address may be bound already.
            self.stop()
            raise
        if listener is not None:
            self._listeners.append(listener)
        return listener

    def count(self, service: DriverService) -> ServiceCounters | None:
        """Probe this driver, and return its counters; None if no HTTP address serves them."""
        if not self._listeners:
            return None
        if self._metrics is None:
            self._metrics = Metrics()
        self._drivers.append(service)
        return self._metrics.add(service)

    def start(self) -> None:
        """Answer from now on."""
        if self._metrics is None:
            return
        # A driver that cannot prepare claims is alive but not ready: a restart by kubelet would not help.
        probes: dict[str, Make] = {
            "/healthz": lambda _: verdict(filter(None, (self._ending(),)), "ok"),
            "/readyz": lambda _: verdict(self._missing(), "ready"),
        }
        metrics: dict[str, Make] = {"/metrics": self._metrics.page}
        # At one address, the page of metrics must not delay probes. At its own address it delays nothing else.
        if self._probes is not None:
            pages, slow = (probes | metrics, frozenset(metrics)) if self._beside else (probes, frozenset[str]())
            self._pages.append(HTTPPages(self._probes, pages, self._fatal, slow=slow))
        if self._for_metrics is not None and not self._beside:
            self._pages.append(HTTPPages(self._for_metrics, metrics, self._fatal, name="metrics"))
        for page in self._pages:
            page.start()

    def _missing(self) -> tuple[str, ...]:
        ending = self._ending()
        return tuple(sentence for driver in self._drivers for sentence in driver.missing()) + (
            (ending,) if ending else ()
        )

    def stop(self) -> None:
        """Stop answering, and close the addresses."""
        for pages in self._pages:
            pages.stop()
        for listener in self._listeners:
            listener.close()
