"""Reads the node's system: file systems, kernel parameters, confinement, and all CDI files."""

import contextlib
import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.cdi.document import load_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.rules import validate
from dranode.driver.machine.cgroups import cgroup_of
from dranode.driver.machine.kubepods import cgroup_cpus
from dranode.tools.diagnosis.facts import Affinity, ServeOptions, SystemFacts, Volume
from dranode.tools.diagnosis.runtime import plain_path
from dranode.tools.diagnosis.system import CONFINED
from dranode.tools.readers.host import HostError, NodeHost, all_running
from dranode.tools.readers.processes import allowed_cpus

# The names of processes that start containers. k3s, MicroK8s and k0s run kubelet inside a process of their own, and k3s
# the container runtime too.
_STARTERS: Final = ("containerd", "crio", "kubelet", "k3s-server", "k3s-agent", "kubelite", "k0s", "dockerd")
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)", re.ASCII)
_INHERITS: Final = (6, 2)
StatVfs = Callable[[str], os.statvfs_result]

_CPUS: Final = "/sys/devices/system/cpu"
_UNIFIED: Final = "/sys/fs/cgroup/cgroup.controllers"
_LABEL: Final = "/proc/self/attr/current"
_ENFORCED: Final = "/sys/fs/selinux/enforce"
_SPECS: Final = (".json", ".yaml")
# In the order of the runtimes' defaults. A later directory wins, so devices conflict only within one directory.
_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")


def read_system(
    host: NodeHost,
    options: ServeOptions,
    unseen: list[str],
    variables: tuple[str, ...] = (),
    statvfs: StatVfs = os.statvfs,
) -> SystemFacts:
    """Return the facts about the system.

    Args:
        host: the node.
        options: the options of `serve`.
        unseen: gets a sentence for everything that cannot be read.
        variables: a sentence for each `DRANODE_` variable that is not an option.
        statvfs: `os.statvfs`, or a test's substitute.
    """
    directories = {plain_path(directory): directory for directory in (*_CDI_DIRS, options.cdi_dir)}.values()
    conflicts: list[tuple[str, tuple[str, ...]]] = []
    invalid: list[tuple[str, str]] = []
    for directory in directories:
        try:
            specs = dict(_specs(host, directory))
        except PermissionError:
            unseen.append(f"the CDI specs in {directory}: permission denied; try as root")
            continue
        except (HostError, OSError) as error:
            unseen.append(f"the CDI specs in {directory}: {error}")
            continue
        invalid += _invalid(specs)
        conflicts += _conflicts(specs)
    isolated = _cpus(host, "isolated", unseen)
    selinux, apparmor = _confinement(host, unseen)
    return SystemFacts(
        volumes=tuple(_volumes(host, options, statvfs, unseen)),
        cgroup_version=_cgroup_version(host, unseen),
        isolated=isolated,
        nohz_full=_cpus(host, "nohz_full", unseen),
        selinux=selinux,
        apparmor=apparmor,
        variables=variables,
        conflicts=tuple(conflicts),
        invalid_specs=tuple(invalid),
        affinities=tuple(_affinities(host, isolated, unseen)),
    )


def _affinities(host: NodeHost, isolated: CPUSet, unseen: list[str]) -> Iterator[Affinity]:
    """Yield kubelet and the programs that start containers if their CPU affinity excludes CPUs.

    Containers inherit it. Before Linux 6.2 it does not matter: a process that is moved to a cgroup gets all its CPUs.
    """
    try:
        release = _RELEASE.match(host.text_if_there("/proc/sys/kernel/osrelease") or "")
        if release is not None and (int(release[1]), int(release[2])) < _INHERITS:
            return
        programs = [program for name in _STARTERS for program in all_running(host, name)]
    except HostError as error:
        unseen.append(f"with which CPU affinity the container runtime and kubelet run: {error}; try as root")
        return
    if not programs:
        unseen.append(
            "with which CPU affinity the container runtime and kubelet run: they are not among the processes that can "
            "be seen; run this on the node itself, or in a pod with hostPID: true"
        )
        return
    for program in programs:
        cgroup = cgroup_of(host.files, str(program.pid))
        cpus, allowed = allowed_cpus(host.files, program.pid), cgroup_cpus(host.files, cgroup)
        # CPUs of isolcpus= were not excluded for this process on purpose, and a process that is moved to a cgroup with
        # such CPUs gets them.
        missing = (allowed or CPUSet()) - (cpus or CPUSet()) - isolated
        if cpus is None or allowed is None:
            unseen.append(f"with which CPU affinity {program.name} runs: its status or its cgroup cannot be read")
        elif missing:
            yield Affinity(program.name, cpus, missing)


