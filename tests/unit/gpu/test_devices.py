from msgspec.structs import replace

from dranode.api.documents import encode
from dranode.api.resource import DeviceTaint
from dranode.gpu.devices import attributes, counters, gpu_devices
from dranode.gpu.inventory import GPU, Function, GPUInventory
from dranode.gpu.scan import scan
from tests.fakes.gpu_machines import flex, hgx, laptop, mi300x


def test_a_gpu_is_published_with_its_known_attributes() -> None:
    (device, *_) = gpu_devices(scan(hgx().root()), shared=False)
    assert encode(device) == {
        "name": "gpu-0000-1b-00-0",
        "attributes": {
            "type": {"string": "gpu"},
            "vendor": {"string": "nvidia"},
            "model": {"string": "NVIDIA H100 80GB HBM3"},
            "uuid": {"string": "GPU-00000000-0000-4000-8000-0123456789ab"},
            "pciVendor": {"string": "0x10de"},
            "pciDevice": {"string": "0x2330"},
            "pciAddress": {"string": "0000:1b:00.0"},
            "driver": {"string": "nvidia"},
            "driverVersion": {"version": "550.54.15"},
            "linkSpeed": {"int": 32000},
            "linkWidth": {"int": 16},
            "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:19"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
    }


def test_unknown_attributes_are_left_out() -> None:
    assert attributes(GPU("0000:03:00.0")) == {
        "type": "gpu",
        "vendor": "unknown",
        "pciAddress": "0000:03:00.0",
        "resource.kubernetes.io/pciBusID": "0000:03:00.0",
    }


def test_a_non_standard_bus_id_is_left_out_and_the_address_stays() -> None:
    published = attributes(GPU("10000:01:00.0", pcie_root="pci0000:17"))
    assert "resource.kubernetes.io/pciBusID" not in published
    assert published["pciAddress"] == "10000:01:00.0"
    assert published["resource.kubernetes.io/pcieRoot"] == "pci0000:17"


def test_an_invalid_version_is_left_out_and_the_device_stays() -> None:
    gpu = GPU("0000:03:00.0", functions=(Function("0000:03:00.0", "amdgpu"),), driver_version="6.8.5-dkms")
    published = attributes(gpu)
    assert "driverVersion" not in published
    assert published["driver"] == "amdgpu"


def test_a_model_of_more_than_64_bytes_is_truncated_at_a_character() -> None:
    published = attributes(GPU("0000:03:00.0", model="é" * 40))
    assert published["model"] == "é" * 32


def test_a_partition_uses_one_count_and_the_whole_gpu_uses_all() -> None:
    inventory = scan(flex().root())
    (pool,) = counters(inventory)
    assert encode(pool) == {"name": "gpu-0000-4d-00-0", "counters": {"parts": {"value": "7"}}}
    taken = {
        device.name: [int(each.counters["parts"].value.value) for each in device.consumes_counters]
        for device in gpu_devices(inventory, shared=False)
    }
    assert taken == {"gpu-0000-4d-00-0": [7], **{f"gpu-0000-4d-00-{vf}": [1] for vf in range(1, 8)}}


def test_partitions_use_only_their_own_gpus_counters() -> None:
    inventory = scan(mi300x(gpus=2, parts=4).root())
    assert [each.name for each in counters(inventory)] == ["gpu-0000-0c-00-0", "gpu-0000-22-00-0"]
    for device in gpu_devices(inventory, shared=False):
        (taken,) = device.consumes_counters
        assert device.name.startswith(taken.counter_set)


def test_an_unpartitioned_gpu_needs_no_counters() -> None:
    inventory = scan(hgx().root())
    assert counters(inventory) == ()
    assert all(device.consumes_counters == () for device in gpu_devices(inventory, shared=False))


def test_a_partition_without_its_gpu_is_published_alone() -> None:
    whole, part, *_ = scan(flex().root()).gpus
    inventory = GPUInventory((replace(part, parent="0000:99:00.0"),))
    assert counters(inventory) == ()
    assert gpu_devices(inventory, shared=False)[0].consumes_counters == ()
    assert whole.parent is None


def test_whole_gpus_come_before_partitions_and_partitioned_ones_last() -> None:
    machine = flex(vfs=2)
    machine.drm(machine.pci("0000:90:00.0", 0x8086, 0x56C0, 0x038000, driver="xe"), 9, 137)
    assert [device.name for device in gpu_devices(scan(machine.root()), shared=False)] == [
        "gpu-0000-90-00-0",
        "gpu-0000-4d-00-1",
        "gpu-0000-4d-00-2",
        "gpu-0000-4d-00-0",
    ]


def test_a_shared_gpu_gives_one_share_and_its_part_of_memory_by_default() -> None:
    (device,) = gpu_devices(scan(mi300x(gpus=1, parts=1).root()), shared=True)
    assert device.allow_multiple_allocations is True
    assert encode(device.capacity) == {
        "shares": {"value": "10", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}},
        "memory": {
            "value": "192Gi",
            "requestPolicy": {"default": "19660Mi", "validRange": {"min": "1Mi", "step": "1Mi"}},
        },
    }


def test_a_shared_gpu_of_unknown_memory_has_only_shares() -> None:
    assert {tuple(device.capacity) for device in gpu_devices(scan(hgx().root()), shared=True)} == {("shares",)}


def test_a_whole_gpu_has_no_policy_and_allows_one_claim() -> None:
    device = gpu_devices(scan(flex(vfs=0).root()), shared=False)[0]
    assert device.allow_multiple_allocations is None
    assert encode(device.capacity) == {"memory": {"value": "16Gi"}}


def test_taints_are_published_on_their_devices() -> None:
    taint = DeviceTaint(key="dra.gpu/unhealthy", value="wedged", effect="NoSchedule")
    found = gpu_devices(scan(laptop().root()), shared=False, taints={"gpu-0000-01-00-0": (taint,)})
    assert {device.name: device.taints for device in found} == {"gpu-0000-00-02-0": (), "gpu-0000-01-00-0": (taint,)}
