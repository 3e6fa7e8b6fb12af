"""The GPU examples run as their first lines say."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.api.errors import DranodeError
from dranode.sim.cli.local import command

SERVER = "sockets=2,cores=8,gpus=2"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(*files: str) -> dict[str, Any]:
    arguments = ["--drivers", "cpu", "--drivers", "gpu", "--machine", SERVER, "-o", "json"]
    result = CliRunner().invoke(command, [*arguments, *(str(EXAMPLES / file) for file in files)])
    if isinstance(result.exception, DranodeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["unprepared"] is True
    return document


def attribute(document: dict[str, Any], device: str, name: str) -> Any:
    (found,) = (
        each for each in (d for s in document["slices"] for d in s["spec"]["devices"]) if each["name"] == device
    )
    return found["attributes"][name]


def test_cpus_and_gpu_of_one_numa_node_are_allocated_and_prepared() -> None:
    document = run("gpu-aligned.yaml")
    (claim,) = document["claims"]
    assert claim["error"] is None
    devices = {tuple(each["requests"]): each for each in claim["devices"]}
    gpu, cpus = devices[("gpu",)], devices[("cpus",)]
    assert gpu["cdi"]
    assert cpus["cdi"]
    near = "resource.kubernetes.io/numaNode"
    assert attribute(document, gpu["device"], near) == attribute(document, cpus["device"], near)


def test_two_pods_get_a_gpu_and_the_third_gets_cpus() -> None:
    given = {
        claim["name"]: claim["allocation"]["devices"]["results"][0]["request"]
        for claim in run("gpu-else-cpus.yaml")["claims"]
    }
    assert given == {"first-engine": "engine/gpu", "second-engine": "engine/gpu", "third-engine": "engine/cpus"}


@pytest.mark.parametrize("file", ["gpu-aligned.yaml", "gpu-else-cpus.yaml"])
def test_each_example_says_how_it_is_run(file: str) -> None:
    assert f"--machine {SERVER} examples/{file}\n" in (EXAMPLES / file).read_text(encoding="utf-8")
