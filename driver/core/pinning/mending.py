"""Decides when waiting mask changes justify a reconnection to the runtime, and how often drift is repaired.

A runtime whose NRI is older than 0.12.1 only accepts updates safely in the answers to its own calls. On a quiet node
the next call may be far away. A reconnection makes the runtime call Synchronize, but stops all pod operations
meanwhile.

If repairs do not cure a drift, NRI cannot reach its cause, such as the mask of a parent cgroup, so repairs end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.core.pinning.corrections import Drift
from dranode.driver.core.pinning.effective import Effective

PATIENCE: Final = 60.0
"""Seconds that a container may have the wrong mask before a reconnection is due."""

INTERVAL: Final = 600.0
"""Seconds from one reconnection to the next at the earliest."""

REPAIRS: Final = 3
"""How often the same drift of a container is repaired."""


class Repairs(msgspec.Struct, frozen=True):
    """The repairs of drift so far.

    Attributes:
        tries: by container, what it had that it should not, and how often in a row.
        fresh: the drifts that the last look saw for the first time.
        hopeless: the drifts that were given up at the last look.
        worth: the drifts to repair now.
    """

    tries: Mapping[str, tuple[Effective, int]] = msgspec.field(default_factory=dict)
    fresh: tuple[Drift, ...] = ()
    hopeless: tuple[Drift, ...] = ()
    worth: tuple[Drift, ...] = ()

    def seen(self, drifts: Iterable[Drift], unseen: Container[str] = ()) -> Repairs:
        """Return the repairs after another look.

        A container that is not among `drifts` is cured, unless it is `unseen`: the repair of its last drift may still
        be on its way.
        """
        tries = {key: tried for key, tried in self.tries.items() if key in unseen}
        by_tries: dict[int, list[Drift]] = {}
        for drift in drifts:
            key = drift.container.id
            actual, before = self.tries.get(key, (drift.actual, 0))
            # A container that has something else than at the last look has a new drift.
            count = min(before + 1, REPAIRS + 2) if actual == drift.actual else 1
            tries[key] = (drift.actual, count)
            by_tries.setdefault(count, []).append(drift)
        worth = [drift for count, found in by_tries.items() if count <= REPAIRS for drift in found]
        return Repairs(tries, tuple(by_tries.get(1, ())), tuple(by_tries.get(REPAIRS + 1, ())), tuple(worth))

    def met(self, drifts: Iterable[Drift]) -> Repairs:
        """Return the repairs after the answer to a Synchronize has repaired these drifts.

        It counts as the first repair. A drift that was given up is repaired once with every connection, and stays given
        up.
        """
        fresh = tuple(each for each in drifts if self.tries.get(each.container.id, (None, 0))[0] != each.actual)
        return replace(
            self, tries={**self.tries, **{each.container.id: (each.actual, 1) for each in fresh}}, fresh=fresh
        )


class Lag(msgspec.Struct, frozen=True):
    """The time that mask changes have been waiting, in seconds of one monotonic clock.

    Attributes:
        since: since when containers wait without a break; None if none waits.
        reconnected: when a reconnection was last made for them; None if never.
        waiting: the containers that wait for their masks.
    """

    since: float | None = None
    reconnected: float | None = None
    waiting: frozenset[str] = frozenset()

    def seen(self, waiting: frozenset[str], now: float) -> Lag:
        """Return the lag after another look; the clock runs on while any container that waited before still waits."""
        if not waiting:
            return replace(self, since=None, waiting=waiting)
        since = self.since if self.waiting & waiting else None
        return replace(self, since=now if since is None else since, waiting=waiting)

    def seconds(self, now: float) -> float:
        """Return for how many seconds a container has had the wrong mask."""
        return 0.0 if self.since is None else now - self.since

    def reconnection_due(self, now: float) -> bool:
        """Return whether to reconnect now."""
        return self.seconds(now) >= PATIENCE and (self.reconnected is None or now - self.reconnected >= INTERVAL)
