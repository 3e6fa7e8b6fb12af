""""""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.cpu.sysfs import read_topology
from dranode.driver.cli.commands import cli
from dranode.driver.machine.pci import PCIFunction
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.machine import command as machine_command
from dranode.tools.cli.topology import MEANINGS, Proximity, command, proximity, topology_document


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


# --- `dranode topology` and `claims` on a machine that has devices and no CPU ---


GPU = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A machine that has a GPU and nothing else."""
    facts = {"class": "0x030200", "vendor": "0x10de", "device": "0x26b9", "numa_node": "0"}
    files = {f"{GPU}/{name}": value for name, value in facts.items()}
    links = {"/sys/bus/pci/devices/0000:17:00.0": f"../../..{GPU.removeprefix('/sys')}"}
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump({"files": files, "links": links}))
    return str(tmp_path / "gpu.yaml")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_its_other_devices_are_shown(machine: str) -> None:
    done = run("topology", "--machine", machine)
    assert done.exit_code == 0
    assert "1 device; CPUs are not shown, because no driver reports them" in done.stdout
    assert "gpu-0000-17-00-0" in done.stdout
    assert "the devices of dra.cpu are unknown: no CPU is online" in done.stderr


def test_the_json_says_that_nothing_is_known_about_cpus(machine: str) -> None:
    document = json.loads(run("topology", "--machine", machine, "-o", "json").stdout)
    assert (document["cpus"], document["numa"], document["holders"]) == (None, None, {})


def test_links_show_only_cpus_that_exist(tmp_path: Path) -> None:
    run("machine", "copy", "--machine", "cores=2", str(tmp_path / "odd"))
    (tmp_path / "odd/sys/devices/system/node/node0/cpulist").write_text("0-1,900\n")
    document = json.loads(run("topology", "--links", "--machine", str(tmp_path / "odd"), "-o", "json").stdout)
    assert [node["cpus"] for node in document["numaNodes"]] == ["0-1"]


def test_pictures_of_the_machine_are_written(machine: str, tmp_path: Path) -> None:
    done = run("topology", "--machine", machine, "--html", str(tmp_path / "n.html"), "--svg", str(tmp_path / "n.svg"))
    assert done.exit_code == 0
    assert "gpu-0000-17-00-0" in (tmp_path / "n.html").read_text()


def test_a_machine_whose_cpus_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump({"/sys/devices/system/cpu/online": "many"}))
    done = run("topology", "--machine", str(tmp_path / "broken.yaml"))
    assert isinstance(done.exception, MachineError)


def test_claims_without_a_record_need_no_cpu(machine: str, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    done = run("claims", "--machine", machine, "--kubelet-root", str(tmp_path))
    assert (done.exit_code, done.stdout) == (0, "No claim is on record.\n")


def test_claims_says_that_the_machine_has_no_cpus_to_verify(machine: str, tmp_path: Path) -> None:
    run("local", "--machine", "cores=4", "--state", str(tmp_path / "state"), "--keep", "examples/cpu-numa.yaml")
    done = run("claims", "--machine", machine, "--kubelet-root", str(tmp_path / "state" / "kubelet"), "--verify")
    reason = "/sys/devices/system/cpu/online does not say which CPUs are online: No such file or directory"
    assert str(done.exception) == reason


# --- What is between two PCI devices, in the words of nvidia-smi ---


ROOT = "pci0000:16"
UP = "0000:17:00.0"


def device(address: str, *bridges: str, numa: int | None = 0) -> PCIFunction:
    return PCIFunction(address, bridges, numa, CPUSet(), (None, None), (None, None))


@pytest.mark.parametrize(
    ("one", "other", "between"),
    [
        (device("a", ROOT, "p"), device("a", ROOT, "p"), Proximity.SELF),
        (device("a.0", ROOT, "p"), device("a.1", ROOT, "p"), Proximity.SWITCH),
        (device("a", ROOT, "p", UP, "d0"), device("b", ROOT, "p", UP, "d1"), Proximity.SWITCH),
        (device("a", ROOT, "p", UP, "d0"), device("b", ROOT, "p", UP, "d1", "u2", "d2"), Proximity.SWITCHES),
        (device("a", ROOT, "p0"), device("b", ROOT, "p1"), Proximity.ROOT),
        (device("a", ROOT), device("b", ROOT), Proximity.ROOT),
        (device("a", ROOT, "p0"), device("b", "pci0000:30", "p0"), Proximity.NODE),
        (device("a", ROOT, "p0"), device("b", "pci0000:30", "p0", numa=1), Proximity.SYSTEM),
        (device("a"), device("b"), Proximity.WITHIN_NODE),
        (device("a"), device("b", ROOT, "p"), Proximity.WITHIN_NODE),
        (device("a"), device("b", numa=1), Proximity.SYSTEM),
        (device("a", numa=None), device("b", ROOT, "p"), Proximity.UNKNOWN),
        (device("a", ROOT, "p0", numa=None), device("b", ROOT, "p1", numa=None), Proximity.ROOT),
    ],
)
def test_what_is_between_two_devices(one: PCIFunction, other: PCIFunction, between: Proximity) -> None:
    assert (proximity(one, other), proximity(other, one)) == (between, between)


def test_every_word_is_explained_and_sorted_from_near_to_far() -> None:
    assert list(MEANINGS) == list(Proximity)
