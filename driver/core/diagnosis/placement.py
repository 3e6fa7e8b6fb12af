"""Compares where the processes of a node may run with the CPUs of claims, for a single look from outside the driver.

NRI is not asked, so the claims of a container follow from the kernel's files: its cgroup has the UID of its pod, and
the environment of its processes has the variables that CDI injected for its claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.record import Record


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as `/proc` shows it.

    Attributes:
        name: its short name.
        cpus: the CPUs on which it may run.
        cgroup: its cgroup, without a leading slash.
        env: the names of its environment variables; None if they cannot be read.
    """

    pid: int
    name: str
    cpus: CPUSet
    cgroup: str = ""
    env: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PlacedContainer:
    """A container with a claim.

    Attributes:
        cgroup: the container's cgroup, without a leading slash.
        pod: the name of its pod.
        expected: the CPUs of all its claims that are online.
        actual: the CPUs that its processes may run on.
        pids: its processes.
    """

    cgroup: str
    pod: str
    expected: CPUSet
    actual: CPUSet
    pids: frozenset[int]

    @property
    def ok(self) -> bool:
        """Return whether it runs on all CPUs of its claims and on no others."""
        return self.actual == self.expected


@dataclass(frozen=True, slots=True)
class ClaimPlacement:
    """The placement of one claim.

    Attributes:
        containers: those that have the claim.
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


@dataclass(slots=True)
class _Container:
    """The processes of a container's cgroup, and what they tell."""

    pod: str
    pod_uid: str
    processes: list[Process] = field(default_factory=list)
    claims: set[str] = field(default_factory=set)
    parts: set[tuple[str, int]] = field(default_factory=set)
    hidden: bool = False


def placements(
    records: Iterable[Record], processes: Iterable[Process], online: CPUSet, effective: Mapping[str, CPUSet]
) -> dict[str, ClaimPlacement]:
    """What was found of every claim that holds CPUs, by UID; `effective` are the kernel's `cpuset.cpus.effective`.

    A cgroup that is not in `effective` is judged by what its processes may run on, so by what they did not give up.
    """
    records = [record for record in records if record.held]
    processes = tuple(processes)
    containers = _containers(records, processes)
    by_uid = {record.uid: record for record in records}
    placed = {
        cgroup: PlacedContainer(
            cgroup,
            container.pod,
            CPUSet.union(_expected(by_uid[uid], container.parts) for uid in container.claims) & online,
            effective.get(cgroup, CPUSet.union(process.cpus for process in container.processes)),
            frozenset(process.pid for process in container.processes),
        )
        for cgroup, container in containers.items()
        if container.claims
    }
    return {record.uid: _placement(record, processes, containers, placed) for record in records}


def _expected(record: Record, parts: Iterable[tuple[str, int]]) -> CPUSet:
    """What a container runs on that has the claim, or those of its allocation results of which it was told."""
    given = [record.grants[index].cpus for uid, index in parts if uid == record.uid]
    return CPUSet.union(CPUSet.parse(cpus or "") for cpus in given) if given else CPUSet.parse(record.cpus)


def _placement(
    record: Record,
    processes: Iterable[Process],
    containers: Mapping[str, _Container],
    placed: Mapping[str, PlacedContainer],
) -> ClaimPlacement:
    own = tuple(placed[cgroup] for cgroup, present in sorted(containers.items()) if record.uid in present.claims)
    pods = {pod.uid for pod in record.pods}
    inside = {pid for container in own for pid in container.pids}
    held = CPUSet.parse(record.held)
    return ClaimPlacement(
        own,
        tuple(process for process in processes if process.pid not in inside and not process.cpus.isdisjoint(held)),
        hidden=any(present.hidden and present.pod_uid in pods for present in containers.values()),
    )


def container_cgroup(cgroup: str, pod_uid: str) -> str:
    """The cgroup of the container that a process is in; empty if it is in none of that pod.

    The container's folder lies in the pod's, which carries the UID as it is, or with `_` for `-` (systemd).
    """
    parts = cgroup.split("/")
    for index, part in enumerate(parts[:-1]):
        if pod_uid in part or pod_uid.replace("-", "_") in part:
            return "/".join(parts[: index + 2])
    return ""


def _containers(records: Iterable[Record], processes: Iterable[Process]) -> dict[str, _Container]:
    """Return every container of the pods that may use the claims, by cgroup."""
    pods = {pod.uid: pod.name for record in records for pod in record.pods if pod.uid}
    variables = {
        entry.partition("=")[0]: record.uid for record in records if record.edits for entry in record.edits.env
    }
    parts = {
        entry.partition("=")[0]: (record.uid, index)
        for record in records
        for index, grant in enumerate(record.grants)
        if grant.edits and grant.cpus is not None
        for entry in grant.edits.env
    }
    containers: dict[str, _Container] = {}
    for process in processes:
        for uid, name in pods.items():
            cgroup = container_cgroup(process.cgroup, uid)
            if not cgroup:
                continue
            container = containers.setdefault(cgroup, _Container(name, uid))
            container.processes.append(process)
            if process.env is None:
                container.hidden = True
            else:
                container.claims |= {variables[variable] for variable in process.env & variables.keys()}
                container.parts |= {parts[variable] for variable in process.env & parts.keys()}
    return containers
