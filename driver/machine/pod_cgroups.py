"""Finds the containers of a pod in the kernel's cgroups, with folder, id and CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.diagnosis.placement import container_id, is_pod_folder
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.root import Root

# Folders between the root of the cgroups and that of a pod: kubepods.slice/kubepods-burstable.slice, and kind's own.
_ABOVE_PODS: Final = re.compile(r"kube|besteffort|burstable|guaranteed")


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """A container's cgroup.

    Attributes:
        hierarchy: the folder of its hierarchy.
        folder: its folder in that, without a leading slash.
        id: the runtime's id of the container.
        cpus: the CPUs on which it may run.
    """

    hierarchy: str
    folder: str
    id: str
    cpus: CPUSet

    @property
    def path(self) -> str:
        """Return its folder on the machine."""
        return f"/{self.hierarchy}/{self.folder}"


def containers_of(root: Root, cgroups: Cgroups, uid: str) -> Iterator[ContainerCgroup]:
    """Yield the containers of the pod with a UID; none for an empty UID.

    Raises:
        PermissionError: a folder may not be read.
    """
    for hierarchy in cgroups.cpuset:
        for pod in _pods(root, hierarchy, uid):
            for name in _names(root, pod):
                found = container_id(name)
                folder = f"{pod}/{name}".removeprefix(f"{hierarchy}/")
                cpus = cgroups.effective_cpus(folder) if found else None
                if found and cpus is not None:
                    yield ContainerCgroup(hierarchy, folder, found, cpus)


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
    except PermissionError:
        raise
    except OSError:
        return []
