"""Compares the CPUs and the memory of a node's containers with those of their claims, independently of the driver.

NRI is not used. A container's claims follow from kubelet's pod-resources, if the container's name is known, and from
the environment of its processes, which has the variables that CDI injected for its claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Self, TypeAlias

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import ClaimUse, names_every_pod, pods_among
from dranode.driver.pinning.container_cgroups import ContainerCgroup, Process
from dranode.driver.pinning.containers import Effective, bound_nodes, nodes_near_cpus
from dranode.driver.pinning.given_cpus import expected_cpus, given_cpus, with_pool
from dranode.driver.pinning.snapshot import PinnedClaim, limit_sums


class PlacedContainer(msgspec.Struct, frozen=True):
    """A container with a claim.

    Attributes:
        seen: the container according to the kernel.
        pod: the name of its pod; the UID if the pod is not on record, as for pods of a PodGroup.
        expected: the online CPUs of its claims, or of its requests in them.
        name: the container's name; empty if unknown.
    """

    seen: ContainerCgroup
    pod: str
    expected: CPUSet
    name: str = ""

    @property
    def ok(self) -> bool:
        """Return whether it runs on all CPUs of its claims and on no others, its processes included."""
        return self.seen.actual == self.expected and not self.unused

    @property
    def unused(self) -> CPUSet:
        """Return the CPUs that its cgroup allows, but that the affinity of all its processes excludes.

        Processes inherit the runtime's affinity, and since Linux 6.2 a cgroup's CPUs only restrict it further.
        """
        if not self.seen.processes:
            return NO_CPUS
        return (self.expected & self.seen.actual) - CPUSet.union(process.cpus for process in self.seen.processes)

    @property
    def inside(self) -> bool:
        """Return whether it only runs on CPUs of its claims."""
        return self.seen.actual <= self.expected


class ClaimPlacement(msgspec.Struct, frozen=True):
    """Where the containers of a claim run, and who else may run on its CPUs.

    Attributes:
        containers: the containers with the claim that have CPUs from this claim or another one.
        intruders: the processes outside of these containers that may run on the claim's exclusive CPUs.
        hidden: whether a process of its pods could not be inspected, so that a container may be missing.
    """

    containers: tuple[PlacedContainer, ...] = ()
    intruders: tuple[Process, ...] = ()
    hidden: bool = False

    @property
    def ok(self) -> bool | None:
        """Return whether its containers run where they should; None if there is none, or if one may be missing."""
        if any(not container.ok for container in self.containers):
            return False
        return True if self.containers and not self.hidden else None


class ClaimVariables(msgspec.Struct, frozen=True):
    """The names of the environment variables that CDI injects for a claim.

    Attributes:
        names: those of every container with the claim.
        parts: those of containers with one of its allocation results, each with the result's number.
    """

    names: frozenset[str]
    parts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the variables of a claim on record."""
        grants = enumerate(record.grants)
        parts = ((entry, index) for index, grant in grants if grant.edits for entry in grant.edits.env)
        return cls(
            frozenset(entry.partition("=")[0] for entry in (record.edits.env if record.edits else ())),
            tuple((entry.partition("=")[0], index) for entry, index in parts),
        )

    def are_in(self, env: Collection[str]) -> bool:
        """Return whether a container with these variables has the claim."""
        return not self.names.isdisjoint(env)

    def results_in(self, env: Collection[str]) -> list[int]:
        """Return the numbers of the claim's allocation results that these variables name."""
        return [index for name, index in self.parts if name in env]


def pod_uids(records: Iterable[Record]) -> tuple[str, ...] | None:
    """Return the UIDs of the pods that may use these claims; None if it may be any pod.

    Pods of a PodGroup, and pods that only kubelet has named, are not on record.
    """
    records = tuple(records)
    if not all(names_every_pod(record.pods) for record in records):
        return None
    return tuple(pod_names(records))


def pod_names(records: Iterable[Record]) -> Mapping[str, str]:
    """Return the names of the pods that are on record for these claims, by UID."""
    return {pod.uid: pod.name for record in records for pod in pods_among(record.pods) if pod.uid}


