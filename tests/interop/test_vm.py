"""Tests that need cgroup v2, systemd and two NUMA nodes, run in an emulated machine.

`make interop-vm` says which container runtimes to build and run there.

Attributes:
    INTEROP_CLAIMS: an environment variable: how many random claims for memory are prepared there.
    INTEROP_SEED: an environment variable: their random seed.
"""

import os
from collections.abc import Iterator

import pytest

from tests.interop.containerd import build
from tests.interop.vm.machine import Hardware, Machine, why_no_machine
from tests.interop.vm.system import BACKPORTS

VERSIONS = os.environ.get("INTEROP_VM", "").split()
_REASON = why_no_machine() if VERSIONS else "make interop-vm builds an emulated machine and runs it"
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_REASON), reason=_REASON)]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine() as machine:
        yield machine


@pytest.mark.parametrize("version", VERSIONS)
def test_the_driver_pins_on_two_numa_nodes_with_cgroup_v2(machine: Machine, version: str) -> None:
    build(version)
    machine.test("tests/interop/test_numa.py", INTEROP=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_containers_have_one_request_each_or_shared_cpus_besides(machine: Machine, version: str) -> None:
    build(version)
    machine.test("tests/interop/test_containerd.py", "-k", "request_that_it_names or own_and_shared", INTEROP=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_claims_container_does_not_start_while_another_is_on_its_cpus(machine: Machine, version: str) -> None:
    build(version)
    machine.test("tests/interop/test_starts.py", INTEROP=version)


_ISOLATION = ("tests/interop/test_isolation.py", "-k", "movable or systemd or partition or killed and 5")


def test_interrupts_slices_and_partitions_leave_quiet_cpus_and_come_back(machine: Machine) -> None:
    machine.test(*_ISOLATION, INTEROP="")


def test_partitions_need_no_partition_above_them_where_linux_is_newer() -> None:
    with Machine(Hardware(cpus=4, numa=1, threads=1, suite=BACKPORTS)) as newer:
        newer.test(*_ISOLATION, INTEROP="")


# Two claims with a CPU each, and a setting that differs after the next boot and must not be restored.
_REBOOT = """
import json
from tests.interop.test_isolation import *

folder = Path("/var/lib/rebooted")
folder.mkdir(exist_ok=True)
first, second = (quiet_claim(f"claim-{cpu}", str(cpu)) for cpu in (2, 3))
default = IRQ / "default_smp_affinity"

def quiet(cpu):
    return cpu not in CPUSet.parse_mask(default.read_text().strip())
"""
_BEFORE = """
default.write_text("d")
node = driver(folder)
prepare(node, first)
prepare(node, second)
assert quiet(2) and quiet(3), default.read_text()
"""
_AFTER = """
booted = settings()
assert not quiet(1) and not quiet(2) and not quiet(3), default.read_text()
node = driver(folder)
assert len(node.records()) == 2
node.tune()
assert not quiet(1), default.read_text()
unprepare(node, first)
assert not quiet(1) and not quiet(2), default.read_text()
prepare(node, second)
assert quiet(3) and not quiet(1) and not quiet(2), default.read_text()
unprepare(node, second)
left = {path: (text, booted.get(path)) for path, text in settings().items() if text != booted.get(path)}
assert not {path for path in left if "slice" not in path}, left
assert allowed() == "AllowedCPUs=", allowed()
"""


def test_a_reboot_leaves_nothing_to_restore_and_a_claim_that_is_prepared_again_is_quiet_again() -> None:
    with Machine(Hardware(cpus=4, numa=1, threads=1, memory=1024, reboots=True)) as vm:
        vm.python("-c", _REBOOT + _BEFORE)
        boot = vm.run("cat /proc/sys/kernel/random/boot_id").stdout
        vm.reboot()
        assert vm.run("cat /proc/sys/kernel/random/boot_id").stdout != boot
        vm.python("-c", _REBOOT + _AFTER)


@pytest.mark.parametrize("version", VERSIONS)
def test_claims_give_memory_and_huge_pages_of_two_numa_nodes(machine: Machine, version: str) -> None:
    build(version)
    asked = {name: os.environ[name] for name in ("INTEROP_CLAIMS", "INTEROP_SEED") if name in os.environ}
    machine.test("tests/interop/test_memory.py", INTEROP=version, **{"INTEROP_CLAIMS": "20", **asked})
