"""Synthetic machines, made from a description such as `sockets=2,numa=2,l3=4,cores=4,threads=2`.

Each number is per parent: NUMA nodes per socket, L3 caches per NUMA node, cores per L3 cache, threads per core. The
default is 1. Cores are numbered by socket, then NUMA node, then L3 cache; CPU id = thread x (number of cores) + core.
Files are computed when they are read, so opening a machine with 16,384 CPUs costs nothing.

`memory` is the memory of a NUMA node, by default 4Gi per core; a number without a unit is GiB. `hugepages-2Mi` and
`hugepages-1Gi` are the huge pages reserved on each NUMA node, by default 512 and 1 if there is room for them.

`gpus` and `nics` are numbers for the whole machine (`synthetic_devices`); `gpus=4:amd` also sets the vendor. `vfs` are
the virtual functions of each GPU. `interrupts` are those of other devices, on all CPUs at first. Claims change such a
machine only in memory (`scratch`).
"""

from functools import cached_property, lru_cache, partial
from typing import Final

import msgspec

from dranode.api.errors import UsageError
from dranode.api.quantity import Quantity
from dranode.sim.machines.tree import LazyFolder, Link, TreeEntry

_MAX_CPUS: Final = 65_536
_GIB: Final = 1 << 30
_MEMORY_PER_CORE: Final = 4 * _GIB
_LEAST_MEMORY: Final = 1 << 20
_MOST_MEMORY: Final = 99_999 * _GIB
_HUGE_PAGES: Final = {"hugepages2m": 2 << 20, "hugepages1g": _GIB}
_SHARED_CACHE: Final = "index3"
_CACHES: Final = (  # index folder, level, type, size
    ("index0", 1, "Data", "32K"),
    ("index1", 1, "Instruction", "32K"),
    ("index2", 2, "Unified", "1024K"),
    ("index3", 3, "Unified", "32768K"),
)
# The ranges of numbers that do not count parts.
_RANGES: Final = {
    **dict.fromkeys(_HUGE_PAGES, (0, 99_999_999)),
    **dict.fromkeys(("gpus", "nics"), (0, 64)),
    # A PCI device has eight functions, and the first is the GPU.
    "vfs": (0, 7),
    "interrupts": (0, 4096),
}
GPU_VENDORS: Final = ("nvidia", "amd", "intel")
# NVIDIA's and AMD's virtual functions have no driver on the host: they are for virtual machines.
VENDOR_OF_VFS: Final = "intel"
# Relative distances as in ACPI's SLIT on two-socket servers: the node itself, the same socket, another socket.
_DISTANCES: Final = (10, 12, 32)


class Description(msgspec.Struct, frozen=True, dict=True):
    """Parts per parent; memory in bytes and huge pages per NUMA node; devices of the whole machine."""

    sockets: int = 1
    numa: int = 1
    l3: int = 1
    cores: int = 1
    threads: int = 1
    memory: int | None = None
    hugepages2m: int | None = None
    hugepages1g: int | None = None
    gpus: int = 0
    gpu_vendor: str = "nvidia"
    vfs: int = 0
    nics: int = 0
    interrupts: int = 8

    @cached_property
    def node_memory(self) -> int:
        """Return the bytes of memory of a NUMA node."""
        return self.cores_per_numa * _MEMORY_PER_CORE if self.memory is None else self.memory

    @cached_property
    def huge_pages(self) -> dict[int, int]:
        """Return the number of huge pages of a NUMA node, by their size in bytes."""
        usual = {"hugepages2m": 512, "hugepages1g": 1} if self.node_memory > 2 * _GIB else {}
        counts = {key: getattr(self, key) for key in _HUGE_PAGES}
        return {size: usual.get(key, 0) if counts[key] is None else counts[key] for key, size in _HUGE_PAGES.items()}

    @cached_property
    def nodes(self) -> int:
        """Return the number of NUMA nodes of the machine."""
        return self.sockets * self.numa

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

    def node_cpus(self, node: int) -> str:
        """Return the CPUs of a NUMA node, as a cpu-list."""
        return self.cpus_of(node * self.cores_per_numa, self.cores_per_numa)

    def cpus_of(self, first_core: int, cores: int) -> str:
        """Return all threads of consecutive cores, as a cpu-list."""
        if cores == self.all_cores:
            return _span(0, self.all_cpus)
        return ",".join(_span(thread * self.all_cores + first_core, cores) for thread in range(self.threads))


# The field of each key of a description.
_FIELDS: Final = {
    **{name: name for name in Description.__struct_fields__ if name != "gpu_vendor"},
    "hugepages-2Mi": "hugepages2m",
    "hugepages-1Gi": "hugepages1g",
}
KEYS: Final = tuple(key for key in _FIELDS if key not in _HUGE_PAGES)
"""The documented keys of a description."""