def placements(
    records: Iterable[Record], containers: Iterable[ContainerCgroup], processes: Iterable[Process], online: CPUSet
) -> dict[str, ClaimPlacement]:
    """Return the placement of every claim that holds CPUs, by UID; `containers` are those of the claims' pods."""
    records = [record for record in records if record.held]
    containers, processes = tuple(containers), tuple(processes)
    known, pods = _Known.of(records, online), pod_names(records)
    placed: dict[str, list[PlacedContainer]] = {record.uid: [] for record in records}
    for container in containers:
        claims = known.claims_of(container)
        expected = _expected(container, claims, known)
        # A container whose claims give it no CPUs runs in the shared pool, as one without a claim.
        if expected is not None:
            for record in claims:
                placed[record.uid].append(PlacedContainer(container, pods.get(container.pod, container.pod), expected))
    return {record.uid: _placement(record, placed[record.uid], processes, containers) for record in records}


def _placement(
    record: Record, own: Iterable[PlacedContainer], processes: Iterable[Process], containers: Iterable[ContainerCgroup]
) -> ClaimPlacement:
    own = tuple(sorted(own, key=lambda container: container.seen.cgroup))
    pods = pod_uids((record,))
    inside = {pid for container in own for pid in container.seen.pids}
    return ClaimPlacement(
        own,
        tuple(
            process for process in processes if process.pid not in inside and not process.cpus.isdisjoint(record.held)
        ),
        hidden=any(container.hidden and (pods is None or container.pod in pods) for container in containers),
    )


class ContainerClaims(msgspec.Struct, frozen=True):
    """The claims of a pod's containers, according to kubelet or, if kubelet does not answer, to the ledger.

    Attributes:
        records: the claims that one driver has on record.
        uses: the containers to which kubelet gave that driver's claims; None if kubelet does not say.
        names: the names of containers by the runtime's id; only used together with kubelet's answer.
    """

    records: tuple[Record, ...]
    uses: tuple[ClaimUse, ...] | None
    names: Mapping[str, str]

    def running(
        self, record: Record, claim: ClaimRef, containers: Iterable[ContainerCgroup], online: CPUSet | None
    ) -> Iterator[PlacedContainer]:
        """Yield the containers of the claim's pods, except those that are known not to have the claim.

        Args:
            record: the claim's record; a recovered one has no name.
            claim: the claim's name.
            containers: the containers of the claim's pods.
            online: the CPUs that are online; None if unknown, and then no CPU counts as offline.
        """
        known, containers = _Known.of(self.records, online), tuple(containers)
        for pod in pods_among(record.pods):
            claims = self._by_kubelet(record, claim, pod.name) or self._possible(record, pod.uid)
            for container in containers:
                name = self.names.get(container.id, "") if container.id and self.uses is not None else ""
                if container.pod != pod.uid or not container.id or (name and name not in claims):
                    continue
                possible = [claims[name]] if name else claims.values()
                expected = (_expected(container, records, known) for records in possible)
                candidates = [PlacedContainer(container, pod.name, cpus, name) for cpus in expected if cpus is not None]
                if candidates:
                    yield next((candidate for candidate in candidates if candidate.inside), candidates[0])
        if not names_every_pod(record.pods):
            yield from self._elsewhere(record, containers, known)

    def _elsewhere(
        self, record: Record, containers: Iterable[ContainerCgroup], known: _Known
    ) -> Iterator[PlacedContainer]:
        """Yield the containers with the claim's variables in pods that are not on record."""
        recorded = pod_names((record,))
        for container in containers:
            claims = known.claims_of(container)
            expected = _expected(container, claims, known)
            has = record.uid in {claim.uid for claim in claims}
            if container.id and container.pod not in recorded and has and expected is not None:
                yield PlacedContainer(container, container.pod, expected, self.names.get(container.id, ""))

    def _by_kubelet(self, record: Record, claim: ClaimRef, pod: str) -> Mapping[str, tuple[Record, ...]]:
        """Return all claims of the pod's containers that have this claim, by the container's name."""
        named = {(other.namespace, other.name): other for other in self.records}
        named[claim.namespace, claim.name] = record
        containers: dict[str, list[Record]] = {}
        for use in self.uses or ():
            used = named.get((use.namespace, use.claim))
            if (use.namespace, use.pod) == (claim.namespace, pod) and used is not None:
                containers.setdefault(use.container, []).append(used)
        return {name: tuple(records) for name, records in containers.items() if record in records}

    def _possible(self, record: Record, pod: str) -> Mapping[str, tuple[Record, ...]]:
        """Return what a container may have if kubelet does not answer: only this claim, or all claims of its pod."""
        pod_records = (other for other in self.records if pod in {consumer.uid for consumer in other.pods})
        return {"": (record,), "*": tuple(pod_records)}


