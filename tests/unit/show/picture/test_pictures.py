""""""

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dranode.driver.claims.held import ClaimRef, HeldDevice, Holding
from dranode.driver.claims.hooks import Box, Layout
from dranode.driver.claims.plugin import Inventory
from dranode.show.picture.devices import published
from dranode.show.picture.fleet import DeviceKey, DeviceShare, FleetClaim, FleetMoment
from dranode.show.picture.node import DriverView
from dranode.show.picture.pictures import moment, views_picture

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


def part(name: str, parts: int) -> Device:
    draw = DeviceCounterConsumption(counter_set="gpu-0", counters={"parts": Counter(value=Quantity(parts))})
    return Device(name=name, consumes_counters=(draw,))


def cpus(numa: int, **fields: object) -> Device:
    return Device(
        name=f"numa-{numa}",
        attributes={"numaNode": DeviceAttribute(int_=numa)},
        capacity={"d/cpu": DeviceCapacity(value=Quantity(8))},
        allow_multiple_allocations=True,
        **fields,
    )


def gpu(number: int) -> Device:
    return Device(name=f"gpu-{number}", attributes={"numa": DeviceAttribute(int_=number // 2)})


def memory(numa: int, step: str) -> Device:
    only = CapacityRequestPolicyRange(min=Quantity(step), step=Quantity(step))
    policy = CapacityRequestPolicy(default=Quantity(step), valid_range=only)
    return Device(
        name=f"memory-{step}-{numa}",
        attributes={"numaNode": DeviceAttribute(int_=numa)},
        capacity={"size": DeviceCapacity(value=Quantity("8Gi"), request_policy=policy)},
        allow_multiple_allocations=True,
    )


def standing(devices: list[Device], *claims: FleetClaim, counters: int = 0) -> FleetMoment:
    sets = (CounterSet(name="gpu-0", counters={"parts": Counter(value=Quantity(counters))}),) if counters else ()
    spec = ResourceSliceSpec(
        driver="d", pool=ResourcePool(name="n"), node_name="n", devices=tuple(devices), shared_counters=sets
    )
    return moment("now", published([ResourceSlice(spec=spec)], {}, {}), claims)


def claim(device: str, cpu: int | None = None, *, admin: bool = False) -> FleetClaim:
    consumed = {"cpu": Quantity(cpu)} if cpu is not None else {}
    return FleetClaim(f"ns/{device}-{cpu}", shares=(DeviceShare(DeviceKey("d", "n", device), consumed, admin=admin),))


def test_a_part_blocks_the_whole_and_the_whole_blocks_its_parts() -> None:
    devices = [part("whole", 2), part("half-0", 1), part("half-1", 1)]
    assert standing(devices, counters=2).blocked == frozenset()
    assert {key.device for key in standing(devices, claim("half-0"), counters=2).blocked} == {"whole"}
    assert {key.device for key in standing(devices, claim("whole"), counters=2).blocked} == {"half-0", "half-1"}
    assert standing(devices, claim("whole", admin=True), counters=2).blocked == frozenset()


@pytest.mark.parametrize(
    ("held", "units"),
    [
        ([], ()),
        ([("numa-0", 1)], ()),  # numa-1 is whole
        ([("numa-0", 4), ("numa-1", 4)], ("d/cpu",)),
        ([("numa-0", 5), ("numa-1", 4)], ()),  # the 7 free ones are fewer than a box has
        ([("numa-0", None), ("numa-1", 1)], ()),  # how much of numa-0 is held is unknown: nothing of it is free
    ],
)
def test_what_is_free_only_in_pieces_is_fragmented(held: list[tuple[str, int | None]], units: tuple[str, ...]) -> None:
    standing_now = standing([cpus(0), cpus(1)], *(claim(device, cpu) for device, cpu in held))
    assert standing_now.fragmented.get("n", ()) == units


def test_whole_devices_are_counted_and_tainted_ones_are_not_free() -> None:
    devices = [gpu(number) for number in range(4)]
    assert standing(devices, claim("gpu-0"), claim("gpu-2")).fragmented == {"n": ("d",)}
    assert standing(devices, claim("gpu-0"), claim("gpu-1")).fragmented == {}
    taint = (DeviceTaint(key="k", effect="NoSchedule"),)
    boxes = [cpus(0, taints=taint), cpus(1), cpus(2)]
    assert standing(boxes, claim("numa-1", 4), claim("numa-2", 4)).fragmented == {"n": ("d/cpu",)}


@pytest.mark.parametrize(
    ("held", "units"),
    [
        ({"memory-1Gi-0": 4, "memory-1Gi-1": 4}, ("d/size in steps of 1Gi",)),
        ({"memory-1Mi-0": 1, "memory-1Gi-1": 1}, ()),  # one NUMA node is free entirely, for each step
    ],
)
def test_devices_with_different_steps_are_fragmented_separately(held: dict[str, int], units: tuple[str, ...]) -> None:
    devices = [memory(numa, step) for step in ("1Mi", "1Gi") for numa in range(2)]
    claims = [
        FleetClaim(device, shares=(DeviceShare(DeviceKey("d", "n", device), {"size": Quantity(f"{gib}Gi")}),))
        for device, gib in held.items()
    ]
    assert standing(devices, *claims).fragmented.get("n", ()) == units


def test_one_box_is_never_fragmented() -> None:
    assert standing([cpus(0)], claim("numa-0", 1)).fragmented == {}
