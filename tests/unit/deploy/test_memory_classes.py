"""Each memory class selects its own kind of device and nothing else, evaluated with the simulator's CEL."""

import pytest

from dranode.api.resource import Device
from dranode.driver.plugins import load_plugins
from dranode.sim.cel.expression import compile_selector
from dranode.sim.cluster.workload import DEFAULT_CLASSES
from dranode.sim.machines.forms import open_machine
from tests.fakes.kustomize import DEPLOY, the
from tests.kubernetes_schemas import documents

DEVICES: list[tuple[str, Device]] = [
    (plugin.driver, device)
    for plugin in load_plugins(["cpu", "memory"], open_machine("cores=2,threads=2"), {})
    for device in plugin.discover().devices
]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("dra.cpu", "cpudevnuma000"),
        ("dra.memory", "memory-numa0"),
        ("dra.hugepages-2m", "hugepages-2m-numa0"),
        ("dra.hugepages-1g", "hugepages-1g-numa0"),
    ],
)
def test_a_class_selects_one_kind_of_device_and_fails_on_none(name: str, chosen: str) -> None:
    (selector,) = the("DeviceClass", name)["spec"]["selectors"]
    holds = compile_selector(selector["cel"]["expression"])
    # A selector that fails on another driver's device would keep every claim of the class from being allocated.
    assert [each.name for driver, each in DEVICES if holds.matches(driver, each, lists_seen=True)] == [chosen]


def test_the_local_run_has_the_same_classes() -> None:
    shipped = {
        each["metadata"]["name"]: " ".join(each["spec"]["selectors"][0]["cel"]["expression"].split())
        for each in documents(DEPLOY / "deviceclasses.yaml")
    }
    assert shipped == DEFAULT_CLASSES
