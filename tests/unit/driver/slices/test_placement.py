"""Devices stay in their slices, so that a device that comes or goes changes one slice."""

import msgspec
import pytest

from dranode.api.quantity import Quantity
from dranode.api.resource import Counter, CounterSet, Device, DeviceTaint, ResourceSliceSpec
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.desired import desired_slices, placed
from dranode.driver.slices.plan import CreateSlice, UpdateSlice, published_specs
from tests.fakes.slices import SliceShelf

CPUS = tuple(Device(name=f"cpudev{number:03d}") for number in range(1024))
TAINT = DeviceTaint(key="k", effect="NoSchedule")


def without(*numbers: int) -> tuple[Device, ...]:
    return tuple(device for number, device in enumerate(CPUS) if number not in numbers)


class Pool:
    """What one driver has published."""

    def __init__(self) -> None:
        self.shelf = SliceShelf()

    def publish(self, devices: tuple[Device, ...], counters: tuple[CounterSet, ...] = ()) -> list[type]:
        """Publish devices; return the kinds of the necessary writes."""
        there = published_specs(self.shelf.slices.values(), "node-a")
        specs = desired_slices("dra.cpu", "node-a", Inventory(devices=devices, counters=counters), there)
        return [type(change) for change in self.shelf.publish(specs)]

    def specs(self) -> list[ResourceSliceSpec]:
        return [one.spec for _, one in sorted(self.shelf.slices.items())]

    def names(self) -> list[list[str]]:
        return [[device.name for device in spec.devices] for spec in self.specs()]


def test_a_machine_of_1024_cpus_is_published_in_eight_writes() -> None:
    assert Pool().publish(CPUS) == [CreateSlice] * 8


@pytest.mark.parametrize("cpu", [0, 127, 128, 500, 1023])
def test_a_cpu_that_goes_and_comes_back_costs_one_write_each(cpu: int) -> None:
    pool = Pool()
    pool.publish(CPUS)
    before = pool.names()
    assert pool.publish(without(cpu)) == [UpdateSlice]
    assert sum(map(len, pool.names())) == 1023
    assert pool.publish(CPUS) == [UpdateSlice]
    assert pool.names() == before
    assert {spec.pool.generation for spec in pool.specs()} == {1}


def test_changes_in_several_slices_need_a_new_generation_of_all() -> None:
    pool = Pool()
    pool.publish(CPUS)
    assert pool.publish(without(5, 900)) == [UpdateSlice] * 8
    assert [len(names) for names in pool.names()] == [127, 128, 128, 128, 128, 128, 128, 127]
    assert {spec.pool.generation for spec in pool.specs()} == {2}


def test_a_new_device_goes_where_there_is_room() -> None:
    pool = Pool()
    pool.publish(without(5, 900))
    new = Device(name="a-new-one")
    assert pool.publish((new, *without(5, 900))) == [UpdateSlice]
    assert [len(names) for names in pool.names()] == [128, 128, 128, 128, 128, 128, 128, 127]
    # The driver's order holds only within a slice.
    assert pool.names()[-1][0] == "a-new-one"
    assert pool.publish((new, *CPUS)) == [UpdateSlice] * 8 + [CreateSlice]


def test_devices_are_split_again_if_a_slice_would_be_empty() -> None:
    pool = Pool()
    pool.publish(CPUS[:300])
    pool.publish((*CPUS[:128], *CPUS[256:300]))
    assert [len(names) for names in pool.names()] == [128, 44]
    assert pool.names()[0][0] == "cpudev000"


def test_one_taint_moves_devices_once_and_its_end_moves_none() -> None:
    pool = Pool()
    pool.publish(CPUS[:256])
    tainted = (msgspec.structs.replace(CPUS[0], taints=(TAINT,)), *CPUS[1:256])
    pool.publish(tainted)
    assert [len(names) for names in pool.names()] == [64, 64, 64, 64]
    assert pool.publish(CPUS[:256]) == [UpdateSlice]
    assert pool.publish(tainted) == [UpdateSlice]


def test_a_slice_that_somebody_deleted_gets_its_devices_back() -> None:
    pool = Pool()
    pool.publish(CPUS)
    before = pool.names()
    del pool.shelf.slices[sorted(pool.shelf.slices)[3]]
    assert pool.publish(CPUS) == [UpdateSlice] * 7 + [CreateSlice]
    assert pool.names() == before


def test_a_device_that_somebody_put_into_two_slices_stays_in_the_first() -> None:
    first, second = CPUS[:100], (*CPUS[100:200], CPUS[3])
    assert placed(CPUS[:200], 128, (first, second)) == (CPUS[:100], CPUS[100:200])


def test_slices_of_counters_get_no_devices() -> None:
    sets = (CounterSet(name="s", counters={"c": Counter(value=Quantity(1))}),)
    pool = Pool()
    pool.publish(CPUS[:200], sets)
    before = pool.names()
    assert pool.publish(without(*range(200, 1024), 150), sets) == [UpdateSlice]
    assert pool.publish(CPUS[:200]) != []
    assert pool.names() == before[1:]
