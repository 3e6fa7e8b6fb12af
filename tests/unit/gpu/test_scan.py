import errno
import os

import pytest

from dranode.api.errors import MachineError
from dranode.gpu.devices import gpu_devices
from dranode.gpu.inventory import GPU, GPUInventory, GPUKind
from dranode.gpu.nvml import NVMLFacts
from dranode.gpu.scan import scan
from dranode.sim.machines.confined import ConfinedRoot
from tests.fakes.gpu import AMD, ASPEED, AUDIO, CONTROLLER_3D, DEVICES, DISPLAY, GIB, INTEL, NVIDIA, VGA, Machine
from tests.fakes.gpu_machines import flex, hgx, laptop, mi300x, plain, power

KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def found(machine: Machine) -> GPUInventory:
    return scan(machine.root())


def only(machine: Machine) -> GPU:
    (gpu,) = found(machine).gpus
    return gpu


def test_an_hgx_has_eight_gpus_without_its_switches_and_the_boards_display() -> None:
    inventory = found(hgx())
    assert [gpu.vendor for gpu in inventory.gpus] == ["nvidia"] * 8
    assert [gpu.numa_node for gpu in inventory.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    first = inventory.gpus[0]
    assert first.name == "gpu-0000-1b-00-0"
    assert (first.model, first.driver, first.driver_version) == ("NVIDIA H100 80GB HBM3", "nvidia", "550.54.15")
    assert (first.pcie_root, first.link_speed, first.link_width) == ("pci0000:19", 32000, 16)
    assert first.uuid == "GPU-00000000-0000-4000-8000-0123456789ab"
    assert inventory.warnings == ()


def test_a_partitioned_mi300x_has_its_partitions_with_their_memory() -> None:
    inventory = found(mi300x(gpus=1))
    whole, *parts = inventory.gpus
    assert (whole.kind, whole.memory, whole.partition_mode) == (GPUKind.GPU, 192 * GIB, "CPX_NPS4")
    assert whole.uuid == "GPU-53b1c8f2d4e60700"
    assert [part.name for part in parts] == [f"gpu-0000-0c-00-0-p{index}" for index in range(8)]
    assert {(part.kind, part.memory, part.parent, part.uuid) for part in parts} == {
        (GPUKind.PARTITION, 24 * GIB, "0000:0c:00.0", None)
    }


@pytest.mark.parametrize(
    ("told", "uuid"),
    [
        ("d3b1c8f2d4e60700", "GPU-d3b1c8f2d4e60700"),
        ("ffffffffffffffff", "GPU-ffffffffffffffff"),
        ("00000000000000a1", "GPU-00000000000000a1"),
        ("0000000000000000", None),
        ("", None),
        ("unknown", None),
    ],
)
def test_an_amd_chip_has_a_64_bit_identity(told: str, uuid: str | None) -> None:
    machine = mi300x(gpus=1, parts=1)
    machine.put(f"{machine.root().resolve(f'{DEVICES}/0000:0c:00.0')}/unique_id", told)
    assert only(machine).uuid == uuid


def test_an_unpartitioned_mi300x_is_one_gpu() -> None:
    gpu = only(mi300x(gpus=1, parts=1))
    assert (gpu.kind, gpu.partition_mode, gpu.memory) == (GPUKind.GPU, "SPX_NPS1", 192 * GIB)


def test_an_apu_has_the_memory_that_it_shares_and_not_only_what_the_firmware_set_aside() -> None:
    machine = mi300x(gpus=1, parts=1)
    machine.put(f"{machine.root().resolve(f'{DEVICES}/0000:0c:00.0')}/mem_info_vram_total", str(GIB // 2))
    assert only(machine).memory == 192 * GIB


def test_a_partitioned_gpu_is_not_taken_for_whole_while_the_kernel_rebuilds_kfds_tree() -> None:
    machine = mi300x(gpus=2)
    whole = scan(machine.root())

    class Rebuilt(ConfinedRoot):
        """The first read of the nodes still shows only the first three."""

        looks = 0

        def listdir(self, path: str) -> list[str]:
            found = super().listdir(path)
            if path == KFD_NODES:
                self.looks += 1
                return found[:3] if self.looks == 1 else found
            return found

    assert scan(Rebuilt(machine.root().files)) == whole


@pytest.mark.parametrize("error", [errno.EPERM, errno.EIO])
@pytest.mark.parametrize(("count", "named"), [(1, "KFD node 1 cannot"), (8, "KFD node 1 and 7 more cannot")])
def test_unreadable_partitions_are_reported_as_unknown(count: int, named: str, error: int) -> None:
    machine = mi300x(gpus=1, parts=count)
    for node in range(1, 1 + count):
        machine.fail(f"{KFD_NODES}/{node}/properties", error)
    inventory = found(machine)
    assert [gpu.kind for gpu in inventory.gpus] == [GPUKind.GPU]
    (warning,) = inventory.warnings
    assert warning == (
        f"{named} be read, so it is not known whether AMD GPUs are partitioned; "
        "let this process use their render nodes (in a DaemonSet, privileged: true)"
    )


@pytest.mark.parametrize("driver", ["amdgpu", "vfio-pci"])
def test_gpus_that_kfd_does_not_know_are_named(driver: str) -> None:
    machine = mi300x(gpus=1, parts=1)
    machine.driver(driver)
    machine.drm(machine.pci("0000:d8:00.0", AMD, 0x67FF, VGA, driver=driver), 9, 140)
    sentence = (
        "KFD does not know GPU 0000:d8:00.0, so ROCm finds no GPU in claims of mode compute; see the kernel's log for "
        "the reason, or ask for mode graphics"
    )
    assert (sentence in found(machine).warnings) == (driver == "amdgpu")


def test_partitions_without_numbers_are_not_numbered_while_one_of_them_is_hidden() -> None:
    """A hidden partition would shift the numbers of the others, and two claims could get the same one."""
    machine = mi300x(gpus=1, parts=4)
    for part in range(4):
        machine.kfd(1 + part, "0000:0c:00.0", render=128 + part, memory=48 * GIB)
    assert [gpu.partition for gpu in found(machine).gpus] == [None, 0, 1, 2, 3]
    machine.fail(f"{KFD_NODES}/2/properties")
    assert [gpu.partition for gpu in found(machine).gpus] == [None]


@pytest.mark.parametrize(("error", "said"), [(errno.EACCES, True), (errno.ENOENT, False)])
def test_partitions_are_unknown_if_kfds_nodes_cannot_be_listed(error: int, *, said: bool) -> None:
    machine = mi300x(gpus=1, parts=8)
    machine.fail(KFD_NODES, error)
    inventory = found(machine)
    assert [gpu.kind for gpu in inventory.gpus] == [GPUKind.GPU]
    sentence = f"/{KFD_NODES} cannot be read: Permission denied, so it is not known whether AMD GPUs are partitioned"
    assert inventory.warnings == ((sentence,) if said else ())


def test_kernels_with_the_partition_in_the_function_bits_are_equivalent() -> None:
    machine = mi300x(gpus=1, parts=4)
    for part in range(4):
        machine.kfd(1 + part, f"0000:0c:00.{part}", render=128 + part, memory=48 * GIB)
    assert [gpu.partition for gpu in found(machine).gpus] == [None, 0, 1, 2, 3]


def test_gpus_on_two_functions_of_one_slot_have_their_own_kfd_nodes() -> None:
    machine = Machine()
    machine.driver("amdgpu")
    for function in range(2):
        machine.pci(f"0000:0c:00.{function}", AMD, 0x74B5, DISPLAY, driver="amdgpu")
        machine.kfd(1 + function, f"0000:0c:00.{function}", render=128 + function, memory=(1 + function) * GIB)
    assert [(gpu.kind, gpu.memory) for gpu in found(machine).gpus] == [(GPUKind.GPU, GIB), (GPUKind.GPU, 2 * GIB)]


def test_intel_virtual_functions_have_their_parent_and_their_provisioned_memory() -> None:
    whole, *parts = found(flex()).gpus
    assert (whole.kind, whole.memory, whole.model) == (GPUKind.GPU, 16 * GIB, "Data Center GPU Flex 170")
    assert len(parts) == 7
    assert {(part.kind, part.parent, part.memory, part.link_speed) for part in parts} == {
        (GPUKind.VF, "0000:4d:00.0", 2 * GIB, None)
    }


def test_a_laptop_has_both_its_gpus_and_its_npu_is_not_one() -> None:
    integrated, discrete = found(laptop()).gpus
    assert (integrated.vendor, integrated.numa_node, integrated.link_speed) == ("intel", None, None)
    assert (discrete.vendor, discrete.driver_version) == ("nvidia", "580.159.04")
    assert [(function.address, function.driver) for function in discrete.functions] == [
        ("0000:01:00.0", "nvidia"),
        ("0000:01:00.1", "snd_hda_intel"),
    ]


def test_gpus_with_numa_nodes_of_their_own_are_near_their_cpus() -> None:
    gpus = found(power()).gpus
    assert [(gpu.numa_node, gpu.memory_node) for gpu in gpus] == [
        (0, 255),
        (0, 254),
        (0, 253),
        (8, 252),
        (8, 251),
        (8, 250),
    ]
    assert {(gpu.vendor, gpu.memory) for gpu in gpus} == {("nvidia", 0x3F0000000)}


@pytest.mark.parametrize("status", ["-1", "", "Node: near\nSize: 3f0000000", "Node: 255"])
def test_a_memory_node_without_a_number_from_the_driver_is_reported_as_unclear(status: str) -> None:
    file = "proc/driver/nvidia/gpus/0004:05:00.0/numa_status"
    machine = power()
    machine.put(file, status)
    (said,) = found(machine).warnings
    assert said == (
        "the NUMA node and the size of GPU 0004:05:00.0's memory are not known: "
        f"/{file} has no lines Node and Size with numbers"
    )


def test_a_gpu_whose_numa_node_is_its_own_memory_is_near_the_local_cpus() -> None:
    machine = power()
    machine.put(f"{DEVICES}/0004:05:00.0/numa_node", "255")
    assert found(machine).gpus[0].numa_node == 0


def test_a_server_without_gpus_and_a_machine_without_pci_have_none() -> None:
    without = Machine()
    without.put("sys/devices/system/cpu/online", "0")
    assert found(plain()) == found(without) == GPUInventory()


def test_an_empty_bus_on_a_machine_with_pci_is_a_warning() -> None:
    machine = plain()
    machine.remove("sys/bus/pci")
    assert found(machine).warnings == (
        "no PCI function is visible in /sys/bus/pci/devices, though the machine has the PCI root pci0000:00",
    )


def test_a_machine_without_sysfs_is_an_error() -> None:
    with pytest.raises(MachineError, match="neither /sys/bus nor /sys/devices"):
        found(Machine())


def test_a_gpus_name_survives_new_minor_numbers() -> None:
    before = laptop()
    after = laptop()
    folder = after.root().resolve(f"{DEVICES}/0000:00:02.0")
    after.remove(f"{folder}/drm")
    after.drm(folder, 7, 135)
    assert [gpu.name for gpu in found(before).gpus] == [gpu.name for gpu in found(after).gpus]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EIO, errno.EINVAL])
@pytest.mark.parametrize(
    "file", ["numa_node", "max_link_speed", "max_link_width", "device", "unique_id", "current_compute_partition"]
)
def test_an_unreadable_file_loses_only_its_value(file: str, number: int) -> None:
    machine = mi300x(gpus=1, parts=1)
    machine.fail(f"{DEVICES}/0000:0c:00.0/{file}", number)
    gpu = only(machine)
    lost = {
        "numa_node": gpu.numa_node,
        "max_link_speed": gpu.link_speed,
        "max_link_width": gpu.link_width,
        "device": gpu.device_id,
        "unique_id": gpu.uuid,
        "current_compute_partition": None if gpu.partition_mode == "NPS1" else gpu.partition_mode,
    }
    assert lost[file] is None
    assert (gpu.vendor, gpu.pcie_root, gpu.memory) == ("amd", "pci0000:09", 192 * GIB)


def test_a_function_with_an_unreadable_class_is_left_out_with_the_reason() -> None:
    machine = laptop()
    machine.fail(f"{DEVICES}/0000:01:00.0/class")
    inventory = found(machine)
    assert [gpu.vendor for gpu in inventory.gpus] == ["intel"]
    assert inventory.warnings == ("PCI function 0000:01:00.0 is left out: its class cannot be read",)


class Denied(ConfinedRoot):
    """A machine with a path that cannot be opened, for this reason."""

    path = DEVICES
    number = errno.EMFILE

    def listdir(self, path: str) -> list[str]:
        self._refuse(path)
        return super().listdir(path)

    def read_bytes(self, path: str) -> bytes:
        self._refuse(path)
        return super().read_bytes(path)

    def _refuse(self, path: str) -> None:
        if path == self.path:
            raise OSError(self.number, os.strerror(self.number), path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO])
