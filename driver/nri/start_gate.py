"""Lets a container start once the kernel says that it shares no CPU of a claim, and in any case after a while.

What keeps others off a claim's CPUs is an update that the runtime carries out, or not, without a word. A start that is
refused ends the container: kubelet shows the reason and makes it again, by the pod's restart policy, with ever longer
pauses; meanwhile the container that is in the way gets its CPUs again. If that does not help, nothing here will, and
the container starts all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from dranode.driver.core.pinning.container_index import Containers
from dranode.driver.core.pinning.corrections import Drift
from dranode.driver.core.pinning.effective import Effective
from dranode.driver.core.pinning.overlaps import Overlap, key_of, looked_at, overlaps_at_start
from dranode.driver.core.pinning.pinned import Pinned
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root
from dranode.driver.nri.kernel_limits import kernel_cpus

log = logging.getLogger(__name__)

PATIENCE: Final = 60.0
"""Seconds for which a container that is on the CPUs of others keeps containers from starting."""

# One that was refused itself is gone until kubelet makes it again, at the latest after five minutes.
_FORGOTTEN_AFTER: Final = 600.0


class StartGate(msgspec.Struct):
    """Remembers which containers are in the way, and since when.

    Attributes:
        root: where cgroups are read.
        clock: seconds, monotonic.
    """

    root: Root
    clock: Callable[[], float]
    _since: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)
    _in_the_way: dict[tuple[str, str], Overlap] = msgspec.field(default_factory=dict)

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """Return the containers that were in the way when the kernel was last asked, with the CPUs that they had."""
        return tuple(Drift(each.intruder, Effective(), Effective(each.runs_on)) for each in self._in_the_way.values())

    def in_the_way(self, containers: Containers, snapshot: HeldSnapshot, starting: Pinned) -> tuple[Overlap, ...]:
        """Return the overlaps for which a container may not start now; none if it may."""
        now = self.clock()
        cgroups = Cgroups(self.root)
        asked = looked_at(containers, snapshot, starting) if snapshot.pins_cpus else ()
        runs_on = kernel_cpus(cgroups, asked, self.clock)
        # The cgroup of a container that has ended may be there for a moment, and has no process.
        overlapping = tuple(
            each
            for each in overlaps_at_start(containers, snapshot, starting, runs_on)
            if not each.intruder.started or cgroups.has_processes(cgroup_folder(each.intruder.cgroup))
        )
        seen = {key_of(each.container) for each in containers if each.container.id in runs_on}
        since = {each.key: self._since.get(each.key, now) for each in overlapping}
        remembered = {key: at for key, at in self._since.items() if key not in seen and now - at < _FORGOTTEN_AFTER}
        self._since = remembered | since
        self._in_the_way = {key: each for key, each in self._in_the_way.items() if key in remembered}
        self._in_the_way |= {each.key: each for each in overlapping}
        lasting = tuple(each for each in overlapping if now - self._since[each.key] >= PATIENCE)
        if lasting:
            log.error(
                "pod=%s container=%s: it starts all the same, because what is in the way has been for %.0f s: %s",
                starting.container.pod,
                starting.container.name,
                PATIENCE,
                "; ".join(map(str, lasting)),
            )
        return tuple(each for each in overlapping if each not in lasting)
