"""The containers of a pod as the kernel has them: folder, id and CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dranode.driver.core.cpuset import CPUSet
from dranode.driver.doctor.host import Host

_EFFECTIVE: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")
_HIERARCHIES: Final = ("sys/fs/cgroup", "sys/fs/cgroup/cpuset")
# What lies between the root of the cgroups and a pod's: kubepods.slice/kubepods-burstable.slice, and what kind adds.
_ABOVE_PODS: Final = re.compile(r"kube|besteffort|burstable|guaranteed")
# cri-containerd-<id>.scope, crio-<id>.scope, or the id alone; crio-conmon-<id>.scope holds who watches the container.
_CONTAINER: Final = re.compile(r"(?!.*conmon-)(?:.*-)?([0-9a-f]{64})(?:\.scope)?")


def containers_of(host: Host, uid: str) -> Iterator[tuple[str, str, CPUSet]]:
    """The containers of the pod with a UID; its folder has the UID in its name, with - or with _."""
    for hierarchy in _HIERARCHIES:
        for folder in _pods(host, hierarchy, (uid, uid.replace("-", "_"))):
            for name in host.names(folder):
                found = _CONTAINER.fullmatch(name)
                cpus = _effective(host, f"{folder}/{name}") if found else None
                if found and cpus is not None:
                    yield f"/{folder}/{name}", found[1], cpus


def _pods(host: Host, folder: str, uids: tuple[str, str]) -> Iterator[str]:
    for name in host.names(folder):
        path = f"{folder}/{name}"
        if any(uid in name for uid in uids):
            yield path
        elif _ABOVE_PODS.search(name) and "." not in name.removesuffix(".slice"):
            yield from _pods(host, path, uids)


def _effective(host: Host, folder: str) -> CPUSet | None:
    for name in _EFFECTIVE:
        try:
            return CPUSet.parse(host.text(f"{folder}/{name}").strip())
        except (OSError, ValueError):
            continue
    return None
