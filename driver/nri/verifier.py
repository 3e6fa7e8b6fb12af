"""Holds containers against what the kernel says of them: what drifted, and pods whose own limits are too small."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from collections.abc import Container as Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity, page_size_name
from dranode.driver.claims.events import DriftRepaired, HugePagesStillCapped, Notify, QuotaStillCaps
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root
from dranode.driver.pinning.container_index import (
    REPAIRS,
    Containers,
    Drift,
    Repairs,
    claims_of,
    drift,
    effective_of,
    has_what_it_should,
)
from dranode.driver.pinning.containers import Container, Effective, Pinned, expected, having
from dranode.driver.pinning.refusals import Overlap, key_of, looked_at, overlaps_at_start
from dranode.driver.pinning.snapshot import PinSnapshot, limit_sums

log = logging.getLogger(__name__)


# Asks the kernel which CPUs and which memory containers may use, for no longer than a runtime can wait.

# How long cgroups may be read while the runtime waits, which does so for 2 s.
_READING: Final = 0.5
_CPUS_ALONE: Final = Effective(cpus=CPUSet())


def kernel_limits(cgroups: Cgroups, container: Container, expected: Effective) -> Effective:
    """Return what the kernel says of a container, as far as `expected` has something to compare it with."""
    folder = cgroup_folder(container.cgroup)
    cpus = None if expected.cpus is None else cgroups.effective_cpus(folder)
    return replace(cgroups.memory(folder, expected), cpus=cpus)


def limits_in_time(
    cgroups: Cgroups, asked: Iterable[tuple[Container, Effective]], clock: Callable[[], float]
) -> dict[str, Effective]:
    """Return the limits of containers by id, of those of which the kernel says some in that time.

    Args:
        cgroups: where they are read.
        asked: the containers, the most important first, each with what there is to compare the kernel's word with.
        clock: seconds, monotonic.
    """
    until = clock() + _READING
    limits: dict[str, Effective] = {}
    for container, expected_cpus in asked:
        if clock() > until:
            # The verifier looks at all of them in a moment.
            log.warning("pod=%s container=%s: not every cgroup could be read", container.pod, container.name)
            break
        effective = kernel_limits(cgroups, container, expected_cpus)
        if effective:
            limits[container.id] = effective
    return limits


def kernel_cpus(cgroups: Cgroups, containers: Iterable[Container], clock: Callable[[], float]) -> dict[str, CPUSet]:
    """Return the CPUs of containers by id, of those of which the kernel says some in the time of `limits_in_time`."""
    limits = limits_in_time(cgroups, ((each, _CPUS_ALONE) for each in containers), clock)
    return {key: effective.cpus for key, effective in limits.items() if effective.cpus is not None}


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

    def check(
        self, containers: Callable[[], Containers], snapshot: PinSnapshot, moving: Collection[str]
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
        self._look_at_quotas(cgroups, containers(), settled, snapshot)
        self._look_at_pages(cgroups, containers(), snapshot)
        return drifts

    def met(self, drifts: tuple[Drift, ...], containers: Containers, snapshot: PinSnapshot) -> None:
        """Take note of drifts that were found when a runtime connected, which its answer repairs."""
        with self._lock:
            self._repairs = self._repairs.met(drifts)
            self._notify_of_fresh(containers, snapshot)

    def _notify_of_fresh(self, containers: Containers, snapshot: PinSnapshot) -> None:
        self.drifts += len(self._repairs.fresh)
        for fresh in self._repairs.fresh:
            claims = claims_of(fresh.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", fresh.container.pod, ",".join(map(str, claims)) or "-", fresh)
            self.notify(DriftRepaired(fresh.container.pod, claims, f"{fresh}; it is put back"))

    def _look_at_quotas(
        self, cgroups: Cgroups, containers: Containers, settled: Containers, snapshot: PinSnapshot
    ) -> None:
        """Tell of containers without a quota that are held back by one all the same.

        NRI cannot reach the pod's cgroup, and a runtime may leave the container's own as it was made.
        """
        lifted = [each for each in containers if each.container.started and expected(each, snapshot).lift_quota]
        self._capped &= {each.container.id for each in lifted}
        for each in lifted:
            late = settled.get(each.container.id) is None
            own = None if late else cgroups.cpu_limit(_own_folder(each.container))
            limits = (cgroups.cpu_limit(_pod_folder(each.container)), own)
            limit = min((limit for limit in limits if limit is not None), default=None)
            if limit is None or limit >= len(each.cpus) or each.container.id in self._capped:
                continue
            self._capped |= {each.container.id}
            place, advice = (
                ("its pod's cgroup", "raise or leave out the CPU limits of the pod and of its other containers")
                if limit == limits[0]
                else ("its own cgroup", "the runtime has not carried it out; recreate the pod, or upgrade the runtime")
            )
            sentence = (
                f"the CPU quota of {each.container} is lifted, but {place} still allows {limit:g} of the "
                f"{len(each.cpus)} CPUs: {advice}"
            )
            pod, claims = each.container.pod, claims_of(each.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", pod, ",".join(map(str, claims)) or "-", sentence)
            self.notify(QuotaStillCaps(pod, claims, sentence))

    def _look_at_pages(self, cgroups: Cgroups, containers: Containers, snapshot: PinSnapshot) -> None:
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


def _own_folder(container: Container) -> str:
    return cgroup_folder(container.cgroup)


def _pod_folder(container: Container) -> str:
    return _own_folder(container).rpartition("/")[0]


# Lets a container start once the kernel says that it shares no CPU of a claim, and in any case after a while.  What
# keeps others off a claim's CPUs is an update that the runtime carries out, or not, without a word. A start that is
# refused ends the container: kubelet shows the reason and makes it again, by the pod's restart policy, with ever
# longer pauses; meanwhile the container that is in the way gets its CPUs again. If that does not help, nothing here
# will, and the container starts all the same.

START_DELAY_SECONDS: Final = 60.0
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

    def in_the_way(self, containers: Containers, snapshot: PinSnapshot, starting: Pinned) -> tuple[Overlap, ...]:
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
        lasting = tuple(each for each in overlapping if now - self._since[each.key] >= START_DELAY_SECONDS)
        if lasting:
            log.error(
                "pod=%s container=%s: it starts all the same, because what is in the way has been for %.0f s: %s",
                starting.container.pod,
                starting.container.name,
                START_DELAY_SECONDS,
                "; ".join(map(str, lasting)),
            )
        return tuple(each for each in overlapping if each not in lasting)
