"""Adds up how much claims use of what they hold, by claim and pod, from the cgroups of their containers.

A container's counters start at zero with the container, but a claim's counters continue. So the rise of each counter
since the last reading is added; a counter that went down, or is new, counts from zero. What a container used before its
first reading counts. What it used after its last reading is lost, because readings are only made on request.

If a container has several claims of a driver, amounts (CPU time, throttled time, waiting, memory, huge pages) are
divided among them in proportion to what it has of each, so that the sum over all claims is that of the cgroups.
Pressure and CFS periods count in full for each claim. Memory is divided in proportion to the memory of claims that hold
memory, of any driver; if the container has no such claim, in proportion to the CPUs of its claims.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from dranode.driver.claims.held import ClaimRef

# A claim is idle if it has used less than this part of its CPUs for this time, in seconds.
IDLE_SECONDS: Final = 60.0
IDLE_PART: Final = 0.01
# How long the sums of a pod without containers are kept, in seconds: kubelet waits up to 5 minutes before it restarts a
# container.
_KEEP_SECONDS: Final = 900.0


class Figure(StrEnum):
    """The figures that are read for a container."""

    CPU = "cpu_usage_seconds"
    THROTTLED = "cpu_throttled_seconds"
    PERIODS = "cpu_cfs_periods"
    THROTTLED_PERIODS = "cpu_cfs_throttled_periods"
    WAIT = "run_queue_wait_seconds"
    WAITING = "cpu_pressure_waiting_seconds"
    STALLED = "cpu_pressure_stalled_seconds"
    MEMORY = "memory_bytes"
    REMOTE_MEMORY = "remote_memory_bytes"
    HUGEPAGES = "hugepages_bytes"


GAUGES: Final = frozenset((Figure.MEMORY, Figure.REMOTE_MEMORY, Figure.HUGEPAGES))
# The figures that are divided among the claims of a container.
_DIVIDED: Final = frozenset((Figure.CPU, Figure.THROTTLED, Figure.WAIT)) | GAUGES

# Values by source: the cgroup, or one of its processes or threads, each of which has its own counter.
SourceValues = Mapping[str, float]


class ClaimShare(msgspec.Struct, frozen=True):
    """The part that a container has of a claim.

    Attributes:
        claim: the claim.
        pod: the container's pod, by name; it is in the claim's namespace.
        held: the number of CPUs that the container has of the claim and that no other claim holds.
        memory: the bytes of ordinary memory that it has of the claim.
        hugepages: the bytes of huge pages that it has of the claim.
        memory_counts: whether the container's memory counts for the claim's CPUs; not if another driver's claim holds
            memory for the container.
    """

    claim: ClaimRef
    pod: str
    held: int = 0
    memory: int = 0
    hugepages: int = 0
    memory_counts: bool = True

    def weight(self, figure: Figure) -> int:
        """Return the claim's weight when a figure of the container is divided; 0 if the figure does not concern it."""
        if figure is Figure.HUGEPAGES:
            return self.hugepages
        if figure in GAUGES and not self.memory_counts:
            return 0
        return self.held or (self.memory if figure in GAUGES else 0)


class ContainerReading(msgspec.Struct, frozen=True):
    """The figures of a container with claims, as they were read.

    Attributes:
        container: the runtime's id, or the cgroup if the id is not known.
        shares: its claims that hold CPUs or memory.
        values: the figures that could be read, by figure and source, in seconds, bytes or periods.
    """

    container: str
    shares: tuple[ClaimShare, ...]
    values: Mapping[Figure, SourceValues]

    def unread(self, figure: Figure) -> bool:
        """Return whether a figure that concerns one of its claims could not be read."""
        return figure not in self.values and any(share.weight(figure) for share in self.shares)


class PodUsage(msgspec.Struct, frozen=True):
    """How much the containers of one pod have used of one claim, without figures that could not be read for all."""

    claim: ClaimRef
    pod: str
    values: Mapping[Figure, float]


class ClaimsUsage(msgspec.Struct, frozen=True):
    """The use of all claims of a driver at one moment.

    Attributes:
        held: the number of CPUs that each claim holds, 0 if it holds only memory.
        pods: what their pods have used.
        idle: whether a claim has used almost nothing for a minute; claims for which that is not known are left out.
        unread: for each figure, for how many running containers with claims it could not be read.
    """

    held: Mapping[ClaimRef, int]
    pods: tuple[PodUsage, ...]
    idle: Mapping[ClaimRef, bool]
    unread: Mapping[Figure, int]


class _PodSums(msgspec.Struct):
    """The sums of one claim and pod, the time of the last reading, and the figures that could not be read then."""

    sums: dict[Figure, float] = msgspec.field(default_factory=dict)
    seen: float = 0.0
    unknown: set[Figure] = msgspec.field(default_factory=set)


class _Counters(msgspec.Struct, frozen=True):
    """The values of a container at the last reading, and its claims at that time."""

    claims: frozenset[ClaimRef] = frozenset()
    values: Mapping[Figure, SourceValues] = msgspec.field(default_factory=dict)


