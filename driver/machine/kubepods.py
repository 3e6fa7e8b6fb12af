"""Reads the cgroup below which kubelet puts all pods: on which CPUs they may run, on which NUMA nodes their memory is.

kubelet calls it `kubepods`, or `kubepods.slice` with the systemd driver, below its `cgroupRoot` (`/kubelet/kubepods`,
`kubelet.slice/kubelet-kubepods.slice`: pkg/kubelet/cm/cgroup_manager_linux.go). Its effective sets hold for every pod,
whoever limited them: itself, a cgroup above it, or the container that the node is. In v1 a CPU that was offline never
comes back to it by itself. Without such a cgroup nothing is limited: kubelet has not made it yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.claims.plugin import RESCAN_SECONDS, Stop
from dranode.driver.machine.cgroups import GONE, Cgroups
from dranode.driver.machine.root import Root, read_text
from dranode.driver.pinning.container_cgroups import (
    ContainerCgroup,
    container_id,
    is_pod_folder,
    pod_of_folder,
)
from dranode.driver.pinning.pods_cgroup import UNLIMITED, PodsCgroup

_UNIFIED: Final = "sys/fs/cgroup"
_KUBEPODS: Final = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
# cgroups that are no folders of a cgroupRoot: units that hold processes, and the slices of the host.
_OTHERS: Final = re.compile(r".*\.(?:service|scope|mount|socket|swap)|(?:system|user|machine)\.slice")
_QOS: Final = re.compile(r"(?:.+-)?(?:besteffort|burstable)(?:\.slice)?")
# The root and, for a node that is a container without a cgroup namespace, what is above and in its own.
_DEPTH: Final = 4
# How soon a change is seen.
_LOOK_SECONDS: Final = 2.0
# The names in v2 and in v1, whose effective sets are younger than the sets.
_EFFECTIVE_CPUS: Final = ("cpuset.cpus.effective",)
_EFFECTIVE_NODES: Final = ("cpuset.mems.effective",)
_CPUS: Final = ("cpuset.effective_cpus", "cpuset.cpus")
_NODES: Final = ("cpuset.effective_mems", "cpuset.mems")


def read_pods_cgroup(root: Root) -> PodsCgroup:
    """Return what the cgroup of all pods has; `UNLIMITED` if there is none.

    Where there are several at the same depth (kubelet has changed its cgroup driver), those that have pods count.

    Raises:
        MachineError: a file or folder of it cannot be read or understood.
    """
    for hierarchy in _hierarchies(root):
        folders = _find(root, hierarchy)
        if len(folders) > 1:
            folders = [folder for folder in folders if _has_pods(root, folder)] or folders
        if folders:
            return reduce(_both, (_read(root, hierarchy, folder) for folder in folders))
    return UNLIMITED


def has_changed(root: Root, known: PodsCgroup) -> bool:
    """Return whether the cgroup of all pods has something else than is known, or cannot be read any more.

    The kernel reports no change of effective sets, so this is asked often; one that was not there is not looked for.
    """
    try:
        return bool(known.folder) and read_pods_cgroup(root) != known
    except MachineError:
        return True


def pods_cgroup_changes(root: Root, known: Callable[[], PodsCgroup], stop: Stop) -> Iterator[None]:
    """Yield once a minute, and soon after the cgroup of all pods has something else than `known` says.

    For `Plugin.watch` of a driver whose hardware reports no change: blocks in between, until `stop` is set.
    """
    left = RESCAN_SECONDS
    while not stop.wait(_LOOK_SECONDS):
        left -= _LOOK_SECONDS
        if left <= 0 or has_changed(root, known()):
            left = RESCAN_SECONDS
            yield


def _hierarchies(root: Root) -> Iterator[str]:
    """Yield the folders of the hierarchies with cpusets: that of v2, or those of v1 with the controller."""
    names = _names(root, _UNIFIED)
    if "cgroup.controllers" in names:
        yield _UNIFIED
    yield from (f"{_UNIFIED}/{name}" for name in names if "cpuset" in name.split(","))


def cgroup_cpus(root: Root, cgroup: str) -> CPUSet | None:
    """Return the CPUs that a cgroup has, or the nearest above it that has any; None if that is not to be read.

    Args:
        root: the machine's files.
        cgroup: as `/proc/<pid>/cgroup` has it; a reader in another cgroup namespace sees it begin with `..`.
    """
    place = "/".join(part for part in cgroup.split("/") if part not in ("", ".."))
    try:
        for hierarchy in _hierarchies(root):
            names = _EFFECTIVE_CPUS if hierarchy == _UNIFIED else _CPUS
            cpus = _effective(root, hierarchy, f"{hierarchy}/{place}".rstrip("/"), names)
            if cpus is not None:
                return cpus
    except MachineError:
        return None
    return None


def _find(root: Root, hierarchy: str) -> list[str]:
    """Return the cgroups of pods that are nearest to the top."""
    level = [hierarchy]
    for _ in range(_DEPTH):
        below = [(folder, name) for folder in level for name in _names(root, folder)]
        matches = [f"{folder}/{name}" for folder, name in below if _KUBEPODS.fullmatch(name)]
        if matches:
            return matches
        level = [f"{folder}/{name}" for folder, name in below if not _OTHERS.fullmatch(name)]
    return []


def _has_pods(root: Root, folder: str) -> bool:
    names = _names(root, folder)
    if any(pod_of_folder(name) for name in names):
        return True
    qos = (f"{folder}/{name}" for name in names if _QOS.fullmatch(name))
    return any(pod_of_folder(name) for each in qos for name in _names(root, each))


def _read(root: Root, hierarchy: str, folder: str) -> PodsCgroup:
    unified = hierarchy == _UNIFIED
    cpus = _effective(root, hierarchy, folder, _EFFECTIVE_CPUS if unified else _CPUS)
    nodes = _effective(root, hierarchy, folder, _EFFECTIVE_NODES if unified else _NODES)
    if cpus is not None and unified and _set(root, f"{folder}/cpuset.cpus.exclusive"):
        # What containers below it have as partitions is in no effective set above them (`isolation: partition`).
        cpus |= _set(root, f"{folder}/cpuset.cpus.exclusive.effective") or CPUSet()
    return PodsCgroup(f"/{folder}", cpus, nodes)


def _effective(root: Root, hierarchy: str, folder: str, names: Iterable[str]) -> CPUSet | None:
    """Return the set of a cgroup, or of the nearest one above it that has one; None if no cgroup has one."""
    while folder.startswith(hierarchy):
        for name in names:
            cpus = _set(root, f"{folder}/{name}")
            # In v1 a cgroup has none until somebody fills it, from that above it.
            if cpus is not None and (cpus or hierarchy == _UNIFIED):
                return cpus
        folder = folder.rpartition("/")[0]
    return None


def _set(root: Root, path: str) -> CPUSet | None:
    try:
        return CPUSet.parse(read_text(root, path))
    except OSError as error:
        if error.errno in GONE:
            return None
        raise MachineError(
            f"/{path} cannot be read ({error.strerror or error}), so it is not known what pods may use"
        ) from error
    except ValueError as error:
        raise MachineError(f"/{path} cannot be understood: {error}") from error


def _names(root: Root, folder: str) -> list[str]:
    try:
        return root.listdir(folder)
    except OSError as error:
        if error.errno in GONE:
            return []
        raise MachineError(
            f"/{folder} cannot be listed ({error.strerror or error}), so it is not known what pods may use"
        ) from error


def _both(first: PodsCgroup, second: PodsCgroup) -> PodsCgroup:
    """Return what both have."""
    return PodsCgroup(
        f"{first.folder} and {second.folder}",
        _common(first.cpus, second.cpus),
        _common(first.nodes, second.nodes),
    )


def _common(first: CPUSet | None, second: CPUSet | None) -> CPUSet | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


# Finds the containers of a pod in the kernel's cgroups, with folder, id and CPUs.

# Folders between the root of the cgroups and that of a pod: kubepods.slice/kubepods-burstable.slice, and kind's own.
_ABOVE_PODS: Final = re.compile(r"kube|besteffort|burstable|guaranteed")


def containers_of(root: Root, cgroups: Cgroups, uid: str) -> Iterator[ContainerCgroup]:
    """Yield the containers of the pod with a UID; none for an empty UID.

    Raises:
        MachineError: a folder, or the CPUs of a container, cannot be read, so that containers would be missing.
    """
    for hierarchy in cgroups.cpuset:
        for pod in _pods(root, hierarchy, uid):
            for name in _cgroup_names(root, pod):
                folder = f"{pod}/{name}".removeprefix(f"{hierarchy}/")
                cpus = _cpus(cgroups, folder) if container_id(name) else None
                if cpus is not None:
                    yield ContainerCgroup(uid, folder, hierarchy, cpus)


def pods_on(root: Root, cgroups: Cgroups) -> tuple[str, ...]:
    """Return the UIDs of all pods that have a cgroup.

    Raises:
        MachineError: a folder cannot be read, so that pods would be missing.
    """
    return tuple(dict.fromkeys(uid for hierarchy in cgroups.cpuset for uid in _uids(root, hierarchy)))


def _uids(root: Root, folder: str) -> Iterator[str]:
    for name in _cgroup_names(root, folder):
        uid = pod_of_folder(name)
        if uid:
            yield uid
        elif _ABOVE_PODS.search(name) and "." not in name.removesuffix(".slice"):
            yield from _uids(root, f"{folder}/{name}")


def _cpus(cgroups: Cgroups, folder: str) -> CPUSet | None:
    """Return the CPUs on which a container may run; None if it has ended, or its hierarchy has no CPU sets there."""
    cpus = cgroups.effective_cpus(folder)
    if cpus is None:
        try:
            cgroups.require_gone(folder)
        except OSError as error:
            raise MachineError(f"the CPUs of the container in {folder} cannot be read: {error.strerror}") from error
    return cpus


def _pods(root: Root, folder: str, uid: str) -> Iterator[str]:
    for name in _cgroup_names(root, folder):
        path = f"{folder}/{name}"
        if is_pod_folder(name, uid):
            yield path
        elif _ABOVE_PODS.search(name) and "." not in name.removesuffix(".slice"):
            yield from _pods(root, path, uid)


def _cgroup_names(root: Root, folder: str) -> list[str]:
    try:
        return root.listdir(folder)
    except OSError as error:
        if error.errno in GONE:
            return []
        raise MachineError(f"/{folder} cannot be listed, so its containers are not known: {error.strerror}") from error
