"""When masks that no answer has carried to the runtime are worth a reconnection.

A runtime whose NRI is older than 0.12.1 takes updates safely only with its own calls. On a quiet node such a call may
be long in coming; a reconnection brings a Synchronize, but the runtime stops all pod operations meanwhile.

Drift that repairs do not cure has a cause that NRI cannot reach, such as the mask of a parent cgroup; it is left alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.pinning.pinned import Drift

PATIENCE: Final = 60.0
"""Seconds that a container may have the wrong mask before a reconnection is due."""

INTERVAL: Final = 600.0
"""Seconds from one reconnection to the next at the earliest."""

REPAIRS: Final = 3
"""How often the same drift of a container is repaired."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """What was done about drift so far.

    Attributes:
        tries: by container, the CPUs that it was found on and how often in a row.
        fresh: the drifts that were seen for the first time at the last look.
        hopeless: those that were given up at the last look.
        worth: those to be repaired now.
    """

    tries: Mapping[str, tuple[CPUSet, int]] = field(default_factory=dict)
    fresh: tuple[Drift, ...] = ()
    hopeless: tuple[Drift, ...] = ()
    worth: tuple[Drift, ...] = ()

    def seen(self, drifts: Iterable[Drift], unseen: Container[str] = ()) -> Repairs:
        """After another look; what is not among `drifts` was cured, unless it is a container that is still `unseen`.

        Of those nothing is known yet: the repair of their last drift is on its way.
        """
        tries = {key: tried for key, tried in self.tries.items() if key in unseen}
        by_tries: dict[int, list[Drift]] = {}
        for drift in drifts:
            key = drift.container.id
            cpus, before = self.tries.get(key, (drift.found, 0))
            # A mask that is another one again is another drift.
            count = min(before + 1, REPAIRS + 2) if cpus == drift.found else 1
            tries[key] = (drift.found, count)
            by_tries.setdefault(count, []).append(drift)
        worth = [drift for count, found in by_tries.items() if count <= REPAIRS for drift in found]
        return Repairs(tries, tuple(by_tries.get(1, ())), tuple(by_tries.get(REPAIRS + 1, ())), tuple(worth))

    def met(self, drifts: Iterable[Drift]) -> Repairs:
        """After a runtime has told of its containers and these drifts were repaired with the answer.

        It counts as the first repair; what was given up is repaired once with every connection, and given up still.
        """
        fresh = tuple(each for each in drifts if self.tries.get(each.container.id, (None, 0))[0] != each.found)
        return replace(
            self, tries={**self.tries, **{each.container.id: (each.found, 1) for each in fresh}}, fresh=fresh
        )


@dataclass(frozen=True, slots=True)
class Lag:
    """How long masks have been waiting. Times are seconds of one monotonic clock.

    Attributes:
        since: when the first of the masks that wait now began to; None if none waits.
        reconnected: when the last reconnection was made for it; None if never.
        waiting: the containers that wait.
    """

    since: float | None = None
    reconnected: float | None = None
    waiting: frozenset[str] = frozenset()

    def seen(self, waiting: frozenset[str], now: float) -> Lag:
        """After another look: the clock runs on while any container that waited then still waits."""
        if not waiting:
            return replace(self, since=None, waiting=waiting)
        since = self.since if self.waiting & waiting else None
        return replace(self, since=now if since is None else since, waiting=waiting)

    def seconds(self, now: float) -> float:
        """The lag: how long a container has had the wrong mask."""
        return 0.0 if self.since is None else now - self.since

    def reconnection_due(self, now: float) -> bool:
        """Whether to reconnect now."""
        return self.seconds(now) >= PATIENCE and (self.reconnected is None or now - self.reconnected >= INTERVAL)
