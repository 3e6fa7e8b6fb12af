"""Holds containers against what the kernel says of them: masks that drifted, and pods whose own quota is too small."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Container as Collection
from dataclasses import dataclass, field

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.events import DriftRepaired, Notify, QuotaStillCaps
from dranode.driver.core.pinning.container_index import Containers, claims_of
from dranode.driver.core.pinning.containers import Container
from dranode.driver.core.pinning.corrections import Drift, drift
from dranode.driver.core.pinning.mending import REPAIRS, Repairs
from dranode.driver.core.pinning.pinned import expected
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Verifier:
    """What the kernel was found to say. One thread looks, another takes in what it `met`, others may read.

    Attributes:
        root: where cgroups are read.
        notify: makes known to people that containers were not where they should be.
        drifts: containers that were found on other CPUs than they should have, since start.
        worth: the drifts that are to be mended now.
    """

    root: Root
    notify: Notify
    drifts: int = 0
    worth: tuple[Drift, ...] = ()
    _repairs: Repairs = field(default_factory=Repairs)
    _capped: frozenset[str] = frozenset()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(
        self, containers: Callable[[], Containers], snapshot: HeldSnapshot, moving: Collection[str]
    ) -> tuple[Drift, ...]:
        """Compare every container's CPUs with what the kernel says.

        Args:
            containers: those that are known at the moment; another thread may change them.
            snapshot: what is on record.
            moving: those that were sent a mask a moment ago.

        Returns:
            Every drift, also those that are not worth a repair.
        """
        # A container that has been given other CPUs than it should have is late, not adrift: its update is on its way.
        # So it is for a moment after the update was sent, and until it runs: its cgroup is made before it is limited.
        settled = Containers(
            each
            for each in containers()
            if each.container.started and each.cpus == expected(each, snapshot).cpus and each.container.id not in moving
        )
        cgroups = Cgroups(self.root)
        read = tuple(
            (each.container.id, cgroups.effective_cpus(cgroup_folder(each.container.cgroup))) for each in settled
        )
        seen = drift(settled, snapshot, {key: cpus for key, cpus in read if cpus is not None})
        # Reading takes a while: what was given another mask meanwhile is late as well.
        now = containers()
        drifts = tuple(each for each in seen if now.get(each.container.id) is settled.get(each.container.id))
        looked_at = {key for key, cpus in read if cpus is not None and now.get(key) is settled.get(key)}
        with self._lock:
            self._repairs = self._repairs.seen(drifts, {each.container.id for each in now} - looked_at)
            self.worth = self._repairs.worth
            self._notify_of_fresh(settled, snapshot)
        for hopeless in self._repairs.hopeless:
            log.error(
                "pod=%s: %s, and %d repairs did not help: look at the cpuset of its parent cgroup",
                hopeless.container.pod,
                hopeless,
                REPAIRS,
            )
        self._look_at_quotas(cgroups, containers(), snapshot)
        return drifts

    def read(self, listed: Iterable[Container], seconds: float) -> dict[str, CPUSet]:
        """On which CPUs running containers may run, by the kernel: as many of them as can be read in that time."""
        cgroups = Cgroups(self.root)
        until = time.monotonic() + seconds
        found: dict[str, CPUSet] = {}
        for container in listed:
            if time.monotonic() > until:
                break
            if container.started and container.cpus:
                cpus = cgroups.effective_cpus(cgroup_folder(container.cgroup))
                if cpus is not None:
                    found[container.id] = cpus
        return found

    def met(self, drifts: tuple[Drift, ...], containers: Containers, snapshot: HeldSnapshot) -> None:
        """Take note of drifts that were found when a runtime connected, which its answer repairs."""
        with self._lock:
            self._repairs = self._repairs.met(drifts)
            self._notify_of_fresh(containers, snapshot)

    def _notify_of_fresh(self, containers: Containers, snapshot: HeldSnapshot) -> None:
        self.drifts += len(self._repairs.fresh)
        for fresh in self._repairs.fresh:
            claims = claims_of(fresh.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", fresh.container.pod, ",".join(map(str, claims)) or "-", fresh)
            self.notify(DriftRepaired(fresh.container.pod, claims, f"{fresh}; it is put back"))

    def _look_at_quotas(self, cgroups: Cgroups, containers: Containers, snapshot: HeldSnapshot) -> None:
        """Tell of containers without a quota whose pod's cgroup, which NRI cannot reach, has one that is too small."""
        lifted = [each for each in containers if expected(each, snapshot).lift_quota]
        self._capped &= {each.container.id for each in lifted}
        for each in lifted:
            limit = cgroups.cpu_limit(cgroup_folder(each.container.cgroup).rpartition("/")[0])
            if limit is None or limit >= len(each.cpus) or each.container.id in self._capped:
                continue
            self._capped |= {each.container.id}
            sentence = (
                f"the CPU quota of {each.container} is lifted, but its pod's cgroup still allows {limit:g} of the "
                f"{len(each.cpus)} CPUs: raise or leave out the CPU limits of the pod and of its other containers"
            )
            pod, claims = each.container.pod, claims_of(each.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", pod, ",".join(map(str, claims)) or "-", sentence)
            self.notify(QuotaStillCaps(pod, claims, sentence))
