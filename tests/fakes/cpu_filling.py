"""Claims for everything that a machine's slices publish, allocated one after another as a scheduler would."""

from collections.abc import Iterator

from dranode.api.cpuset import CPUSet
from dranode.api.resource import Device
from dranode.cpu.devices import cpu_devices, groups
from dranode.cpu.options import CPUOptions, DeviceMode, GroupBy, Threads
from dranode.cpu.topology import Topology
from dranode.driver.claims.grant import AllocatedClaim
from tests.fakes.cpu import claim, config, granted, holding, own, result


def filled(machine: Topology, options: CPUOptions, sizes: Iterator[int]) -> CPUSet:
    """Return the CPUs that are still free when claims hold everything that is published.

    Args:
        machine: the machine.
        options: the driver's options for publishing it.
        sizes: the size of each request for capacity, in steps; an endless iterator.

    Raises:
        ClaimError: a claim is refused.
    """
    held: dict[str, str] = {}
    for device in cpu_devices(machine, options, {}):
        for asked in _claims(machine, options, device, sizes, held):
            held[asked.ref.name] = str(granted(machine, asked, options, holding(**held)).held)
    return machine.online - _union(held)


def _claims(
    machine: Topology, options: CPUOptions, device: Device, sizes: Iterator[int], held: dict[str, str]
) -> Iterator[AllocatedClaim]:
    if options.mode is DeviceMode.INDIVIDUAL:
        yield claim([result(device.name)], name=device.name)
        return
    capacity = device.capacity["dra.cpu/cpu"]
    assert capacity.request_policy is not None
    assert capacity.request_policy.default is not None
    step, left = int(capacity.request_policy.default.value), int(capacity.value.value)
    assert left % step == 0
    while left:
        count = step * min(next(sizes), left // step)
        left -= count
        chosen = []
        if options.group_by is GroupBy.MACHINE:
            (group,) = groups(machine, options)
            chosen = [config(own(cpuset=str(_of(machine, group.cpus - _union(held), count, options.threads))))]
        yield claim([result(device.name, count)], chosen, name=f"{device.name}-{left}")


def _of(machine: Topology, free: CPUSet, count: int, threads: Threads) -> CPUSet:
    """Pick `count` free CPUs. If claims must have whole cores, take the largest cores that fit first."""
    whole = sorted((core for core in machine.cores if core <= free), key=len, reverse=True)
    parts = whole if threads is Threads.FULL_CORE else [CPUSet((cpu,)) for cpu in free]
    chosen = CPUSet()
    for part in parts:
        if len(chosen) + len(part) <= count:
            chosen |= part
    assert len(chosen) == count
    return chosen


def _union(held: dict[str, str]) -> CPUSet:
    return CPUSet.union(map(CPUSet.parse, held.values()))
