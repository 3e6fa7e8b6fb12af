import msgspec

from dranode.api.resource import Device, DeviceTaint
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.storable import DesiredSlices

SHARED = Device(name="group", allow_multiple_allocations=True)
SINGLE = Device(name="single", taints=(DeviceTaint(key="k", effect="None"),))
WANTED = DesiredSlices("d.example.com", "node", Inventory(devices=(SHARED, SINGLE)))


def names(wanted: DesiredSlices) -> list[str]:
    return [device.name for spec in wanted.specs() for device in spec.devices]


def test_shared_devices_are_withdrawn_if_the_server_cannot_store_them_as_shared() -> None:
    (spec,) = WANTED.specs()
    stored = msgspec.structs.replace(
        spec, devices=(msgspec.structs.replace(SHARED, allow_multiple_allocations=None), SINGLE)
    )
    wanted = WANTED.after_drop(0, stored, ("DRAConsumableCapacity",))
    assert names(wanted) == ["single"]
    assert wanted.problem is not None
    assert "turn the feature gate DRAConsumableCapacity on" in wanted.problem
    assert "publish devices that are not shared" in wanted.problem


def test_one_empty_slice_is_left_if_all_devices_are_withdrawn() -> None:
    wanted = DesiredSlices("d.example.com", "node", Inventory(devices=(SHARED,)))
    (spec,) = wanted.after_drop(0, wanted.specs()[0], ("DRAConsumableCapacity",)).specs()
    assert spec.devices == ()


def test_withdrawn_devices_stay_withdrawn_when_hardware_changes() -> None:
    wanted = WANTED.after_drop(0, WANTED.specs()[0], ("DRAConsumableCapacity",))
    more = wanted.of(Inventory(devices=(SHARED, SINGLE, Device(name="new"))))
    assert names(more) == ["single", "new"]
    assert names(more.again()) == ["group", "single", "new"]


def test_other_dropped_fields_are_left_out_without_a_problem() -> None:
    (spec,) = WANTED.specs()
    stored = msgspec.structs.replace(spec, devices=(SHARED, msgspec.structs.replace(SINGLE, taints=())))
    wanted = WANTED.after_drop(0, stored, ("DRADeviceTaints",))
    assert wanted.specs() == (stored,)
    assert wanted.problem is None
    assert wanted.of(WANTED.inventory).specs() == WANTED.specs()


def test_a_gate_of_shared_devices_only_matters_to_drivers_with_them() -> None:
    wanted = DesiredSlices("d.example.com", "node", Inventory(devices=(SINGLE,)))
    assert wanted.after_drop(0, wanted.specs()[0], ("DRAConsumableCapacity",)).problem is None
