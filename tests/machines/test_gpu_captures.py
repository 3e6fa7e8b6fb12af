"""GPUs on captured machines; the captures are only beside the repository."""

from pathlib import Path

import pytest

from dranode.driver.machine.root import Root
from dranode.gpu.devices import gpu_devices
from dranode.gpu.inventory import GPUInventory
from dranode.gpu.scan import scan
from dranode.sim.machines.forms import open_machine
from tests.fakes.gpu_machines import power

MACHINES = Path(__file__).resolve().parents[2].parent / "shared" / "machines"


def captured(name: str) -> Root:
    archive = MACHINES / f"{name}.tar.bz2"
    if not archive.exists():
        pytest.skip(f"the captured machine {name} is not at hand: there is no {MACHINES}")
    return open_machine(str(archive))


def test_gpus_with_numa_nodes_are_read_like_the_made_up_machine() -> None:
    found = scan(captured("nvidiagpunumanodes"))
    assert found == scan(power().root())
    assert [gpu.memory_node for gpu in found.gpus] == [255, 254, 253, 252, 251, 250]
    assert [
        device.attributes["resource.kubernetes.io/numaNode"].int_ for device in gpu_devices(found, shared=False)
    ] == [
        0,
        0,
        0,
        8,
        8,
        8,
    ]


@pytest.mark.parametrize("name", ["40intel64-2g2n4c+pcilocality", "2pa-pcidomain32bits"])
def test_displays_of_boards_and_hypervisors_are_not_gpus(name: str) -> None:
    assert scan(captured(name)) == GPUInventory()