def test_a_bus_that_cannot_be_listed_is_not_a_bus_without_gpus(number: int) -> None:
    root = Denied(laptop().root().files)
    root.number = number
    with pytest.raises(MachineError, match=f"^/sys/bus/pci/devices cannot be read: {os.strerror(number)}$"):
        scan(root)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("path", [f"{DEVICES}/0000:00:02.0/class", "proc/driver/nvidia/gpus/0000:01:00.0/information"])
def test_a_process_without_descriptors_concludes_nothing_about_the_machine(path: str, number: int) -> None:
    root = Denied(laptop().root().files)
    root.path, root.number = path, number
    with pytest.raises(MachineError, match=f"^/{root.path} cannot be read: {os.strerror(number)}$"):
        scan(root)


@pytest.mark.parametrize("file", ["class", "device", "max_link_width"])
def test_a_gpu_that_disappears_during_the_read_is_left_out_completely(file: str) -> None:
    machine = laptop()
    place = f"{machine.root().resolve(f'{DEVICES}/0000:01:00.0')}/{file}"

    class Vanishing(ConfinedRoot):
        def read_bytes(self, path: str) -> bytes:
            if path in (place, f"{DEVICES}/0000:01:00.0/{file}"):
                for gone in (f"{DEVICES}/0000:01:00.0", place.rpartition("/")[0], "proc/driver/nvidia/gpus"):
                    machine.remove(gone)
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), path)
            return super().read_bytes(path)

    inventory = scan(Vanishing(machine.root().files))
    assert [gpu.address for gpu in inventory.gpus] == ["0000:00:02.0"]
    assert inventory.warnings == ()


