"""Drift: containers whose limits in the kernel differ from those that they should have, and how it is repaired."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.pinning.container_index import ContainerChange, Containers, effective_of
from dranode.driver.pinning.containers import Container, Effective, Pinned, difference, expected, keeps_memory, pooled
from dranode.driver.pinning.snapshot import PinSnapshot, limits_over


class Drift(msgspec.Struct, frozen=True):
    """A container whose limits in the kernel differ from those that it should have.

    Attributes:
        container: the container.
        expected: the limits that it should have, as far as they differ.
        actual: its limits in the kernel.
    """

    container: Container
    expected: Effective
    actual: Effective

    def __str__(self) -> str:
        return f"{self.container} {difference(self.expected, self.actual)}"


def find_drifts(containers: Containers, snapshot: PinSnapshot, effective: Mapping[str, Effective]) -> tuple[Drift, ...]:
    """Return the containers whose limits in the kernel differ from those that they should have.

    A container whose claims are not certain has not drifted.
    """
    drifts: list[Drift] = []
    for key, actual in effective.items():
        pinned = containers.get(key)
        if pinned is not None and not (pinned.unsure or pinned.unanswered) and snapshot.unread is None:
            should, does = effective_of(expected(pinned, snapshot)).beside(_counting(actual, pinned, snapshot))
            if does:
                drifts.append(Drift(pinned.container, should, does))
    return tuple(drifts)


def _counting(actual: Effective, pinned: Pinned, snapshot: PinSnapshot) -> Effective:
    """Leave out limits of huge pages that kubelet has raised, unless claims alone decide about these limits."""
    # With DRANodeAllocatableResources kubelet counts the claims in a container's limits and may set a higher one than
    # this driver did. That is not a drift.
    if snapshot.exclusive_pages:
        return actual
    given = dict(pinned.hugepages)
    return replace(actual, hugepages=tuple(pair for pair in actual.hugepages if pair[1] < given.get(pair[0], 0)))


def drifted(containers: Containers, drifts: Iterable[Drift]) -> ContainerChange:
    """Return the change that notes what drifting containers really have, so that `settle` corrects them.

    They get their resources again even if they should have just these by then: the kernel was asked a while ago, and a
    late update may have been carried out since.
    """
    # Noting the real limits makes the container differ from what it should have, so that the next `settle` repairs it.
    put = ((containers.get(drift.container.id), drift.actual) for drift in drifts)
    return ContainerChange(tuple(_with(pinned, actual) for pinned, actual in put if pinned is not None))


def to_compare(containers: Containers, snapshot: PinSnapshot) -> Iterator[tuple[Container, Effective]]:
    """Yield the containers that the other instance may have moved, with the limits that this one last gave them.

    Containers with claims come first, because there may not be time for all. If a container of the shared pool was not
    compared, it simply gets its resources again.
    """
    for pinned in sorted(containers, key=lambda pinned: not pinned.claims):
        last = _last_given(pinned, snapshot)
        if last:
            yield pinned.container, last


def overruled(containers: Containers, snapshot: PinSnapshot, limits: Mapping[str, Effective]) -> ContainerChange:
    """Return the change that notes which containers the other instance may have moved.

    It may have had other records or settings. If the kernel shows other limits than this instance gave, the container
    gets its resources again. The same applies to containers of the shared pool whose CPUs could not be read, because
    each claim that comes or goes moves them. The other limits of a container follow from its own claims, so they are
    assumed unchanged if they could not be read.

    Args:
        containers: the known containers.
        snapshot: the claims on record and the machine.
        limits: the limits in the kernel by container id, of the containers from `to_compare`.
    """
    after = (
        (pinned, _overruled(pinned, snapshot, limits.get(pinned.container.id, Effective()))) for pinned in containers
    )
    return ContainerChange(tuple(new for pinned, new in after if new is not pinned))


def _overruled(pinned: Pinned, snapshot: PinSnapshot, actual: Effective) -> Pinned:
    if pinned.mems and actual.nodes is not None and actual.nodes != pinned.mems and keeps_memory(pinned, snapshot):
        # The other instance may have read records that this one could not read.
        pinned = replace(pinned, mems=actual.nodes)
    # Nobody knows what the other instance set, so containers whose mask could not be read get theirs again.
    silent = actual.cpus is None and snapshot.pins_cpus and pooled(pinned, snapshot)
    differing = _last_given(pinned, snapshot).beside(_counting(actual, pinned, snapshot))[1]
    if not (silent or differing):
        return pinned
    if pinned.unanswered:
        # The other instance may have got kubelet's answer, so the container stays on the CPUs of a claim if it runs
        # there.
        return replace(pinned, cpus=pinned.cpus if actual.cpus is None else actual.cpus, resend=True)
    return pinned.with_unknown_mask()


def _last_given(pinned: Pinned, snapshot: PinSnapshot) -> Effective:
    """Return the limits that the kernel should show, according to what this driver gave the container."""
    sizes = {size for size, _ in expected(pinned, snapshot).hugepages}
    return Effective(
        pinned.cpus if snapshot.pins_cpus else None,
        pinned.mems or None,
        tuple(pair for pair in pinned.hugepages if pair[0] in sizes),
    )


def _with(pinned: Pinned, actual: Effective) -> Pinned:
    return replace(
        pinned,
        cpus=pinned.cpus if actual.cpus is None else actual.cpus,
        mems=pinned.mems if actual.nodes is None else actual.nodes,
        hugepages=limits_over(pinned.hugepages, actual.hugepages),
        resend=True,
    )


# A runtime whose NRI is older than 0.12.1 accepts updates safely only in the answers to its own calls, and on a quiet
# node the next call may be far away. A reconnection makes the runtime call Synchronize. No pod can start meanwhile, so
# the driver waits a while before it reconnects, and does so seldom. If repairs do not remove a drift, its cause is out
# of NRI's reach, for example the mask of a parent cgroup, so the driver gives up.

WRONG_MASK_SECONDS: Final = 60.0
"""How long a container may have the wrong mask before a reconnection is due, in seconds."""

INTERVAL: Final = 600.0
"""The shortest time between two reconnections, in seconds."""

REPAIRS: Final = 3
"""How often the same drift of a container is repaired."""


class Repairs(msgspec.Struct, frozen=True):
    """The repairs of drift so far.

    Attributes:
        tries: for each drifting container, its limits in the kernel, and how many checks in a row showed them.
        fresh: the drifts that the last check showed for the first time.
        hopeless: the drifts whose repair was given up after the last check.
        worth: the drifts to repair now.
    """

    tries: Mapping[str, tuple[Effective, int]] = msgspec.field(default_factory=dict)
    fresh: tuple[Drift, ...] = ()
    hopeless: tuple[Drift, ...] = ()
    worth: tuple[Drift, ...] = ()

    def seen(self, drifts: Iterable[Drift], unseen: Collection[str] = ()) -> Repairs:
        """Return the repairs after another check.

        A container that is not among `drifts` is right again, unless it is `unseen`: it was not compared, because the
        repair of its last drift may still be under way.
        """
        tries = {key: tried for key, tried in self.tries.items() if key in unseen}
        by_tries: dict[int, list[Drift]] = {}
        for drift in drifts:
            key = drift.container.id
            actual, before = self.tries.get(key, (drift.actual, 0))
            # Other limits than at the last check are a new drift.
            # Counting stops one above the last repair, so that "hopeless" is reported once and not at every check.
            count = min(before + 1, REPAIRS + 2) if actual == drift.actual else 1
            tries[key] = (drift.actual, count)
            by_tries.setdefault(count, []).append(drift)
        worth = [drift for count, same in by_tries.items() if count <= REPAIRS for drift in same]
        return Repairs(tries, tuple(by_tries.get(1, ())), tuple(by_tries.get(REPAIRS + 1, ())), tuple(worth))

    def synchronized(self, drifts: Iterable[Drift]) -> Repairs:
        """Return the repairs after the answer to a Synchronize, which repairs these drifts.

        A drift that was given up stays given up, although each Synchronize tries to repair it once more.
        """
        fresh = tuple(drift for drift in drifts if self.tries.get(drift.container.id, (None, 0))[0] != drift.actual)
        return replace(
            self, tries={**self.tries, **{drift.container.id: (drift.actual, 1) for drift in fresh}}, fresh=fresh
        )


class Lag(msgspec.Struct, frozen=True):
    """How long mask changes have been waiting, in seconds of one monotonic clock.

    Attributes:
        since: when the time without interruption began in which containers wait; None if none waits.
        reconnected: when the driver last reconnected for them; None if it never did.
        waiting: the containers that wait for their masks.
    """

    since: float | None = None
    reconnected: float | None = None
    waiting: frozenset[str] = frozenset()

    def seen(self, waiting: frozenset[str], now: float) -> Lag:
        """Return the lag after another check; it goes on as long as a container that waited before still waits."""
        if not waiting:
            return replace(self, since=None, waiting=waiting)
        # If no container that waited before still waits, updates do arrive, and the time starts again.
        since = self.since if self.waiting & waiting else None
        return replace(self, since=now if since is None else since, waiting=waiting)

    def seconds(self, now: float) -> float:
        """Return how long a container has had the wrong mask, in seconds."""
        return 0.0 if self.since is None else now - self.since

    def reconnection_due(self, now: float) -> bool:
        """Return whether to reconnect now."""
        return self.seconds(now) >= WRONG_MASK_SECONDS and (
            self.reconnected is None or now - self.reconnected >= INTERVAL
        )
