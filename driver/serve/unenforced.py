"""Reports that containers are not held to claims because no container runtime is connected, and when they are again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from dranode.api.errors import UnreadError
from dranode.driver.claims.answers import NOT_ENFORCED, NotEnforced, needs_enforcing
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored, EnforcementLost, Notify
from dranode.driver.claims.record import Record
from dranode.driver.claims.status import DeviceState, prepared_states
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.pinning import REPORTED

log = logging.getLogger(__name__)


class UnenforcedClaims:
    """The claims of one node that are reported as not enforced."""

    def __init__(self, node: NodeClaims, data: Path, notify: Notify, connected: Callable[[], bool]) -> None:
        """Go on from what an earlier process has reported.

        Args:
            node: whose claims.
            data: the driver's folder, where a file says that claims were reported.
            notify: makes it known.
            connected: whether a runtime is connected now; while one may be about to be, neither is reported.
        """
        self._connected = connected
        self._node = node
        self._note = data / REPORTED
        self._notify = notify
        # Of claims that another process has reported it is not known which.
        self._reported: frozenset[str] | None = None if self._note.exists() else frozenset()
        self._lost = False

    def look(self) -> None:
        """Report what has changed since the last look; what cannot be read now is left to the next one."""
        why = self._node.not_enforced()
        lost = why is not None and not why.chosen
        reported = self._lost or self._reported != frozenset()
        settled = lost or (reported and (why is not None or self._connected()))
        if not settled:
            return
        try:
            records = [record for record in self._node.records() if needs_enforcing(record)]
            self._report_lost(records, why) if why is not None and lost else self._report_again(records, why)
        except UnreadError:
            return
        self._lost = lost

    def _report_lost(self, records: Iterable[Record], why: NotEnforced) -> None:
        driver = self._node.plugin.driver
        if not self._lost:
            log.error("driver=%s: %s", driver, why.message)
            self._notify(EnforcementLost(why.message))
            self._note.touch()
        before = self._reported or frozenset()
        for record in records:
            if record.uid not in before:
                states = self._states(record, why)
                self._notify(ClaimImpaired(record.ref, record.pods, NOT_ENFORCED, why.message, states))
        self._reported = frozenset(record.uid for record in records)

    def _report_again(self, records: Iterable[Record], why: NotEnforced | None) -> None:
        log.warning("driver=%s: the container runtime is connected, so claims are enforced", self._node.plugin.driver)
        for record in records:
            if self._reported is None or record.uid in self._reported:
                self._notify(ClaimRestored(record.ref, self._states(record, why)))
        self._note.unlink(missing_ok=True)
        self._reported = frozenset()

    def _states(self, record: Record, why: NotEnforced | None) -> tuple[DeviceState, ...]:
        return prepared_states(self._node.plugin, record, self._node.inventory, why)
