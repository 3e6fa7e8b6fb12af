import errno
import logging
import os
import threading

import pytest

from dranode.api.errors import ClaimError, MachineError
from dranode.driver.claims.held import ClaimRef
from dranode.driver.process.logs import TextFormatter, operation
from dranode.gpu import vfio
from dranode.gpu.grants import Home
from dranode.gpu.vfio import give_back, take
from tests.fakes.gpu import AUDIO, DEVICES, DRIVERS, NVIDIA, Machine
from tests.fakes.gpu_kernel import Crash, Kernel
from tests.fakes.gpu_machines import laptop

CLAIM = ClaimRef("default", "vm", "uid-vm")
GPU, SOUND = "0000:01:00.0", "0000:01:00.1"
HOMES = (Home(address=GPU, driver="nvidia"), Home(address=SOUND, driver="snd_hda_intel"))
AT_HOME = {GPU: "nvidia", SOUND: "snd_hda_intel"}
AWAY = {GPU: "vfio-pci", SOUND: "vfio-pci"}


def drivers(machine: Machine) -> dict[str, str | None]:
    return {address: machine.bound(address) for address in (GPU, SOUND)}


def overrides(machine: Machine) -> set[str]:
    return {machine.root().read_bytes(f"{DEVICES}/{each}/driver_override").decode().strip() for each in (GPU, SOUND)}


def refusal(machine: Machine, kernel: Kernel | None = None) -> str:
    with pytest.raises(ClaimError) as caught:
        take(kernel or Kernel(machine), CLAIM, HOMES)
    return str(caught.value)


def test_a_gpu_and_its_sound_function_are_bound_and_restored() -> None:
    machine = laptop()
    kernel = Kernel(machine)
    take(kernel, CLAIM, HOMES)
    assert drivers(machine) == AWAY
    assert overrides(machine) == {"(null)"}
    assert machine.root().device_number("dev/vfio/14") == ("c", 240, 14)
    give_back(kernel, HOMES)
    assert drivers(machine) == AT_HOME


def test_completed_steps_are_not_repeated() -> None:
    machine = laptop()
    kernel = Kernel(machine)
    take(kernel, CLAIM, HOMES)
    before = len(kernel.writes)
    take(kernel, CLAIM, HOMES)
    assert len(kernel.writes) == before
    give_back(kernel, HOMES)
    before = len(kernel.writes)
    give_back(kernel, HOMES)
    assert len(kernel.writes) == before


@pytest.mark.parametrize("address", [GPU, SOUND])
def test_a_function_with_an_administrators_driver_override_is_left_unchanged(address: str) -> None:
    machine = laptop()
    kernel = Kernel(machine)
    machine.put(machine.root().resolve(f"{DEVICES}/{address}/driver_override"), "nvidia")
    assert refusal(machine, kernel) == (
        f"claim default/vm cannot have GPU {GPU} in mode vfio: an administrator has set driver_override of function "
        f"{address} to nvidia; clear it, or choose another mode"
    )
    assert (kernel.writes, drivers(machine)) == ([], AT_HOME)


@pytest.mark.parametrize("after", range(9))
def test_a_crash_after_any_write_is_repaired_by_binding_again(after: int) -> None:
    machine = laptop()
    crashing = Kernel(machine, after=after)
    if after < 8:
        with pytest.raises(Crash):
            take(crashing, CLAIM, HOMES)
    else:
        take(crashing, CLAIM, HOMES)
    take(Kernel(machine), CLAIM, HOMES)
    assert drivers(machine) == AWAY
    assert overrides(machine) == {"(null)"}


@pytest.mark.parametrize("after", range(8))
def test_a_crash_after_any_write_is_repaired_by_restoring(after: int) -> None:
    machine = laptop()
    with pytest.raises(Crash):
        take(Kernel(machine, after=after), CLAIM, HOMES)
    give_back(Kernel(machine), HOMES)
    assert drivers(machine) == AT_HOME
    assert overrides(machine) == {"(null)"}