def _volumes(host: NodeHost, options: ServeOptions, statvfs: StatVfs, unseen: list[str]) -> Iterator[Volume]:
    uses = {
        f"{options.kubelet_root.rstrip('/')}/plugins": "the ledger",
        options.cdi_dir: "CDI specs",
    }
    for path, use in uses.items():
        try:
            stats = statvfs(str(host.place(path)))
        except (FileNotFoundError, NotADirectoryError):
            continue  # another rule reports missing folders
        except OSError as error:
            unseen.append(f"how full the file system of {path} is: {error.strerror}")
            continue
        # A file system that does not count inodes (btrfs) reports 0 in total.
        inodes = stats.f_favail if stats.f_files else None
        yield Volume(path, use, stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize, inodes)


def _cgroup_version(host: NodeHost, unseen: list[str]) -> int | None:
    try:
        if host.text_if_there(_UNIFIED) is not None:
            return 2
        hierarchies = host.names("/sys/fs/cgroup")
        return 1 if any("cpuset" in name.split(",") for name in hierarchies) else None
    except PermissionError:
        unseen.append("the version of the node's cgroups: /sys/fs/cgroup: permission denied; try as root")
    except HostError as error:
        unseen.append(f"the version of the node's cgroups: {error}")
    return None


def _cpus(host: NodeHost, name: str, unseen: list[str]) -> CPUSet:
    path = f"{_CPUS}/{name}"
    try:
        # Without the parameter, the kernel writes an empty line, or "(null)" for an empty pointer.
        return CPUSet.parse((host.text_if_there(path) or "").strip().replace("(null)", ""))
    except (HostError, ValueError) as error:
        unseen.append(f"which CPUs are {name}: {error}")
        return CPUSet()


def _confinement(host: NodeHost, unseen: list[str]) -> tuple[str, str]:
    """Return this process's label if SELinux is enforced, and its profile if AppArmor enforces one."""
    try:
        label = host.files.read_bytes(_LABEL.strip("/")).decode("utf-8", "replace").strip("\0\n ")
    except OSError as error:
        # EINVAL: the kernel has no security module with labels.
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            unseen.append(
                f"whether SELinux or AppArmor confines this process: {_LABEL} cannot be read: {error.strerror}"
            )
        return "", ""
    if label.endswith("(enforce)"):
        return "", label
    if CONFINED not in label:
        return "", ""
    # The label shows that SELinux is on, but a container may not see the file that says whether it is enforced.
    try:
        enforced = host.text(_ENFORCED).strip()
    except OSError as error:
        unseen.append(f"whether SELinux is enforced for this process ({label}): {_ENFORCED}: {error.strerror}")
        return "", ""
    return (label if enforced == "1" else ""), ""


def _specs(host: NodeHost, directory: str) -> Iterator[tuple[str, bytes]]:
    for name in host.names(directory):
        path = f"{directory}/{name}"
        if not name.endswith(_SPECS):
            continue
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            yield path, host.files.read_bytes(path.strip("/"))


def _invalid(specs: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    for path, data in specs.items():
        problems = validate(data).problems
        if problems:
            yield path, str(problems[0])


def _conflicts(specs: Mapping[str, bytes]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the devices that several files of one directory define, with these files."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for path, data in specs.items():
        for device in _devices(data):
            files[device].append(path)
    yield from ((device, tuple(paths)) for device, paths in sorted(files.items()) if len(paths) > 1)


def _devices(data: bytes) -> Iterable[str]:
    try:
        spec = load_spec(data)
    except CDIError:
        return ()
    return {f"{spec.kind}={device.name}" for device in spec.devices}
