"""Adds up how much claims use of what they hold, by claim and pod, from the figures of their containers' cgroups.

A container's counters begin at zero when it starts, and a claim's go on: what a counter rose by since the last reading
is added, and one that went down, or that is new, counts from zero. What a container does before it is first read counts
too; what it does after its last reading is lost, since nothing is read unless somebody asks.

A container with several claims of a driver divides what adds up (CPU time, throttled time, waiting, memory, huge pages)
among them by what it has of each, so that the sum over all claims is that of the cgroups. How long it was short of CPU
(pressure) and its periods count for each claim in full. Memory goes by the memory of claims that hold memory, whichever
driver's, and only where a container has none of these by the CPUs of claims that hold CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from dranode.driver.claims.held import ClaimRef

# A claim is idle once it has used less than this part of its CPUs for so long.
IDLE_SECONDS: Final = 60.0
IDLE_PART: Final = 0.01
# How long the sums of a pod without containers are kept: kubelet waits up to 5 minutes before it starts one again.
_KEEP_SECONDS: Final = 900.0


class Figure(StrEnum):
    """The figures that are read of a container."""

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
# What adds up over claims is divided among the claims of a container.
_DIVIDED: Final = frozenset((Figure.CPU, Figure.THROTTLED, Figure.WAIT)) | GAUGES

# SourceValues by source: the cgroup, or a process or a task of it, each with a counter of its own.
SourceValues = Mapping[str, float]


class ClaimShare(msgspec.Struct, frozen=True):
    """The part that a container has of a claim.

    Attributes:
        claim: the claim.
        pod: the container's pod, by name; it is in the claim's namespace.
        held: the number of CPUs of the claim's that the container has and no other claim.
        memory: the bytes of ordinary memory that it has of the claim.
        hugepages: the bytes of huge pages that it has of the claim.
        memory_counts: whether the container's memory counts for the claim's CPUs; False where another driver's claim
            holds memory for it.
    """

    claim: ClaimRef
    pod: str
    held: int = 0
    memory: int = 0
    hugepages: int = 0
    memory_counts: bool = True

    def weight(self, figure: Figure) -> int:
        """Return by what a figure of the container is divided among its claims; 0 if it says nothing of this one."""
        if figure is Figure.HUGEPAGES:
            return self.hugepages
        if figure in GAUGES and not self.memory_counts:
            return 0
        return self.held or (self.memory if figure in GAUGES else 0)


class ContainerReading(msgspec.Struct, frozen=True):
    """The figures that were read of a container with claims.

    Attributes:
        container: the runtime's id, or the cgroup where that is not known.
        shares: its claims that hold CPUs or memory.
        values: what could be read, by figure and source, in seconds, bytes or periods; what is missing could not.
    """

    container: str
    shares: tuple[ClaimShare, ...]
    values: Mapping[Figure, SourceValues]

    def unread(self, figure: Figure) -> bool:
        """Return whether a figure that says something of one of its claims is missing."""
        return figure not in self.values and any(share.weight(figure) for share in self.shares)


class PodUsage(msgspec.Struct, frozen=True):
    """The use that the containers of one pod made of one claim.

    A figure that was not read of each of them is missing.
    """

    claim: ClaimRef
    pod: str
    values: Mapping[Figure, float]


class ClaimsUsage(msgspec.Struct, frozen=True):
    """The use of all claims of a driver at one moment.

    Attributes:
        held: the number of CPUs that each claim holds, 0 for one that holds memory alone.
        pods: what their pods used.
        idle: whether a claim has used almost nothing for a minute; claims for which this is not known are left out.
        unread: of how many running containers with claims a figure could not be read.
    """

    held: Mapping[ClaimRef, int]
    pods: tuple[PodUsage, ...]
    idle: Mapping[ClaimRef, bool]
    unread: Mapping[Figure, int]


class _PodSums(msgspec.Struct):
    """The sums of one claim and pod, when a container was last seen, and which figures were not read then."""

    sums: dict[Figure, float] = msgspec.field(default_factory=dict)
    seen: float = 0.0
    unknown: set[Figure] = msgspec.field(default_factory=set)


class _Counters(msgspec.Struct, frozen=True):
    """The last values of a container, and the claims that it had then."""

    claims: frozenset[ClaimRef] = frozenset()
    values: Mapping[Figure, SourceValues] = msgspec.field(default_factory=dict)


class _Idleness(msgspec.Struct, frozen=True):
    """Since when a claim uses next to nothing, and whether it was ever seen to use more."""

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

    def take(self, now: float, held: Mapping[ClaimRef, int], readings: Iterable[ContainerReading]) -> None:
        """Take in a reading of all containers that have claims.

        Args:
            now: seconds of a clock that never goes back.
            held: the number of CPUs that each claim holds, 0 for memory alone; other claims are forgotten.
            readings: those of all containers that run with one of these claims.
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
        self._unread = {figure: sum(each.unread(figure) for each in readings) for figure in Figure}
        unknown = {claim for (claim, _), pod in self._pods.items() if Figure.CPU in pod.unknown}
        with_cpus = (claim for claim, count in held.items() if count and claim not in unknown)
        self._idle = {claim: self._idleness(claim, now, rises[claim]) for claim in with_cpus}
        self._now = now

    def usage(self) -> ClaimsUsage:
        """Return what is known after the last reading."""
        pods = tuple(
            PodUsage(claim, pod, {figure: value for figure, value in known.sums.items() if figure not in known.unknown})
            for (claim, pod), known in self._pods.items()
        )
        long_idle = {claim: self._now - each.since >= IDLE_SECONDS for claim, each in self._idle.items()}
        idle = {claim: is_idle for claim, is_idle in long_idle.items() if is_idle or self._idle[claim].used}
        return ClaimsUsage(self._held, pods, idle, self._unread)

    def _forget(self, held: Mapping[ClaimRef, int]) -> None:
        """Forget claims that are gone, and what holds for one moment alone."""
        self._held = held
        self._pods = {key: pod for key, pod in self._pods.items() if key[0] in held}
        for pod in self._pods.values():
            pod.unknown = set()
            for gauge in GAUGES:
                pod.sums.pop(gauge, None)
        # Keep containers that were not read this time: one that is missed once has not started again.
        self._counters = {key: each for key, each in self._counters.items() if not each.claims.isdisjoint(held)}

    def _rises(self, reading: ContainerReading) -> Iterator[tuple[ClaimShare, Figure, float]]:
        """Yield by how much each figure of each claim rose by this container, and of gauges what it is."""
        before = self._counters.get(reading.container, _Counters()).values
        claims = frozenset(share.claim for share in reading.shares)
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
        if used >= IDLE_PART * self._held[claim] * (now - self._now) > 0:
            return _Idleness(now, used=True)
        return before


def _rise(before: SourceValues, now: SourceValues) -> float:
    """Return by how much counters rose; one that went down, or was not there, has begun at zero since."""
    befores = ((value, before.get(source, 0.0)) for source, value in now.items())
    return sum(value - old if value >= old else value for value, old in befores)
