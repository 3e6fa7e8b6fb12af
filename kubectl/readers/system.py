"""Reads the node's system: file systems, kernel parameters, confinement, and CDI files, whoever's they are."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.document import load_spec
from dranode.cdi.loader.validate import validate
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.diagnosis.facts import ServeOptions
from dranode.driver.core.diagnosis.system_facts import SystemFacts, Volume
from dranode.kubectl.readers.host import HostError, NodeHost

StatVfs = Callable[[str], os.statvfs_result]

_CPUS: Final = "/sys/devices/system/cpu"
_UNIFIED: Final = "/sys/fs/cgroup/cgroup.controllers"
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
    directories = dict.fromkeys((*_CDI_DIRS, options.cdi_dir))
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
    return SystemFacts(
        volumes=tuple(_volumes(host, options, statvfs, unseen)),
        cgroup_version=_cgroup_version(host),
        isolated=_cpus(host, "isolated"),
        nohz_full=_cpus(host, "nohz_full"),
        selinux=_selinux(host),
        apparmor=_apparmor(host),
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


def _cgroup_version(host: NodeHost) -> int | None:
    with contextlib.suppress(OSError):
        host.text(_UNIFIED)
        return 2
    with contextlib.suppress(PermissionError, HostError):
        hierarchies = host.names("/sys/fs/cgroup")
        return 1 if any("cpuset" in name.split(",") for name in hierarchies) else None
    return None


def _cpus(host: NodeHost, name: str) -> CPUSet:
    # A kernel without the parameter has an empty file, or the text `(null)`.
    try:
        return CPUSet.parse(host.text(f"{_CPUS}/{name}").strip())
    except (OSError, ValueError):
        return CPUSet()


def _selinux(host: NodeHost) -> str:
    try:
        enforced = host.text("/sys/fs/selinux/enforce").strip() == "1"
        return host.text("/proc/self/attr/current").strip("\0\n ") if enforced else ""
    except OSError:
        return ""


def _apparmor(host: NodeHost) -> str:
    try:
        on = host.text("/sys/module/apparmor/parameters/enabled").strip() == "Y"
        label = host.text("/proc/self/attr/current").strip("\0\n ") if on else ""
    except OSError:
        return ""
    return label if label.endswith("(enforce)") else ""


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
        spec = load_spec(data).spec
    except CDIError:
        return ()
    return {f"{spec.kind}={device.name}" for device in spec.devices}