@pytest.mark.parametrize("after", range(4))
def test_a_crash_while_restoring_is_repaired_by_restoring_again(after: int) -> None:
    machine = laptop()
    take(Kernel(machine), CLAIM, HOMES)
    with pytest.raises(Crash):
        give_back(Kernel(machine, after=after), HOMES)
    give_back(Kernel(machine), HOMES)
    assert drivers(machine) == AT_HOME


@pytest.mark.parametrize("override", ["vfio-pci", "(null)"])
def test_a_gpu_that_an_administrator_keeps_on_vfio_stays_there(override: str) -> None:
    machine = laptop()
    machine.driver("nvgrace_gpu_vfio_pci")
    machine.bind(GPU, "nvgrace_gpu_vfio_pci")
    machine.put(machine.root().resolve(f"{DEVICES}/{GPU}/driver_override"), override)
    kernel, homes = Kernel(machine), (Home(address=GPU, driver="nvgrace_gpu_vfio_pci"), HOMES[1])
    take(kernel, CLAIM, homes)
    assert drivers(machine) == {GPU: "nvgrace_gpu_vfio_pci", SOUND: "vfio-pci"}
    give_back(kernel, homes)
    assert drivers(machine) == {GPU: "nvgrace_gpu_vfio_pci", SOUND: "snd_hda_intel"}
    assert not [content for path, content in kernel.writes if GPU in (content, path.split("/")[-2])]
    assert machine.root().read_bytes(f"{DEVICES}/{GPU}/driver_override").decode().strip() == override


def test_an_unbound_function_is_unbound_again_in_the_end() -> None:
    machine = laptop()
    Kernel(machine).write(f"{DRIVERS}/snd_hda_intel/unbind", SOUND)
    homes = (HOMES[0], Home(address=SOUND, driver=""))
    take(Kernel(machine), CLAIM, homes)
    give_back(Kernel(machine), homes)
    assert drivers(machine) == {GPU: "nvidia", SOUND: None}


def test_the_kernel_probes_the_driver_if_it_was_not_recorded() -> None:
    machine = laptop()
    kernel = Kernel(machine)
    take(kernel, CLAIM, HOMES)
    give_back(kernel, tuple(Home(address=home.address, driver=None) for home in HOMES))
    assert drivers(machine) == AT_HOME
    assert ("sys/bus/pci/drivers_probe", GPU) in kernel.writes


def test_restoring_works_without_the_driver_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    machine = laptop()
    take(Kernel(machine), CLAIM, HOMES)
    machine.remove(f"{DRIVERS}/nvidia")
    caplog.handler.setFormatter(TextFormatter())
    with caplog.at_level(logging.WARNING), operation():
        give_back(Kernel(machine), HOMES)
    assert drivers(machine) == {GPU: None, SOUND: "snd_hda_intel"}
    assert " op=" in caplog.text
    assert caplog.messages == [f"function={GPU} driver=nvidia could not be bound again: driver nvidia is not loaded"]


def test_restoring_works_without_the_gpu() -> None:
    machine = laptop()
    take(Kernel(machine), CLAIM, HOMES)
    machine.remove(f"{DEVICES}/{GPU}")
    give_back(Kernel(machine), HOMES)
    assert drivers(machine) == {GPU: None, SOUND: "snd_hda_intel"}


def test_a_function_that_somebody_bound_to_another_driver_stays_there() -> None:
    machine = laptop()
    machine.driver("nouveau")
    machine.bind(GPU, "nouveau")
    give_back(Kernel(machine), HOMES)
    assert drivers(machine)[GPU] == "nouveau"


def test_without_vfio_pci_the_claim_is_refused_and_nothing_is_written() -> None:
    machine = laptop()
    machine.remove(f"{DRIVERS}/vfio-pci")
    kernel = Kernel(machine)
    assert "run `modprobe vfio-pci` on the node" in refusal(machine, kernel)
    assert kernel.writes == []


def test_without_an_iommu_group_the_claim_is_refused() -> None:
    machine = laptop()
    machine.remove("sys/kernel/iommu_groups/14/devices")
    assert "is in no IOMMU group" in refusal(machine)


