"""The health of devices and claims whose CPUs are offline, or not for pods: the cgroup of all pods lacks them.

    mode         published           Unhealthy                              a claim that holds such a CPU
    individual   what pods may use   the device of every CPU that is not,   is impaired too
                                     or of a core whose first CPU is not
    grouped      by what they may    a group that has no CPU left           is impaired; the device stays healthy

Such a CPU is not published, because a claim that was allocated it could only fail. A claim that was allocated it
before keeps it, and the driver goes on reporting its health, so that it shows in the status of the pod. The capacity of
a group is the number of its CPUs that are online and for pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.cpu.devices import individual_cpu, individual_name
from dranode.cpu.options import CPUOptions, DeviceMode
from dranode.cpu.topology import Topology
from dranode.driver.claims.inventory import Inventory
from dranode.driver.claims.plugin import DeviceHealth, Health, Impairment
from dranode.driver.claims.record import Record

OFFLINE: Final = "CPUsOffline"
NOT_FOR_PODS: Final = "CPUsNotForPods"


def device_health(seen: Iterable[str], inventory: Inventory, options: CPUOptions) -> Iterator[DeviceHealth]:
    """Yield the unhealthy devices by name; `seen` are the devices that were published at some time."""
    topology: Topology = inventory.hardware
    names = set(seen).difference(device.name for device in inventory.devices)
    if options.mode is DeviceMode.INDIVIDUAL:
        # With full-core a device also vanishes when a reserved thread of its core comes online; its CPUs are healthy.
        names = {name for name in names if individual_cpu(name) not in topology.for_pods}
        # A claim may be older than this process, so every such CPU counts, whether this process published it or not.
        gone = topology.offline | topology.not_for_pods
        names.update(individual_name(cpu, options) for cpu in gone - options.reserved)
    for name in sorted(names):
        yield DeviceHealth(name, Health.UNHEALTHY, _why(name, topology, options))


def _why(name: str, topology: Topology, options: CPUOptions) -> str:
    if options.mode is DeviceMode.GROUPED:
        pods = f", or not for pods: {topology.pods.folder} lacks it" if topology.not_for_pods else ""
        return f"every CPU of the group that may be handed out is offline{pods}"
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
    return f"runs on {remaining} alone instead of {cpus}" if remaining else "runs on the shared CPUs meanwhile"


def _barred(record: Record, cpus: CPUSet, topology: Topology) -> str:
    return (
        f"pods may not run any more on CPUs {cpus} that claim {record.ref} holds, which {_runs(record, topology)}: "
        f"give them back to {topology.pods.folder}, which has {topology.pods.cpus or 'none'}, or recreate its pods"
    )


def _offline(record: Record, offline: CPUSet, topology: Topology) -> str:
    state = "offline" if offline <= topology.present else "offline or gone"
    return (
        f"CPUs {offline} are {state} that claim {record.ref} holds, which {_runs(record, topology)}: bring them back "
        "or recreate its pods"
    )
