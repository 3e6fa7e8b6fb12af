from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceCapacity
from dranode.driver.claims.held import ClaimRef, HeldDevice, Holding
from dranode.driver.claims.hooks import Box, Layout
from dranode.driver.claims.plugin import Inventory
from dranode.show.picture.fleet import DeviceKey, DeviceShare
from dranode.show.picture.node import DriverView
from dranode.show.picture.pictures import views_picture

LAYOUT = Layout("2 CPUs", (Box("NUMA 0", CPUSet((0, 1)), framed=True, numa=0),))
CLAIM = ClaimRef("ns", "claim", "uid")


def views(*holdings: Holding) -> list[DriverView]:
    cpus = tuple(holding for holding in holdings if holding.cpus)
    gpus = tuple(holding for holding in holdings if holding.devices)
    return [
        DriverView("cpus", Inventory((Device(name="numa-0"),)), LAYOUT, cpus),
        DriverView("gpus", Inventory((Device(name="gpu-0"),)), None, gpus, {"ns/claim": ("ns/pod",)}),
    ]


def test_a_node_is_a_fleet_of_one_with_single_cpus() -> None:
    held = views(Holding(CLAIM, cpus=CPUSet((1,))), Holding(CLAIM, (HeldDevice("gpu-0"),)))
    picture = views_picture("Node n", "n", [("before", views()), ("after", held)])
    (node,) = picture.nodes
    assert (node.layout, [device.key for device in node.devices]) == (LAYOUT, [DeviceKey("gpus", "n", "gpu-0")])
    before, after = picture.moments
    assert before.claims == ()
    (claim,) = after.claims
    assert (claim.name, claim.pods, claim.cpus) == ("ns/claim", ("ns/pod",), {"n": "1"})
    assert claim.shares == (DeviceShare(DeviceKey("gpus", "n", "gpu-0")),)


def test_a_claims_share_of_a_device_comes_from_its_allocation() -> None:
    key = DeviceKey("gpus", "n", "gpu-0")
    shares = {"ns/claim": (DeviceShare(key, {"memory": Quantity("8Gi")}),)}
    held = views(Holding(CLAIM, (HeldDevice("gpu-0"),)))
    (claim,) = views_picture("Node n", "n", [("now", held)], shares=shares).moments[0].claims
    assert claim.shares == shares["ns/claim"]


def test_a_claims_amount_of_a_device_comes_from_its_record() -> None:
    memory = Device(name="m-0", capacity={"memory.example.com/size": DeviceCapacity(value=Quantity("4Gi"))})
    half = Holding(CLAIM, (HeldDevice("m-0", amount=2 << 30),))
    view = DriverView("memory.example.com", Inventory((memory,)), None, (half,), by_amounts=True)
    key = DeviceKey("memory.example.com", "n", "m-0")
    one_of_two = {"ns/claim": (DeviceShare(key, {"size": Quantity("1Gi")}),)}
    for shares in ({}, one_of_two):
        (claim,) = views_picture("Node n", "n", [("now", [view])], shares=shares).moments[0].claims
        assert claim.shares == (DeviceShare(key, {"size": Quantity("2Gi")}),)
