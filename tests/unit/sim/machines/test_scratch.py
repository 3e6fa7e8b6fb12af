"""Machines that can be written to: a fake one in memory, and one in a folder."""

import errno
from pathlib import Path

import pytest

from dranode.api.errors import MachineError
from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.scratch import RehearsedMachine, ScratchMachine, WritableMachine
from tests.fakes.gpu import INTEL, VGA, Machine

IRQ = "proc/irq/24/smp_affinity_list"
DEFAULT = "proc/irq/default_smp_affinity"
GPU = "sys/bus/pci/devices/0000:03:00.0"


def test_settings_of_interrupts_are_written_as_the_kernel_takes_them() -> None:
    machine = open_machine("cores=8,interrupts=2")
    assert machine.listdir("proc/irq") == ["24", "25", "default_smp_affinity"]
    assert [machine.read_bytes(IRQ), machine.read_bytes(DEFAULT)] == [b"0-7\n", b"000000ff\n"]
    machine.write(IRQ, "0,1,4\n")
    machine.write(DEFAULT, "f0\n")
    assert [machine.read_bytes(IRQ), machine.read_bytes(DEFAULT)] == [b"0-1,4\n", b"000000f0\n"]
    assert open_machine("cores=8,interrupts=2").read_bytes(IRQ) == b"0-7\n"


@pytest.mark.parametrize(
    ("path", "text", "error"),
    [
        (IRQ, "", errno.EINVAL),
        (IRQ, "x", errno.EINVAL),
        (DEFAULT, "0", errno.EINVAL),
        ("proc/irq/99/smp_affinity_list", "0", errno.ENOENT),
        ("sys/devices/system/cpu/cpu1/online", "0", errno.EROFS),
    ],
)
def test_a_setting_that_the_kernel_would_refuse_is_refused(path: str, text: str, error: int) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number says which
        open_machine("cores=8,interrupts=2").write(path, text)
    assert raised.value.errno == error


def test_every_existing_file_of_a_scratch_machine_can_be_written(tmp_path: Path) -> None:
    place = tmp_path / "box/sys/class/fans/fan-0/speed"
    place.parent.mkdir(parents=True)
    place.write_text("800\n")
    machine = open_machine(f"scratch:{tmp_path}")
    machine.write("sys/class/fans/fan-0/speed", "5\n")
    assert place.read_text() == "5\n"
    with pytest.raises(FileNotFoundError):
        machine.write("sys/class/fans/fan-1/speed", "5\n")
    assert isinstance(machine, ScratchMachine)
    assert (machine.before, machine.held()) == (
        {"sys/class/fans/fan-0/speed": "800"},
        {"sys/class/fans/fan-0/speed": "5"},
    )


def test_a_scratch_machine_has_the_device_nodes_of_its_index(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "machine.json").write_text('{"devices": {"/dev/dri/card0": "c 226:0"}}')
    assert open_machine(f"scratch:{tmp_path}").device_number("dev/dri/card0") == ("c", 226, 0)


def test_a_folder_without_sys_is_not_a_scratch_machine(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(MachineError, match=f"{folder} (has no sys|does not exist; dranode machine copy)"):
            open_machine(f"scratch:{folder}")


def with_gpu() -> Machine:
    made = Machine()
    for driver in ("i915", "vfio-pci"):
        made.driver(driver)
    made.pci("0000:03:00.0", INTEL, 0x56A0, VGA, driver="i915")
    return made


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_pci_function_moves_to_the_driver_of_its_override_and_back(tmp_path: Path, kind: str) -> None:
    made = with_gpu()
    machine: WritableMachine = RehearsedMachine(made.tree)
    if kind == "folder":
        made.write(tmp_path)
        machine = ScratchMachine(tmp_path)
    machine.write(f"{GPU}/driver_override", "vfio-pci")
    machine.write("sys/bus/pci/drivers/i915/unbind", "0000:03:00.0")
    assert not machine.exists(f"{GPU}/driver")
    machine.write("sys/bus/pci/drivers/vfio-pci/bind", "0000:03:00.0")
    assert machine.resolve(f"{GPU}/driver") == "sys/bus/pci/drivers/vfio-pci"
    driver = machine.resolve(GPU) + "/driver"
    assert (machine.before[driver], machine.held()[driver]) == ("i915", "vfio-pci")
    machine.write(f"{GPU}/driver_override", "\n")
    machine.write("sys/bus/pci/drivers/vfio-pci/unbind", "0000:03:00.0")
    machine.write("sys/bus/pci/drivers/i915/bind", "0000:03:00.0")
    assert machine.held() == machine.before


@pytest.mark.parametrize(
    ("driver", "way"),
    [("i915", "bind"), ("vfio-pci", "bind"), ("vfio-pci", "unbind")],
)
def test_only_the_right_driver_binds_or_unbinds_a_pci_function(driver: str, way: str) -> None:
    machine = RehearsedMachine(with_gpu().tree)
    with pytest.raises(OSError, match="No such device"):
        machine.write(f"sys/bus/pci/drivers/{driver}/{way}", "0000:03:00.0")
