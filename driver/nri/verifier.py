"""Compares containers with the kernel: which have drifted, which pods' own limits are too small, and which may start.

The runtime does not report whether it has carried out an update, so only the kernel shows where a container runs.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity, page_size_name
from dranode.driver.claims.events import DriftRepaired, HugePagesStillCapped, Notify, QuotaStillCaps
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root
from dranode.driver.pinning.container_index import Containers, claims_of, effective_of, has_what_it_should
from dranode.driver.pinning.containers import Container, Effective, Pinned, expected, having
from dranode.driver.pinning.drift import REPAIRS, Drift, Repairs, find_drifts
from dranode.driver.pinning.refusals import Overlap, compared_at_start, key_of, overlaps_at_start
from dranode.driver.pinning.snapshot import PinSnapshot, limit_sums

log = logging.getLogger(__name__)


# How long cgroups may be read while the runtime waits for an answer; it waits 2 s by default.
_READING: Final = 0.5
_CPUS_ALONE: Final = Effective(cpus=CPUSet())


def kernel_limits(cgroups: Cgroups, container: Container, wanted: Effective) -> Effective:
    """Return the limits of a container in the kernel, as far as `wanted` has something to compare them with."""
    folder = cgroup_folder(container.cgroup)
    cpus = None if wanted.cpus is None else cgroups.effective_cpus(folder)
    return replace(cgroups.memory(folder, wanted), cpus=cpus)


def limits_in_time(
    cgroups: Cgroups, asked: Iterable[tuple[Container, Effective]], clock: Callable[[], float]
) -> dict[str, Effective]:
    """Return the limits of containers by id, as many as can be read in time.

    Args:
        cgroups: where the limits are read.
        asked: the containers, the most important first, each with the limits to compare with.
        clock: returns seconds, monotonic.
    """
    # Reading stops long before the runtime's own limit, because the decision needs time too.
    until = clock() + _READING
    limits: dict[str, Effective] = {}
    for container, wanted in asked:
        if clock() > until:
            # The verifier, which nobody waits for, compares all of them soon.
            log.warning("pod=%s container=%s: not every cgroup could be read", container.pod, container.name)
            break
        effective = kernel_limits(cgroups, container, wanted)
        if effective:
            limits[container.id] = effective
    return limits


def kernel_cpus(cgroups: Cgroups, containers: Iterable[Container], clock: Callable[[], float]) -> dict[str, CPUSet]:
    """Return the CPUs of containers by id, as many as can be read in time."""
    limits = limits_in_time(cgroups, ((container, _CPUS_ALONE) for container in containers), clock)
    return {key: effective.cpus for key, effective in limits.items() if effective.cpus is not None}


class Verifier(msgspec.Struct):
    """Finds containers that have drifted.

    One thread calls `check`, another `note_drifts`; any thread may read attributes.

    Attributes:
        root: where cgroups are read.
        notify: reports to people that containers were not on the right CPUs.
        drifts: the number of drifts that were found since the start.
        worth: the drifts to repair now.
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
        """Compare what all containers should have with what they have in the kernel.

        Args:
            containers: returns the containers that are known now; another thread may change them.
            snapshot: the claims on record.
            moving: the containers that were sent a mask a moment ago.

        Returns:
            All drifts, including those that are not to be repaired.
        """
        # A container whose update is still due, or was sent a moment ago, has not drifted: the runtime is late. The
        # same applies until its process runs, because a cgroup exists before its limits are set.
        up_to_date = Containers(
            pinned
            for pinned in containers()
            if pinned.container.started
            and pinned.container.id not in moving
            and has_what_it_should(pinned, expected(pinned, snapshot))
        )
        cgroups = Cgroups(self.root)
        read = {
            pinned.container.id: kernel_limits(cgroups, pinned.container, effective_of(expected(pinned, snapshot)))
            for pinned in up_to_date
        }
        apparent = find_drifts(up_to_date, snapshot, {key: effective for key, effective in read.items() if effective})
        # Reading takes a while. A container that was given another mask meanwhile has not drifted either.
        now = containers()
        drifts = tuple(drift for drift in apparent if now.get(drift.container.id) is up_to_date.get(drift.container.id))
        compared = {key for key, effective in read.items() if effective and now.get(key) is up_to_date.get(key)}
        with self._lock:
            self._repairs = self._repairs.seen(drifts, {pinned.container.id for pinned in now} - compared)
            self.worth = self._repairs.worth
            self._notify_of_fresh(up_to_date, snapshot)
        for hopeless in self._repairs.hopeless:
            log.error(
                "pod=%s: %s, and %d repairs did not help: check its parent cgroup, or recreate the pod",
                hopeless.container.pod,
                hopeless,
                REPAIRS,
            )
        self._check_quotas(cgroups, containers(), up_to_date, snapshot)
        self._check_pages(cgroups, containers(), snapshot)
        return drifts

    def note_drifts(self, drifts: tuple[Drift, ...], containers: Containers, snapshot: PinSnapshot) -> None:
        """Note drifts that were found when a runtime connected; the answer to Synchronize repairs them."""
        with self._lock:
            self._repairs = self._repairs.synchronized(drifts)
            self._notify_of_fresh(containers, snapshot)

    def _notify_of_fresh(self, containers: Containers, snapshot: PinSnapshot) -> None:
        self.drifts += len(self._repairs.fresh)
        for fresh in self._repairs.fresh:
            claims = claims_of(fresh.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", fresh.container.pod, ",".join(map(str, claims)) or "-", fresh)
            self.notify(DriftRepaired(fresh.container.pod, claims, f"{fresh}; it is put back"))

    def _check_quotas(
        self, cgroups: Cgroups, containers: Containers, up_to_date: Containers, snapshot: PinSnapshot
    ) -> None:
        """Report containers whose CPU quota was lifted, but which are still throttled.

        NRI cannot change the cgroup of the pod, and a runtime may not have changed that of the container.
        """
        lifted = [pinned for pinned in containers if pinned.container.started and expected(pinned, snapshot).lift_quota]
        self._capped &= {pinned.container.id for pinned in lifted}
        for pinned in lifted:
            # The quota of a container whose update is still due says nothing yet.
            late = up_to_date.get(pinned.container.id) is None
            own = None if late else cgroups.cpu_limit(cgroup_folder(pinned.container.cgroup))
            limits = (cgroups.cpu_limit(_pod_folder(pinned.container)), own)
            limit = min((limit for limit in limits if limit is not None), default=None)
            if limit is None or limit >= len(pinned.cpus) or pinned.container.id in self._capped:
                continue
            self._capped |= {pinned.container.id}
            place, advice = (
                ("its pod's cgroup", "raise or leave out the CPU limits of the pod and of its other containers")
                if limit == limits[0]
                else ("its own cgroup", "the runtime has not carried it out; recreate the pod, or upgrade the runtime")
            )
            sentence = (
                f"the CPU quota of {pinned.container} is lifted, but {place} still allows {limit:g} of the "
                f"{len(pinned.cpus)} CPUs: {advice}"
            )
            pod, claims = pinned.container.pod, claims_of(pinned.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", pod, ",".join(map(str, claims)) or "-", sentence)
            self.notify(QuotaStillCaps(pod, claims, sentence))

    def _check_pages(self, cgroups: Cgroups, containers: Containers, snapshot: PinSnapshot) -> None:
        """Report containers whose claims hold more huge pages than the pod's cgroup allows; NRI cannot change that."""
        having_pages = [
            pinned for pinned in containers if pinned.claims and any(limit for _, limit in pinned.hugepages)
        ]
        self._short &= {pinned.container.id for pinned in having_pages}
        for pinned in having_pages:
            claimed = limit_sums(claim.hugepages for claim in having(pinned, snapshot))
            folder = _pod_folder(pinned.container)
            of_pod = ((size, limit, cgroups.page_limit(folder, size)) for size, limit in claimed)
            # A limit that cannot be read is not reported as too small.
            short = [(size, limit, pod) for size, limit, pod in of_pod if pod is not None and pod < limit]
            if not short or pinned.container.id in self._short:
                continue
            self._short |= {pinned.container.id}
            amounts = " and ".join(
                f"{Quantity.binary(pod)} of {Quantity.binary(limit)} in pages of {page_size_name(size)}"
                for size, limit, pod in short
            )
            sentence = (
                f"{pinned.container} has huge pages by its claims, but its pod's cgroup allows {amounts}: request as "
                "many in the pod's resources too"
            )
            pod, claims = pinned.container.pod, claims_of(pinned.container, containers, snapshot)
            log.warning("pod=%s claim=%s: %s", pod, ",".join(map(str, claims)) or "-", sentence)
            self.notify(HugePagesStillCapped(pod, claims, sentence))


def _pod_folder(container: Container) -> str:
    return cgroup_folder(container.cgroup).rpartition("/")[0]


# A container starts only if, according to the kernel, no other container runs on the CPUs of its claim, or after a
# delay. Other containers leave a claim's CPUs by an update, and the runtime does not report whether it has carried that
# out. If a start is refused, the container ends: kubelet shows the reason and creates the container again, with growing
# pauses (CrashLoopBackOff). Meanwhile the container in the way is sent its CPUs again. If that does not help, another
# refusal would not help either, so the container starts.

START_DELAY_SECONDS: Final = 60.0
"""How long a container on the CPUs of others keeps containers from starting, in seconds."""

# A refused container is created again after five minutes at the latest; until then it must not be forgotten.
_FORGOTTEN_AFTER: Final = 600.0


class StartGate(msgspec.Struct):
    """Decides whether a container may start, and remembers which containers are in the way since when.

    Attributes:
        root: where cgroups are read.
        clock: returns seconds, monotonic.
    """

    root: Root
    clock: Callable[[], float]
    _since: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)
    _in_the_way: dict[tuple[str, str], Overlap] = msgspec.field(default_factory=dict)

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """Return the containers that were in the way at the last check, with the CPUs that they had."""
        overlaps = self._in_the_way.values()
        return tuple(Drift(overlap.intruder, Effective(), Effective(overlap.runs_on)) for overlap in overlaps)

    def in_the_way(self, containers: Containers, snapshot: PinSnapshot, starting: Pinned) -> tuple[Overlap, ...]:
        """Return the overlaps that keep a container from starting now; none if it may start."""
        now = self.clock()
        cgroups = Cgroups(self.root)
        relevant = compared_at_start(containers, snapshot, starting) if snapshot.pins_cpus else ()
        runs_on = kernel_cpus(cgroups, relevant, self.clock)
        # The cgroup of a container that has ended may still exist for a moment, without a process.
        overlapping = tuple(
            overlap
            for overlap in overlaps_at_start(containers, snapshot, starting, runs_on)
            if not overlap.intruder.started or cgroups.has_processes(cgroup_folder(overlap.intruder.cgroup))
        )
        compared = {key_of(pinned.container) for pinned in containers if pinned.container.id in runs_on}
        since = {overlap.key: self._since.get(overlap.key, now) for overlap in overlapping}
        # A container that was not compared now (it is being created again, or could not be read) keeps its time, so
        # that the delay does not start again with each attempt.
        remembered = {key: at for key, at in self._since.items() if key not in compared and now - at < _FORGOTTEN_AFTER}
        self._since = remembered | since
        self._in_the_way = {key: overlap for key, overlap in self._in_the_way.items() if key in remembered}
        self._in_the_way |= {overlap.key: overlap for overlap in overlapping}
        lasting = tuple(overlap for overlap in overlapping if now - self._since[overlap.key] >= START_DELAY_SECONDS)
        if lasting:
            log.error(
                "pod=%s container=%s: started although its CPUs are not free, after a wait of %.0f s: %s",
                starting.container.pod,
                starting.container.name,
                START_DELAY_SECONDS,
                "; ".join(map(str, lasting)),
            )
        return tuple(overlap for overlap in overlapping if overlap not in lasting)
