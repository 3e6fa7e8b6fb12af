"""Reads the cgroup of all pods, which limits their CPUs and NUMA nodes, and finds the containers of a pod below it.

kubelet calls this cgroup `kubepods`, or `kubepods.slice` with the systemd driver, below its `cgroupRoot`
(`/kubelet/kubepods`, `kubelet.slice/kubelet-kubepods.slice`: pkg/kubelet/cm/cgroup_manager_linux.go). Its effective
sets apply to every pod. It does not matter whether the limit was set there, in a cgroup above, or by a container in
which the node runs. In v1 a CPU that was offline does not come back by itself. As long as kubelet has not created this
cgroup, there is no limit.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.claims.plugin import RESCAN_SECONDS, Stop
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.root import GONE, Root, read_text
from dranode.driver.pinning.container_cgroups import ContainerCgroup, container_id, is_pod_folder, pod_of_folder
from dranode.driver.pinning.pods_cgroup import UNLIMITED, PodsCgroup

_UNIFIED: Final = "sys/fs/cgroup"
_KUBEPODS: Final = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
# cgroups that cannot be part of a cgroupRoot: systemd units with processes, and the slices of the host.
_OTHERS: Final = re.compile(r".*\.(?:service|scope|mount|socket|swap)|(?:system|user|machine)\.slice")
# Guaranteed pods are in the cgroup of all pods itself, the others in a cgroup of their QoS class.
_QOS: Final = re.compile(r"(?:.+-)?(?:besteffort|burstable)(?:\.slice)?")
# Levels to search: kubelet's cgroupRoot may be nested, and a node that is a container without a cgroup namespace sees
# the cgroups above its own.
_DEPTH: Final = 4
# The kernel sends no event when effective sets change.
_POLL_SECONDS: Final = 2.0
# The names in v2, then those in v1. In v1 the effective sets were added later than the sets, so both are tried.
_EFFECTIVE_CPUS: Final = ("cpuset.cpus.effective",)
_EFFECTIVE_NODES: Final = ("cpuset.mems.effective",)
_CPUS: Final = ("cpuset.effective_cpus", "cpuset.cpus")
_NODES: Final = ("cpuset.effective_mems", "cpuset.mems")


def read_pods_cgroup(root: Root) -> PodsCgroup:
    """Return the CPUs and NUMA nodes of the cgroup of all pods; `UNLIMITED` if there is no such cgroup.

    A kubelet that changed its cgroup driver leaves an old one behind. If there are several at one depth, those with
    pods count.

    Raises:
        MachineError: a file or folder of it cannot be read, or has content that is not a CPU list.
    """
    for hierarchy in _hierarchies(root):
        folders = find_pods_cgroups(root, hierarchy)
        if len(folders) > 1:
            folders = [folder for folder in folders if _has_pods(root, folder)] or folders
        if folders:
            return reduce(_both, (_read(root, hierarchy, folder) for folder in folders))
    return UNLIMITED


def has_changed(root: Root, known: PodsCgroup) -> bool:
    """Return whether the cgroup of all pods has changed, or cannot be read any more.

    This is called every few seconds, so it does not search for a cgroup that did not exist before.
    """
    try:
        return bool(known.folder) and read_pods_cgroup(root) != known
    except MachineError:
        # The driver then reads its hardware again, which reports the error.
        return True


def pods_cgroup_changes(root: Root, known: Callable[[], PodsCgroup], stop: Stop) -> Iterator[None]:
    """Yield once a minute, and within seconds after the cgroup of all pods differs from `known`.

    For `Plugin.watch` of a driver whose hardware reports no changes: it blocks in between, until `stop` is set.
    """
    left = RESCAN_SECONDS
    while not stop.wait(_POLL_SECONDS):
        left -= _POLL_SECONDS
        if left <= 0 or has_changed(root, known()):
            left = RESCAN_SECONDS
            yield


def _hierarchies(root: Root) -> Iterator[str]:
    """Yield the roots of the hierarchies that may have cpusets: v2, and those of v1 with the controller."""
    names = _names(root, _UNIFIED)
    legacy = [f"{_UNIFIED}/{name}" for name in names if "cpuset" in name.split(",")]
    # `cgroup.controllers` shows that this is a cgroup of v2. With v1 it is only the folder of the hierarchies.
    if "cgroup.controllers" in names or not legacy:
        yield _UNIFIED
    yield from legacy


def cgroup_cpus(root: Root, cgroup: str) -> CPUSet | None:
    """Return the CPUs of a cgroup, or of the nearest one above that has any; None if they cannot be read.

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


