"""What probes and Prometheus see of this process: its drivers over HTTP, loaded once those listen.

Alive: no thread that the process owns has died. Ready: every driver has been asked for and registered by kubelet, its
slices are published, and where it pins, the container runtime has listed its containers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dranode.driver.process.threads import Fatal
from dranode.driver.serve.http_address import bind_address

if TYPE_CHECKING:
    from dranode.driver.serve.counters import ServiceCounters
    from dranode.driver.serve.http_server import HTTPPages
    from dranode.driver.serve.metrics import Metrics
    from dranode.driver.serve.service import DriverService


class Probes:
    """The HTTP pages of a process."""

    def __init__(self, address: str, ending: Callable[[], str | None], fatal: Fatal) -> None:
        """Take the address; `start` answers.

        Args:
            address: `HOST:PORT`, or `none`.
            ending: why the process ends, if it does.
            fatal: ends the process with a sentence.

        Raises:
            UsageError: it is not an address.
            DranodeError: the address cannot be bound.
        """
        self._listener = bind_address(address)
        self._ending = ending
        self._fatal = fatal
        self._drivers: list[DriverService] = []
        self._metrics: Metrics | None = None
        self._pages: HTTPPages | None = None

    @property
    def counts(self) -> Callable[[DriverService], ServiceCounters] | None:
        """The function that makes the counters of a driver; None if no HTTP address serves them."""
        return None if self._listener is None else self._count

    def _count(self, service: DriverService) -> ServiceCounters:
        from dranode.driver.serve.metrics import Metrics  # noqa: PLC0415 - listen first

        if self._metrics is None:
            self._metrics = Metrics()
        self._drivers.append(service)
        return self._metrics.add(service)

    def start(self) -> None:
        """Answer from now on."""
        if self._listener is None or self._metrics is None:
            return
        from dranode.driver.serve.http import verdict  # noqa: PLC0415 - listen first
        from dranode.driver.serve.http_server import HTTPPages  # noqa: PLC0415 - listen first

        pages = {
            "/healthz": lambda _: verdict(filter(None, (self._ending(),)), "ok"),
            "/readyz": lambda _: verdict(self._missing(), "ready"),
            "/metrics": self._metrics.page,
        }
        self._pages = HTTPPages(self._listener, pages, self._fatal, slow=frozenset({"/metrics"}))
        self._pages.start()

    def _missing(self) -> tuple[str, ...]:
        ending = self._ending()
        return tuple(sentence for driver in self._drivers for sentence in driver.missing()) + (
            (ending,) if ending else ()
        )

    def stop(self) -> None:
        """Answer no more."""
        if self._pages is not None:
            self._pages.stop()
        elif self._listener is not None:
            self._listener.close()
