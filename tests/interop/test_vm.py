"""Tests that need another machine than this one, passed in an emulated one: cgroup v2, systemd, two NUMA nodes.

`make interop-vm` says which container runtimes to build and run there.
"""

from __future__ import annotations

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
def test_containers_of_one_pod_have_one_request_each(machine: Machine, version: str) -> None:
    build(version)
    name = "test_each_container_runs_on_the_cpus_of_the_request_that_it_names"
    machine.test(f"tests/interop/test_containerd.py::{name}", INTEROP=version)


_ISOLATION = ("tests/interop/test_isolation.py", "-k", "movable or systemd or partition or killed and 5")


def test_interrupts_slices_and_partitions_leave_quiet_cpus_and_come_back(machine: Machine) -> None:
    machine.test(*_ISOLATION, INTEROP="")


def test_partitions_need_no_partition_above_them_where_linux_is_newer() -> None:
    with Machine(Hardware(cpus=4, numa=1, threads=1, suite=BACKPORTS)) as newer:
        newer.test(*_ISOLATION, INTEROP="")


@pytest.mark.parametrize("version", VERSIONS)
def test_claims_give_memory_and_huge_pages_of_two_numa_nodes(machine: Machine, version: str) -> None:
    build(version)
    machine.test("tests/interop/test_memory.py", INTEROP=version, INTEROP_CLAIMS="20")
