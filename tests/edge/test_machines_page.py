"""The page about machines and fleets in files: its files can be read."""

import shlex
from pathlib import Path

import pytest

from dranode.api import Quantity
from dranode.gpu.plugin import plugin as gpu_plugin
from dranode.sim.cluster.nodes_file import read_nodes
from dranode.sim.machines import open_machine
from tests.edge.test_docs import BLOCK, ROOT, Block, matches, sessions
from tests.fakes.program import run_program

PAGE = (ROOT / "docs" / "machines.md").read_text()
FILES = {title: text for _, title, text in BLOCK.findall(PAGE) if title}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for title, text in FILES.items():
        (tmp_path / title).write_text(text)
    return tmp_path


def test_the_machine_of_the_page_has_a_gpu_at_the_target_of_its_link(files: Path) -> None:
    (files / "alone.yaml").write_text(FILES["one-gpu.yaml"].replace("base: host\n", ""))
    (device,) = gpu_plugin(open_machine(str(files / "alone.yaml")), {}).discover().devices
    assert device.attributes["resource.kubernetes.io/pcieRoot"].string == "pci0000:16"
    assert open_machine(str(files / "one-gpu.yaml")).exists("dev/nvidia0")


def test_the_flat_machine_of_the_page_is_read(files: Path) -> None:
    assert open_machine(str(files / "fans.yaml")).listdir("sys/class/fans") == ["fan-0", "fan-1"]


def test_the_fleet_of_the_page_is_read(files: Path) -> None:
    big, spot = read_nodes(files / "nodes.yaml")
    assert (len(big.names()), spot.names()) == (100, ("spot",))
    assert spot.allocatable["cpu"] == Quantity("30")


@pytest.mark.parametrize("text", [text for language, _, text in BLOCK.findall(PAGE) if language == "console"])
def test_a_command_of_the_page_runs(text: str, tmp_path: Path) -> None:
    for command, expected in sessions(Block(Path("machines.md"), "console", "", text)):
        done = run_program(*shlex.split(command)[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert matches(expected, done.stdout.splitlines()), done.stdout
