"""Every example runs as its first lines say, and an API server would accept its objects."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.program import run_program
from tests.fakes.waiting import PATIENCE
from tests.kubernetes_schemas import documents, is_known, problems

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("cpu-*.yaml"))
OF_MEMORY = sorted((ROOT / "examples").glob("memory-*.yaml"))
OF_GPUS = sorted(path for path in (ROOT / "examples").glob("gpu-*.yaml") if path.name != "gpu-server.yaml")

# What each example promises, as CPUs of the machine in its command.
CPUS = {
    "cpu-allocated.yaml": {"chosen": "4-5,12-13"},
    "cpu-class.yaml": {"by-class-cpus": "0,16"},
    "cpu-full-cores.yaml": {"both-threads-cpus": "0-1,16-17", "one-thread-cpus": "2-3"},
    "cpu-individual.yaml": {"four-devices-cpus": "0-1,16-17"},
    "cpu-machine.yaml": {"these-cpus": "2-3,18-19"},
    "cpu-numa.yaml": {"near-memory-cpus": "0-1,16-17"},
    "cpu-one-cache.yaml": {"packets-cpus": "0-3,16-19"},
    "cpu-prioritized.yaml": {"in-the-way": "1,17", "first-cpus": "8-15,24-31", "second-cpus": "2-5,18-21"},
    "cpu-quiet.yaml": {"undisturbed-cpus": "0-1"},
    "cpu-shared-in-pod.yaml": {"three-containers-cpus": "0-2,16-18"},
    "cpu-shared-pool.yaml": {"busy-and-idle-cpus": "0,4"},
    "cpu-socket.yaml": {"one-socket-cpus": "8-13,24-29"},
    "cpu-spread.yaml": {"two-nodes-cpus": "0-2,4-6,16-18,20-22"},
}

# What each example with several kinds of devices promises: each request's device and amount.
DEVICES = {
    "gpu-aligned.yaml": {"gpu": ("gpu-0000-11-00-0", ""), "cpus": ("cpudevnuma000", "4")},
    "memory-database.yaml": {
        "cpus": ("cpudevnuma000", "4"),
        "memory": ("memory-numa0", "8Gi"),
        "buffers": ("hugepages-1g-numa0", "1Gi"),
    },
    "memory-dpdk.yaml": {"cpus": ("cpudevnuma000", "4"), "pages": ("hugepages-2m-numa0", "512Mi")},
    "memory-gpu.yaml": {
        "gpu": ("gpu-0000-11-00-0", ""),
        "cpus": ("cpudevnuma000", "4"),
        "memory": ("memory-numa0", "16Gi"),
        "pages": ("hugepages-2m-numa0", "1Gi"),
    },
    "memory-vm.yaml": {
        "cpus-0": ("cpudevnuma000", "4"),
        "ram-0": ("hugepages-1g-numa0", "4Gi"),
        "cpus-1": ("cpudevnuma001", "4"),
        "ram-1": ("hugepages-1g-numa1", "4Gi"),
    },
}

# The PCI bus of each claim's GPU. The names of a controller's claims are generated.
GPUS = {
    "gpu-admin.yaml": ["training 11", "monitor 11"],
    "gpu-extended-resource.yaml": ["unchanged-extended-resources 11"],
    "gpu-job.yaml": ["train 11", "train 21", "answer 31", "answer 41"],
    "gpu-part.yaml": ["first-gpu 11", "second-gpu 11", "whole-gpu 21"],
    "gpu-taint.yaml": ["work 21", "test 11"],
    "gpu-vfio.yaml": ["guest-gpu 11"],
}


def run(path: Path) -> dict[str, Any]:
    (command,) = [line[4:] for line in path.read_text().splitlines() if line.startswith("#   dranode local ")]
    program, *arguments = shlex.split(command)
    assert program == "dranode"
    done = run_program(*arguments, "-o", "json", cwd=ROOT)
    # Replace the generated names of a controller's pods.
    errors = [line for line in done.stderr.splitlines() if " creates " not in line]
    assert (done.returncode, errors) == (0, [])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_gives_the_cpus_that_it_promises(path: Path) -> None:
    answer = run(path)
    assert {claim["name"]: claim["cpus"] for claim in answer["claims"]} == CPUS[path.name]
    assert answer["unprepared"] is True


@pytest.mark.parametrize("name", DEVICES)
def test_an_example_of_several_kinds_gives_the_devices_that_it_promises(name: str) -> None:
    answer = run(ROOT / "examples" / name)
    (claim,) = answer["claims"]
    assert claim["error"] is None
    results = claim["allocation"]["devices"]["results"]
    amounts = {each["request"]: next(iter(each.get("consumedCapacity", {}).values()), "") for each in results}
    given = {each["request"]: (each["device"], amounts[each["request"]]) for each in results}
    assert given == DEVICES[name]
    prepared = [request for device in claim["devices"] for request in device["requests"] if device["cdi"]]
    assert sorted(prepared) == sorted(given)
    assert answer["unprepared"] is True


@pytest.mark.parametrize("name", GPUS)
def test_an_example_of_gpus_gives_the_gpus_that_it_promises(name: str) -> None:
    answer = run(ROOT / "examples" / name)
    assert [claim["error"] for claim in answer["claims"] if claim["error"]] == []
    given = [f"{claim['name']} {device['device'][9:11]}" for claim in answer["claims"] for device in claim["devices"]]
    assert [re.sub(r"^(train|answer)-\S+-gpu", r"\1", each) for each in given] == GPUS[name]
    assert answer["unprepared"] is True


def test_a_gpu_and_a_network_card_come_from_one_pcie_root() -> None:
    answer = run(ROOT / "examples" / "gpu-nic.yaml")
    (pod,) = answer["pods"]
    assert (pod["pod"], pod["node"]) == ("default/training", "server")
    (claim,) = [one for one in answer["claims"] if one["name"] == "training"]
    assert [result["device"] for result in claim["allocation"]["devices"]["results"]] == ["gpu-1", "nic-1"]


def test_two_pods_get_a_gpu_and_the_third_gets_cpus() -> None:
    claims = run(ROOT / "examples" / "gpu-else-cpus.yaml")["claims"]
    assert {claim["name"]: claim["allocation"]["devices"]["results"][0]["request"] for claim in claims} == {
        "first-engine": "engine/gpu",
        "second-engine": "engine/gpu",
        "third-engine": "engine/cpus",
    }


def test_a_gpu_for_a_virtual_machine_is_bound_for_the_claim_and_given_back() -> None:
    written = run(ROOT / "examples" / "gpu-vfio.yaml")["written"]
    (driver,) = [file for file in written if file["path"].endswith("/driver")]
    assert (driver["before"], driver["prepared"], driver["after"]) == ("amdgpu", "vfio-pci", "amdgpu")


@pytest.mark.parametrize("path", [*EXAMPLES, *OF_MEMORY, *OF_GPUS], ids=lambda path: path.stem)
def test_an_example_follows_kubernetes_schemas(path: Path) -> None:
    found = list(documents(path))
    assert all(is_known(document) for document in found)
    assert [problem for document in found for problem in problems(document)] == []


VARIABLES = {
    "cpu-quiet.yaml": ["DRANODE_ISOLATION_0-1"],
    "memory-vm.yaml": ["DRANODE_MEMORY_0-1_0", "DRANODE_MEMPOLICY_0-1_0", "DRA_CPUSET_0-1"],
}


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox"])
@pytest.mark.parametrize("name", VARIABLES)
def test_a_container_prints_the_variables_that_its_shell_drops(name: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    pods = [one["spec"] for one in documents(ROOT / "examples" / name) if one["kind"] == "Pod"]
    (script,) = [container["command"][2] for pod in pods for container in pod["containers"]]
    # The shell must be the container's first process, which this one is not.
    script = script.replace("/proc/1/", "/proc/$$/").replace("sleep infinity", "true")
    words = [shell, "sh", "-c", script] if shell == "busybox" else [shell, "-c", script]
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(VARIABLES[name], "said")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert sorted(done.stdout.splitlines()) == [f"{each}=said" for each in VARIABLES[name]]
