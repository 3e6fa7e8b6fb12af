"""Makes the cgroups of containers with `isolation: partition` partitions of cgroup v2, as far as their parents allow.

Source: Documentation/admin-guide/cgroup-v2.rst of the kernel, Cpuset. A partition whose parent is not a partition
("remote", since Linux 6.7) needs its CPUs in `cpuset.cpus.exclusive` of every cgroup above it. These are settings like
the others: they are noted and restored. The partition itself ends with the container.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.cpu.isolation.setting_files import read_cpus
from dranode.cpu.isolation.settings import EXCLUSIVE, Kind, Setting
from dranode.cpu.options import Isolation
from dranode.cpu.treatment import isolated_cpus
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import names_every_pod, pods_among
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.kubepods import containers_of, pods_on
from dranode.driver.machine.root import GONE, Root, read_text

_PARTITION: Final = "cpuset.cpus.partition"
_UNIFIED: Final = "sys/fs/cgroup"
_ISOLATED: Final = "isolated"


class Partition(msgspec.Struct, frozen=True):
    """A container's cgroup that should become a partition.

    Attributes:
        folder: its folder, relative to the machine's root.
        cpus: its CPUs.
        others: the CPUs among them that no claim wants in a partition; if there are any, it cannot become one.
    """

    folder: str
    cpus: CPUSet
    others: CPUSet = msgspec.field(default_factory=CPUSet)

    @property
    def above(self) -> Iterator[str]:
        """Yield the folders above it, the outermost first, without the root of all cgroups."""
        parts = self.folder.removeprefix(f"{_UNIFIED}/").split("/")
        return (f"{_UNIFIED}/{'/'.join(parts[:depth])}" for depth in range(1, len(parts)))


def find_partitions(root: Root, claims: Iterable[Record]) -> Iterator[Partition]:
    """Yield the containers that run on CPUs of claims that ask for a partition.

    Raises:
        MachineError: the cgroups of a pod cannot be read.
    """
    wanted: dict[str, CPUSet] = {}
    elsewhere = CPUSet()
    for claim in claims:
        own = isolated_cpus(claim, Isolation.PARTITION)
        for pod in pods_among(claim.pods) if own else ():
            wanted[pod.uid] = wanted.get(pod.uid, CPUSet()) | own
        if own and not names_every_pod(claim.pods):
            elsewhere |= own
    for pod_uid, own in wanted.items():
        yield from _of_pod(root, pod_uid, own)
    if not elsewhere:
        return
    # Any pod may belong to the claim's PodGroup. A container that also has other CPUs may just not have left these yet.
    for pod_uid in pods_on(root):
        for partition in _of_pod(root, pod_uid, elsewhere) if pod_uid not in wanted else ():
            if not partition.others:
                yield partition


def _of_pod(root: Root, pod: str, own: CPUSet) -> Iterator[Partition]:
    for container in containers_of(root, Cgroups(root), pod):
        folder = f"{container.hierarchy}/{container.cgroup}"
        cpus = _own_cpus(root, folder)
        if cpus and not cpus.isdisjoint(own):
            yield Partition(folder, cpus, cpus - own)


def _own_cpus(root: Root, folder: str) -> CPUSet | None:
    """Return the CPUs that a container's cgroup was given; None if it has ended.

    Raises:
        MachineError: they cannot be read. If it counted as having no CPUs, the cgroups above it would lose their grant.
    """
    path = f"{folder}/cpuset.cpus"
    try:
        return CPUSet.parse(read_text(root, path))
    except OSError as error:
        if error.errno in GONE:
            return None
        raise MachineError(f"/{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise MachineError(f"/{path} cannot be understood: {error}") from error


def exclusive_settings(root: Root, partitions: Iterable[Partition], noted: Iterable[str]) -> Iterator[Setting]:
    """Yield the exclusive CPUs that cgroups above partitions have to grant, also those that had to before (`noted`)."""
    needed: dict[str, CPUSet] = {path: CPUSet() for path in noted if path.endswith(f"/{EXCLUSIVE}")}
    for partition in partitions:
        for folder in partition.above:
            path = f"{folder}/{EXCLUSIVE}"
            needed[path] = needed.get(path, CPUSet()) | partition.cpus
    for path, cpus in needed.items():
        now = read_cpus(root, path)
        if now is not None:
            yield Setting(path, Kind.EXCLUSIVE, now, needed=cpus)


def make_partition(root: Root, partition: Partition) -> str | None:
    """Make a container's cgroup a partition. Return the kernel's reason if it is not one, or None if it is."""
    state = f"{partition.folder}/{_PARTITION}"
    try:
        if read_text(root, state) == _ISOLATED:
            return None
        own = f"{partition.folder}/{EXCLUSIVE}"
        if root.exists(own):
            root.write(own, f"{partition.cpus}\n")
        root.write(state, f"{_ISOLATED}\n")
        now = read_text(root, state)
    except FileNotFoundError:
        return None if not root.exists(partition.folder) else f"there is no {_PARTITION}"
    except OSError as error:
        return error.strerror or str(error)
    return None if now == _ISOLATED else now
