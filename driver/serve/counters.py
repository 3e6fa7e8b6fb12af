"""The counters of a serving driver's work; metrics are one such, and a process without HTTP has none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dranode.driver.core.claims.record import Record


class ServiceCounters(Protocol):
    """Counts what a driver does."""

    def answered(self, call: str, succeeded: bool, seconds: float) -> None:  # noqa: FBT001 - see kubelet.service.Observe
        """One claim of a call, `prepare` or `unprepare`, was answered for."""

    def granted(self, record: Record) -> None:
        """A claim was given something for the first time."""

    def nri_answered(self, request: str, seconds: float) -> None:
        """A request of the container runtime was answered."""


class EarlyCounters:
    """Keeps what is to be counted until `pass_on` says who counts. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Callable[[ServiceCounters], None]] = []
        self._counters: ServiceCounters | None = None

    def pass_on(self, counters: ServiceCounters) -> None:
        """Have everything counted by `counters`, what was kept before all else."""
        with self._lock:
            self._counters = counters
            for note in self._kept:
                note(counters)
            self._kept.clear()

    def answered(self, call: str, succeeded: bool, seconds: float) -> None:  # noqa: FBT001 - see kubelet.service.Observe
        """One claim of a call was answered for."""
        self._note(lambda counters: counters.answered(call, succeeded, seconds))

    def granted(self, record: Record) -> None:
        """A claim was given something for the first time."""
        self._note(lambda counters: counters.granted(record))

    def nri_answered(self, request: str, seconds: float) -> None:
        """A request of the container runtime was answered."""
        self._note(lambda counters: counters.nri_answered(request, seconds))

    def _note(self, note: Callable[[ServiceCounters], None]) -> None:
        with self._lock:
            if self._counters is None:
                self._kept.append(note)
                return
        note(self._counters)
