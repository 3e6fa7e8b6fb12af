"""Recorded claims for memory on a machine made of kernel files, and their containers."""

from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.resource import ResourceClaim
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.snapshot import PinnedClaim
from dranode.memory.options import MemoryOptions
from dranode.memory.plugin import MemoryPlugin
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import POD_GROUP
from tests.fakes.recorded_machine import RecordedMachine

MIB = 1 << 20
HARDWARE = "sockets=2,cores=4"
# The variables that CDI injects for a claim `a` with one result of ordinary memory and one of huge pages.
WHOLE = "DRANODE_MEMS_uid-a=1 DRANODE_MEMORY_uid-a_0=1 DRANODE_MEMORY_uid-a_1=1"
MEMORY = {"memory-numa1": "512Mi", "hugepages-2m-numa1": "64Mi"}


def prepare(
    machine: RecordedMachine, amounts: dict[str, str], name: str = "a", *, grouped: bool = False, **config: Any
) -> None:
    """Record a claim of the pod `pod-<name>`, or of the PodGroup `crew`, with the memory driver."""
    consumed = {device: {"size": size} for device, size in amounts.items()}
    take(machine, MemoryPlugin(open_machine(HARDWARE), MemoryOptions()), consumed, config, name, grouped=grouped)


def unread_pins(monkeypatch: pytest.MonkeyPatch, uid: str) -> None:
    """Make the memory driver fail to read a claim's record, as if a newer version had written it."""
    pinned = MemoryPlugin.pinned

    def read(plugin: MemoryPlugin, record: Record) -> PinnedClaim:
        if record.uid == uid:
            raise DocumentError("it is of another version", "grants[0].state")
        return pinned(plugin, record)

    monkeypatch.setattr(MemoryPlugin, "pinned", read)


def local_cpus(machine: RecordedMachine) -> None:
    """Record two CPUs of NUMA node 1 for the claim `a`, which takes its memory from there."""
    local = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "memory": "local"}
    take(machine, CPUPlugin(open_machine(HARDWARE), CPUOptions()), {"cpudevnuma001": {"dra.cpu/cpu": "2"}}, local)


def take(
    machine: RecordedMachine,
    plugin: Plugin,
    consumed: dict[str, dict[str, str]],
    config: dict[str, Any],
    name: str = "a",
    *,
    grouped: bool = False,
) -> None:
    results = [
        {
            "request": f"r{number}",
            "driver": plugin.driver,
            "pool": "node",
            "device": device,
            "consumedCapacity": capacity,
            "shareID": f"share-{device}",
        }
        for number, (device, capacity) in enumerate(consumed.items())
    ]
    opaque = {"source": "FromClaim", "opaque": {"driver": plugin.driver, "parameters": config}}
    document = {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": results, "config": [opaque] if config else []}},
            "reservedFor": [
                POD_GROUP if grouped else {"resource": "pods", "name": f"pod-{name}", "uid": f"pod-uid-{name}"}
            ],
        },
    }
    data = machine.folder / "kubelet" / "plugins" / plugin.driver
    data.mkdir(exist_ok=True)
    node = NodeClaims(plugin, data, machine.folder / "cdi")
    node.open()
    claim = decode(ResourceClaim, document)
    answer = node.prepare({reference(claim): claim})[f"uid-{name}"]
    assert isinstance(answer, Prepared), answer
    node.close()


def container(machine: RecordedMachine, env: str = WHOLE, nodes: str = "1", **limits: str) -> str:
    cgroup = machine.container(500, "a", "0-7", env)
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.mems.effective", f"{nodes}\n")
    for size, limit in limits.items():
        machine.write(f"sys/fs/cgroup/{cgroup}/hugetlb.{size.removeprefix('of_')}.max", f"{limit}\n")
    return cgroup
