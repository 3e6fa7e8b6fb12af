"""The facts about a node's system that can stop a driver: file systems, kernel, CDI, variables."""

from __future__ import annotations

import msgspec

from dranode.api.cpuset import CPUSet


class Volume(msgspec.Struct, frozen=True):
    """A file system that the driver writes to.

    Attributes:
        path: the folder on it.
        use: what the driver writes there.
        free: bytes that may be written.
        size: all bytes.
        free_inodes: files that may be made; None where the file system does not count them.
    """

    path: str
    use: str
    free: int
    size: int
    free_inodes: int | None = None


class Affinity(msgspec.Struct, frozen=True):
    """A program of the node whose children inherit an affinity.

    Attributes:
        name: the program, as the kernel knows it.
        cpus: the CPUs on which it may run.
        missing: those on which its cgroup lets it run besides.
    """

    name: str
    cpus: CPUSet
    missing: CPUSet


class SystemFacts(msgspec.Struct, frozen=True):
    """The node's system. None, or an empty set, is what could not be seen or is not there.

    Attributes:
        volumes: the file systems that the driver writes to.
        cgroup_version: 1 or 2, of the hierarchy that has CPU sets.
        isolated: `isolcpus=`, as the kernel has it.
        nohz_full: `nohz_full=`, likewise.
        selinux: the label under which this runs, where SELinux is enforced.
        apparmor: the profile under which this runs, where one is enforced.
        variables: one sentence for each `DRANODE_` variable that is no option.
        conflicts: CDI devices that several files of equal priority define, with those files.
        affinities: programs that start containers, kubelet among them, with an affinity that leaves CPUs out.
        invalid_specs: CDI files that no runtime loads, each with the reason.
    """

    volumes: tuple[Volume, ...] = ()
    cgroup_version: int | None = None
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    nohz_full: CPUSet = msgspec.field(default_factory=CPUSet)
    selinux: str = ""
    apparmor: str = ""
    variables: tuple[str, ...] = ()
    conflicts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    invalid_specs: tuple[tuple[str, str], ...] = ()
    affinities: tuple[Affinity, ...] = ()
