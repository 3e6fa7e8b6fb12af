"""Fleets to draw: servers with CPUs, GPUs and network cards in four NUMA nodes, always allocated in one pattern."""

from collections.abc import Iterator

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    ObjectMeta,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dranode.show.picture.fleet import DeviceKey, DeviceShare, FleetClaim, FleetPicture, WaitingPod
from dranode.show.picture.pictures import fleet_picture

CPUS, GPUS, NICS = "dra.cpu", "gpu.example.com", "dra.net"


def server(node: str, number: int = 0, *, tainted: bool = False) -> Iterator[ResourceSlice]:
    """The slices of a server: 4 x 16 CPUs, 8 GPUs, 8 network cards."""
    cpus = [
        Device(
            name=f"cpudevnuma{numa:03d}",
            attributes={"dra.cpu/numaNode": DeviceAttribute(int_=numa)},
            capacity={"dra.cpu/cpu": DeviceCapacity(value=Quantity(16))},
            allow_multiple_allocations=True,
        )
        for numa in range(4)
    ]
    bad = DeviceTaint(key="gpu.example.com/xid", value="79", effect="NoSchedule")
    gpus = [
        Device(
            name=f"gpu-{gpu}",
            attributes={
                "resource.kubernetes.io/numaNode": DeviceAttribute(int_=gpu // 2),
                "productName": DeviceAttribute(string="NVIDIA H100 80GB HBM3"),
                "uuid": DeviceAttribute(string=f"GPU-{number:08x}-{gpu:04x}-4222-8333-444455556666"),
            },
            capacity={"memory": DeviceCapacity(value=Quantity("80Gi"))},
            taints=(bad,) if tainted and gpu == 5 else (),
        )
        for gpu in range(8)
    ]
    nics = [
        Device(name=f"mlx5-{nic}", attributes={"dra.net/numaNode": DeviceAttribute(int_=nic // 2)}) for nic in range(8)
    ]
    for driver, devices in ((CPUS, cpus), (GPUS, gpus), (NICS, nics)):
        yield ResourceSlice(
            metadata=ObjectMeta(name=f"{node}-{driver}"),
            spec=ResourceSliceSpec(driver=driver, pool=ResourcePool(name=node), node_name=node, devices=tuple(devices)),
        )


def training(node: str, gpu: int, name: str = "") -> FleetClaim:
    """A claim for one GPU, the network card beside it and four CPUs of its NUMA node."""
    name = name or f"ml/train-{node}-{gpu}"
    shares = (
        DeviceShare(DeviceKey(GPUS, node, f"gpu-{gpu}")),
        DeviceShare(DeviceKey(NICS, node, f"mlx5-{gpu}")),
        DeviceShare(DeviceKey(CPUS, node, f"cpudevnuma{gpu // 2:03d}"), {"cpu": Quantity(4)}),
    )
    return FleetClaim(name, (f"{name}-0",), shares, created="2026-11-21T10:00:00Z")


def training_fleet(nodes: int, *, compared: bool = False) -> FleetPicture:
    """A fleet of these servers; every third GPU is free now, and every second one was free before."""
    names = [f"worker-{number}" for number in range(nodes)]
    slices = [each for number, name in enumerate(names) for each in server(name, number, tainted=number % 9 == 3)]
    held = [(name, gpu) for number, name in enumerate(names) for gpu in range(8) if (number + gpu) % 3]
    after = tuple(training(*place) for place in held)
    moments = [("before", after[::2]), ("after", after)] if compared else [("now", after)]
    big = WaitingPod(
        "ml/big-0",
        ("ml/big",),
        ("kube-scheduler: 0/4 nodes are available: cannot allocate all claims.", "Closest: worker-0. 3 of 8 GPUs fit"),
    )
    return fleet_picture(
        "Cluster prod",
        slices,
        moments,
        known={"worker-2": ("not Ready: Kubelet stopped posting node status.",)},
        waiting=(big,),
        notes=("no Event was read",),
        taken="2026-11-22T07:00:00Z",
    )
