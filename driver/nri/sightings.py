"""Remembers which containers the kernel of this host shows, and which of those have ended.

A cgroup without processes says that a container has ended only if it once had some. That of a container in a virtual
machine (Kata) never exists on the host, and that of one with a kernel of its own (gVisor) is empty: such a container
runs until the runtime says that it has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dranode.driver.core.pinning.containers import Container
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root

log = logging.getLogger(__name__)


class Sightings:
    """The containers whose processes were seen. The thread that owns the connection calls all methods."""

    def __init__(self, root: Root) -> None:
        """Nothing is seen yet; cgroups are read under `root`."""
        self._root = root
        self._seen: set[str] = set()
        self._unseen: set[str] = set()

    def look(self, containers: Iterable[Container]) -> None:
        """See which of these containers, which were made and have not ended, have processes on this host."""
        new = [each for each in containers if each.id not in self._seen]
        if new:
            cgroups = Cgroups(self._root)
            self._seen.update(each.id for each in new if cgroups.shows_processes(cgroup_folder(each.cgroup)))

    def require(self, containers: Iterable[Container]) -> None:
        """Say once for each of these containers, which run, that it is not to be seen."""
        containers = tuple(containers)
        self.look(containers)
        for each in containers:
            if each.id in self._seen or each.id in self._unseen:
                continue
            self._unseen.add(each.id)
            log.warning(
                "pod=%s container=%s: no process of it is in a cgroup of this host (a virtual machine as with Kata?), "
                "so its CPUs and quota cannot be verified, and its claims are in use until the runtime says that it "
                "has ended",
                each.pod,
                each.name,
            )

    def ended(self, containers: Iterable[Container]) -> frozenset[str]:
        """Return the ids of those containers that were seen and have no process any more."""
        cgroups = Cgroups(self._root)
        seen = (each for each in containers if each.id in self._seen)
        return frozenset(each.id for each in seen if not cgroups.has_processes(cgroup_folder(each.cgroup)))

    def keep(self, ids: Iterable[str]) -> None:
        """Forget all containers but these."""
        ids = set(ids)
        self._seen &= ids
        self._unseen &= ids

    def forget(self, *ids: str) -> None:
        """Forget containers that are gone."""
        self._seen.difference_update(ids)
        self._unseen.difference_update(ids)
