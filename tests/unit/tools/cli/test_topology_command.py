import json
from pathlib import Path

import yaml
from click.testing import CliRunner

from dranode.api.cpuset import CPUSet
from dranode.cpu.sysfs import read_topology
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.machine import command as machine_command
from dranode.tools.cli.topology import command, topology_document


def test_the_document_keeps_its_format() -> None:
    topology = read_topology(open_machine("sockets=2,cores=2,threads=2"))
    assert topology_document(topology, {"default/a": CPUSet.parse("2-3")}) == {
        "cpus": "0-7",
        "offline": "",
        "isolated": "",
        "nohz_full": "",
        "smt": True,
        "cores": ["0,4", "1,5", "2,6", "3,7"],
        "packages": ["0-1,4-5", "2-3,6-7"],
        "l3": ["0-1,4-5", "2-3,6-7"],
        "numa": {"0": "0-1,4-5", "1": "2-3,6-7"},
        "core_types": {"standard": "0-7"},
        "holders": {"default/a": "2-3"},
    }


def test_json_and_yaml_have_the_same_content() -> None:
    arguments = ["--machine", "cores=2", "-o"]
    as_json = CliRunner().invoke(command, [*arguments, "json"])
    as_yaml = CliRunner().invoke(command, [*arguments, "yaml"])
    assert as_json.exit_code == as_yaml.exit_code == 0
    assert json.loads(as_json.output) == yaml.safe_load(as_yaml.output)


def test_in_a_pipe_the_picture_has_no_color_codes() -> None:
    result = CliRunner().invoke(command, ["--machine", "cores=2"])
    assert result.exit_code == 0
    assert "╭─ package 0, NUMA 0 ─" in result.output
    assert "\x1b" not in result.output


def test_devices_of_other_drivers_are_in_their_numa_node() -> None:
    result = CliRunner().invoke(command, ["--machine", "sockets=2,cores=8,gpus=2"])
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if "gpu-" in line]
    assert [part.strip() for part in line.split("│")] == ["", "gpu-0000-11-00-0", "", "gpu-0000-21-00-0", ""]


def test_the_page_and_the_svg_show_the_same(tmp_path: Path) -> None:
    machine = "sockets=2,cores=8,gpus=2"
    html, svg = str(tmp_path / "node.html"), str(tmp_path / "node.svg")
    for output in ("json", "table"):
        result = CliRunner().invoke(command, ["--machine", machine, "--html", html, "--svg", svg, "-o", output])
        assert result.exit_code == 0
        for file in (html, svg):
            assert "gpu-0000-11-00-0" in Path(file).read_text()
            Path(file).unlink()
    assert "NUMA 1" in result.output


def test_capture_and_show_work_from_the_command_line(tmp_path: Path) -> None:
    place = str(tmp_path / "node.tar.gz")
    made = CliRunner().invoke(machine_command, ["capture", "--machine", "cores=2,threads=2", "-o", place])
    assert made.exit_code == 0, made.output
    assert "device nodes" in made.output
    shown = CliRunner().invoke(machine_command, ["show", "--machine", place, "-o", "json"])
    assert json.loads(shown.output)["cpus"] == "0-3"
    table = CliRunner().invoke(machine_command, ["show", "--machine", place])
    assert "CPUs online" in table.output
