import errno
from pathlib import Path

import msgspec
import pytest

from dranode.api.errors import ClaimError, MachineError
from dranode.cdi.spec import ContainerEdits
from dranode.gpu.config import GPUMode
from dranode.gpu.edits import complete, device_nodes
from dranode.gpu.grants import Intent
from dranode.gpu.plugin import GPUPlugin, group_of
from dranode.gpu.scan import scan
from tests.fakes.doctor import forbid
from tests.fakes.gpu import DEVICES, DRIVERS, Machine
from tests.fakes.gpu_machines import flex, hgx, laptop, mi300x


def nodes(machine: Machine, intent: Intent) -> list[tuple[str, str, int | None, int | None]]:
    return [(node.path, node.type, node.major, node.minor) for node in device_nodes(machine.root(), intent)]


def refusal(machine: Machine, intent: Intent) -> str:
    with pytest.raises(ClaimError) as caught:
        device_nodes(machine.root(), intent)
    return str(caught.value)


H100 = Intent(address="0000:43:00.0", vendor="nvidia")
PART = Intent(address="0000:0c:00.0", vendor="amd", partition=3)
FLEX = Intent(address="0000:4d:00.0", vendor="intel")
RTX = Intent(address="0000:01:00.0", vendor="nvidia", mode=GPUMode.GRAPHICS)


def test_nvidia_compute_has_the_gpus_node_and_the_control_nodes() -> None:
    assert nodes(hgx(), H100) == [
        ("/dev/nvidia1", "c", 195, 1),
        ("/dev/nvidiactl", "c", 195, 255),
        ("/dev/nvidia-uvm", "c", 510, 0),
        ("/dev/nvidia-uvm-tools", "c", 510, 1),
    ]


@pytest.mark.parametrize("host", ["", "host/"])
def test_device_nodes_of_a_containerized_driver_are_read_in_its_root(host: str) -> None:
    machine, plain = hgx(), nodes(hgx(), H100)
    machine.put(f"{host}usr/bin/nvidia-smi", b"")
    for path, _, major, minor in plain:
        machine.remove(path.lstrip("/"))
        machine.node(f"{host}run/nvidia/driver{path}", major or 0, minor or 0)
        machine.groups[f"{host}run/nvidia/driver{path}"] = 44
    assert nodes(machine, H100) == plain
    edits = complete(machine.root(), H100, ContainerEdits(), lambda path: machine.groups.get(path.lstrip("/")))
    assert edits.additional_gids == (44,)


def test_an_optional_device_node_may_be_missing_but_not_unreadable() -> None:
    machine = hgx()
    machine.failures["dev/nvidia-uvm-tools"] = errno.EACCES
    with pytest.raises(MachineError, match=r"^/dev/nvidia-uvm-tools cannot be read: Permission denied$"):
        device_nodes(machine.root(), H100)
    machine.remove("dev/nvidia-uvm-tools")
    assert [path for path, *_ in nodes(machine, H100)] == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_an_unreadable_group_is_not_taken_for_that_of_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "folder" / "node"
    node.parent.mkdir()
    node.touch()
    path = str(node)
    assert group_of(path) == node.stat().st_gid
    assert group_of(f"{path}/below") is None
    forbid(monkeypatch, node.parent)
    with pytest.raises(MachineError, match=f"^the group of {node} cannot be read: Permission denied$"):
        group_of(path)


def test_nvidia_graphics_adds_modeset_and_drm() -> None:
    assert [path for path, *_ in nodes(laptop(), RTX)][4:] == [
        "/dev/nvidia-modeset",
        "/dev/dri/card2",
        "/dev/dri/renderD129",
    ]


def test_an_amd_partition_has_kfd_and_its_own_render_node() -> None:
    assert nodes(mi300x(gpus=1), PART) == [("/dev/kfd", "c", 511, 0), ("/dev/dri/renderD131", "c", 226, 131)]