class _Idleness(msgspec.Struct, frozen=True):
    """Since when a claim has used almost nothing, and whether it ever used more."""

    since: float
    used: bool = False


class UsageBook(msgspec.Struct):
    """The sums by claim and pod. It is mutable and belongs to the lock of its reader."""

    _held: Mapping[ClaimRef, int] = msgspec.field(default_factory=dict)
    _unread: Mapping[Figure, int] = msgspec.field(default_factory=dict)
    _pods: dict[tuple[ClaimRef, str], _PodSums] = msgspec.field(default_factory=dict)
    _counters: dict[str, _Counters] = msgspec.field(default_factory=dict)
    _idle: dict[ClaimRef, _Idleness] = msgspec.field(default_factory=dict)
    _now: float = 0.0

    def add(self, now: float, held: Mapping[ClaimRef, int], readings: Iterable[ContainerReading]) -> None:
        """Add a reading of all containers that have claims.

        Args:
            now: the time, in seconds of a monotonic clock.
            held: the number of CPUs that each claim holds, 0 if it holds only memory; other claims are forgotten.
            readings: the readings of all running containers with one of these claims.
        """
        readings = tuple(readings)
        self._forget(held)
        rises = dict.fromkeys(held, 0.0)
        for reading in readings:
            for share in reading.shares:
                pod = self._pods.setdefault((share.claim, share.pod), _PodSums())
                pod.seen = now
                pod.unknown.update(figure for figure in Figure if figure not in reading.values)
            for share, figure, rise in self._rises(reading):
                sums = self._pods[share.claim, share.pod].sums
                sums[figure] = sums.get(figure, 0.0) + rise
                if figure is Figure.CPU:
                    rises[share.claim] += rise
        self._pods = {key: pod for key, pod in self._pods.items() if now - pod.seen < _KEEP_SECONDS}
        self._unread = {figure: sum(reading.unread(figure) for reading in readings) for figure in Figure}
        unknown = {claim for (claim, _), pod in self._pods.items() if Figure.CPU in pod.unknown}
        with_cpus = (claim for claim, count in held.items() if count and claim not in unknown)
        self._idle = {claim: self._idleness(claim, now, rises[claim]) for claim in with_cpus}
        self._now = now

    def usage(self) -> ClaimsUsage:
        """Return the use after the last reading."""
        pods = tuple(
            PodUsage(claim, pod, {figure: value for figure, value in known.sums.items() if figure not in known.unknown})
            for (claim, pod), known in self._pods.items()
        )
        long_idle = {claim: self._now - idleness.since >= IDLE_SECONDS for claim, idleness in self._idle.items()}
        # A claim that was never seen busy is not called busy, and not idle before the time is over.
        idle = {claim: is_idle for claim, is_idle in long_idle.items() if is_idle or self._idle[claim].used}
        return ClaimsUsage(self._held, pods, idle, self._unread)

    def _forget(self, held: Mapping[ClaimRef, int]) -> None:
        """Forget other claims, and the figures that are valid only for one moment."""
        self._held = held
        self._pods = {key: pod for key, pod in self._pods.items() if key[0] in held}
        for pod in self._pods.values():
            pod.unknown = set()
            for gauge in GAUGES:
                pod.sums.pop(gauge, None)
        # Keep containers that were not read this time: a container that is missed once was not restarted.
        self._counters = {
            key: counters for key, counters in self._counters.items() if not counters.claims.isdisjoint(held)
        }

    def _rises(self, reading: ContainerReading) -> Iterator[tuple[ClaimShare, Figure, float]]:
        """Yield the rise of each figure of each claim because of this container; for a gauge, its value."""
        # If a container was not read before, everything counts that it has used so far.
        before = self._counters.get(reading.container, _Counters()).values
        claims = frozenset(share.claim for share in reading.shares)
        # A figure that could not be read this time keeps its last values, so that its next rise is complete.
        self._counters[reading.container] = _Counters(claims, {**before, **reading.values})
        for figure, values in reading.values.items():
            rise = _rise({} if figure in GAUGES else before.get(figure, {}), values)
            concerned = [share for share in reading.shares if share.weight(figure)]
            total = sum(share.weight(figure) for share in concerned)
            for share in concerned:
                yield share, figure, rise * share.weight(figure) / total if figure in _DIVIDED else rise

    def _idleness(self, claim: ClaimRef, now: float, used: float) -> _Idleness:
        before = self._idle.get(claim)
        if before is None:
            return _Idleness(now)
        # Not if no time has passed since the last reading, which then says nothing.
        if used >= IDLE_PART * self._held[claim] * (now - self._now) > 0:
            return _Idleness(now, used=True)
        return before


def _rise(before: SourceValues, now: SourceValues) -> float:
    """Return how much counters have risen; a counter that went down, or is new, has started at zero since."""
    pairs = ((value, before.get(source, 0.0)) for source, value in now.items())
    return sum(value - old if value >= old else value for value, old in pairs)