def parse_description(text: str) -> Description:
    """Read a description.

    Raises:
        UsageError: a key is unknown or set twice, a value is out of range, or the machine is too large.
    """
    values: dict[str, int | str] = {}
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        field = _FIELDS.get(key, key)
        if field not in _FIELDS.values():
            raise UsageError(f'the description "{text}" has the unknown key "{key}"; the keys are {", ".join(KEYS)}')
        if field in values:
            raise UsageError(f'the description "{text}" sets "{key}" twice')
        try:
            if field == "memory":
                values[field] = _memory(value)
            elif field == "gpus":
                count, colon, vendor = value.partition(":")
                values[field] = _number(field, count)
                if colon:
                    values["gpu_vendor"] = _vendor(vendor)
            else:
                values[field] = _number(field, value)
        except ValueError as error:
            raise UsageError(f'{key}={value} in the description "{text}" must be {error}') from error
    description = msgspec.convert(values, Description)
    _check(description, text)
    return description


def _check(description: Description, text: str) -> None:
    """Check that the numbers fit together.

    Raises:
        UsageError: they do not.
    """
    if description.all_cpus > _MAX_CPUS:
        raise UsageError(f'the description "{text}" makes {description.all_cpus} CPUs; the limit is {_MAX_CPUS}')
    if description.vfs and description.gpu_vendor != VENDOR_OF_VFS:
        raise UsageError(
            f'the description "{text}" has vfs={description.vfs} and GPUs of {description.gpu_vendor}, whose virtual '
            f"functions containers cannot use; set gpus={description.gpus or 1}:{VENDOR_OF_VFS}"
        )
    pages = sum(size * count for size, count in description.huge_pages.items())
    if pages > description.node_memory:
        raise UsageError(
            f'the description "{text}" has {Quantity.binary(pages)} of huge pages on each NUMA node, more than its '
            f"{Quantity.binary(description.node_memory)} of memory"
        )


def _number(field: str, value: str) -> int:
    least, most = _RANGES.get(field, (1, _MAX_CPUS))
    if not (value.isascii() and value.isdigit()) or len(value) > len(str(most)) or not least <= int(value) <= most:
        raise ValueError(f"a whole number from {least} to {most}")
    return int(value)


def _memory(value: str) -> int:
    """Return the bytes of an amount of memory; a number without a unit is GiB."""
    try:
        amount = Quantity(f"{value}Gi" if value.isdigit() else value).value
    except ValueError:
        amount = 0
    if not _LEAST_MEMORY <= amount <= _MOST_MEMORY:
        least, most = Quantity.binary(_LEAST_MEMORY), Quantity.binary(_MOST_MEMORY)
        raise ValueError(f"an amount from {least} to {most} for each NUMA node, such as 64Gi (64 alone is GiB too)")
    return int(amount)


def _vendor(value: str) -> str:
    if value not in GPU_VENDORS:
        raise ValueError(f"a number of GPUs and one of the vendors {', '.join(GPU_VENDORS)}, such as 4:nvidia")
    return value


def synthetic_tree(machine: Description) -> dict[str, TreeEntry]:
    """Return the files in /sys about the machine's CPUs and memory, in the format of Linux 6."""
    system: dict[str, TreeEntry] = {"cpu": _cpu_folder(machine), "node": _node_folder(machine)}
    return {"sys": {"devices": {"system": system}}}


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
    per_core = (core, machine.cpus_of(core, 1))
    shared = (l3, machine.cpus_of(l3 * machine.cores, machine.cores))
    caches: dict[str, TreeEntry] = {}
    for index, level, kind, size in _CACHES:
        number, cpus = shared if index == _SHARED_CACHE else per_core
        files = {"level": level, "type": kind, "size": size, "id": number, "shared_cpu_list": cpus}
        caches[index] = {name: _text(value) for name, value in files.items()}
    return caches


def _node_folder(machine: Description) -> dict[str, TreeEntry]:
    count = machine.nodes
    every = _text(_span(0, count))
    names = ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")
    return {**dict.fromkeys(names, every), **{f"node{node}": _one_node(machine, node) for node in range(count)}}


def _one_node(machine: Description, node: int) -> dict[str, TreeEntry]:
    total, pools = machine.node_memory, machine.huge_pages
    free = total - sum(size * count for size, count in pools.items())
    near, same_socket, far = _DISTANCES
    distances = (
        near if target == node else same_socket if target // machine.numa == node // machine.numa else far
        for target in range(machine.nodes)
    )
    return {
        "cpulist": _text(machine.node_cpus(node)),
        "distance": _text(" ".join(map(str, distances))),
        "meminfo": _text(f"Node {node} MemTotal:       {total >> 10} kB\nNode {node} MemFree:        {free >> 10} kB"),
        "hugepages": {f"hugepages-{size >> 10}kB": _pool(count) for size, count in pools.items()},
    }


def _pool(count: int) -> dict[str, TreeEntry]:
    return {"nr_hugepages": _text(count), "free_hugepages": _text(count), "surplus_hugepages": _text(0)}


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _text(value: object) -> bytes:
    return f"{value}\n".encode()