@pytest.mark.parametrize("what", ["the group's functions", "where a function is bound", "a driver_override"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_an_unreadable_iommu_group_is_an_error(what: str, number: int) -> None:
    machine = laptop()
    machine.driver("nvme")
    stranger = machine.pci("0000:02:00.0", NVIDIA, 0x22BE, AUDIO, driver="nvme", group=14)
    place = {
        "the group's functions": "sys/kernel/iommu_groups/14/devices",
        "where a function is bound": f"{stranger}/driver",
        "a driver_override": f"{machine.root().resolve(f'{DEVICES}/{SOUND}')}/driver_override",
    }[what]
    if what == "a driver_override":
        machine.remove(f"sys/kernel/iommu_groups/14/devices/{stranger.rpartition('/')[2]}")
    machine.failures[place] = number
    kernel = Kernel(machine)
    with pytest.raises(MachineError, match=f" cannot be read: {os.strerror(number)}$"):
        take(kernel, CLAIM, HOMES)
    assert kernel.writes == []


def test_another_device_in_the_iommu_group_is_named() -> None:
    machine = laptop()
    machine.driver("nvme")
    machine.pci("0000:02:00.0", NVIDIA, 0x22BE, AUDIO, driver="nvme", group=14)
    machine.pci("0000:00:01.0", 0x8086, 0x460D, 0x060400, driver="pcieport", group=14)
    kernel = Kernel(machine)
    assert "function 0000:02:00.0 of its IOMMU group 14 is bound to nvme" in refusal(machine, kernel)
    assert kernel.writes == []


def test_the_kernels_refusal_is_reported_and_restoring_still_works() -> None:
    machine = laptop()
    message = refusal(machine, Kernel(machine, refuse=frozenset({"vfio-pci"})))
    assert message.startswith("GPU function 0000:01:00.0 of claim default/vm cannot be moved from nvidia to vfio-pci: ")
    give_back(Kernel(machine), HOMES)
    assert drivers(machine) == AT_HOME


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("locked", [False, True])
def test_a_program_that_has_the_gpu_open_holds_up_its_claim_and_no_other(
    monkeypatch: pytest.MonkeyPatch, *, locked: bool, restart: bool
) -> None:
    machine, begun, ended, unbound = laptop(), threading.Event(), threading.Event(), threading.Event()

    class Held(Kernel):
        """The kernel locks the device while it unbinds it; until Linux 7 also against readers of its override."""

        dead = False

        def write(self, path: str, content: str) -> None:
            unbinds, first = path.endswith("/nvidia/unbind"), not begun.is_set()
            if unbinds:
                begun.set()
                (ended if first else unbound).wait()
            if first or not (unbinds or self.dead):
                super().write(path, content)
            if unbinds:
                unbound.set()
            if self.dead:
                raise Crash

        def read_bytes(self, path: str) -> bytes:
            if locked and begun.is_set() and path.endswith(f"{GPU}/driver_override"):
                ended.wait()
            return super().read_bytes(path)

    kernel = Held(machine)
    monkeypatch.setattr(vfio, "_SECONDS", 0.05)
    for _ in range(2):
        assert "from its driver because a program still has it open; stop that program" in refusal(machine, kernel)
        if restart:
            kernel.dead, kernel = True, Held(machine)
            monkeypatch.setattr(vfio, "_STEPS", {})
    # Otherwise the GPU would have no driver as soon as the program ends.
    with pytest.raises(ClaimError, match="a program still has it open"):
        give_back(kernel, HOMES)
    ended.set()
    monkeypatch.setattr(vfio, "_SECONDS", 10.0)
    give_back(kernel, HOMES)
    assert drivers(machine) == AT_HOME


def test_the_made_up_kernel_refuses_the_same_writes_as_linux() -> None:
    machine = laptop()
    kernel = Kernel(machine)
    for path, content in (
        (f"{DRIVERS}/vfio-pci/bind", GPU),
        (f"{DRIVERS}/i915/unbind", GPU),
        (f"{DRIVERS}/nvidia/bind", GPU),
    ):
        with pytest.raises(OSError, match="No such device") as caught:
            kernel.write(path, content)
        assert caught.value.errno == errno.ENODEV
