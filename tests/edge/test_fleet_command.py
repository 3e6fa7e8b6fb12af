"""`dranode local --nodes` and `--queues`, as a program."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fakes.program import run_program

EXAMPLES = Path(__file__).parents[2] / "examples"


def local(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program("local", *arguments, cwd=cwd)


def test_queues_without_a_workload_are_refused(files: Path) -> None:
    done = local(files, "--queues", str(EXAMPLES / "queues.yaml"), "--nodes", "nodes.yaml", "claims.yaml")
    assert done.returncode == 1
    assert "nothing to admit: the files have no Workload" in done.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    nodes = [
        {"name": "small", "machine": "cores=5", "count": 2},
        {"name": "large", "machine": "cores=16", "labels": {"size": "large"}},
    ]

    def request(count: int, name: str = "") -> dict[str, object]:
        one: dict[str, object] = {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": str(count)}}}
        return {"name": name, **one} if name else one

    def claim(name: str, request: dict[str, object]) -> dict[str, object]:
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "r", **request}]}},
        }

    claims = [
        claim("list", {"firstAvailable": [request(8, "big"), request(4, "little")]}),
        claim("four", {"exactly": request(4)}),
        claim("too-many", {"exactly": request(32)}),
    ]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump_all(claims))
    return tmp_path


def test_claims_are_placed_by_the_score_of_prioritized_lists(files: Path) -> None:
    done = local(files, "--nodes", "nodes.yaml", "--scores", "--svg", "fleet.svg", "claims.yaml", "-o", "json")
    shown = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(claim["name"], claim["node"]) for claim in shown["claims"]] == [
        ("list", "large"),
        ("four", "small-0"),
        ("too-many", None),
    ]
    assert shown["claims"][0]["allocation"]["devices"]["results"][0]["request"] == "r/big"
    assert shown["claims"][2]["error"]
    scores = {
        score["node"]: (score["raw"], score["score"]) for score in shown["scores"] if score["pod"] == "default/list"
    }
    assert scores == {"small-0": (7, 87), "small-1": (7, 87), "large": (8, 100)}
    assert [node["name"] for node in shown["nodes"]] == ["small-0", "small-1", "large"]
    picture = (files / "fleet.svg").read_text()
    assert picture.startswith("<svg")
    assert picture.rstrip().endswith("</svg>")


def test_the_output_shows_machines_and_why_something_waits(files: Path) -> None:
    done = local(files, "--nodes", "nodes.yaml", "claims.yaml")
    assert "2 of 3 pods placed on 2 of 3 nodes" in done.stdout
    assert "default/too-many" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "rc", "sentence"),
    [
        (["--scores", "claims.yaml"], 2, "--nodes"),
        (["--nodes", "missing.yaml"], 1, "missing.yaml"),
        (["--nodes", "claims.yaml"], 1, "claims.yaml"),
        (["--nodes", "nodes.yaml", "--svg", "no/such/folder.svg", "claims.yaml"], 1, "no/such/folder.svg"),
        (["--queues", "nodes.yaml", "claims.yaml"], 1, "nodes.yaml"),
    ],
)
def test_bad_input_is_one_sentence(files: Path, arguments: list[str], rc: int, sentence: str) -> None:
    done = local(files, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (rc, False), done.stderr
    assert sentence in done.stderr
