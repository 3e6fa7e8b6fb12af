"""`dranode topology` and `claims` on a machine that has devices and no CPU."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.api.errors import MachineError
from dranode.driver.cli.commands import cli

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
