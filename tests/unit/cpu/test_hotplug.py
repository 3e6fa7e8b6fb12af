"""CPUs that go offline and come back: which uevents count, what is unhealthy, and which claims are impaired."""

import threading

import pytest

from dranode.api.cpuset import CPUSet
from dranode.cpu.devices import impairments
from dranode.cpu.options import CPUOptions, DeviceMode, Threads
from dranode.cpu.plugin import CPUPlugin, cpu_of_event
from dranode.driver.claims.plugin import Health
from dranode.driver.claims.record import Record
from dranode.driver.machine.udev import Events
from tests.fakes.cpu import claim, granted, result
from tests.fakes.lifecycle import HotplugRoot


@pytest.mark.parametrize(
    ("action", "subsystem", "path", "cpu"),
    [
        ("offline", "cpu", "/devices/system/cpu/cpu3", 3),
        ("online", "cpu", "/devices/system/cpu/cpu127", 127),
        ("add", "cpu", "/devices/system/cpu/cpu8", 8),
        ("add", "cpu", "/devices/system/cpu/cpufreq", None),
        ("change", "pci", "/devices/pci0000:00/0000:00:01.0", None),
        ("add", "node", "/devices/system/node/node1", None),
    ],
)
def test_a_uevent_is_an_event_if_it_is_about_a_cpu(action: str, subsystem: str, path: str, cpu: int | None) -> None:
    assert cpu_of_event(action, subsystem, path, {}) == cpu


def made(description: str, mode: DeviceMode = DeviceMode.GROUPED, reserved: str = "") -> tuple[CPUPlugin, HotplugRoot]:
    machine = HotplugRoot(description)
    return CPUPlugin(machine, CPUOptions(mode=mode, reserved=CPUSet.parse(reserved))), machine


def unhealthy(driver: CPUPlugin) -> dict[str, str]:
    told = list(driver.health(driver.discover()))
    assert all(each.health is Health.UNHEALTHY for each in told)
    return {each.device: each.message for each in told}


def test_an_offline_cpu_is_unhealthy_in_individual_mode_even_if_it_was_never_online() -> None:
    driver, machine = made("sockets=1,cores=4", DeviceMode.INDIVIDUAL, reserved="0,3")
    machine.online = "0-1"
    assert unhealthy(driver) == {"cpu002": "the CPU is offline"}
    machine.online = "0-3"
    assert unhealthy(driver) == {}


def test_a_core_with_a_reserved_thread_is_not_reported_as_offline() -> None:
    machine = HotplugRoot("sockets=1,cores=2,threads=2")
    options = CPUOptions(mode=DeviceMode.INDIVIDUAL, reserved=CPUSet.parse("2"), threads=Threads.FULL_CORE)
    driver = CPUPlugin(machine, options)
    machine.online = "0-1,3"
    assert "core000" in [device.name for device in driver.discover().devices]
    machine.online = "0-3"
    assert "core000" not in [device.name for device in driver.discover().devices]
    assert unhealthy(driver) == {}
    machine.online = "0,2"
    assert unhealthy(driver)["core001"] == "the CPU is offline"


def test_a_core_keeps_its_name_and_its_claim_while_its_first_thread_is_offline() -> None:
    machine = HotplugRoot("sockets=1,cores=3,threads=2")
    driver = CPUPlugin(machine, CPUOptions(mode=DeviceMode.INDIVIDUAL, threads=Threads.FULL_CORE))
    machine.online = "0-5"
    driver.discover()
    for online, cpus in (("0-1,3-5", "5"), ("0-5", "2,5"), ("0-4", "2"), ("3-5", "5")):
        machine.online = online
        inventory = driver.discover()
        assert "core002" in [device.name for device in inventory.devices], online
        assert "core002" not in unhealthy(driver)
        got = granted(inventory.hardware, claim([result("core002")]), driver.options)
        assert str(got.cpus) == cpus
    machine.online = "0-1,3-4"
    assert unhealthy(driver)["core002"] == "the CPU is offline"


def test_a_group_is_unhealthy_only_when_its_last_cpu_is_offline() -> None:
    driver, machine = made("sockets=2,cores=2")
    assert unhealthy(driver) == {}
    machine.online = "0-2"
    assert unhealthy(driver) == {}
    machine.online = "0-1"
    assert unhealthy(driver) == {"cpudevnuma001": "every CPU of the group that claims may get is offline"}


def test_a_machine_with_only_reserved_cpus_left_publishes_nothing() -> None:
    driver, machine = made("sockets=1,cores=4", reserved="0")
    driver.discover()
    machine.online = "0"
    assert driver.discover().devices == ()
    assert unhealthy(driver) == {"cpudevnuma000": "every CPU of the group that claims may get is offline"}


@pytest.mark.parametrize(
    ("online", "cpus", "held", "sentence"),
    [
        ("0-7", "2-3", "2-3", None),
        (
            "0-2,4-7",
            "2-3",
            "2-3",
            (
                "claim default/a holds CPUs 3, which are offline, and runs only on 2 instead of 2-3: "
                "bring them back or recreate its pods"
            ),
        ),
        (
            "0-1",
            "2-3",
            "2-3",
            (
                "claim default/a holds CPUs 2-3, which are offline, and runs on the shared CPUs meanwhile: "
                "bring them back or recreate its pods"
            ),
        ),
        (
            "0-5,7",
            "2",
            "2,6",
            (
                "claim default/a holds CPUs 6, which are offline, and runs on 2 as before: "
                "bring them back or recreate its pods"
            ),
        ),
        ("0-1", "", "", None),
    ],
)
def test_a_claim_that_holds_offline_cpus_is_impaired(online: str, cpus: str, held: str, sentence: str | None) -> None:
    driver, machine = made("sockets=1,cores=8")
    machine.online = online
    record = Record(uid="u", namespace="default", name="a", cpus=CPUSet.parse(cpus), held=CPUSet.parse(held))
    found = list(impairments(driver.discover().hardware, [record]))
    assert [each.message for each in found] == ([] if sentence is None else [sentence])


def test_the_machine_is_read_again_after_an_event_of_the_kernel() -> None:
    class Once:
        """One CPU goes offline; a caller that waits longer has seen enough."""

        def __init__(self) -> None:
            self.events = [1]

        def next(self, timeout: float) -> int | None:
            del timeout
            return self.events.pop() if self.events else None

    def source() -> Events[int]:
        return Once()

    stop = threading.Event()
    looks = 0
    for _ in CPUPlugin(HotplugRoot("sockets=1,cores=4"), CPUOptions(), source).watch(stop):
        looks += 1
        stop.set()
    assert looks == 1
