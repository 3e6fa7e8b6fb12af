"""Compares the CPUs and the memory of a node's containers with those of their claims, from outside the driver.

NRI is not asked, so the claims of a container follow from kubelet's answer, where its name is known, and from the
kernel's files: the environment of its processes has the variables that CDI injected for its claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Self, TypeAlias

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record, expected_cpus, given_cpus, with_pool
from dranode.driver.claims.uses import ClaimUse, names_every_pod, pods_among
from dranode.driver.pinning.container_cgroups import ContainerCgroup, Process
from dranode.driver.pinning.containers import Effective, bound_nodes, nodes_near_cpus
from dranode.driver.pinning.snapshot import PinnedClaim, limit_sums


class PlacedContainer(msgspec.Struct, frozen=True):
    """A container with a claim.

    Attributes:
        seen: the container, as the kernel shows it.
        pod: the name of its pod; its UID where the record does not name it, as with the pods of a PodGroup.
        expected: the CPUs of all its claims, or of its requests of them, that are online.
        name: its own name; empty if it is not known.
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
        """Return the CPUs of its claims on which its cgroup may run, and none of its processes may by its affinity.

        Processes inherit the affinity of the runtime that starts them, and a cgroup's CPUs only narrow it (Linux 6.2).
        """
        if not self.seen.processes:
            return NO_CPUS
        return (self.expected & self.seen.actual) - CPUSet.union(process.cpus for process in self.seen.processes)

    @property
    def inside(self) -> bool:
        """Return whether it runs on no CPUs but those of its claims."""
        return self.seen.actual <= self.expected


class ClaimPlacement(msgspec.Struct, frozen=True):
    """The placement of one claim.

    Attributes:
        containers: those that have the claim, and CPUs by it or by another.
        intruders: processes that may run on its exclusive CPUs without being of such a container.
        hidden: some process of its pods could not be looked into, so a container may be missing.
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


class InjectedVariables(msgspec.Struct, frozen=True):
    """The environment variables that CDI injects for claims, by name.

    Attributes:
        claims: the UID of the claim whose containers have the variable.
        parts: the same for a single allocation result, with its number.
    """

    claims: Mapping[str, str]
    parts: Mapping[str, tuple[str, int]]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        """Return the variables of the claims on record."""
        claims: dict[str, str] = {}
        parts: dict[str, tuple[str, int]] = {}
        for record in records:
            for entry in record.edits.env if record.edits else ():
                claims[entry.partition("=")[0]] = record.uid
            for index, grant in enumerate(record.grants):
                if grant.edits and grant.cpus is not None:
                    parts |= {entry.partition("=")[0]: (record.uid, index) for entry in grant.edits.env}
        return cls(claims, parts)

    def claims_in(self, env: frozenset[str]) -> frozenset[str]:
        """Return the UIDs of the claims that these variables name."""
        return frozenset(self.claims[name] for name in env & self.claims.keys())

    def parts_in(self, env: frozenset[str]) -> frozenset[tuple[str, int]]:
        """Return UID and number of the allocation results that these variables name."""
        return frozenset(self.parts[name] for name in env & self.parts.keys())


def pod_uids(records: Iterable[Record]) -> tuple[str, ...] | None:
    """Return the UIDs of the pods that may use these claims; None if they are not all on record, so it may be any.

    A PodGroup's pods are not, nor are those that kubelet alone has named.
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
    """Return what was found of every claim that holds CPUs, by UID, among the containers of the claims' pods."""
    records = [record for record in records if record.held]
    containers, processes = tuple(containers), tuple(processes)
    variables, held = InjectedVariables.of(records), CPUSet.union(record.held for record in records)
    pods = pod_names(records)
    placed: dict[str, list[PlacedContainer]] = {record.uid: [] for record in records}
    for container in containers:
        uids = variables.claims_in(container.env)
        theirs = [record for record in records if record.uid in uids]
        expected = _expected(container, theirs, _Known(variables, held, online))
        # A container whose claims have no CPUs for it belongs to the shared pool, like one without a claim.
        if expected is not None:
            for record in theirs:
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
        hidden=any(each.hidden and (pods is None or each.pod in pods) for each in containers),
    )


