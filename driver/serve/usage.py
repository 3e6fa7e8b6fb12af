"""Reads on request how much claims use of the CPUs and the memory that they hold.

A reading costs CPU time for each container. So the next one is only made after a hundred times as much time: at most
1 % of one CPU, however often somebody asks.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.claims.usage import ClaimShare, ClaimsUsage, ContainerReading, Figure, SourceValues, UsageBook
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.container_usage import UsageReader
from dranode.driver.machine.numa import local_nodes, node_cpus
from dranode.driver.machine.root import Root
from dranode.driver.pinning.containers import Pinned, having
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot, claim_key

log = logging.getLogger(__name__)

# The least time between two readings: in seconds, and as a multiple of the CPU time of the last reading.
_LEAST_SECONDS: Final = 1.0
_LEAST_BY_COST: Final = 100.0


class UsageWatch:
    """Reads how containers use the claims of one driver."""

    def __init__(
        self,
        root: Root,
        driver: str,
        running: Callable[[], Iterable[Pinned] | None],
        snapshot: Callable[[], PinSnapshot],
        *,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        """Set the reader up; nothing is read yet.

        Args:
            root: where cgroups are read.
            driver: the driver; a snapshot may also have claims of others.
            running: returns the running containers with claims; None while they are not known for certain.
            snapshot: returns the claims on record.
            clock: returns seconds, monotonic.
            cost: returns the CPU time of the calling thread, in seconds.
        """
        self._root, self._driver = root, driver
        self._running, self._snapshot = running, snapshot
        self._clock, self._cost = clock, cost
        self._lock = threading.Lock()
        self._book = UsageBook()
        self._last: ClaimsUsage | None = None
        self._not_before = float("-inf")

    def usage(self) -> ClaimsUsage | None:
        """Return the use as read now or a moment ago; None while it is not certain which container has which claim."""
        with self._lock:
            now = self._clock()
            if now >= self._not_before:
                # CPU time and not elapsed time, because only CPU time is taken from claims.
                before = self._cost()
                self._last = self._read(now)
                spent = self._cost() - before
                self._not_before = now + max(_LEAST_SECONDS, spent * _LEAST_BY_COST)
            return self._last

    def _read(self, now: float) -> ClaimsUsage | None:
        containers, snapshot = self._running(), self._snapshot()
        # While the ledger cannot be read, containers may have claims that are not known.
        if containers is None or snapshot.unread_of(claim_key(self._driver, "")) is not None:
            return None
        try:
            nodes = node_cpus(self._root)
        except MachineError as error:
            # Without nodes, memory on the right nodes cannot be told from memory on others.
            log.debug("what claims use is not read: %s", error)
            return None
        reader = UsageReader(self._root, Cgroups(self._root))
        held = {claim.claim: len(claim.held) for claim in snapshot.claims.values() if self._is_own(claim)}
        readings: list[ContainerReading] = []
        for pinned in containers:
            all_claims = having(pinned, snapshot)
            claims = tuple(filter(self._is_own, all_claims))
            if not claims:
                continue
            # If another driver's claim holds the container's memory, that driver reports it.
            memory_counts = not self._has_memory(all_claims)
            shares = tuple(_share(claim, pinned.container.pod.name, memory_counts=memory_counts) for claim in claims)
            figures = _figures(reader, cgroup_folder(pinned.container.cgroup), claims, nodes)
            readings.append(ContainerReading(pinned.container.id, shares, figures))
        self._book.add(now, held, readings)
        return self._book.usage()

    def _is_own(self, claim: PinnedClaim) -> bool:
        return claim.exclusive and claim.driver in ("", self._driver)

    def _has_memory(self, claims: Iterable[PinnedClaim]) -> bool:
        """Return whether another driver's claim holds memory for a container with these claims."""
        return any(claim.memory and not self._is_own(claim) for claim in claims)


def _share(claim: PinnedClaim, pod: str, *, memory_counts: bool) -> ClaimShare:
    pages = sum(size for _, size in claim.hugepages)
    return ClaimShare(claim.claim, pod, len(claim.held), claim.memory, pages, memory_counts=memory_counts)


def _figures(
    reader: UsageReader, folder: str, claims: Sequence[PinnedClaim], nodes: Mapping[int, CPUSet]
) -> Mapping[Figure, SourceValues]:
    """Return the figures of a container with these claims of one driver, as far as they can be read."""
    cpus = CPUSet.union(claim.held for claim in claims)
    if cpus:
        return reader.read(folder, local_nodes(cpus, nodes))
    sizes = {size for claim in claims for size, _ in claim.hugepages}
    return reader.read_memory(folder, CPUSet.union(claim.nodes for claim in claims), sizes)
