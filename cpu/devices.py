"""The devices that the driver publishes for a machine's CPUs, in every mode.

Names, attributes and capacities are dra-driver-cpu's, so that claims and selectors written for it work here, with three
exceptions. An individual device is named after its CPU id (`cpu004`), so that names stay the same when CPUs are added,
removed or reserved; with `--threads full-core` it is a core, named after its first CPU (`core004`), so that the
scheduler cannot allocate half a core. Attributes with foreign or deprecated names are published only on request. And a
capacity has a request policy: without one, a request without an amount would take the whole group, and a request for
half a CPU would be allocated and would then fail on the node again and again.

Additional attributes, only on machines where they are useful: `dra.cpu/coreType` of a group whose CPUs are all of one
type (hybrid machines), `dra.cpu/isolated` of an individual CPU and `dra.cpu/numIsolatedCPUs` of a group (machines with
`isolcpus=`). An attribute is left out if the kernel does not report its value (a NUMA node, a package, a core id), or
if a group spans several sockets.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    NodeAllocatableMapping,
    NodeAllocatableResource,
    PlainAttribute,
)
from dranode.cpu.options import CPUOptions, DeviceMode, GroupBy, Isolation, Threads
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import treatment_of
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.plugin import DeviceHealth, Health, Impairment, Inventory
from dranode.driver.claims.record import Record

CAPACITY: Final = "dra.cpu/cpu"

# Every attribute that a device may have, with any options, on any machine.
ATTRIBUTES: Final = frozenset(
    (
        "resource.kubernetes.io/numaNode",
        "resource.kubernetes.io/pcieRoot",
        "dra.net/numaNode",
        *(
            f"dra.cpu/{name}"
            for name in ("cacheL3ID", "coreID", "coreType", "cpuID", "isolated", "nohzFull", "numCPUs")
        ),
        *(f"dra.cpu/{name}" for name in ("numIsolatedCPUs", "numNohzFullCPUs", "numaNodeID", "smtEnabled", "socketID")),
    )
)

_INDIVIDUAL: Final = re.compile(r"(cpu|core)([0-9]{3,7})", re.ASCII)
_NAMES: Final = {
    GroupBy.NUMANODE: "cpudevnuma{:03d}",
    GroupBy.SOCKET: "cpudevsocket{:03d}",
    GroupBy.MACHINE: "cpudevmachine",
}


class Group(msgspec.Struct, frozen=True):
    """A group of CPUs that is one device.

    Attributes:
        name: the device's name.
        id: the kernel's id of the NUMA node or package; None for the machine, and if the kernel reports none.
        whole: all its online CPUs.
        cpus: the CPUs among these that claims may get.
    """

    name: str
    id: int | None
    whole: CPUSet
    cpus: CPUSet


def allocatable(topology: Topology, options: CPUOptions) -> CPUSet:
    """Return the CPUs that claims may get.

    They are online, pods may run on them, and they are not reserved; with full-core this is true of their whole cores.
    """
    free = topology.for_pods - options.reserved
    if options.threads is Threads.FULL_CORE:
        return CPUSet.union(core for core in topology.cores if core <= free)
    return free


def groups(topology: Topology, options: CPUOptions) -> tuple[Group, ...]:
    """Return the groups of grouped mode by id, including those without a CPU for claims.

    A machine without NUMA information is one NUMA node, and a machine without packages is one socket, number 0. On
    other machines a CPU is in no group if the kernel reports no node or package for it.
    """
    match options.group_by:
        case GroupBy.NUMANODE:
            cpus_by_id: Mapping[int, CPUSet] = topology.numa
        case GroupBy.SOCKET:
            cpus_by_id = {package: cpus for package, cpus in topology.packages.items() if package >= 0}
        case GroupBy.MACHINE:
            cpus_by_id = {}
        case _:
            assert_never(options.group_by)
    free = allocatable(topology, options)
    name = _NAMES[options.group_by]
    if not cpus_by_id:
        return (Group(name.format(0), None, topology.online, free),)
    return tuple(Group(name.format(id_), id_, cpus, cpus & free) for id_, cpus in sorted(cpus_by_id.items()))


def individual_parts(topology: Topology, options: CPUOptions) -> tuple[CPUSet, ...]:
    """Return the CPUs of each device of individual mode: a core with full-core, else a CPU, with siblings in a row."""
    free = allocatable(topology, options)
    if options.threads is Threads.FULL_CORE:
        return tuple(core for core in topology.cores if core <= free)
    return tuple(CPUSet((cpu,)) for core in topology.cores for cpu in core & free)


def individual_name(cpu: int, options: CPUOptions) -> str:
    """Return the name of the device of individual mode that is this CPU, or the core with this number."""
    return f"{'core' if options.threads is Threads.FULL_CORE else 'cpu'}{cpu:03d}"


def individual_cpu(device: str) -> int | None:
    """Return the CPU or core number of a device of individual mode, or None if the name is not one of that mode."""
    match = _INDIVIDUAL.fullmatch(device)
    return int(match[2]) if match is not None and match[2] == f"{int(match[2]):03d}" else None


def is_core(device: str) -> bool:
    """Return whether a device of individual mode is a whole core, by its name."""
    return device.startswith("core")


def individual_cpus(device: str, topology: Topology) -> CPUSet | None:
    """Return the CPUs of a device of individual mode; None if the name is not one of that mode.

    The name decides, not the node's option: a claim may have been allocated before the option was changed.
    """
    cpu = individual_cpu(device)
    if cpu is None:
        return None
    cpus = CPUSet((cpu,))
    if not is_core(device):
        return cpus
    # The CPU after which a core is named may be offline.
    threads = cpus & topology.online or CPUSet(one for one, number in topology.core_numbers.items() if number == cpu)
    return topology.whole_cores(threads) or cpus


def cpu_devices(topology: Topology, options: CPUOptions, pcie_roots: Mapping[str, CPUSet]) -> tuple[Device, ...]:
    """Return the machine's devices in the order in which the scheduler should try them.

    A group without CPUs for claims is not a device. `pcie_roots` are the CPUs near every PCIe root; it is empty if the
    roots should not be published.
    """
    if options.mode is DeviceMode.INDIVIDUAL:
        parts = individual_parts(topology, options)
        kept_back = 1 if _kept_for(topology, options) else 0
        return tuple(_individual(topology, part, options, pcie_roots) for part in parts[: len(parts) - kept_back])
    published = published_counts(topology, options)
    return tuple(
        _grouped(topology, group, options, pcie_roots, count)
        for group, count in zip(groups(topology, options), published, strict=True)
        if count
    )


def published_counts(topology: Topology, options: CPUOptions) -> tuple[int, ...]:
    """Return how many CPUs each group publishes: all that claims may get, except the CPU or core that is kept back.

    The largest group publishes fewer then, the last one of several; it does not matter which of its CPUs claims get.
    With whole cores a rest that is smaller than a step is not published, because no request can be for it.
    """
    all_groups = groups(topology, options)
    counts = [len(group.cpus) for group in all_groups]
    largest = max(range(len(counts)), key=lambda index: (counts[index], index))
    if _kept_for(topology, options):
        whole = options.threads is Threads.FULL_CORE
        counts[largest] -= min(counts[largest], max(map(len, topology.cores)) if whole else 1)
    steps = (_step(topology, group.cpus, options) for group in all_groups)
    return tuple(count - count % step for count, step in zip(counts, steps, strict=True))


def _kept_for(topology: Topology, options: CPUOptions) -> tuple[str, ...]:
    """Return what needs a CPU or core that is therefore not published; empty if all are published.

    Containers without claims need one if they are pinned, and interrupts if claims may want all others quiet;
    interrupts can also use a CPU on which no pod may run. Otherwise the scheduler would allocate a claim that can only
    be refused.
    """
    if options.mode is DeviceMode.GROUPED:
        free = CPUSet.union(group.cpus for group in groups(topology, options))
    else:
        free = allocatable(topology, options)
    containers = options.keep_shared and free == topology.for_pods
    interrupts = options.max_isolation is not Isolation.CPUSET and free == topology.online
    needs = {"containers without a claim": containers, "interrupts": interrupts}
    return tuple(name for name, needed in needs.items() if needed and free)


def kept_back(topology: Topology, options: CPUOptions) -> tuple[str, ...]:
    """Return a sentence if one CPU or core is not published although claims could get it."""
    kept_for = _kept_for(topology, options)
    if not kept_for:
        return ()
    if options.mode is DeviceMode.GROUPED:
        published = sum(published_counts(topology, options))
    else:
        published = sum(map(len, individual_parts(topology, options)[:-1]))
    what = "core" if options.threads is Threads.FULL_CORE else "one"
    sentence = (
        f"{published} of {len(topology.for_pods)} CPUs are published; the last {what} is left to "
        f"{' and '.join(kept_for)} (see --reserved-cpus)"
    )
    return (sentence,)


def left_out(topology: Topology, options: CPUOptions) -> tuple[str, ...]:
    """Return a sentence for each reason why CPUs that are online and not reserved are in no device."""
    sentences: list[str] = []
    free = allocatable(topology, options)
    rest = topology.for_pods - options.reserved - free
    if rest:
        others = "reserved CPUs" if not topology.not_for_pods else "CPUs that are reserved or not for pods"
        sentences.append(f"CPUs {rest} share a core with {others}, so with --threads full-core no claim gets them")
    sentences += (problem.what for problem in topology.pods.cpu_problems(topology.online))
    if options.mode is DeviceMode.GROUPED:
        ungrouped = free - CPUSet.union(group.cpus for group in groups(topology, options))
        if ungrouped:
            kind = "NUMA node" if options.group_by is GroupBy.NUMANODE else "package"
            sentences.append(f"CPUs {ungrouped} are in no device: the kernel reports no {kind} for them")
    return tuple(sentences)


def _grouped(topology: Topology, group: Group, options: CPUOptions, roots: Mapping[str, CPUSet], count: int) -> Device:
    attributes: dict[str, PlainAttribute] = {}
    if options.group_by is GroupBy.NUMANODE:
        attributes |= _numa_attributes(group.id, options)
    if options.group_by is not GroupBy.MACHINE:
        packages = {topology.cpus[cpu].package for cpu in group.whole}
        attributes |= _socket_attribute(packages.pop() if len(packages) == 1 else -1)
    attributes["dra.cpu/smtEnabled"] = topology.smt
    attributes["dra.cpu/numCPUs"] = count
    types = {topology.cpus[cpu].type for cpu in group.cpus}
    if len(types) == 1 and len(topology.core_types) > 1:
        attributes["dra.cpu/coreType"] = types.pop()
    if topology.isolated:
        attributes["dra.cpu/numIsolatedCPUs"] = len(group.cpus & topology.isolated)
    if topology.nohz_full:
        attributes["dra.cpu/numNohzFullCPUs"] = len(group.cpus & topology.nohz_full)
    attributes |= _pcie_attribute(group.cpus, roots)
    mapping = NodeAllocatableMapping(capacity_key=CAPACITY, capacity_multiplier=Quantity(1))
    return Device(
        name=group.name,
        attributes=attributes,
        capacity={CAPACITY: _capacity(count, _step(topology, group.cpus, options))},
        allow_multiple_allocations=True,
        node_allocatable_resources=_node_resources(mapping, options),
    )


def _individual(topology: Topology, cpus: CPUSet, options: CPUOptions, roots: Mapping[str, CPUSet]) -> Device:
    cpu = topology.cpus[cpus.first()]
    attributes = {
        **_numa_attributes(cpu.numa, options),
        **_socket_attribute(cpu.package),
        "dra.cpu/cpuID": cpu.id,
        **({"dra.cpu/coreID": cpu.core_id} if cpu.core_id >= 0 else {}),
        "dra.cpu/cacheL3ID": cpu.l3_id,
        "dra.cpu/coreType": cpu.type,
        "dra.cpu/smtEnabled": topology.smt,
    }
    if options.threads is Threads.FULL_CORE:
        attributes["dra.cpu/numCPUs"] = len(cpus)
    if topology.isolated:
        attributes["dra.cpu/isolated"] = cpus <= topology.isolated
    if topology.nohz_full:
        attributes["dra.cpu/nohzFull"] = cpus <= topology.nohz_full
    number = topology.core_numbers.get(cpu.id, cpu.id) if options.threads is Threads.FULL_CORE else cpu.id
    mapping = NodeAllocatableMapping(device_multiplier=Quantity(len(cpus)))
    return Device(
        name=individual_name(number, options),
        attributes={**attributes, **_pcie_attribute(cpus, roots)},
        node_allocatable_resources=_node_resources(mapping, options),
    )


def _numa_attributes(node: int | None, options: CPUOptions) -> dict[str, PlainAttribute]:
    if node is None:
        return {}
    names = ["resource.kubernetes.io/numaNode"]
    if options.compat_attributes:
        names += ["dra.cpu/numaNodeID", "dra.net/numaNode"]
    return dict.fromkeys(names, node)


def _socket_attribute(package: int) -> dict[str, PlainAttribute]:
    return {"dra.cpu/socketID": package} if package >= 0 else {}


def _pcie_attribute(cpus: CPUSet, roots: Mapping[str, CPUSet]) -> dict[str, PlainAttribute]:
    near = tuple(sorted(root for root, local in roots.items() if not local.isdisjoint(cpus)))
    return {"resource.kubernetes.io/pcieRoot": DeviceAttribute(strings=near)} if near else {}


def _node_resources(mapping: NodeAllocatableMapping, options: CPUOptions) -> dict[str, NodeAllocatableResource]:
    return {"cpu": NodeAllocatableResource(mapping=mapping)} if options.node_allocatable_mapping else {}


def _step(topology: Topology, cpus: CPUSet, options: CPUOptions) -> int:
    """Return the step of requests: they ask for a multiple of this number of CPUs.

    With full-core it is the number of threads of a core. If that differs between cores, as on hybrid machines and with
    a thread offline, it is the largest number, provided that it is a multiple of the others; otherwise it is 1.
    """
    if options.threads is not Threads.FULL_CORE:
        return 1
    sizes = {len(core) for core in topology.cores if core <= cpus}
    largest = max(sizes, default=1)
    return 1 if any(largest % size for size in sizes) else largest


def _capacity(count: int, step: int) -> DeviceCapacity:
    unit = Quantity(step)
    if count >= 2 * step:
        policy = CapacityRequestPolicy(default=unit, valid_range=CapacityRequestPolicyRange(min=unit, step=unit))
    else:
        # The API server accepts a range only if there is room for one step above its minimum.
        policy = CapacityRequestPolicy(default=unit, valid_values=(unit,))
    return DeviceCapacity(value=Quantity(count), request_policy=policy)


# The entry about CPUs in a claim's status. The API limits its size to 10 KiB.


_MAX_SENTENCES: Final = 8


def description(grant: Grant, record: Record, topology: Topology) -> dict[str, Any]:
    """Return the CPUs that the grant's containers run on, and their NUMA nodes; empty for admin access.

    The list of many scattered CPUs is too long for an attribute and is not recorded. Such a grant is described by the
    CPUs of its whole claim.
    """
    if grant.admin:
        return {}
    published = grant.attributes.get("dra.cpu/cpuset")
    device = individual_cpus(grant.device, topology)
    if grant.cpus is not None:
        cpus = grant.cpus
    elif published is not None and published.string:
        cpus = CPUSet.parse(published.string)
    else:
        cpus = record.cpus if device is None else device
    nodes = {topology.cpus[cpu].numa for cpu in cpus if cpu in topology.cpus} - {None}
    return {"cpus": str(cpus), "numaNodes": sorted(node for node in nodes if node is not None)} if cpus else {}


def isolation_description(grant: Grant, remaining: Sequence[str] | None) -> dict[str, Any]:
    """Return how far the grant's CPUs are isolated, and some sentences on what still runs on them; empty for `cpuset`.

    `remaining` is None before the first check; nothing is reported about it then.

    Raises:
        DocumentError: the state is not this driver's.
    """
    isolation = treatment_of(grant).isolation
    if grant.admin or isolation is Isolation.CPUSET:
        return {}
    stays = {} if remaining is None else {"stays": list(remaining[:_MAX_SENTENCES]), "staysInAll": len(remaining)}
    return {"isolation": isolation.value, **stays}


# The health of devices and claims whose CPUs are offline, or not for pods: the cgroup of all pods lacks them.
#
# - In individual mode the device of such a CPU is unhealthy, and a claim that holds it is impaired. A core of which a
#   thread is offline goes on with the others.
# - In grouped mode a group is unhealthy if it has no CPU left. A claim that holds such a CPU is impaired.
#
# Such a CPU is not published, because a claim that is allocated it could only fail. A claim that was allocated it
# before keeps it, and the driver continues to report its health, so that the status of the pod shows it. The capacity
# of a group is the number of its CPUs that are online and for pods.


OFFLINE: Final = "CPUsOffline"
NOT_FOR_PODS: Final = "CPUsNotForPods"


def device_health(seen: Iterable[str], inventory: Inventory, options: CPUOptions) -> Iterator[DeviceHealth]:
    """Yield the unhealthy devices by name; `seen` are all devices that this process has ever published."""
    topology: Topology = inventory.hardware
    names = set(seen).difference(device.name for device in inventory.devices)
    if options.mode is DeviceMode.INDIVIDUAL:
        # A claim may be older than this process, so this includes CPUs that this process never published.
        gone = topology.offline | topology.not_for_pods
        names.update(individual_name(cpu, options) for cpu in gone - options.reserved)
        # With full-core a device also vanishes when a reserved thread of its core comes online; its CPUs are healthy.
        cpus = {name: individual_cpus(name, topology) or CPUSet() for name in names}
        names = {name for name in names if not cpus[name] <= topology.for_pods}
    for name in sorted(names):
        yield DeviceHealth(name, Health.UNHEALTHY, _why(name, topology, options))


def _why(name: str, topology: Topology, options: CPUOptions) -> str:
    if options.mode is DeviceMode.GROUPED:
        pods = f", or not for pods: {topology.pods.folder} lacks it" if topology.not_for_pods else ""
        return f"every CPU of the group that claims may get is offline{pods}"
    if individual_cpu(name) in topology.online:
        return f"pods may not run on the CPU: {topology.pods.folder} has CPUs {topology.pods.cpus}"
    return "the CPU is offline"


def impairments(topology: Topology, records: Iterable[Record]) -> Iterator[Impairment]:
    """Yield the claims that hold CPUs which are offline or not for pods."""
    for record in records:
        if offline := record.held - topology.online:
            yield Impairment(record.ref, OFFLINE, _offline(record, offline, topology))
        elif barred := record.held - topology.for_pods:
            yield Impairment(record.ref, NOT_FOR_PODS, _barred(record, barred, topology))


def _runs(record: Record, topology: Topology) -> str:
    cpus = record.cpus
    remaining = cpus & topology.for_pods
    if remaining == cpus:
        return f"runs on {cpus} as before"
    return f"runs only on {remaining} instead of {cpus}" if remaining else "runs on the shared CPUs meanwhile"


def _barred(record: Record, cpus: CPUSet, topology: Topology) -> str:
    return (
        f"claim {record.ref} holds CPUs {cpus}, on which pods may no longer run, and {_runs(record, topology)}: "
        f"give them back to {topology.pods.folder}, which has {topology.pods.cpus or 'none'}, or recreate its pods"
    )


def _offline(record: Record, offline: CPUSet, topology: Topology) -> str:
    state = "offline" if offline <= topology.present else "offline or gone"
    return (
        f"claim {record.ref} holds CPUs {offline}, which are {state}, and {_runs(record, topology)}: bring them back "
        "or recreate its pods"
    )