def test_an_unknown_vendor_is_a_gpu_if_it_has_a_render_node() -> None:
    machine = Machine()
    folder = machine.pci("0000:03:00.0", 0x1ED5, 0x0222, VGA, driver="mtgpu")
    machine.drm(folder, 0, 128)
    gpu = only(machine)
    assert (gpu.vendor, gpu.model, gpu.driver) == ("0x1ed5", None, "mtgpu")


def test_an_unknown_vendor_without_a_render_node_is_left_out_with_the_reason() -> None:
    machine = Machine()
    machine.pci("0000:03:00.0", 0x1ED5, 0x0222, VGA)
    inventory = found(machine)
    assert inventory.gpus == ()
    assert inventory.warnings == (
        "PCI function 0000:03:00.0 of vendor 0x1ed5 is left out: it has no render node that a container could use",
    )


def in_nodes(count: int, *gpus: tuple[str, int]) -> Machine:
    """A machine with `nodes` NUMA nodes, and GPUs at these addresses with these `numa_node`s."""
    machine = Machine()
    for node in range(count):
        machine.numa(node, f"{node * 4}-{node * 4 + 3}")
    for address, node in gpus:
        machine.pci(address, AMD, 0x74A1, DISPLAY, node=node)
    return machine


def test_gpus_without_a_visible_numa_node_are_named_in_one_sentence() -> None:
    machine = in_nodes(2, ("0000:01:00.0", -1), ("0000:02:00.0", 0), ("0000:03:00.0", 1), ("0000:04:00.0", 1))
    for address in ("0000:03:00.0", "0000:04:00.0"):
        machine.remove(f"{machine.root().resolve(f'{DEVICES}/{address}')}/numa_node")
    inventory = found(machine)
    assert [gpu.numa_node for gpu in inventory.gpus] == [None, 0, None, None]
    (warning,) = inventory.warnings
    assert warning == (
        "the machine does not report which NUMA node GPUs 0000:01:00.0, 0000:03:00.0, 0000:04:00.0 are near, so no "
        "numaNode is published and claims that select by it get other devices"
    )


