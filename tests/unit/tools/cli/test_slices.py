"""`dranode slices` prints complete ResourceSlice objects for programs and a table for people."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from dranode.api.documents import decode
from dranode.api.errors import UsageError
from dranode.api.resource import Device, DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.claims.plugin import DeviceHealth, Health, Inventory
from dranode.driver.machine.yaml_files import read_documents
from dranode.driver.slices.plan import complete_slice
from dranode.show.terminal import show_slices
from dranode.tools.cli.slices import command
from tests.fakes.drivers import Lamps
from tests.fakes.slices import slice_problems

SERVER = ("--machine", "sockets=2,numa=1,l3=1,cores=4,threads=2", "--node-name", "worker1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def slices(*arguments: str) -> list[dict[str, Any]]:
    result = run(*SERVER, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    made: list[dict[str, Any]] = json.loads(result.stdout)["items"]
    return made


def test_every_slice_is_a_complete_object() -> None:
    (one,) = slices("--reserved-cpus", "0,8")
    assert {key: one[key] for key in ("apiVersion", "kind", "metadata")} == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "00000-dra.cpu-worker1-"},
    }
    spec = one["spec"]
    assert (spec["driver"], spec["nodeName"]) == ("dra.cpu", "worker1")
    assert spec["pool"] == {"name": "worker1", "generation": 1, "resourceSliceCount": 1}
    assert [device["name"] for device in spec["devices"]] == ["cpudevnuma000", "cpudevnuma001"]
    assert spec["devices"][0]["capacity"]["dra.cpu/cpu"]["value"] == "6"


@pytest.mark.parametrize("options", [(), ("--group-by", "machine"), ("--cpu-device-mode", "individual")])
def test_the_api_accepts_every_slice(options: tuple[str, ...]) -> None:
    for one in slices(*options):
        assert slice_problems(decode(ResourceSlice, one).spec) == []


def test_slices_are_numbered_in_their_names() -> None:
    arguments = ("--machine", "sockets=1,numa=1,l3=1,cores=65,threads=2", "--cpu-device-mode", "individual")
    made = json.loads(run(*arguments, "--node-name", "n", "-o", "json").stdout)["items"]
    assert [one["metadata"]["generateName"] for one in made] == ["00000-dra.cpu-n-", "00001-dra.cpu-n-"]


def test_the_table_has_devices_and_what_a_claim_may_ask_for() -> None:
    table = run(*SERVER, "--threads", "full-core").stdout
    assert "cpudevnuma001" in table
    assert "cpu 8 (from 2 in steps of 2)" in table


def test_attributes_are_printed_literally() -> None:
    name = "Radeon [Navi 31] [/dev/dri]"
    device = Device(name="gpu-0", attributes={"productName": DeviceAttribute(string=name)})
    pool = ResourcePool(name="node", generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(driver="dra.gpu", node_name="node", pool=pool, devices=(device,))
    screen = Console(file=io.StringIO(), width=120)
    show_slices(screen, [complete_slice(spec, 0, 1)])
    assert f"productName={name}" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_left_out_is_reported_on_stderr() -> None:
    result = run(*SERVER, "--reserved-cpus", "0", "--threads", "full-core", "-o", "json")
    assert "dra.cpu: CPUs 8 share a core with reserved CPUs" in result.stderr
    assert json.loads(result.stdout)


@pytest.mark.parametrize("reserved", ["99", "0-15", "3-1"])
def test_impossible_reserved_cpus_are_a_usage_error(reserved: str) -> None:
    result = run(*SERVER, "--reserved-cpus", reserved)
    assert isinstance(result.exception, UsageError)
    assert "--reserved-cpus" in str(result.exception)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_yaml_and_json_are_a_list_that_other_commands_read(tmp_path: Path, form: str) -> None:
    printed = run(*SERVER, "-o", form).stdout
    path = tmp_path / f"slices.{form}"
    path.write_text(printed, encoding="utf-8")
    document = yaml.safe_load(printed)
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    assert [source.document for source in read_documents(path)] == document["items"] != []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "15 of 16 CPUs are published; the last one is left to containers without a claim"),
        (("--cpu-device-mode", "individual"), "15 of 16 CPUs are published; the last one is left to"),
        (
            ("--threads", "full-core"),
            "14 of 16 CPUs are published; the last core is left to containers",
        ),
        (
            ("--max-isolation", "quiet"),
            "the last one is left to containers without a claim and interrupts (see --reserved-cpus",
        ),
        (("--reserved-cpus", "0"), ""),
    ],
)
def test_the_table_says_why_the_last_cpu_is_not_published(arguments: tuple[str, ...], said: str) -> None:
    table = " ".join(run("--machine", "cores=8,threads=2", *arguments).stdout.split())
    assert said in table
    assert ("are published;" in table) == bool(said)
    assert "are published" not in run("--machine", "cores=8,threads=2", *arguments, "-o", "json").stdout


def test_the_table_marks_an_unhealthy_device_and_json_has_its_taint(monkeypatch: pytest.MonkeyPatch) -> None:
    class Burnt(Lamps):
        def health(self, inventory: Inventory) -> Iterable[DeviceHealth]:
            yield DeviceHealth(inventory.devices[1].name, Health.UNHEALTHY, "the bulb is burnt out")

    monkeypatch.setattr("dranode.tools.cli.slices.load_plugins", lambda *_: [Burnt(2)])
    assert run(*SERVER).stdout.splitlines()[-1] == f"{Burnt.driver}: lamp-1 is unhealthy: the bulb is burnt out"
    assert [device.get("taints") for device in slices()[0]["spec"]["devices"]] == [None, None]
    tainted = slices("--device-taints")[0]["spec"]["devices"][1]["taints"]
    assert [taint["key"] for taint in tainted] == [f"{Burnt.driver}/unhealthy"]
