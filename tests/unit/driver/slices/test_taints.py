"""Unhealthy devices are tainted, and lose the taint when they are healthy again."""

from pathlib import Path

from dranode.api.resource import Device, DeviceTaint, ResourceSlice
from dranode.driver.claims.plugin import DeviceHealth, Health, Inventory
from dranode.driver.local.cluster import FolderCluster
from dranode.driver.local.store import Store
from dranode.driver.slices.desired import taint_key, tainted

DRIVER = "lamps.example.com"
LAMPS = Inventory(devices=(Device(name="a"), Device(name="b", taints=(DeviceTaint(key="x/y", effect="NoExecute"),))))
TAINT = DeviceTaint(key="lamps.example.com/unhealthy", effect="NoSchedule")


def of(health: Health, device: str = "a") -> Inventory:
    return tainted(DRIVER, LAMPS, [DeviceHealth(device, health)])


def test_only_unhealthy_devices_are_tainted() -> None:
    assert [device.taints for device in of(Health.UNHEALTHY).devices] == [(TAINT,), LAMPS.devices[1].taints]
    assert of(Health.HEALTHY) == of(Health.UNKNOWN) == LAMPS


def test_taints_of_another_reason_stay() -> None:
    assert of(Health.UNHEALTHY, "b").devices[1].taints == (*LAMPS.devices[1].taints, TAINT)


def test_a_device_that_its_plug_in_has_tainted_is_not_tainted_twice() -> None:
    own = DeviceTaint(key=taint_key(DRIVER), value="xid", effect="NoSchedule", time_added="2026-11-20T00:00:00Z")
    inventory = Inventory(devices=(Device(name="a", taints=(own,)),))
    assert tainted(DRIVER, inventory, [DeviceHealth("a", Health.UNHEALTHY)]) == inventory


def test_health_of_a_removed_device_changes_nothing() -> None:
    assert of(Health.UNHEALTHY, "gone") == LAMPS


def test_a_taint_is_published_kept_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cluster = FolderCluster(store, "node")

    def published(inventory: Inventory) -> ResourceSlice:
        cluster.publish(DRIVER, inventory)
        (one,) = store.list(ResourceSlice)
        return one

    clean = published(LAMPS)
    dirty = published(of(Health.UNHEALTHY))
    assert dirty.metadata.name == clean.metadata.name
    assert [taint.key for taint in dirty.spec.devices[0].taints] == [TAINT.key]
    assert published(of(Health.UNHEALTHY)) == dirty
    assert published(of(Health.HEALTHY)).spec.devices == clean.spec.devices