def test_a_gpu_without_a_numa_node_is_normal_if_there_is_at_most_one() -> None:
    assert found(in_nodes(1, ("0000:01:00.0", -1))).warnings == ()
    assert found(in_nodes(0, ("0000:01:00.0", -1))).warnings == ()


def test_partly_visible_numa_nodes_are_not_taken_for_a_single_one() -> None:
    machine = in_nodes(2, ("0000:01:00.0", -1))
    machine.remove("sys/devices/system/node/node1")
    (warning,) = found(machine).warnings
    assert warning.startswith("the machine does not report which NUMA node GPU 0000:01:00.0 is near, so")
    machine.fail("sys/devices/system/node", errno.EACCES)
    assert found(machine).warnings == (warning,)


def test_a_uuid_of_two_gpus_is_published_for_neither() -> None:
    machine = hgx()
    machine.nvidia("0000:43:00.0", 1, "NVIDIA H100 80GB HBM3", "GPU-00000000-0000-4000-8000-0123456789ab")
    inventory = found(machine)
    assert [gpu.uuid is None for gpu in inventory.gpus] == [True, True, *[False] * 6]
    (warning,) = inventory.warnings
    assert warning == (
        "UUID GPU-00000000-0000-4000-8000-0123456789ab is reported by gpu-0000-1b-00-0 and gpu-0000-43-00-0: "
        "none of them is published with it"
    )


