"""The page about machines and fleets in files: its files can be read, and its tables have every key."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dranode.api import Quantity
from dranode.api.resource import DeviceTaint
from dranode.gpu.plugin import plugin as gpu_plugin
from dranode.sim.cluster.node_kinds import NodeKind
from dranode.sim.cluster.nodes_file import read_nodes
from dranode.sim.machines import machine_file, open_machine
from dranode.sim.machines.synthetic import KEYS
from tests.edge.test_docs import BLOCK, ROOT, Block, matches, sessions
from tests.fakes.program import run_program

PAGE = (ROOT / "docs" / "machines.md").read_text()
FILES = {title: text for _, title, text in BLOCK.findall(PAGE) if title}


def keys(heading: str) -> list[str]:
    """The code in the first column of the tables under a heading."""
    (part,) = [part for part in PAGE.split("\n## ") if part.startswith(f"{heading}\n")]
    return [
        key for cell in re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE) for key in re.findall(r"`([^`]+)`", cell)
    ]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for title, text in FILES.items():
        (tmp_path / title).write_text(text)
    return tmp_path


def test_the_table_of_a_description_has_every_key() -> None:
    assert set(KEYS) <= set(keys("A description"))


def test_the_table_of_a_yaml_machine_has_every_key() -> None:
    assert sorted(keys("A YAML machine")) == sorted(machine_file._LONG_KEYS)


def test_the_table_of_a_fleet_has_every_field() -> None:
    fields = [name for name in NodeKind.__struct_fields__ if name != "taints"]
    taints = [name for name in DeviceTaint.__struct_fields__ if name != "time_added"]
    named = [key.removeprefix("nodes[].").removeprefix("taints[].") for key in keys("nodes.yaml")]
    assert sorted(named) == sorted([*fields, *taints])


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