class ContainerClaims(msgspec.Struct, frozen=True):
    """The claims of a pod's containers, as known from kubelet or, without its answer, from the ledger.

    Attributes:
        records: the claims that one driver has on record.
        uses: which containers kubelet gave that driver's claims; None if kubelet does not say.
        names: the names of containers by the runtime's id. Without kubelet's answer a name does not tell the claims.
    """

    records: tuple[Record, ...]
    uses: tuple[ClaimUse, ...] | None
    names: Mapping[str, str]

    def running(
        self, record: Record, claim: ClaimRef, containers: Iterable[ContainerCgroup], online: CPUSet | None
    ) -> Iterator[PlacedContainer]:
        """Yield the containers of the claim's pods, without those that are known not to have the claim.

        Args:
            record: the claim's record; a recovered one has no name.
            claim: its name.
            containers: those of the claim's pods.
            online: the CPUs that are online; None if that is unknown, and then no CPU counts as offline.
        """
        held = CPUSet.union(each.held for each in self.records)
        known = _Known(InjectedVariables.of(self.records), held, online)
        containers = tuple(containers)
        for pod in pods_among(record.pods):
            claims = self._by_kubelet(record, claim, pod.name) or self._possible(record, pod.uid)
            for container in containers:
                name = self.names.get(container.id, "") if container.id and self.uses is not None else ""
                if container.pod != pod.uid or not container.id or (name and name not in claims):
                    continue
                possible = [claims[name]] if name else claims.values()
                expected = (_expected(container, theirs, known) for theirs in possible)
                mine = [PlacedContainer(container, pod.name, cpus, name) for cpus in expected if cpus is not None]
                if mine:
                    yield next((found for found in mine if found.inside), mine[0])
        if not names_every_pod(record.pods):
            yield from self._elsewhere(record, containers, known)

    def _elsewhere(
        self, record: Record, containers: Iterable[ContainerCgroup], known: _Known
    ) -> Iterator[PlacedContainer]:
        """Yield the containers of pods that are not on record, by the claim's variables alone."""
        recorded = pod_names((record,))
        for container in containers:
            uids = known.variables.claims_in(container.env)
            expected = _expected(container, [one for one in self.records if one.uid in uids], known)
            if container.id and container.pod not in recorded and record.uid in uids and expected is not None:
                yield PlacedContainer(container, container.pod, expected, self.names.get(container.id, ""))

    def _by_kubelet(self, record: Record, claim: ClaimRef, pod: str) -> Mapping[str, tuple[Record, ...]]:
        """Return the claims on record of the pod's containers that have the claim, by the container's name."""
        named = {**{(each.namespace, each.name): each for each in self.records}, (claim.namespace, claim.name): record}
        containers: dict[str, list[Record]] = {}
        for use in self.uses or ():
            used = named.get((use.namespace, use.claim))
            if (use.namespace, use.pod) == (claim.namespace, pod) and used is not None:
                containers.setdefault(use.container, []).append(used)
        return {name: tuple(theirs) for name, theirs in containers.items() if record in theirs}

    def _possible(self, record: Record, pod: str) -> Mapping[str, tuple[Record, ...]]:
        """Return what a container may have without kubelet's answer: the claim alone, or all claims of its pod."""
        theirs = (each for each in self.records if pod in {consumer.uid for consumer in each.pods})
        return {"": (record,), "*": tuple(theirs)}


class _Known(msgspec.Struct, frozen=True):
    """The facts about a node's claims: their variables, the CPUs that they hold; which CPUs are online, if known."""

    variables: InjectedVariables
    held: CPUSet
    online: CPUSet | None


def _expected(container: ContainerCgroup, claims: Iterable[Record], known: _Known) -> CPUSet | None:
    """Return where a container with these claims should run; None if they have no CPUs for it.

    Which requests of a claim it has is in its environment alone: kubelet names all of the claim's. What the shared pool
    is at the moment only the driver knows: a container that runs on it besides may run on any CPU that no claim holds.
    """
    parts = known.variables.parts_in(container.env)
    mine = [(claim, [index for uid, index in parts if uid == claim.uid]) for claim in claims]
    given = [given_cpus(each).of_parts(indexes) for each, indexes in mine]
    cpus = expected_cpus(given, CPUSet.union(given) if known.online is None else known.online)
    if cpus and any(with_pool(each, indexes) for each, indexes in mine):
        return cpus | (container.actual - known.held)
    return cpus


class RecordedClaim(msgspec.Struct, frozen=True):
    """A claim on record with what its containers are held to, and the variables by which they are known.

    Attributes:
        driver: the driver that has it on record.
        record: its record.
        held: what its containers are held to; None where its record does not say.
        names: the variables that every container with the claim has.
        parts: the variables of containers with one of its results, and the number of that.
    """

    driver: str
    record: Record
    held: PinnedClaim | None
    names: frozenset[str]
    parts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, driver: str, record: Record, held: PinnedClaim | None) -> Self:
        """Return the claim, with the names of its variables."""
        whole = record.edits.env if record.edits else ()
        parts = (
            (entry, index) for index, grant in enumerate(record.grants) if grant.edits for entry in grant.edits.env
        )
        return cls(
            driver,
            record,
            held,
            frozenset(entry.partition("=")[0] for entry in whole),
            tuple((entry.partition("=")[0], index) for entry, index in parts),
        )

    def part(self, env: Collection[str]) -> PinnedClaim | None:
        """Return what a container with the claim and variables of these names has of it; None if that is not known."""
        return None if self.held is None else self.held.of_parts([index for name, index in self.parts if name in env])


RecordedParts: TypeAlias = "tuple[tuple[RecordedClaim, PinnedClaim | None], ...]"


def claims_in(claims: Iterable[RecordedClaim], env: Collection[str]) -> RecordedParts:
    """Return the claims that a container with variables of these names has, each with the part that it has."""
    return tuple((claim, claim.part(env)) for claim in claims if not claim.names.isdisjoint(env))


def expected_memory(parts: Iterable[PinnedClaim | None]) -> Effective:
    """Return the NUMA nodes from which a container with these claims takes memory, and the huge pages it may have.

    Nodes are None where its claims do not say. Of huge pages it may have more, by kubelet.
    """
    claims = tuple(part for part in parts if part is not None)
    nodes = bound_nodes(claims) or nodes_near_cpus(claims)
    return Effective(None, nodes or None, limit_sums(claim.hugepages for claim in claims))


def container_has_memory(theirs: RecordedParts, expected: Effective, actual: Effective) -> bool | None:
    """Return whether a container has the memory that its claims give it; None if the one or the other is not known."""
    return has_memory(expected, actual) if all(held is not None for _, held in theirs) else None


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