def test_a_uuid_of_question_marks_is_ignored() -> None:
    machine = hgx()
    machine.nvidia("0000:43:00.0", 1, "NVIDIA H100 80GB HBM3", "GPU-????????-????-????-????-????????????")
    assert found(machine).gpus[1].uuid is None


def test_a_gpu_that_the_driver_excludes_is_left_out() -> None:
    machine = hgx()
    machine.nvidia("0000:43:00.0", 1, "NVIDIA H100 80GB HBM3", "GPU-x", excluded="Yes")
    inventory = found(machine)
    assert len(inventory.gpus) == 7
    assert inventory.warnings == (
        "GPU 0000:43:00.0 is left out: NVIDIA's driver is configured to exclude it (NVreg_ExcludedGpus)",
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_gpu_with_unreadable_driver_information_is_left_out_as_possibly_excluded(number: int) -> None:
    machine = hgx()
    machine.fail("proc/driver/nvidia/gpus/0000:43:00.0/information", number)
    inventory = found(machine)
    assert "0000:43:00.0" not in {gpu.address for gpu in inventory.gpus}
    (warning,) = inventory.warnings
    assert warning == (
        "GPU 0000:43:00.0 is left out: /proc/driver/nvidia/gpus/0000:43:00.0/information cannot be read: "
        f"{os.strerror(number)}, so it is not known whether the GPU is excluded from use or divided into MIG instances"
    )


@pytest.mark.parametrize("link", ["driver", "physfn"])
def test_an_unreadable_link_is_not_taken_for_a_missing_one(link: str) -> None:
    machine = flex()
    part = machine.root().resolve(f"{DEVICES}/0000:4d:00.1")
    machine.failures[f"{part}/{link}"] = errno.EACCES
    with pytest.raises(MachineError, match=f"^/{part}/{link} cannot be read: Permission denied$"):
        found(machine)


@pytest.mark.parametrize("part", ["mem_banks", "mem_banks/0/properties"])
def test_partly_unreadable_memory_is_unknown_rather_than_less(part: str) -> None:
    machine = mi300x(gpus=1, parts=2)
    machine.remove(f"{machine.root().resolve(f'{DEVICES}/0000:0c:00.0')}/mem_info_vram_total")
    assert found(machine).gpus[0].memory == 192 * GIB
    machine.fail(f"{KFD_NODES}/1/{part}")
    assert [gpu.memory for gpu in found(machine).gpus] == [None, None, 96 * GIB]


def test_the_memory_of_a_gpu_is_unknown_if_a_tiles_memory_is_unreadable() -> None:
    machine = flex()
    folder = machine.root().resolve(f"{DEVICES}/0000:4d:00.0")
    machine.put(f"{folder}/tile1/physical_vram_size_bytes", str(16 * GIB))
    assert found(machine).gpus[0].memory == 32 * GIB
    machine.fail(f"{folder}/tile1/physical_vram_size_bytes")
    assert found(machine).gpus[0].memory is None


def test_an_empty_information_file_leaves_the_values_of_sysfs() -> None:
    machine = hgx()
    machine.put("proc/driver/nvidia/gpus/0000:1b:00.0/information", b"")
    gpu = found(machine).gpus[0]
    assert (gpu.model, gpu.uuid, gpu.driver_version) == ("H100 80GB HBM3", None, "550.54.15")


def test_a_pci_domain_of_five_digits_is_a_valid_name_and_sorts_last() -> None:
    machine = Machine()
    for address, root in (("10000:01:00.0", "pci0000:17"), ("0000:99:00.0", "pci0000:98")):
        machine.pci(address, NVIDIA, 0x20B0, CONTROLLER_3D, root=root, bridges=("0000:17:05.5",))
    assert [gpu.name for gpu in found(machine).gpus] == ["gpu-0000-99-00-0", "gpu-10000-01-00-0"]


def test_an_unbound_gpu_is_found_and_reported_as_unbound() -> None:
    machine = Machine()
    machine.pci("0000:03:00.0", AMD, 0x740F, DISPLAY)
    gpu = only(machine)
    assert (gpu.driver, gpu.driver_version, gpu.model) == (None, None, "Instinct MI210")


def test_on_a_node_with_two_vendors_each_gpu_has_its_own_drivers_version() -> None:
    machine = hgx()
    machine.driver("amdgpu")
    machine.pci("0000:f0:00.0", AMD, 0x740F, DISPLAY, driver="amdgpu")
    versions = {gpu.vendor: gpu.driver_version for gpu in found(machine).gpus}
    assert versions == {"nvidia": "550.54.15", "amd": None}


def test_nvml_adds_values_that_no_file_has() -> None:
    facts = {"0000:1b:00.0": NVMLFacts(memory=80 * GIB, compute_capability="9.0.0", uuid="GPU-other", model="other")}
    gpu, *others = scan(hgx().root(), facts).gpus
    assert (gpu.memory, gpu.compute_capability) == (80 * GIB, "9.0.0")
    assert gpu.uuid == "GPU-00000000-0000-4000-8000-0123456789ab"
    assert {other.memory for other in others} == {None}


def test_a_gpu_in_mig_mode_without_instances_is_left_out_since_no_program_could_use_it() -> None:
    addresses = [gpu.address for gpu in found(hgx()).gpus]
    inventory = scan(hgx().root(), {addresses[1]: NVMLFacts(mig=True), addresses[2]: NVMLFacts(mig=False)})
    assert list(inventory.left_out) == [addresses[1]]
    assert "MIG is on" in inventory.left_out[addresses[1]]
    assert len(inventory.gpus) == 7


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_gpu_whose_mig_instances_cannot_be_listed_is_left_out_since_it_may_be_divided(number: int) -> None:
    machine = hgx()
    machine.put("proc/driver/nvidia/capabilities/gpu1/mig", {})
    machine.fail("proc/driver/nvidia/capabilities/gpu1/mig", number)
    inventory = found(machine)
    assert list(inventory.left_out) == ["0000:43:00.0"]
    assert "MIG instances" in inventory.left_out["0000:43:00.0"]


def test_the_sound_function_of_a_card_is_not_a_gpu() -> None:
    machine = Machine()
    machine.pci("0000:01:00.1", NVIDIA, 0x22BE, AUDIO)
    machine.pci("0000:02:00.0", ASPEED, 0x2000, VGA)
    machine.pci("0000:03:00.0", INTEL, 0x56A0, VGA)
    assert [gpu.address for gpu in found(machine).gpus] == ["0000:03:00.0"]


RTX = "0000:01:00.0"
NO_DRIVER = (
    "GPU 0000:01:00.0 is left out: no driver is bound to it; load the driver that serves it and see the kernel's log, "
    "or bind it to vfio-pci for virtual machines"
)


def unbound(machine: Machine, address: str) -> Machine:
    """The machine with a GPU that is bound to no driver."""
    folder = machine.root().resolve(f"{DEVICES}/{address}")
    machine.remove(f"{folder}/driver")
    machine.remove(f"{folder}/drm")
    machine.remove(f"proc/driver/nvidia/gpus/{address}")
    return machine


def names_of(machine: Machine) -> list[str]:
    return [device.name for device in gpu_devices(found(machine), shared=False)]


def test_a_gpu_without_a_driver_is_not_published_with_the_reason() -> None:
    machine = unbound(laptop(), RTX)
    assert names_of(machine) == ["gpu-0000-00-02-0"]
    assert found(machine).warnings == (NO_DRIVER,)
    # The only PCI function of a virtual machine in Azure.
    alone = Machine()
    alone.driver("amdgpu")
    alone.pci(RTX, AMD, 0x73AE, DISPLAY)
    assert not names_of(alone)


def test_gpus_left_out_for_the_same_reason_are_named_in_one_sentence() -> None:
    machine = unbound(unbound(hgx(), "0000:1b:00.0"), "0000:43:00.0")
    (warning,) = found(machine).warnings
    assert warning.startswith("GPUs 0000:1b:00.0, 0000:43:00.0 are left out: no driver is bound to it;")
    assert len(names_of(machine)) == 6


@pytest.mark.parametrize(
    ("driver", "published"), [("vfio-pci", True), ("nvgrace-gpu-vfio-pci", True), ("pci-stub", False)]
)
def test_a_driver_without_device_nodes_is_accepted_only_for_virtual_machines(driver: str, *, published: bool) -> None:
    machine = unbound(laptop(), RTX)
    machine.bind(RTX, driver)
    assert ("gpu-0000-01-00-0" in names_of(machine)) == published
    reason = f"driver {driver} is bound to it and gives it no render node"
    assert any(reason in each for each in found(machine).warnings) != published


@pytest.mark.parametrize("render", [None, 130])
def test_nouveau_is_accepted_if_the_gpu_has_a_render_node(render: int | None) -> None:
    machine = unbound(laptop(), RTX)
    machine.bind(RTX, "nouveau")
    machine.drm(machine.root().resolve(f"{DEVICES}/{RTX}"), 3, render)
    assert ("gpu-0000-01-00-0" in names_of(machine)) == (render is not None)


def test_a_function_that_nvidias_driver_does_not_offer_is_not_published() -> None:
    machine = hgx()
    machine.remove("proc/driver/nvidia/gpus/0000:43:00.0")
    assert "gpu-0000-43-00-0" not in names_of(machine)
    (warning,) = found(machine).warnings
    assert "driver nvidia is bound to it and does not offer it" in warning


def test_virtual_functions_without_a_driver_are_not_published_and_their_gpu_stays_divided() -> None:
    machine = flex(vfs=2)
    for address in ("0000:4d:00.1", "0000:4d:00.2"):
        unbound(machine, address)
    assert names_of(machine) == ["gpu-0000-4d-00-0"]
    assert set(found(machine).children) == {"gpu-0000-4d-00-0"}


def test_a_capture_without_any_driver_has_no_conclusion_about_its_gpus() -> None:
    machine = power()
    assert len(names_of(machine)) == 6
    assert not [gpu for gpu in found(machine).gpus if gpu.unserved]