@pytest.mark.parametrize("in_function_bits", [False, True])
@pytest.mark.parametrize("unread", [1, 3])
def test_a_partition_keeps_its_render_node_while_another_is_unreadable(
    unread: int,
    in_function_bits: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    machine = mi300x(gpus=1)
    for part in range(8) if in_function_bits else ():
        machine.kfd(1 + part, f"0000:0c:00.{part}", render=128 + part)
    machine.fail(f"sys/class/kfd/kfd/topology/nodes/{unread}/properties")
    assert nodes(machine, PART)[1] == ("/dev/dri/renderD131", "c", 226, 131)
    assert [gpu.partition for gpu in scan(machine.root()).gpus] == [
        None,
        *(part for part in range(8) if part != unread - 1),
    ]


def test_a_whole_partitioned_gpu_has_the_render_nodes_of_all_parts_once() -> None:
    paths = [path for path, *_ in nodes(mi300x(gpus=2), Intent(address="0000:22:00.0", vendor="amd"))]
    assert paths == ["/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in range(136, 144))]


def test_graphics_adds_the_card_of_each_part() -> None:
    paths = [
        path
        for path, *_ in nodes(
            mi300x(gpus=1, parts=2), Intent(address="0000:0c:00.0", vendor="amd", mode=GPUMode.GRAPHICS)
        )
    ]
    assert sorted(paths) == [
        "/dev/dri/card1",
        "/dev/dri/card2",
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
        "/dev/kfd",
    ]


def test_intel_compute_is_the_render_node_also_under_the_name_with_its_pci_address() -> None:
    machine = flex()
    assert nodes(machine, FLEX) == [("/dev/dri/renderD128", "c", 226, 128)]
    # Links lead to the nodes: that of the GPU, its card, which compute does not get, and an old one of another GPU.
    for name, minor in {"4d:00.0-render": 128, "4d:00.0-card": 0, "4d:00.1-render": 200}.items():
        machine.node(f"dev/dri/by-path/pci-0000:{name}", 226, minor)
    by_path = ("/dev/dri/by-path/pci-0000:4d:00.0-render", "c", 226, 128)
    assert nodes(machine, FLEX) == [("/dev/dri/renderD128", "c", 226, 128), by_path]
    assert len(nodes(machine, msgspec.structs.replace(FLEX, mode=GPUMode.GRAPHICS))) == 4
    assert len(nodes(machine, Intent(address="0000:4d:00.1", vendor="intel"))) == 1


def test_a_virtual_function_has_its_own_render_node() -> None:
    assert nodes(flex(), Intent(address="0000:4d:00.3", vendor="intel")) == [("/dev/dri/renderD131", "c", 226, 131)]


@pytest.mark.parametrize(
    ("machine", "intent", "node"),
    [
        (hgx(), H100, "dev/nvidia1"),
        (hgx(), H100, "dev/nvidia-uvm"),
        (hgx(), H100, "dev/nvidiactl"),
        (mi300x(gpus=1), PART, "dev/kfd"),
        (mi300x(gpus=1), PART, "dev/dri/renderD131"),
        (flex(), FLEX, "dev/dri/renderD128"),
    ],
)
def test_a_missing_device_node_is_named(machine: Machine, intent: Intent, node: str) -> None:
    machine.remove(node)
    sentence = f"GPU {intent.address} needs device node /{node}, which does not exist; "
    assert sentence in refusal(machine, intent)
    (warning,) = GPUPlugin(machine.root()).discover().warnings
    assert warning.startswith("claims in mode compute will be refused: GPU ")
    assert f" needs device node /{node}, which does not exist; " in warning
    assert intent.address in warning


def test_a_plain_file_in_place_of_a_device_node_is_named() -> None:
    machine = flex()
    machine.put("dev/dri/renderD128", b"")
    assert "needs device node /dev/dri/renderD128, which cannot be used" in refusal(machine, FLEX)


def test_a_gpu_whose_driver_was_unloaded_is_named() -> None:
    machine = hgx()
    machine.remove("proc/driver/nvidia")
    assert refusal(machine, H100).startswith("GPU 0000:43:00.0 has no minor number in /proc/driver/nvidia")


def test_a_partition_that_was_removed_since_it_was_published_is_named() -> None:
    message = refusal(mi300x(gpus=1, parts=2), PART)
    assert message.startswith("GPU 0000:0c:00.0 no longer has partition 3, only 2")


def test_a_gpu_on_vfio_has_no_nodes_for_compute() -> None:
    machine = laptop()
    machine.bind("0000:01:00.0", "vfio-pci")
    message = refusal(machine, Intent(address="0000:01:00.0", vendor="nvidia"))
    assert message.startswith("GPU 0000:01:00.0 is bound to vfio-pci, which has no nodes for mode compute")


def test_a_gpu_that_is_not_on_vfio_has_no_nodes_for_vfio() -> None:
    message = refusal(laptop(), Intent(address="0000:01:00.0", vendor="nvidia", mode=GPUMode.VFIO))
    assert message.startswith("GPU 0000:01:00.0 is bound to nvidia, which has no nodes for mode vfio")


def test_vfio_gives_the_groups_node_and_the_container() -> None:
    machine = laptop()
    machine.bind("0000:01:00.0", "nvgrace_gpu_vfio_pci")
    machine.node("dev/vfio/vfio", 10, 196)
    machine.node("dev/vfio/14", 240, 0)
    intent = Intent(address="0000:01:00.0", vendor="nvidia", mode=GPUMode.VFIO)
    assert nodes(machine, intent) == [("/dev/vfio/vfio", "c", 10, 196), ("/dev/vfio/14", "c", 240, 0)]


@pytest.mark.parametrize(("machine", "intent", "groups"), [(mi300x(gpus=1), PART, (105,)), (hgx(), H100, ())])
def test_containers_get_the_groups_that_own_the_nodes_but_not_root(
    machine: Machine, intent: Intent, groups: tuple[int, ...]
) -> None:
    edits = complete(
        machine.root(), intent, ContainerEdits(env=("A=b",)), lambda path: machine.groups.get(path.lstrip("/"))
    )
    assert edits.env == ("A=b",)
    assert edits.additional_gids == groups


def test_the_driver_from_which_a_gpu_was_unbound_is_named() -> None:
    machine = flex(vfs=0)
    folder = machine.root().resolve(f"{DEVICES}/0000:4d:00.0")
    machine.remove(f"{folder}/driver")
    machine.remove(f"{folder}/drm")
    machine.remove(f"{DRIVERS}/xe")
    assert refusal(machine, FLEX).startswith("GPU 0000:4d:00.0 has no device node /dev/dri/renderD*")


@pytest.mark.parametrize("mode", [GPUMode.COMPUTE, GPUMode.GRAPHICS])
def test_an_nvidia_gpu_on_nouveau_has_its_render_node_and_no_nvidia_libraries(mode: GPUMode) -> None:
    machine = laptop()
    folder = machine.root().resolve(f"{DEVICES}/0000:01:00.0")
    machine.remove("proc/driver/nvidia")
    machine.bind("0000:01:00.0", "nouveau")
    paths = [f"/dev/dri/renderD{129}", "/dev/dri/card2"]
    intent = Intent(address="0000:01:00.0", vendor="nvidia", mode=mode)
    assert [path for path, *_ in nodes(machine, intent)] == paths[: 1 if mode is GPUMode.COMPUTE else 2]
    edits = complete(machine.root(), intent, ContainerEdits(), lambda _: None)
    assert (edits.mounts, edits.env) == ((), ())
    machine.remove(f"{folder}/drm")
    assert refusal(machine, intent).startswith("GPU 0000:01:00.0 has no device node /dev/dri/renderD*")
