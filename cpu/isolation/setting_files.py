"""Reads the settings of `dranode.cpu.isolation.settings` from a machine's files."""

import errno
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.cpu.isolation.settings import NEW_INTERRUPTS, Kind, Setting
from dranode.driver.machine.root import Root, names, read_attribute

_IRQ: Final = "proc/irq"
_WORKQUEUE: Final = "sys/devices/virtual/workqueue/cpumask"
_NET: Final = "sys/class/net"
_CGROUP: Final = "sys/fs/cgroup"
# The slices of systemd for everything but pods (systemd.special(7)).
_HOST_UNITS: Final = ("system.slice", "user.slice", "init.scope")
# Bottlerocket and Amazon Linux have kubelet and the container runtime in this one.
_RUNTIME_SLICE: Final = "runtime.slice"
BUS: Final = "run/dbus/system_bus_socket"
"""The socket of a machine's D-Bus, over which systemd is asked."""
_NODES: Final = "sys/devices/system/node"
_POSSIBLE: Final = "sys/devices/system/cpu/possible"
_PODS: Final = "kube"
# How far below a slice pods are looked for: <service>/<kubelet's root>/kubepods.
_DEEPEST: Final = 3
_CONTROL_FILE: Final = re.compile(r"(cgroup|cpu|cpuset|hugetlb|io|irq|memory|misc|pids|rdma|dmem)\.")
# Besides its files, the folder of an interrupt has one folder for each of its devices.
_IRQ_FILES: Final = frozenset(
    (
        *("affinity_hint", "effective_affinity", "effective_affinity_list", "node"),
        *("smp_affinity", "smp_affinity_list", "spurious"),
    )
)


def read_settings(root: Root) -> tuple[Setting, ...]:
    """Return every setting that the machine has; settings whose file is missing or cannot be read are left out.

    Raises:
        MachineError: `/proc/irq` cannot be listed.
    """
    interrupts = tuple(_interrupts(root))
    return (*interrupts, *_queues(root), *_slices(root), *_masks(root))


def reread(root: Root, setting: Setting) -> Setting | None:
    """Return a setting as it is now; None if it is gone. A slice with all CPUs counts as one that names none."""
    cpus = read_cpus(root, setting.path)
    if cpus is not None and setting.kind is Kind.SLICE and cpus == every_cpu(root):
        return replace(setting, cpus=CPUSet())
    return None if cpus is None else replace(setting, cpus=cpus)


def is_gone(root: Root, path: str) -> bool:
    """Return whether there is no such file; a file that cannot be read exists."""
    try:
        root.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        return error.errno == errno.ENODEV  # a cgroup or device that vanishes while it is read
    return False


def every_cpu(root: Root) -> CPUSet | None:
    """Return all CPUs that the machine can ever have; None if the kernel does not report them."""
    return read_cpus(root, _POSSIBLE)


def cpus_of_nodes(root: Root) -> tuple[CPUSet, ...]:
    """Return the CPUs of each NUMA node for which the kernel lists some."""
    folders = (name for name in names(root, _NODES) if name.removeprefix("node").isdecimal())
    return tuple(cpus for name in folders if (cpus := read_cpus(root, f"{_NODES}/{name}/cpulist")))


def has_unified_cgroups(root: Root) -> bool:
    """Return whether `/sys/fs/cgroup` is cgroup v2."""
    return root.exists(f"{_CGROUP}/cgroup.controllers")


def host_units(root: Root) -> tuple[str, ...]:
    """Return the units of systemd in which the host's services are."""
    return (*_HOST_UNITS, _RUNTIME_SLICE) if root.exists(f"{_CGROUP}/{_RUNTIME_SLICE}") else _HOST_UNITS


def why_kept(root: Root, unit: str) -> str:
    """Return why a unit of the host must keep its CPUs; empty if they may be taken away."""
    return _kept(root, f"{_CGROUP}/{unit}")


def unmovable(root: Root, seen: Collection[str], *, by_systemd: bool) -> Iterator[str]:
    """Yield a sentence for each kind of host work that cannot be moved because its setting is missing or unreadable.

    Args:
        root: the machine's files.
        seen: the paths of the settings that were read.
        by_systemd: whether systemd decides where the host's services run.
    """
    interrupts = map(_interrupt_file, _numbers(names(root, _IRQ)))
    for path in (*interrupts, NEW_INTERRUPTS, _WORKQUEUE, *_queue_files(root)):
        if path not in seen:
            yield from _unseen(root, path)
    if not root.exists(_WORKQUEUE):
        yield f"unbound kernel work stays, because there is no /{_WORKQUEUE}"
    yield from _unlisted_queues(root)
    yield from _unmovable_units(root, by_systemd=by_systemd)


def _unseen(root: Root, path: str) -> Iterator[str]:
    if not is_gone(root, path):
        why = "it is not a list of CPUs" if read_cpus(root, path) is None else "its device cannot be read"
        yield f"the work that /{path} places stays, because {why}"
    elif path.endswith("/smp_affinity_list"):
        number = path.split("/")[2]
        # A number without a device never fires.
        if devices := _devices(root, number):
            yield f"interrupt {number} ({devices}) stays, because there is no /{path}"


