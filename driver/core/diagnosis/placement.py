"""Compares where the processes of a node may run with the CPUs of claims, for a single look from outside the driver.

NRI is not asked, so the claims of a container follow from the kernel's files: its cgroup has the UID of its pod, and
the environment of its processes has the variables that CDI injected for its claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.expected_cpus import expected_cpus, given_cpus
from dranode.driver.core.claims.record import Record

_MONITOR: Final = "conmon-"
_CONTAINER: Final = re.compile(rf"(?!.*{_MONITOR})(?:.*-)?([0-9a-f]{{64}})(?:\.scope)?")


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


@dataclass(frozen=True, slots=True)
class InjectedVariables:
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
    placed: dict[str, PlacedContainer] = {}
    for cgroup, container in containers.items():
        claims = (
            given_cpus(by_uid[uid]).of_parts([index for of, index in container.parts if of == uid])
            for uid in container.claims
        )
        expected = expected_cpus(claims, online)
        # A container whose claims have no CPUs for it belongs to the shared pool, like one without a claim.
        if expected is not None:
            placed[cgroup] = PlacedContainer(
                cgroup,
                container.pod,
                expected,
                effective.get(cgroup, CPUSet.union(process.cpus for process in container.processes)),
                frozenset(process.pid for process in container.processes),
            )
    return {record.uid: _placement(record, processes, containers, placed) for record in records}


def _placement(
    record: Record,
    processes: Iterable[Process],
    containers: Mapping[str, _Container],
    placed: Mapping[str, PlacedContainer],
) -> ClaimPlacement:
    own = tuple(placed[cgroup] for cgroup in sorted(placed) if record.uid in containers[cgroup].claims)
    pods = {pod.uid for pod in record.pods}
    inside = {pid for container in own for pid in container.pids}
    return ClaimPlacement(
        own,
        tuple(
            process for process in processes if process.pid not in inside and not process.cpus.isdisjoint(record.held)
        ),
        hidden=any(present.hidden and present.pod_uid in pods for present in containers.values()),
    )


def is_pod_folder(name: str, pod_uid: str) -> bool:
    """Return whether a folder is a pod's cgroup: its name has the UID as it is, or with `_` for `-` (systemd)."""
    return bool(pod_uid) and (pod_uid in name or pod_uid.replace("-", "_") in name)


def container_id(folder: str) -> str:
    """Return the runtime's id of the container whose cgroup has a name; empty if it is no container's.

    The names are `cri-containerd-<id>.scope`, `crio-<id>.scope` or the id alone, of 64 hexadecimal digits;
    `crio-conmon-<id>.scope` holds the container's monitor.
    """
    match = _CONTAINER.fullmatch(folder)
    return match[1] if match is not None else ""


def in_container(process: Process, container: str) -> bool:
    """Return whether a process is in the container with an id, in its cgroup or in one below."""
    return any(container_id(part) == container for part in process.cgroup.split("/"))


def container_cgroup(cgroup: str, pod_uid: str) -> str:
    """Return the container's cgroup, a folder of its pod's, that a process is in; empty if the pod has no such.

    A monitor of CRI-O has a cgroup beside its container's, and is in none.
    """
    parts = cgroup.split("/")
    for index, part in enumerate(parts[:-1]):
        if is_pod_folder(part, pod_uid):
            return "" if _MONITOR in parts[index + 1] else "/".join(parts[: index + 2])
    return ""


def _containers(records: Iterable[Record], processes: Iterable[Process]) -> dict[str, _Container]:
    """Return every container of the pods that may use the claims, by cgroup."""
    pods = {pod.uid: pod.name for record in records for pod in record.pods if pod.uid}
    variables = InjectedVariables.of(records)
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
                container.claims |= variables.claims_in(process.env)
                container.parts |= variables.parts_in(process.env)
    return containers