def find_pods_cgroups(root: Root, hierarchy: str) -> list[str]:
    """Return the folders of the cgroups of all pods that are nearest to the root of a hierarchy.

    Raises:
        MachineError: a folder cannot be listed.
    """
    level = [hierarchy]
    for _ in range(_DEPTH):
        below = [(folder, name) for folder in level for name in _names(root, folder)]
        matches = [f"{folder}/{name}" for folder, name in below if _KUBEPODS.fullmatch(name)]
        if matches:
            return matches
        level = [f"{folder}/{name}" for folder, name in below if not _OTHERS.fullmatch(name)]
    return []


def _has_pods(root: Root, folder: str) -> bool:
    return any(pod_of_folder(name) for _, name in _below(root, folder))


def _below(root: Root, kubepods: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of the folders of pods and of a few others: in the cgroup of all pods and its QoS classes."""
    for name in _names(root, kubepods):
        path = f"{kubepods}/{name}"
        yield path, name
        if _QOS.fullmatch(name):
            yield from ((f"{path}/{pod}", pod) for pod in _names(root, path))


def _read(root: Root, hierarchy: str, folder: str) -> PodsCgroup:
    unified = hierarchy == _UNIFIED
    cpus = _effective(root, hierarchy, folder, _EFFECTIVE_CPUS if unified else _CPUS)
    nodes = _effective(root, hierarchy, folder, _EFFECTIVE_NODES if unified else _NODES)
    if cpus is not None and unified and _set(root, f"{folder}/cpuset.cpus.exclusive"):
        # CPUs of a partition below leave the effective sets of all cgroups above it (`isolation: partition`).
        cpus |= _set(root, f"{folder}/cpuset.cpus.exclusive.effective") or CPUSet()
    return PodsCgroup(f"/{folder}", cpus, nodes)


def _effective(root: Root, hierarchy: str, folder: str, names: Iterable[str]) -> CPUSet | None:
    """Return the set of a cgroup, or of the nearest one above that has a set; None if there is none."""
    while folder.startswith(hierarchy):
        for name in names:
            cpus = _set(root, f"{folder}/{name}")
            # In v1 the set of a new cgroup is empty until a program fills it.
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
            f"/{path} cannot be read ({error.strerror or error}), so the CPUs and memory of pods are not known"
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
            f"/{folder} cannot be listed, so its cgroups are not known: {error.strerror or error}"
        ) from error


def _both(first: PodsCgroup, second: PodsCgroup) -> PodsCgroup:
    """Return the CPUs and NUMA nodes that both allow."""
    return PodsCgroup(
        f"{first.folder} and {second.folder}",
        _common(first.cpus, second.cpus),
        _common(first.nodes, second.nodes),
    )


def _common(first: CPUSet | None, second: CPUSet | None) -> CPUSet | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def containers_of(root: Root, cgroups: Cgroups, uid: str) -> Iterator[ContainerCgroup]:
    """Yield the containers of the pod with a UID; none for an empty UID.

    Raises:
        MachineError: a folder or the CPUs of a container cannot be read, so that containers would be missing.
    """
    for hierarchy, pod, name in _pod_folders(root):
        if not is_pod_folder(name, uid):
            continue
        for container in _names(root, pod):
            folder = f"{pod}/{container}".removeprefix(f"{hierarchy}/")
            cpus = _cpus(cgroups, folder) if container_id(container) else None
            if cpus is not None:
                yield ContainerCgroup(uid, folder, hierarchy, cpus)


def pods_on(root: Root) -> tuple[str, ...]:
    """Return the UIDs of all pods that have a cgroup.

    Raises:
        MachineError: a folder cannot be read, so that pods would be missing.
    """
    return tuple(dict.fromkeys(uid for _, _, name in _pod_folders(root) if (uid := pod_of_folder(name))))


def _pod_folders(root: Root) -> Iterator[tuple[str, str, str]]:
    """Yield hierarchy, path and name of the folders of pods, and of a few others."""
    for hierarchy in _hierarchies(root):
        for kubepods in find_pods_cgroups(root, hierarchy):
            yield from ((hierarchy, path, name) for path, name in _below(root, kubepods))


def _cpus(cgroups: Cgroups, folder: str) -> CPUSet | None:
    """Return the CPUs on which a container may run; None if it has ended or no hierarchy has CPU sets for it."""
    cpus = cgroups.effective_cpus(folder)
    # A container that is left out by mistake could share CPUs unnoticed, so "unreadable" must not pass for "ended".
    if cpus is None:
        try:
            cgroups.require_gone(folder)
        except OSError as error:
            raise MachineError(f"the CPUs of the container in {folder} cannot be read: {error.strerror}") from error
    return cpus
