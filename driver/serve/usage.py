"""Reads what claims use of the CPUs that they hold, when somebody asks for it.

A reading costs CPU time for each container, so the next one is not made before a hundred times as much time has passed:
at most 1 % of one CPU, however often somebody asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import MachineError
from dranode.driver.core.claims.usage import ClaimShare, ClaimsUsage, ContainerReading, UsageBook
from dranode.driver.core.pinning.pinned import Pinned, having
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.container_usage import UsageReader
from dranode.driver.machine.numa import local_nodes, node_cpus
from dranode.driver.machine.root import Root

log = logging.getLogger(__name__)

_LEAST_SECONDS: Final = 1.0
_LEAST_BY_COST: Final = 100.0


class UsageWatch:
    """The use of one driver's claims, by the containers that the runtime has listed."""

    def __init__(
        self,
        root: Root,
        running: Callable[[], Iterable[Pinned] | None],
        snapshot: Callable[[], HeldSnapshot],
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        """Read nothing yet.

        Args:
            root: where cgroups are read.
            running: the containers that run with claims; None while that is not certain.
            snapshot: what is on record.
            clock: seconds, monotonic.
            cost: seconds of CPU time of the thread that asks.
        """
        self._root, self._running, self._snapshot = root, running, snapshot
        self._clock, self._cost = clock, cost
        self._lock = threading.Lock()
        self._book = UsageBook()
        self._last: ClaimsUsage | None = None
        self._not_before = float("-inf")

    def usage(self) -> ClaimsUsage | None:
        """Return what the claims use, as read now or a moment ago; None while it is not certain who has which claim."""
        with self._lock:
            now = self._clock()
            if now >= self._not_before:
                before = self._cost()
                self._last = self._read(now)
                spent = self._cost() - before
                self._not_before = now + max(_LEAST_SECONDS, spent * _LEAST_BY_COST)
            return self._last

    def _read(self, now: float) -> ClaimsUsage | None:
        containers, snapshot = self._running(), self._snapshot()
        if containers is None or snapshot.unread is not None:
            return None
        try:
            nodes = node_cpus(self._root)
        except MachineError as error:
            log.debug("what claims use is not read: %s", error)
            return None
        reader = UsageReader(self._root, Cgroups(self._root))
        held = {claim.claim: len(claim.held) for claim in snapshot.claims.values() if claim.held}
        mine = ((each, tuple(claim for claim in having(each, snapshot) if claim.held)) for each in containers)
        readings = (
            ContainerReading(
                each.container.id,
                tuple(ClaimShare(claim.claim, each.container.pod.name, len(claim.held)) for claim in claims),
                reader.read(
                    cgroup_folder(each.container.cgroup),
                    local_nodes(CPUSet.union(claim.held for claim in claims), nodes),
                ),
            )
            for each, claims in mine
            if claims
        )
        self._book.take(now, held, readings)
        return self._book.usage()
