"""What counts the work of a serving driver; metrics are one such, and a process without HTTP has none."""

from __future__ import annotations

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
