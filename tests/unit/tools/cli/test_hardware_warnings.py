"""Every command that shows a machine reports what drivers find odd about it, in every output format."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.driver.cli.commands import cli
from tests.fakes.gpu_machines import hgx
from tests.fakes.machine import NODE

COMMANDS = {
    "topology": ["topology"],
    "links": ["topology", "--links"],
    "slices": ["slices", "--drivers", "cpu,gpu,memory"],
    "bundle": ["bundle", "--drivers", "cpu,gpu,memory"],
}


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_machine_with_unread_parts_is_not_shown_as_a_smaller_one(tmp_path: Path, command: str, output: str) -> None:
    damaged = hgx()
    for node, size in ((0, 64), (1, 64)):
        damaged.put(f"{NODE}/node{node}/meminfo", f"Node {node} MemTotal:       {size << 20} kB")
    damaged.put("proc/driver/nvidia/gpus/0000:43:00.0/information", "GPU Excluded:\t Yes")
    damaged.put(f"{NODE}/online", "0-2")
    folder = damaged.write(tmp_path / "machine")
    ran = CliRunner().invoke(cli, [*COMMANDS[command], "--machine", str(folder), "-o", output])
    assert ran.exit_code in (0, 1), ran.output
    said = f"{ran.stderr}\n{ran.stdout}" if output == "table" else ran.stderr
    for sentence in (
        "GPU 0000:43:00.0 is left out: NVIDIA's driver is configured to exclude it (NVreg_ExcludedGpus)",
        f"the NUMA nodes 2 of /{NODE}/online are not known: they have no folder there",
    ):
        assert sentence in said


@pytest.mark.parametrize("command", [["doctor"], ["explain", "app"]])
def test_a_root_that_is_no_folder_is_not_taken_for_an_empty_node(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").touch()
    for root in ("file", "missing"):
        ran = CliRunner().invoke(cli, [*command, "--root", str(tmp_path / root)])
        assert f"--root {tmp_path / root} is not a folder" in str(ran.exception)
