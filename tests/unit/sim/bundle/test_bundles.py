"""Which devices belong together, compared with all subsets of small fleets."""

from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dranode.api.resource import Device, DeviceAttribute, PoolID
from dranode.sim.bundle.groups import NUMA_NODE, BundledDevice, DeviceAmount, DeviceKind, bundles, shared_values

KIND = DeviceKind("a.example")


def device(name: str, *values: int) -> BundledDevice:
    """A device with these NUMA nodes: one as a number, several as a list."""
    attribute = DeviceAttribute(int_=values[0]) if len(values) == 1 else DeviceAttribute(ints=values)
    attributes = {NUMA_NODE: attribute} if values else {}
    return BundledDevice(
        PoolID("a.example", "n"), Device(name=name, attributes=attributes), KIND, DeviceAmount(Fraction(1))
    )


def largest_sets(devices: list[BundledDevice]) -> set[frozenset[str]]:
    """All sets of devices that share a value and are not part of a larger one, found by trying every subset."""
    aligned = [
        frozenset(each.device.name for each in some)
        for size in range(1, len(devices) + 1)
        for some in combinations(devices, size)
        if shared_values(some, NUMA_NODE)
    ]
    return {one for one in aligned if not any(one < other for other in aligned)}


@given(st.lists(st.sampled_from([(), (0,), (1,), (7,)]), max_size=9))
def test_bundles_are_exactly_the_largest_sets_of_aligned_devices(values: list[tuple[int, ...]]) -> None:
    devices = [device(f"d{number}", *each) for number, each in enumerate(values)]
    found = [frozenset(each.device.name for each in one.devices) for one in bundles("n", devices, NUMA_NODE)]
    assert set(found) == largest_sets(devices)
    assert len(found) == len(set(found))


@given(st.lists(st.lists(st.integers(0, 3), max_size=3, unique=True), max_size=8))
def test_a_device_with_several_values_is_only_in_the_largest_bundle(values: list[list[int]]) -> None:
    devices = [device(f"d{number}", *each) for number, each in enumerate(values)]
    found = list(bundles("n", devices, NUMA_NODE))
    names = [each.device.name for one in found for each in one.devices]
    assert sorted(names) == sorted(each.device.name for each in devices if each.values(NUMA_NODE))
    assert all(one.value in shared_values(one.devices, NUMA_NODE) for one in found)
    sizes = [len(one) for one in largest_sets(devices)]
    assert max((len(one.devices) for one in found), default=0) == max(sizes, default=0)
