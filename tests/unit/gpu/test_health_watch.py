"""Health of GPUs over time: errors, taints until a GPU has been quiet, and when the machine is read again."""

import threading

import pytest

from dranode.driver.claims.plugin import Health
from dranode.driver.machine.udev import Events
from dranode.gpu.plugin import GPUEvent, GPUPlugin
from tests.fakes.gpu import DEVICES
from tests.fakes.gpu_machines import laptop

RTX = "gpu-0000-01-00-0"


def test_aer_errors_make_a_gpu_unhealthy_and_taint_it_until_it_has_been_quiet() -> None:
    machine, now = laptop(), [1_800_000_000.0]
    driver = GPUPlugin(machine.root(), tainted=True, clock=lambda: now[0])
    found = driver.discover()
    assert {one.health for one in driver.health(found)} == {Health.HEALTHY}
    machine.put(machine.root().resolve(f"{DEVICES}/0000:01:00.0/aer_dev_fatal"), "DLP 1\nTOTAL_ERR_FATAL 1")
    assert {one.device: one.health for one in driver.health(found)}[RTX] is Health.UNHEALTHY
    assert [taint.value for taint in driver.discover().device(RTX).taints] == ["aer-fatal"]  # type: ignore[union-attr]
    now[0] += 600
    assert {one.health for one in driver.health(found)} == {Health.HEALTHY}
    assert driver.discover() == found


def test_a_gpu_is_not_healthy_while_its_error_counters_cannot_be_read() -> None:
    machine = laptop()
    driver = GPUPlugin(machine.root(), tainted=True)
    found = driver.discover()
    path = machine.root().resolve(f"{DEVICES}/0000:01:00.0/aer_dev_nonfatal")
    machine.put(path, "")
    assert {one.device: (one.health, one.message) for one in driver.health(found)}[RTX] == (
        Health.UNKNOWN,
        "/sys/bus/pci/devices/0000:01:00.0/aer_dev_nonfatal cannot be read: it has no TOTAL_ERR_NONFATAL",
    )
    machine.put(path, "TOTAL_ERR_NONFATAL 7")
    assert {one.health for one in driver.health(found)} == {Health.HEALTHY}


def test_without_device_taints_health_is_reported_and_nothing_is_tainted() -> None:
    driver = GPUPlugin(laptop().root())
    found = driver.discover()
    driver.note(GPUEvent("change", "0000:01:00.0", "rebind"))
    assert {one.device: one.health for one in driver.health(found)}[RTX] is Health.UNHEALTHY
    assert driver.discover() == found


def test_the_watch_requests_a_reading_when_taints_are_due() -> None:
    machine = laptop()

    class Wedging:
        def __init__(self) -> None:
            self.events = [GPUEvent("change", "0000:01:00.0", "rebind")]

        def next(self, timeout: float) -> GPUEvent | None:
            del timeout
            return self.events.pop() if self.events else None

    driver, stop = GPUPlugin(machine.root(), tainted=True, events=Wedging), threading.Event()
    driver.discover()
    for _ in driver.watch(stop):
        stop.set()
    (taint,) = driver.discover().device(RTX).taints  # type: ignore[union-attr]
    assert taint.value == "wedged"


def test_without_kernel_events_the_machine_is_still_read(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> Events[GPUEvent]:
        raise OSError(1, "Operation not permitted")

    driver, stop = GPUPlugin(laptop().root(), events=refused), threading.Event()
    stop.set()
    assert list(driver.watch(stop)) == []
    assert "no kernel events" in caplog.text
