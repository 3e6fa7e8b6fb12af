"""Finds the containers of a pod in the kernel's cgroups, with folder, id and CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import MachineError
from dranode.driver.core.diagnosis.container_cgroups import (
    ContainerCgroup,
    container_id,
    is_pod_folder,
    pod_of_folder,
)
from dranode.driver.machine.cgroups import GONE, Cgroups
from dranode.driver.machine.root import Root

# Folders between the root of the cgroups and that of a pod: kubepods.slice/kubepods-burstable.slice, and kind's own.
_ABOVE_PODS: Final = re.compile(r"kube|besteffort|burstable|guaranteed")


def containers_of(root: Root, cgroups: Cgroups, uid: str) -> Iterator[ContainerCgroup]:
    """Yield the containers of the pod with a UID; none for an empty UID.

    Raises:
        MachineError: a folder, or the CPUs of a container, cannot be read, so that containers would be missing.
    """
    for hierarchy in cgroups.cpuset:
        for pod in _pods(root, hierarchy, uid):
            for name in _names(root, pod):
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
    for name in _names(root, folder):
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
    for name in _names(root, folder):
        path = f"{folder}/{name}"
        if is_pod_folder(name, uid):
            yield path
        elif _ABOVE_PODS.search(name) and "." not in name.removesuffix(".slice"):
            yield from _pods(root, path, uid)


def _names(root: Root, folder: str) -> list[str]:
    try:
        return root.listdir(folder)
    except OSError as error:
        if error.errno in GONE:
            return []
        raise MachineError(f"/{folder} cannot be listed, so its containers are not known: {error.strerror}") from error
