"""The health of devices and claims whose CPUs are offline.

    mode         published           Unhealthy                              a claim that holds an offline CPU
    individual   what is online      the device of every CPU that is not,   is impaired too
                                     or of a core whose first CPU is not
    grouped      by what is online   a group that has no CPU left           is impaired; the device stays healthy

An offline CPU is not published, because a claim that was allocated it could only fail. A claim that was allocated it
before keeps it, and the driver goes on reporting its health, so that it shows in the status of the pod. The capacity of
a group is the number of its online CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dranode.cpu.devices import individual_cpu, individual_name
from dranode.cpu.options import CPUOptions, DeviceMode
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.health import DeviceHealth, Health, Impairment
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.record import Record

OFFLINE: Final = "CPUsOffline"

_GONE: Final = {
    DeviceMode.INDIVIDUAL: "the CPU is offline",
    DeviceMode.GROUPED: "every CPU of the group that may be handed out is offline",
}


def device_health(seen: Iterable[str], inventory: Inventory, options: CPUOptions) -> Iterator[DeviceHealth]:
    """Yield the unhealthy devices by name; `seen` are the devices that were published at some time."""
    topology: Topology = inventory.hardware
    names = set(seen).difference(device.name for device in inventory.devices)
    if options.mode is DeviceMode.INDIVIDUAL:
        # With full-core a device also vanishes when a reserved thread of its core comes online; its CPUs are healthy.
        names = {name for name in names if individual_cpu(name) not in topology.online}
        # A claim may be older than this process, so every offline CPU counts, whether this process published it or not.
        names.update(individual_name(cpu, options) for cpu in topology.offline - options.reserved)
    for name in sorted(names):
        yield DeviceHealth(name, Health.UNHEALTHY, _GONE[options.mode])


def impairments(topology: Topology, records: Iterable[Record]) -> Iterator[Impairment]:
    """Yield the claims that hold offline CPUs."""
    for record in records:
        offline = record.held - topology.online
        if offline:
            yield Impairment(record.ref, OFFLINE, _message(record, offline, topology))


def _message(record: Record, offline: CPUSet, topology: Topology) -> str:
    cpus = record.cpus
    remaining = cpus & topology.online
    if remaining == cpus:
        runs = f"runs on {cpus} as before"
    else:
        runs = f"runs on {remaining} alone instead of {cpus}" if remaining else "runs on the shared CPUs meanwhile"
    state = "offline" if offline <= topology.present else "offline or gone"
    return (
        f"CPUs {offline} are {state} that claim {record.ref} holds, which {runs}: bring them back or recreate its pods"
    )
