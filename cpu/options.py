"""The options of the CPU driver, and the policies from which claims choose."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UsageError
from dranode.cpu.topology import Topology


class PickPolicy(StrEnum):
    """The order in which CPUs are picked over NUMA nodes, packages, caches and cores."""

    PACKED = "packed"
    SPREAD = "spread"
    NUMA_DISTRIBUTED = "numa-distributed"


class Order(StrEnum):
    """The cores that single threads come from: those that no other claim has part of, or those of dra-driver-cpu."""

    UNTOUCHED_FIRST = "untouched-first"
    REFERENCE = "reference"


class Threads(StrEnum):
    """The threads of a physical core that may be taken."""

    ANY = "any"
    FULL_CORE = "full-core"
    ONE_PER_CORE = "one-per-core"


class L3(StrEnum):
    """The weight of L3 caches in a pick."""

    PREFER = "prefer"
    REQUIRE = "require"
    IGNORE = "ignore"


class Isolation(StrEnum):
    """The levels of isolation. Each keeps off a claim's CPUs what is listed here and what the levels before it do.

    CPUSET: other containers. QUIET: interrupts, unbound kernel work and the host's own services, as far as the kernel
    lets them be moved. PARTITION: the scheduler's load balancing, by a partition of cgroup v2.
    """

    CPUSET = "cpuset"
    QUIET = "quiet"
    PARTITION = "partition"

    @property
    def level(self) -> int:
        """Return the position in the order of the levels; a higher level keeps off more."""
        return _LEVELS[self]


_LEVELS: Final = {isolation: level for level, isolation in enumerate(Isolation)}


E = TypeVar("E", bound=StrEnum)


class DeviceMode(StrEnum):
    """The kinds of devices."""

    GROUPED = "grouped"
    INDIVIDUAL = "individual"


class GroupBy(StrEnum):
    """The groups of CPUs that are devices in grouped mode."""

    NUMANODE = "numanode"
    SOCKET = "socket"
    MACHINE = "machine"


class CPUOptions(NamedTuple):
    """Options that say how a node's CPUs are published and handed out.

    Attributes:
        mode: one device per group of CPUs, or one per CPU (per core with full-core).
        group_by: what a group is.
        reserved: CPUs that the driver neither publishes nor gives to claims.
        threads: any or full-core; with full-core, claims get whole physical cores and requests are rounded up to them.
        order: which cores single threads come from, in grouped mode.
        expose_pcie_roots: publish the PCIe roots near a device (needs DRAListTypeAttributes).
        compat_attributes: publish the reference driver's deprecated attributes as well.
        node_allocatable_mapping: publish how claims count against the node's CPUs (needs DRANodeAllocatableResources).
        max_isolation: how far claims may have their CPUs isolated.
        host_root: where the node's own `/proc` and `/sys` are mounted, for isolation beyond cpuset.
        keep_shared: always leave containers without claims a CPU, because NRI cannot give them an empty set: a claim
            that would take the last one is refused, and if none is reserved, one CPU (or core) is not published.
    """

    mode: DeviceMode = DeviceMode.GROUPED
    group_by: GroupBy = GroupBy.NUMANODE
    reserved: CPUSet = CPUSet()
    threads: Threads = Threads.ANY
    order: Order = Order.UNTOUCHED_FIRST
    expose_pcie_roots: bool = False
    compat_attributes: bool = False
    node_allocatable_mapping: bool = False
    max_isolation: Isolation = Isolation.CPUSET
    host_root: str = "/"
    keep_shared: bool = False


# `one-per-core` is not an option of the node: claims and classes ask for it.
_THREADS: Final = (Threads.ANY, Threads.FULL_CORE)
_FLAGS: Final = ("expose_pcie_roots", "compat_attributes", "node_allocatable_mapping")


def read_options(options: Mapping[str, object]) -> CPUOptions:
    """Read the CPU driver's options (snake case), as a driver's factory gets them; a missing option has its default.

    Raises:
        UsageError: a value is invalid; the message names option and value.
    """
    text = str(options.get("reserved_cpus") or "")
    try:
        reserved = CPUSet.parse(text)
    except ValueError as error:
        raise UsageError(f"--reserved-cpus: {error}") from error
    mode = _choice("--cpu-device-mode", DeviceMode, options.get("device_mode", DeviceMode.GROUPED))
    group_by = _choice("--group-by", GroupBy, options.get("group_by", GroupBy.NUMANODE))
    # Manifests pass the default of --group-by with every mode, so that value is not an error.
    if mode is DeviceMode.INDIVIDUAL and group_by is not GroupBy.NUMANODE:
        raise UsageError(
            f"--group-by {group_by} needs groups of CPUs, and --cpu-device-mode {mode} publishes none; "
            "leave one of them out"
        )
    return CPUOptions(
        mode=mode,
        group_by=group_by,
        reserved=reserved,
        threads=_choice("--threads", _THREADS, options.get("threads", Threads.ANY)),
        order=_choice("--order", Order, options.get("order", Order.UNTOUCHED_FIRST)),
        max_isolation=_choice("--max-isolation", Isolation, options.get("max_isolation", Isolation.CPUSET)),
        host_root=str(options.get("host_root") or "/"),
        # The default for commands, so that they show what a driver with pinning publishes and refuses.
        keep_shared=bool(options.get("keep_shared", True)),
        **{flag: bool(options.get(flag)) for flag in _FLAGS},
    )


def check_reserved(options: CPUOptions, topology: Topology) -> None:
    """Refuse reserved CPUs that do not fit the machine. A reserved CPU may be offline, because it may come back.

    Raises:
        UsageError: a reserved CPU does not exist, or every online CPU is reserved, or one of every core with full-core.
    """
    unknown = options.reserved - topology.present
    if unknown:
        raise UsageError(
            f"--reserved-cpus {options.reserved} names CPUs that this machine does not have: {unknown}; "
            f"it has {topology.present}"
        )
    if topology.online <= options.reserved:
        raise UsageError(
            f"--reserved-cpus {options.reserved} leaves no CPU for claims: only {topology.online} are online; "
            "reserve fewer"
        )
    if options.threads is Threads.FULL_CORE and not any(core.isdisjoint(options.reserved) for core in topology.cores):
        raise UsageError(
            f"--reserved-cpus {options.reserved} leaves no whole core for claims with --threads full-core; "
            "reserve all threads of fewer cores"
        )


def _choice(option: str, choices: Iterable[E], value: object) -> E:
    known = {choice.value: choice for choice in choices}
    if str(value) not in known:
        raise UsageError(f'{option} is {" or ".join(known)}, not "{value}"')
    return known[str(value)]