class _Known(msgspec.Struct, frozen=True):
    """What is known about a node's claims: their variables, the CPUs that they hold, the online CPUs if known."""

    claims: tuple[tuple[Record, ClaimVariables], ...]
    held: CPUSet
    online: CPUSet | None

    @classmethod
    def of(cls, records: Collection[Record], online: CPUSet | None) -> Self:
        held = CPUSet.union(record.held for record in records)
        return cls(tuple((record, ClaimVariables.of(record)) for record in records), held, online)

    def claims_of(self, container: ContainerCgroup) -> list[Record]:
        """Return the claims that a container has according to its environment."""
        return [record for record, variables in self.claims if variables.are_in(container.env)]


def _expected(container: ContainerCgroup, claims: Iterable[Record], known: _Known) -> CPUSet | None:
    """Return where a container with these claims should run; None if they have no CPUs for it.

    Only its environment shows which requests of a claim it has; kubelet names all of them. Only the driver knows the
    current shared pool, so a container that also runs in the pool may run on any CPU that no claim holds.
    """
    indexes = [(claim, ClaimVariables.of(claim).results_in(container.env)) for claim in claims]
    given = [given_cpus(claim).of_parts(own) for claim, own in indexes]
    cpus = expected_cpus(given, CPUSet.union(given) if known.online is None else known.online)
    if cpus and any(with_pool(claim, own) for claim, own in indexes):
        return cpus | (container.actual - known.held)
    return cpus


class RecordedClaim(msgspec.Struct, frozen=True):
    """A claim on record, what its containers are pinned to, and the variables that identify them.

    Attributes:
        driver: the driver that has it on record.
        record: its record.
        held: what its containers are pinned to; None if its record does not say.
        variables: the variables that its containers have.
    """

    driver: str
    record: Record
    held: PinnedClaim | None
    variables: ClaimVariables

    @classmethod
    def of(cls, driver: str, record: Record, held: PinnedClaim | None) -> Self:
        """Return the claim, with the names of its variables."""
        return cls(driver, record, held, ClaimVariables.of(record))

    def part(self, env: Collection[str]) -> PinnedClaim | None:
        """Return the part of the claim that a container with these variables has; None if unknown."""
        return None if self.held is None else self.held.of_parts(self.variables.results_in(env))


RecordedParts: TypeAlias = "tuple[tuple[RecordedClaim, PinnedClaim | None], ...]"


def claims_in(claims: Iterable[RecordedClaim], env: Collection[str]) -> RecordedParts:
    """Return the claims that a container with these variables has, each with the part that it has."""
    return tuple((claim, claim.part(env)) for claim in claims if claim.variables.are_in(env))


def expected_memory(parts: Iterable[PinnedClaim | None]) -> Effective:
    """Return the NUMA nodes from which a container with these claims takes memory, and the huge pages of its claims.

    Nodes are None if its claims do not restrict them. kubelet may give the container more huge pages.
    """
    claims = tuple(part for part in parts if part is not None)
    nodes = bound_nodes(claims) or nodes_near_cpus(claims)
    return Effective(None, nodes or None, limit_sums(claim.hugepages for claim in claims))


def container_has_memory(parts: RecordedParts, expected: Effective, actual: Effective) -> bool | None:
    """Return whether a container has the memory of its claims; None if its claims or its memory are unknown."""
    return has_memory(expected, actual) if all(held is not None for _, held in parts) else None


def has_memory(expected: Effective, actual: Effective) -> bool | None:
    """Return whether a container has the memory that it should; None if that could not be read."""
    limits = dict(actual.hugepages)
    if expected.nodes is not None and actual.nodes is not None and expected.nodes != actual.nodes:
        return False
    if any(limits.get(size, amount) < amount for size, amount in expected.hugepages):
        return False
    unread = (expected.nodes is not None and actual.nodes is None) or any(
        size not in limits for size, _ in expected.hugepages
    )
    return None if unread else True
