"""How CPUs are that the machine once had: of devices and claims, by what is online now.

    mode         published           Unhealthy                              a claim that holds an offline CPU
    individual   what is online      the device of every CPU that is not    is impaired too
    grouped      by what is online   a group that has no CPU left           is impaired; the device stays healthy

An offline CPU is not published, since whoever was allocated it could only fail; what was allocated before stays
allocated, and its health is told on, so that the pod that has it shows it. A group's capacity is what is online.
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
    """The devices that are unhealthy, by name. `seen` are those that were published at some time."""
    topology: Topology = inventory.hardware
    names = set(seen).difference(device.name for device in inventory.devices)
    if options.mode is DeviceMode.INDIVIDUAL:
        # A CPU is published no more, too, when a reserved thread of its core is back and only whole cores are given.
        names = {name for name in names if individual_cpu(name) not in topology.online}
        # A claim may be older than this process, so every CPU that is there and offline counts, published or not.
        names.update(map(individual_name, topology.offline - options.reserved))
    for name in sorted(names):
        yield DeviceHealth(name, Health.UNHEALTHY, _GONE[options.mode])


def impairments(topology: Topology, records: Iterable[Record]) -> Iterator[Impairment]:
    """The claims that hold CPUs which are offline."""
    for record in records:
        offline = CPUSet.parse(record.held) - topology.online
        if offline:
            yield Impairment(record.ref, OFFLINE, _message(record, offline, topology))


def _message(record: Record, offline: CPUSet, topology: Topology) -> str:
    cpus = CPUSet.parse(record.cpus)
    left = cpus & topology.online
    if left == cpus:
        runs = f"runs on {cpus} as before"
    else:
        runs = f"runs on {left} alone instead of {cpus}" if left else f"cannot run on any of {cpus}"
    state = "offline" if offline <= topology.present else "offline or gone"
    return (
        f"CPUs {offline} are {state} that claim {record.ref} holds, which {runs}: bring them back or recreate its pods"
    )
