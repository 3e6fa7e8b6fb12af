import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceAttribute, DeviceCapacity, DeviceTaint
from dranode.driver.claims.held import ClaimRef, HeldDevice, Holding
from dranode.driver.claims.hooks import Box, Layout
from dranode.driver.claims.plugin import Inventory
from dranode.show.picture.node import DriverView, NodePicture, PlacedDevice, node_picture, numa_of

LAYOUT = Layout("2 CPUs", (Box("NUMA 0", CPUSet((0, 1)), framed=True, numa=0),))
CLAIM = ClaimRef("ns", "claim", "uid")


@pytest.mark.parametrize(
    ("attributes", "numa"),
    [
        ({"resource.kubernetes.io/numaNode": DeviceAttribute(int_=1)}, 1),
        ({"dra.net/numaNode": DeviceAttribute(int_=0)}, 0),
        ({"numa": DeviceAttribute(ints=(3, 4))}, 3),
        ({"numaNode": DeviceAttribute(int_=-1)}, None),
        ({"numaNode": DeviceAttribute(int_=-1), "example.com/numaNodeID": DeviceAttribute(int_=2)}, 2),
        ({"numaNode": DeviceAttribute(string="0")}, None),
        ({"numaNodes": DeviceAttribute(int_=2)}, None),
        ({}, None),
    ],
)
def test_an_attribute_says_on_which_numa_node_a_device_is(
    attributes: dict[str, DeviceAttribute], numa: int | None
) -> None:
    assert numa_of(Device(name="d", attributes=attributes)) == numa


def test_one_driver_gives_the_cpus_and_the_others_the_devices() -> None:
    gpu = Device(name="gpu-0", taints=(DeviceTaint(key="k", value="v", effect="NoExecute"),))
    held = Holding(CLAIM, cpus=CPUSet((1,)))
    views = [
        DriverView("cpus.example.com", Inventory((Device(name="numa-0"),)), LAYOUT, (held,)),
        DriverView("gpu.example.com", Inventory((gpu,)), None, (Holding(CLAIM, (HeldDevice("gpu-0"),)),)),
    ]
    device = PlacedDevice("gpu.example.com", "gpu-0", taints=("k=v:NoExecute",), holders=("ns/claim",))
    assert node_picture(views) == NodePicture(LAYOUT, {"ns/claim": CPUSet((1,))}, (device,))


def test_claims_are_sorted_by_their_cpus_and_then_by_their_devices() -> None:
    devices = (PlacedDevice("d", "x", holders=("b/none", "a/first")),)
    picture = NodePicture(LAYOUT, {"z/second": CPUSet((1,)), "a/first": CPUSet((0,))}, devices)
    assert picture.claims == ("a/first", "z/second", "b/none")


def test_a_device_shared_by_amounts_says_how_much_is_free() -> None:
    size = {"size": DeviceCapacity(value=Quantity("4Gi"))}
    memory = Inventory((Device(name="m-0", capacity=size), Device(name="m-1", capacity=size), Device(name="plain")))
    other = ClaimRef("ns", "other", "uid-2")
    held = tuple(Holding(claim, (HeldDevice("m-0", amount=512 << 20),)) for claim in (CLAIM, other))
    view = DriverView("memory.example.com", memory, None, held, by_amounts=True)
    assert [device.part for device in node_picture([view]).devices] == ["3Gi of 4Gi free", "4Gi of 4Gi free", ""]
    unread = DriverView("d", memory, holders_known=False, by_amounts=True)
    for unknown in (DriverView("d", memory, None, held), DriverView.of("d", memory, None, None), unread):
        assert {device.part for device in node_picture([unknown]).devices} == {""}
