import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.api.errors import DranodeError, UsageError
from dranode.sim.cli.report import command
from tests.fakes.clusters import CLASS
from tests.unit.sim.report.test_waiting import claim, pod, slice_of


def report(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--html", str(folder / "report.html"), *arguments])


def data(folder: Path) -> dict[str, Any]:
    page = (folder / "report.html").read_text()
    (text,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    document: dict[str, Any] = json.loads(text)
    return document


def dump(path: Path, *documents: dict[str, Any]) -> str:
    items = [
        {"apiVersion": "v1" if each["kind"] in {"Pod", "Node"} else "resource.k8s.io/v1", **each} for each in documents
    ]
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def test_a_dump_of_a_cluster_becomes_a_page(tmp_path: Path) -> None:
    file = dump(
        tmp_path / "cluster.yaml", CLASS, slice_of("w"), claim("held", 1, "gpu-0"), claim("big", 2), pod("p", "big")
    )
    done = report(tmp_path, file)
    assert done.exit_code == 0, done.output
    assert re.search(r"report.html \(\d+ kB\) of \S+: 1 node, 2 devices, 2 claims, 1 waiting", done.output)
    assert "not seen: no Node was read" in done.output
    assert data(tmp_path)["title"] == "Cluster in cluster.yaml"
    assert [each["title"] for each in data(tmp_path)["moments"]] == ["now"]


def test_a_dump_can_be_compared_with_an_earlier_one(tmp_path: Path) -> None:
    before = dump(tmp_path / "before.yaml", slice_of("w"), slice_of("gone"), claim("a", 1, "gpu-0"))
    after = dump(tmp_path / "after.yaml", slice_of("w"), claim("b", 1, "gpu-1"))
    assert report(tmp_path, "--before", before, after, "--svg", str(tmp_path / "cluster.svg")).exit_code == 0
    shown = data(tmp_path)
    assert [(each["title"], [one[0] for one in each["claims"]]) for each in shown["moments"]] == [
        ("before", ["ns/a"]),
        ("after", ["ns/b"]),
    ]
    assert [(node[0], node[3]) for node in shown["nodes"]] == [
        ("gone", ["gone: pool gone is only in the earlier dump"]),
        ("w", []),
    ]
    assert ">before<" in (tmp_path / "cluster.svg").read_text()


def test_without_claims_nothing_is_shown_as_free(tmp_path: Path) -> None:
    assert report(tmp_path, dump(tmp_path / "cluster.yaml", CLASS, slice_of("w"))).exit_code == 0
    (moment,) = data(tmp_path)["moments"]
    assert moment["unknown"] == ["gpu.example.com"]
    assert report(tmp_path, dump(tmp_path / "cluster.yaml", slice_of("w"), claim("a", 1))).exit_code == 0
    assert data(tmp_path)["moments"][0]["unknown"] == []


def test_a_machine_is_a_fleet_of_one(tmp_path: Path) -> None:
    done = report(tmp_path, "--machine", "sockets=2,cores=8,gpus=2")
    assert done.exit_code == 0, done.output
    (node,) = data(tmp_path)["nodes"]
    assert node[2] == 0
    assert data(tmp_path)["layouts"][0][0].startswith("16 CPUs")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--before", "x.yaml"], UsageError),
        (["--kubeconfig", "k", "x.yaml"], UsageError),
        (["missing.yaml"], DranodeError),
        (["--kubeconfig", "missing"], UsageError),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, arguments: list[str], error: type[Exception]) -> None:
    done = report(tmp_path, *arguments)
    assert isinstance(done.exception, error)
    assert not (tmp_path / "report.html").exists()


def test_a_page_is_written_where_no_other_file_can_be_written(tmp_path: Path) -> None:
    page = tmp_path / ("p" * 250 + ".html")  # a name with anything added is too long
    assert CliRunner().invoke(command, ["--machine", "cores=1", "--html", str(page)]).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == [page.name]


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--machine", "cores=1", "--html", str(tmp_path / "no" / "report.html")])
    assert isinstance(done.exception, DranodeError)
    assert "report.html cannot be written: No such file or directory" in str(done.exception)
