"""Nothing in a document makes a command end in a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.api.errors import DranodeError
from dranode.driver.cli.commands import cli

LONG = "9" * 5000
EXTENDED = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"extendedResourceName": "example.com/gpu"},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"example.com/gpu": "1"}}}]},
}


def claim_with_cpus(cpus: Any) -> dict[str, Any]:
    result = {"request": "r", "driver": "cpu.example.com", "pool": "w", "device": "d"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "cpu"}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "devices": [{"driver": "cpu.example.com", "pool": "w", "device": "d", "data": {"cpus": cpus}}],
        },
    }


def run(folder: Path, documents: list[dict[str, Any]], command: str, *options: str) -> Result:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return CliRunner().invoke(cli, [command, str(path), *options])


@pytest.mark.parametrize("command", ["allocate", "fit", "report"])
def test_an_extended_resource_without_nodes_is_answered(tmp_path: Path, command: str) -> None:
    options = ("--html", str(tmp_path / "r.html")) if command == "report" else ()
    result = run(tmp_path, [EXTENDED, POD], command, *options)
    assert isinstance(result.exception, (SystemExit, DranodeError, type(None))), result.exception
    if command == "allocate":
        assert "there is no node to run on" in result.stdout


@pytest.mark.parametrize("cpus", ["x", "", "-", "3-1", "0-99999999999", LONG, "[red]", 5, None, ["0"], {"a": 1}])
def test_a_page_of_a_claim_with_any_status_is_drawn(tmp_path: Path, cpus: Any) -> None:
    page, picture = tmp_path / "r.html", tmp_path / "r.svg"
    result = run(tmp_path, [claim_with_cpus(cpus)], "report", "--html", str(page), "--svg", str(picture))
    assert result.exit_code == 0, result.exception
    assert ("that are not a valid cpu-list" in page.read_text(encoding="utf-8")) == isinstance(cpus, str)


@pytest.mark.parametrize("command", ["allocate", "fit", "report", "check", "bundle"])
@pytest.mark.parametrize("place", ["quantity", "expression", "pool", "count", "number"])
def test_a_number_of_many_digits_is_one_error(tmp_path: Path, command: str, place: str) -> None:
    pool = {"name": f"w{LONG}" if place == "pool" else "w", "generation": 1, "resourceSliceCount": 1}
    capacity = {"memory": {"value": LONG if place == "quantity" else "1"}}
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "d.example.com",
            "nodeName": "w",
            "pool": pool,
            "devices": [{"name": "d", "capacity": capacity}],
        },
    }
    exactly: dict[str, Any] = {"deviceClassName": "gpu"}
    if place == "expression":
        exactly["selectors"] = [{"cel": {"expression": f"{LONG} == 1"}}]
    if place == "count":
        exactly["count"] = 10**30
    claim = {
        **claim_with_cpus("0"),
        "status": {},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    documents = [EXTENDED, slice_, claim, POD]
    path = tmp_path / "all.json"
    text = "\n---\n".join(json.dumps(each) for each in documents)
    path.write_text(text.replace('"generation": 1', f'"generation": {LONG}') if place == "number" else text)
    options = ("--html", str(tmp_path / "r.html")) if command == "report" else ()
    result = CliRunner().invoke(cli, [command, str(path), *options])
    assert isinstance(result.exception, (SystemExit, DranodeError, type(None))), result.exception
    assert "set_int_max_str_digits" not in f"{result.output}{result.exception}"


MACHINE = {
    "/sys/devices/system/cpu/online": "0-1\n",
    "/sys/devices/system/cpu/possible": "0-1\n",
    "/sys/devices/system/cpu/present": "0-1\n",
    **{f"/sys/devices/system/cpu/cpu{n}/topology/core_id": f"{n}\n" for n in (0, 1)},
    **{f"/sys/devices/system/cpu/cpu{n}/topology/physical_package_id": "0\n" for n in (0, 1)},
    **{f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n}\n" for n in (0, 1)},
    **{f"/sys/devices/system/cpu/cpu{n}/topology/core_siblings_list": "0-1\n" for n in (0, 1)},
    "/sys/devices/system/node/online": "0\n",
    "/sys/devices/system/node/has_memory": "0\n",
    "/sys/devices/system/node/node0/cpulist": "0-1\n",
    "/sys/devices/system/node/node0/distance": "10\n",
    "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 8388608 kB\nNode 0 MemFree: 8388608 kB\n",
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": "4\n",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages": "0\n",
    "/proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 8388608 kB\n",
    "/proc/buddyinfo": "Node 0, zone   Normal      1      2      3\n",
    "/proc/zoneinfo": "Node 0, zone   Normal\n        managed  2097152\n",
    "/proc/interrupts": "           CPU0       CPU1\n  1:          5          6   IO-APIC   1-edge      i8042\n",
}


@pytest.mark.parametrize("path", MACHINE)
def test_a_machine_file_with_a_number_of_many_digits_is_read_or_refused(tmp_path: Path, path: str) -> None:
    head, _, tail = MACHINE[path].rpartition(next(digit for digit in reversed(MACHINE[path]) if digit.isdigit()))
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump({"files": {**MACHINE, path: f"{head}{LONG}{tail}"}}), encoding="utf-8")
    for command in (
        ["slices", "--drivers", "cpu,memory,gpu"],
        ["topology"],
        ["topology", "--links"],
        ["local", "--drivers", "cpu,memory"],
        ["report", "--html", str(tmp_path / "r.html")],
    ):
        result = CliRunner().invoke(cli, [*command, "--machine", str(file)])
        assert isinstance(result.exception, (SystemExit, DranodeError, type(None))), (command, result.exception)
        assert "set_int_max_str_digits" not in f"{result.output}{result.exception}"


SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d.example.com",
        "nodeName": "w",
        "pool": {"name": "w", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d"}],
    },
}
RULE = {
    "apiVersion": "resource.k8s.io/v1beta2",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "r"},
    "spec": {"taint": {"key": "a", "effect": "NoSchedule"}},
}


def changed(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], **fields}}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (changed(SLICE, devices=[{"name": "D"}]), 'spec.devices[0].name: "D" is not a DNS label'),
        (
            changed(SLICE, pool={"name": "w", "generation": 1}),
            "spec.pool.resourceSliceCount: 0 must be greater than zero",
        ),
        (changed(SLICE, nodeName=None), "spec: exactly one of nodeName, nodeSelector, allNodes"),
        (changed(SLICE, devcies=[]), "spec.devcies: there is no such field"),
        (changed(SLICE, devices=[{"name": "d", "capacity": {"a": {}}}]), "spec.devices[0].capacity"),
        (changed(RULE, taint={"key": "a b", "effect": "NoSchedule"}), 'spec.taint.key: "a b" is not a label name'),
        (changed(RULE, taint={"key": "a", "effect": "Never"}), 'spec.taint.effect: "Never" is not one of'),
        (changed(RULE, deviceSelector={"driver": "a_b"}), 'spec.deviceSelector.driver: "a_b" is not a DNS subdomain'),
    ],
)
def test_a_slice_or_rule_that_an_api_server_would_refuse_is_refused(
    tmp_path: Path, document: dict[str, Any], error: str
) -> None:
    result = run(tmp_path, [document], "check")
    assert result.exit_code == 1
    assert error in result.stdout
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w"}}
    for command in ("allocate", "fit"):
        refused = run(tmp_path, [node, EXTENDED, POD, document], command).exception
        assert error in str(refused), command


def test_valid_slices_and_rules_are_checked_and_allocated_from(tmp_path: Path) -> None:
    result = run(tmp_path, [SLICE, RULE], "check", "-o", "json")
    assert [(each["kind"], each["ok"]) for each in json.loads(result.stdout)] == [
        ("ResourceSlice", True),
        ("DeviceTaintRule", True),
    ]


def test_the_path_of_an_error_in_a_v1beta1_slice_is_that_of_the_document(tmp_path: Path) -> None:
    device = {"name": "d", "basic": {"attributes": {"a": {"string": "x" * 65}}}}
    result = run(tmp_path, [{**changed(SLICE, devices=[device]), "apiVersion": "resource.k8s.io/v1beta1"}], "check")
    assert "spec.devices[0].basic.attributes[a].string: " in result.stdout
