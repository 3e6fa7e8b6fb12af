"""Holds containers against what the kernel says of them: what drifted, and pods whose own limits are too small."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Container as Collection

import msgspec

from dranode.driver.core.api.page_sizes import page_size_name
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.claims.events import DriftRepaired, HugePagesStillCapped, Notify, QuotaStillCaps
from dranode.driver.core.pinning.container_index import Containers, claims_of
from dranode.driver.core.pinning.containers import Container
from dranode.driver.core.pinning.corrections import Drift, drift, effective_of, has_what_it_should
from dranode.driver.core.pinning.hugepages import limit_sums
from dranode.driver.core.pinning.mending import REPAIRS, Repairs
from dranode.driver.core.pinning.pinned import expected, having
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root
from dranode.driver.nri.kernel_limits import kernel_limits

log = logging.getLogger(__name__)


class Verifier(msgspec.Struct):
    """The kernel's words as they were read. One thread looks, another takes in what it `met`, others may read.

    Attributes:
        root: where cgroups are read.
        notify: makes known to people that containers were not where they should be.
        drifts: containers that were found with something else than they should have, since start.
        worth: the drifts that are to be mended now.
    """

    root: Root
    notify: Notify
    drifts: int = 0
    worth: tuple[Drift, ...] = ()
    _repairs: Repairs = msgspec.field(default_factory=Repairs)
    _capped: frozenset[str] = frozenset()
    _short: frozenset[str] = frozenset()
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def look(
        self, containers: Callable[[], Containers], snapshot: HeldSnapshot, moving: Collection[str]
    ) -> tuple[Drift, ...]:
        """Compare what every container should have with what the kernel says.

        Args:
            containers: those that are known at the moment; another thread may change them.
            snapshot: what is on record.
            moving: those that were sent a mask a moment ago.

        Returns:
            Every drift, also those that are not worth a repair.
        """
        # A container that has been given other resources than it should have is late, not adrift: its update is on its
        # way. So it is for a moment after that was sent, and until it runs: its cgroup is made before it is limited.
        settled = Containers(
            each
            for each in containers()
            if each.container.started
            and each.container.id not in moving
            and has_what_it_should(each, expected(each, snapshot))
        )
        cgroups = Cgroups(self.root)
        read = {
            each.container.id: kernel_limits(cgroups, each.container, effective_of(expected(each, snapshot)))
            for each in settled
        }
        seen = drift(settled, snapshot, {key: effective for key, effective in read.items() if effective})
        # Reading takes a while: what was given another mask meanwhile is late as well.
        now = containers()
        drifts = tuple(each for each in seen if now.get(each.container.id) is settled.get(each.container.id))
        looked_at = {key for key, effective in read.items() if effective and now.get(key) is settled.get(key)}
        with self._lock:
            self._repairs = self._repairs.seen(drifts, {each.container.id for each in now} - looked_at)
            self.worth = self._repairs.worth
            self._notify_of_fresh(settled, snapshot)
        for hopeless in self._repairs.hopeless:
            log.error(
                "pod=%s: %s, and %d repairs did not help: look at its parent cgroup, or recreate the pod",
                hopeless.container.pod,
                hopeless,
                REPAIRS,
            )
        self._look_at_quotas(cgroups, containers(), snapshot)
        self._look_at_pages(cgroups, containers(), snapshot)
        return drifts

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
            limit = cgroups.cpu_limit(_pod_folder(each.container))
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

    def _look_at_pages(self, cgroups: Cgroups, containers: Containers, snapshot: HeldSnapshot) -> None:
        """Tell of containers whose pod's cgroup, which NRI cannot reach, has fewer huge pages than their claims."""
        having_pages = [each for each in containers if each.claims and any(limit for _, limit in each.hugepages)]
        self._short &= {each.container.id for each in having_pages}
        for each in having_pages:
            claimed = limit_sums(claim.hugepages for claim in having(each, snapshot))
            of_pod = ((size, limit, cgroups.page_limit(_pod_folder(each.container), size)) for size, limit in claimed)
            short = [(size, limit, pod) for size, limit, pod in of_pod if pod is not None and pod < limit]
            if not short or each.container.id in self._short:
                continue
            self._short |= {each.container.id}
            amounts = " and ".join(
                f"{Quantity.binary(pod)} of {Quantity.binary(limit)} in pages of {page_size_name(size)}"
                for size, limit, pod in short
            )
            sentence = (
                f"{each.container} has huge pages by its claims, but its pod's cgroup allows {amounts}: request as "
                "many in the pod's resources too"
            )
            pod, claims = each.container.pod, claims_of(each.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", pod, ",".join(map(str, claims)) or "-", sentence)
            self.notify(HugePagesStillCapped(pod, claims, sentence))


def _pod_folder(container: Container) -> str:
    return cgroup_folder(container.cgroup).rpartition("/")[0]
