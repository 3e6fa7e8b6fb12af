"""Synthetic machines, made from a description such as `sockets=2,numa=2,l3=4,cores=4,threads=2`.

Each number is per parent: NUMA nodes per socket, L3 caches per NUMA node, cores per L3 cache, threads per core. A
number that is left out is 1. Cores are numbered socket by socket, then NUMA node, then L3; CPU id = thread x (number of
cores) + core. Files are computed when they are read, so that opening a machine with 16,384 CPUs costs nothing.

`memory` is GiB per NUMA node, 4 a core if it is left out. `hugepages2m` and `hugepages1g` are the huge pages per NUMA
node that the kernel has reserved of it, 512 and 1 where there is room for them.

`interrupts` are those of devices, on all CPUs at first, none if it is left out. A machine that has some has the
kernel's settings for them and for unbound work too, which quiet claims change in memory (`machine.rehearsed`).
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet, mask_text
from dranode.api.errors import UsageError
from dranode.driver.machine.tree import LazyFolder, Link, TreeEntry

_MAX_CPUS: Final = 65_536
_MEMORY_PER_CORE: Final = 4  # GiB
_KIB_PER_GIB: Final = 1 << 20
_HUGE_PAGES: Final = {"hugepages2m": 2 << 10, "hugepages1g": _KIB_PER_GIB}  # KiB
_SHARED_CACHE: Final = "index3"
_CACHES: Final = (  # index folder, level, type, size
    ("index0", 1, "Data", "32K"),
    ("index1", 1, "Instruction", "32K"),
    ("index2", 2, "Unified", "1024K"),
    ("index3", 3, "Unified", "32768K"),
)
# From what to what a number may be, where that is not a number of parts.
_RANGES: Final = {"memory": (1, 99_999), "interrupts": (0, 4096), **dict.fromkeys(_HUGE_PAGES, (0, 99_999_999))}
# The first numbers belong to the platform.
_FIRST_INTERRUPT: Final = 24
# Relative distances as in ACPI's SLIT on two-socket servers: the node itself, the same socket, another socket.
_DISTANCES: Final = (10, 12, 32)


class Description(msgspec.Struct, frozen=True, dict=True):
    """Numbers of parts, each per parent, and of interrupts; GiB of memory and pages per NUMA node, None if not said."""

    sockets: int = 1
    numa: int = 1
    l3: int = 1
    cores: int = 1
    threads: int = 1
    memory: int | None = None
    hugepages2m: int | None = None
    hugepages1g: int | None = None
    interrupts: int = 0

    @cached_property
    def memory_kib(self) -> int:
        """Return the KiB of memory of a NUMA node."""
        given = self.cores_per_numa * _MEMORY_PER_CORE if self.memory is None else self.memory
        return given * _KIB_PER_GIB

    @cached_property
    def huge_pages(self) -> dict[int, int]:
        """Return the number of huge pages of a NUMA node, by their size in KiB."""
        usual = {"hugepages2m": 512, "hugepages1g": 1} if self.memory_kib > 2 * _KIB_PER_GIB else {}
        given = {key: getattr(self, key) for key in _HUGE_PAGES}
        return {size: usual.get(key, 0) if given[key] is None else given[key] for key, size in _HUGE_PAGES.items()}

    @cached_property
    def cores_per_numa(self) -> int:
        """Return the number of cores per NUMA node."""
        return self.l3 * self.cores

    @cached_property
    def cores_per_socket(self) -> int:
        """Return the number of cores per socket."""
        return self.numa * self.cores_per_numa

    @cached_property
    def all_cores(self) -> int:
        """Return the number of cores of the machine."""
        return self.sockets * self.cores_per_socket

    @cached_property
    def all_cpus(self) -> int:
        """Return the number of CPUs of the machine."""
        return self.all_cores * self.threads

    def cpus_of(self, first_core: int, cores: int) -> str:
        """Return all threads of consecutive cores, as a cpu-list."""
        if cores == self.all_cores:
            return _span(0, self.all_cpus)
        return ",".join(_span(thread * self.all_cores + first_core, cores) for thread in range(self.threads))


def parse_description(text: str) -> Description:
    """Read a description.

    Raises:
        UsageError: a key is unknown or given twice, a value is not a positive number, or the machine is too large.
    """
    known = Description.__struct_fields__
    values: dict[str, int] = {}
    for item in text.split(","):
        key, _, number = (part.strip() for part in item.partition("="))
        if key not in known:
            raise UsageError(f'the description "{text}" has the unknown key "{key}"; there are {", ".join(known)}')
        if key in values:
            raise UsageError(f'the description "{text}" says "{key}" twice')
        least, most = _RANGES.get(key, (1, _MAX_CPUS))
        if not (number.isascii() and number.isdigit()) or len(number) > len(str(most)) or int(number) < least:
            raise UsageError(
                f'{key}={number} in the description "{text}" must be a whole number from {least} to {most}'
            )
        values[key] = int(number)
    description = Description(**values)
    if description.all_cpus > _MAX_CPUS:
        raise UsageError(f'the description "{text}" makes {description.all_cpus} CPUs; the most is {_MAX_CPUS}')
    pages = sum(size * count for size, count in description.huge_pages.items())
    if pages > description.memory_kib:
        gib = description.memory_kib // _KIB_PER_GIB
        raise UsageError(f'the description "{text}" has more huge pages a NUMA node than its {gib} GiB of memory')
    return description


def synthetic_tree(machine: Description) -> dict[str, TreeEntry]:
    """The files of the machine that tell of its CPUs, as Linux 6 writes them."""
    system: dict[str, TreeEntry] = {"cpu": _cpu_folder(machine), "node": _node_folder(machine)}
    if not machine.interrupts:
        return {"sys": {"devices": {"system": system}}}
    every = _text(mask_text(CPUSet(range(machine.all_cpus))))
    virtual: dict[str, TreeEntry] = {"workqueue": {"cpumask": every}}
    return {
        # The host of a made-up machine runs no services.
        "sys": {
            "devices": {"system": system, "virtual": virtual},
            "fs": {"cgroup": {"cgroup.controllers": _text("cpuset cpu memory")}},
        },
        "proc": {"irq": {"default_smp_affinity": every, **_interrupts(machine)}},
    }


def _interrupts(machine: Description) -> dict[str, TreeEntry]:
    every = _text(_span(0, machine.all_cpus))
    return {
        str(_FIRST_INTERRUPT + number): {"smp_affinity_list": every, f"nic0-rx-{number}": {}}
        for number in range(machine.interrupts)
    }


def _cpu_folder(machine: Description) -> dict[str, TreeEntry]:
    every = _text(_span(0, machine.all_cpus))
    many = machine.threads > 1
    # The folder of one CPU is read many times in a row.
    folder = lru_cache(maxsize=64)(partial(_one_cpu, machine))
    return {
        "online": every,
        "present": every,
        "possible": every,
        "offline": b"\n",
        "isolated": b"\n",
        "kernel_max": _text(machine.all_cpus - 1),
        "smt": {"control": _text("on" if many else "notsupported"), "active": _text(int(many))},
        **{f"cpu{cpu}": LazyFolder(partial(folder, cpu)) for cpu in range(machine.all_cpus)},
    }


def _one_cpu(machine: Description, cpu: int) -> dict[str, TreeEntry]:
    core = cpu % machine.all_cores
    node = core // machine.cores_per_numa
    return {
        "online": b"1\n",
        f"node{node}": Link(f"../../node/node{node}"),
        "topology": _topology(machine, core),
        "cache": LazyFolder(partial(_caches, machine, core)),
    }


def _topology(machine: Description, core: int) -> dict[str, TreeEntry]:
    per_socket = machine.cores_per_socket
    socket, number = divmod(core, per_socket)
    threads = _text(machine.cpus_of(core, 1))
    package = _text(machine.cpus_of(socket * per_socket, per_socket))
    return {
        "core_id": _text(number),
        "physical_package_id": _text(socket),
        "core_cpus_list": threads,
        "thread_siblings_list": threads,
        "package_cpus_list": package,
        "core_siblings_list": package,
    }


def _caches(machine: Description, core: int) -> dict[str, TreeEntry]:
    l3 = core // machine.cores
    own = (core, machine.cpus_of(core, 1))
    shared = (l3, machine.cpus_of(l3 * machine.cores, machine.cores))
    caches: dict[str, TreeEntry] = {}
    for index, level, kind, size in _CACHES:
        number, cpus = shared if index == _SHARED_CACHE else own
        files = {"level": level, "type": kind, "size": size, "id": number, "shared_cpu_list": cpus}
        caches[index] = {name: _text(value) for name, value in files.items()}
    return caches


def _node_folder(machine: Description) -> dict[str, TreeEntry]:
    count = machine.sockets * machine.numa
    every = _text(_span(0, count))
    names = ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")
    return {**dict.fromkeys(names, every), **{f"node{node}": _one_node(machine, node) for node in range(count)}}


def _one_node(machine: Description, node: int) -> dict[str, TreeEntry]:
    kib, pools = machine.memory_kib, machine.huge_pages
    free = kib - sum(size * count for size, count in pools.items())
    near, same_socket, far = _DISTANCES
    distances = (
        near if other == node else same_socket if other // machine.numa == node // machine.numa else far
        for other in range(machine.sockets * machine.numa)
    )
    return {
        "cpulist": _text(machine.cpus_of(node * machine.cores_per_numa, machine.cores_per_numa)),
        "distance": _text(" ".join(map(str, distances))),
        "meminfo": _text(f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {free} kB"),
        "hugepages": {f"hugepages-{size}kB": _pool(count) for size, count in pools.items()},
    }


def _pool(count: int) -> dict[str, TreeEntry]:
    return {"nr_hugepages": _text(count), "free_hugepages": _text(count), "surplus_hugepages": _text(0)}


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _text(value: object) -> bytes:
    return f"{value}\n".encode()