def _unmovable_units(root: Root, *, by_systemd: bool) -> Iterator[str]:
    if not has_unified_cgroups(root):
        yield f"the host's services stay, because /{_CGROUP} is not cgroup v2"
        return
    units = host_units(root)
    for name in names(root, _CGROUP):
        folder = f"{_CGROUP}/{name}"
        populated = "populated 1" in (read_attribute(root, f"{folder}/cgroup.events") or "").splitlines()
        if populated and name not in units and "kubepods" not in name and not _kept(root, folder):
            yield f"{name} stays, because only {', '.join(units)} are moved: give it CPUs (AllowedCPUs=) yourself"
    for name in units:
        folder = f"{_CGROUP}/{name}"
        if not root.exists(folder):
            continue
        reason = _kept(root, folder)
        if reason:
            yield f"{name} stays, because {reason}"
        elif by_systemd:
            continue
        elif is_gone(root, f"{folder}/cpuset.cpus"):
            yield (
                f"{name} stays, because systemd does not answer at /{BUS} and the cpuset controller is not on in "
                f"/{_CGROUP}/cgroup.subtree_control"
            )
        elif read_cpus(root, f"{folder}/cpuset.cpus") is None:
            yield f"{name} stays, because /{folder}/cpuset.cpus is not a list of CPUs"


def _interrupts(root: Root) -> Iterator[Setting]:
    try:
        names = root.listdir(_IRQ)
    except OSError as error:
        raise MachineError(f"/{_IRQ} cannot be listed, so interrupts cannot be moved: {error.strerror}") from error
    for name in _numbers(names):
        path = _interrupt_file(name)
        cpus, owner = read_cpus(root, path), _devices(root, name)
        if cpus is not None and owner is not None:
            yield Setting(path, Kind.INTERRUPT, cpus, owner=owner)


def _interrupt_file(name: str) -> str:
    return f"{_IRQ}/{name}/smp_affinity_list"


def _numbers(names: Iterable[str]) -> list[str]:
    return sorted(filter(str.isdecimal, names), key=int)


def _devices(root: Root, interrupt: str) -> str | None:
    """Return the devices of an interrupt as their drivers name them, with spaces between; None if unreadable."""
    try:
        return " ".join(name for name in root.listdir(f"{_IRQ}/{interrupt}") if name not in _IRQ_FILES)
    except OSError:
        return None


def _masks(root: Root) -> Iterator[Setting]:
    for path, kind in ((NEW_INTERRUPTS, Kind.NEW_INTERRUPTS), (_WORKQUEUE, Kind.WORKQUEUE)):
        cpus = read_cpus(root, path)
        if cpus is not None:
            yield Setting(path, kind, cpus)


def _queues(root: Root) -> Iterator[Setting]:
    for path in _queue_files(root):
        index = f"{path.partition('/queues/')[0]}/ifindex"
        cpus, owner = read_cpus(root, path), read_attribute(root, index)
        if owner is None and is_gone(root, index):
            owner = ""
        # A queue without CPUs is not steered, so there is nothing to move.
        if cpus is not None and owner is not None:
            yield Setting(path, Kind.QUEUE, cpus, owner=owner)


def _queue_files(root: Root) -> Iterator[str]:
    for device in names(root, _NET):
        for queue in names(root, f"{_NET}/{device}/queues"):
            yield f"{_NET}/{device}/queues/{queue}/{'rps' if queue.startswith('rx') else 'xps'}_cpus"


def _unlisted_queues(root: Root) -> Iterator[str]:
    for folder in (_NET, *(f"{_NET}/{device}/queues" for device in names(root, _NET))):
        try:
            root.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue  # a device without queues, or a file that is not a device (bonding_masters)
        except OSError as error:
            yield f"the packets of network devices stay, because /{folder} cannot be listed: {error.strerror}"


def _slices(root: Root) -> Iterator[Setting]:
    for name in host_units(root):
        setting = reread(root, Setting(f"{_CGROUP}/{name}/cpuset.cpus", Kind.SLICE, CPUSet()))
        if setting is not None:
            yield replace(setting, kept=bool(_kept(root, f"{_CGROUP}/{name}")))


def _kept(root: Root, folder: str, depth: int = _DEEPEST) -> str:
    """Return why a cgroup must keep its CPUs; empty if they may be taken away.

    Some distributions run kubelet's pods below its own service, and pods must keep their CPUs.
    """
    try:
        names = root.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ""  # it has ended, or is a file of its parent
    except OSError as error:
        return f"/{folder} cannot be listed, so it is not known whether pods are in it: {error.strerror}"
    below = [name for name in names if not _CONTROL_FILE.match(name)]
    if any(_PODS in name and not name.endswith(".service") for name in below):
        return "pods are in it"
    reasons = (_kept(root, f"{folder}/{name}", depth - 1) for name in below) if depth else ()
    return next(filter(None, reasons), "")


def read_cpus(root: Root, path: str) -> CPUSet | None:
    """Return the CPUs in the file of a setting; None if it is missing or cannot be read."""
    text = read_attribute(root, path)
    if text is None:
        return None
    listed = path.endswith(("smp_affinity_list", "cpuset.cpus", "cpuset.cpus.exclusive", "cpulist", _POSSIBLE))
    try:
        return CPUSet.parse(text) if listed else CPUSet.parse_mask(text)
    except ValueError:
        return None
