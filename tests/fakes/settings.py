"""A machine whose kernel moves interrupts or refuses as Linux does, and whose power may fail at any write."""

import contextlib
import errno
import json
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dranode.api.cpuset import CPUSet
from dranode.cpu.isolation.peers import Peers
from dranode.cpu.isolation.tuner import Tuner
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.hooks import Notes
from dranode.driver.claims.record import Record
from tests.fakes.drivers import allocated_claim

IRQ = "proc/irq"
DEFAULT = f"{IRQ}/default_smp_affinity"
WORKQUEUE = "sys/devices/virtual/workqueue/cpumask"
RPS = "sys/class/net/eth0/queues/rx-0/rps_cpus"
XPS = "sys/class/net/eth0/queues/tx-0/xps_cpus"
SYSTEM = "sys/fs/cgroup/system.slice/cpuset.cpus"
ONLINE = "sys/devices/system/cpu/online"
BOOT = "proc/sys/kernel/random/boot_id"


class PowerCutError(BaseException):
    """Nothing after this point happens; no handler may run."""


def interrupt(number: int) -> str:
    """The file with the CPUs of an interrupt."""
    return f"{IRQ}/{number}/smp_affinity_list"


def eight_cpus() -> dict[str, str]:
    """The settings of a machine with eight CPUs, interrupts of several kinds and cgroup v2."""
    files = {
        ONLINE: "0-7",
        "sys/devices/system/cpu/possible": "0-7",
        BOOT: "first",
        interrupt(24): "0-7",
        interrupt(25): "2",
        interrupt(26): "5",
        DEFAULT: "ff",
        WORKQUEUE: "ff",
        RPS: "0c",
        XPS: "00",
        "sys/class/net/eth0/ifindex": "2",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu",
        SYSTEM: "",
    }
    folders = {f"{IRQ}/{number}/{name}/.": "" for number, name in ((24, "eth0"), (25, "nvme0q1"), (26, "nvme0q2"))}
    return files | folders


class Kernel:
    """A `Root` that accepts writes to files that exist.

    Attributes:
        files: contents by path; a path that ends in `/.` is an empty folder.
        refuses: the error number of writes, by path.
        unread: the error number of reads and listings, by path.
        lasts: the number of writes until the power fails; None: it never fails.
        written: the paths that were written, in order.
    """

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        self.files = dict(eight_cpus() if files is None else files)
        self.refuses: dict[str, int] = {}
        self.unread: dict[str, int] = {}
        self.lasts: int | None = None
        self.written: list[str] = []

    def read_bytes(self, path: str) -> bytes:
        self._readable(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return f"{self.files[path]}\n".encode()

    def listdir(self, path: str) -> list[str]:
        self._readable(path)
        inside = [each[len(path) + 1 :] for each in self.files if each.startswith(f"{path}/")]
        if not inside:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted({each.partition("/")[0] for each in inside} - {"."})

    def _readable(self, path: str) -> None:
        if path in self.unread:
            raise OSError(self.unread[path], os.strerror(self.unread[path]), path)

    def readlink(self, path: str) -> str:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    def resolve(self, path: str) -> str:
        return path

    def exists(self, path: str) -> bool:
        return any(each == path or each.startswith(f"{path}/") for each in self.files)

    def device_number(self, path: str) -> tuple[str, int, int]:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), path)

    def write(self, path: str, content: str) -> None:
        self.spend()
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path in self.refuses:
            raise OSError(self.refuses[path], os.strerror(self.refuses[path]), path)
        if path == SYSTEM and not content.strip():
            # A cgroup with processes must keep some CPUs (validate_change() in kernel/cgroup/cpuset.c).
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.written.append(path)
        self.files[path] = self._taken(path, content.strip())

    def spend(self) -> None:
        """Count one step with an effect; raise when the power is used up."""
        if self.lasts is not None:
            if self.lasts == 0:
                raise PowerCutError
            self.lasts -= 1

    def _taken(self, path: str, text: str) -> str:
        """The value as the kernel shows it after the write."""
        return f"{CPUSet.parse_mask(text).mask:02x}" if path in (DEFAULT, WORKQUEUE, RPS, XPS) else text

    def remove(self, path: str) -> None:
        """Unplug the device with these files."""
        self.files = {each: text for each, text in self.files.items() if not each.startswith(f"{path}/")}


class MemoryNotes:
    """`Notes` in memory; recording them uses power as well."""

    def __init__(self, kernel: Kernel) -> None:
        self.document: Any = None
        self.lost = ""
        self._kernel = kernel

    def read(self) -> Any:
        return self.document

    def write(self, notes: Any) -> None:
        plain = json.loads(json.dumps(notes))
        if plain != self.document:
            self._kernel.spend()
            self.document, self.lost = plain, ""


def quiet_record(name: str, cpus: str, isolation: str = "quiet") -> Record:
    """The record of a claim with isolated CPUs."""
    held = CPUSet.parse(cpus)
    grant = Grant(request="r", pool="p", device="d", state={"isolation": isolation})
    return Record(uid=name, namespace="default", name=name, grants=(grant,), cpus=held, held=held)


def quiet_claim(name: str, cpus: str, isolation: str = "quiet", **fields: Any) -> Any:
    """A claim for these CPUs, allocated from the whole machine."""
    parameters = {
        "apiVersion": "dra.cpu/v1alpha1",
        "kind": "CPUConfig",
        "cpuset": cpus,
        "isolation": isolation,
        **fields,
    }
    amount = {"dra.cpu/cpu": str(len(CPUSet.parse(cpus)))}
    config = [{"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": parameters}}]
    return allocated_claim(name, "dra.cpu", ["cpudevmachine"], config=config, consumedCapacity=amount)


def values(kernel: Kernel, paths: Iterable[str]) -> list[str]:
    """The contents of these files."""
    # For a slice, all CPUs mean the same as none of its own.
    return ["" if path == SYSTEM and kernel.files[path] == "0-7" else kernel.files[path] for path in paths]


def peered(kernel: Kernel, **peers: Any) -> Tuner:
    """A tuner for a machine with these peers, named as `Peers` names them."""
    return Tuner(kernel, peers=Peers(kernel, **peers))


def settle(tuner: Tuner, claims: Collection[Record], notes: Notes) -> None:
    """Check all settings once, including those of other processes."""
    tuner.tune(claims, notes)
    if tuner.notify(lambda: contextlib.nullcontext((claims, notes))):
        tuner.tune(claims, notes)
