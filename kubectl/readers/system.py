"""Reads the node's system: file systems, kernel parameters, confinement, and CDI files, whoever's they are."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dranode.cdi.document import load_spec, validate
from dranode.cdi.errors import CDIError
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.diagnosis.facts import ServeOptions
from dranode.driver.core.diagnosis.runtime import plain_path
from dranode.driver.core.diagnosis.system import CONFINED
from dranode.driver.core.diagnosis.system_facts import SystemFacts, Volume
from dranode.kubectl.readers.host import HostError, NodeHost

StatVfs = Callable[[str], os.statvfs_result]

_CPUS: Final = "/sys/devices/system/cpu"
_UNIFIED: Final = "/sys/fs/cgroup/cgroup.controllers"
_LABEL: Final = "/proc/self/attr/current"
_ENFORCED: Final = "/sys/fs/selinux/enforce"
_SPECS: Final = (".json", ".yaml")
# In the order of the runtimes' defaults: a later directory wins, so devices conflict within one alone.
_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")


def read_system(
    host: NodeHost,
    options: ServeOptions,
    unseen: list[str],
    variables: tuple[str, ...] = (),
    statvfs: StatVfs = os.statvfs,
) -> SystemFacts:
    """Return the facts about the system; what could not be looked at is added to `unseen`.

    Args:
        host: the node.
        options: the options of `serve`.
        unseen: takes a sentence for each.
        variables: one for each `DRANODE_` variable that is no option.
        statvfs: as `os.statvfs`.
    """
    directories = {plain_path(directory): directory for directory in (*_CDI_DIRS, options.cdi_dir)}.values()
    conflicts: list[tuple[str, tuple[str, ...]]] = []
    invalid: list[tuple[str, str]] = []
    for directory in directories:
        try:
            specs = dict(_specs(host, directory))
        except PermissionError:
            unseen.append(f"the CDI specs in {directory}: they may not be looked into; try as root")
            continue
        except (HostError, OSError) as error:
            unseen.append(f"the CDI specs in {directory}: {error}")
            continue
        invalid += _invalid(specs)
        conflicts += _conflicts(specs)
    selinux, apparmor = _confinement(host, unseen)
    return SystemFacts(
        volumes=tuple(_volumes(host, options, statvfs, unseen)),
        cgroup_version=_cgroup_version(host, unseen),
        isolated=_cpus(host, "isolated", unseen),
        nohz_full=_cpus(host, "nohz_full", unseen),
        selinux=selinux,
        apparmor=apparmor,
        variables=variables,
        conflicts=tuple(conflicts),
        invalid_specs=tuple(invalid),
    )


def _volumes(host: NodeHost, options: ServeOptions, statvfs: StatVfs, unseen: list[str]) -> Iterator[Volume]:
    uses = {
        f"{options.kubelet_root.rstrip('/')}/plugins": "the ledger",
        options.cdi_dir: "CDI specs",
    }
    for path, use in uses.items():
        try:
            found = statvfs(str(host.place(path)))
        except (FileNotFoundError, NotADirectoryError):
            continue  # a finding of its own
        except OSError as error:
            unseen.append(f"how full the file system of {path} is: {error.strerror}")
            continue
        # A file system that counts no inodes (btrfs) says that it has none.
        inodes = found.f_favail if found.f_files else None
        yield Volume(path, use, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, inodes)


def _cgroup_version(host: NodeHost, unseen: list[str]) -> int | None:
    try:
        if host.text_if_there(_UNIFIED) is not None:
            return 2
        hierarchies = host.names("/sys/fs/cgroup")
        return 1 if any("cpuset" in name.split(",") for name in hierarchies) else None
    except PermissionError:
        unseen.append("the version of the node's cgroups: /sys/fs/cgroup may not be looked into; try as root")
    except HostError as error:
        unseen.append(f"the version of the node's cgroups: {error}")
    return None


def _cpus(host: NodeHost, name: str, unseen: list[str]) -> CPUSet:
    path = f"{_CPUS}/{name}"
    try:
        # A kernel without the parameter has an empty file, or its empty pointer.
        return CPUSet.parse((host.text_if_there(path) or "").strip().replace("(null)", ""))
    except (HostError, ValueError) as error:
        unseen.append(f"which CPUs are {name}: {error}")
        return CPUSet()


def _confinement(host: NodeHost, unseen: list[str]) -> tuple[str, str]:
    """Return the label under which this runs where SELinux is enforced, and the profile where AppArmor enforces one."""
    try:
        label = host.files.read_bytes(_LABEL.strip("/")).decode("utf-8", "replace").strip("\0\n ")
    except OSError as error:
        # EINVAL: no security module of the kernel has labels.
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            unseen.append(f"whether SELinux or AppArmor confines this: {_LABEL} cannot be read: {error.strerror}")
        return "", ""
    if label.endswith("(enforce)"):
        return "", label
    if CONFINED not in label:
        return "", ""
    # A container may lack the file, though SELinux is on: the label says that.
    try:
        enforced = host.text(_ENFORCED).strip()
    except OSError as error:
        unseen.append(f"whether SELinux is enforced on this, which runs as {label}: {_ENFORCED}: {error.strerror}")
        return "", ""
    return (label if enforced == "1" else ""), ""


# --- CDI ---


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
    """Yield the devices that several files of one directory define."""
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
