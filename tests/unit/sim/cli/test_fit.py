"""`dranode fit` on the command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.api.errors import UsageError
from dranode.sim.cli.allocate import command as allocate
from dranode.sim.cli.fit import command
from tests.fakes.clusters import (
    CLASS,
    Document,
    claim_document,
    node_document,
    pod_document,
    slice_document,
    template_document,
)


def fit(folder: Path, *documents: Document, options: tuple[str, ...] = ()) -> Result:
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return CliRunner().invoke(command, [str(file), *options])


def test_the_table_says_where_each_pod_goes(tmp_path: Path) -> None:
    result = fit(tmp_path, node_document("a", "4"), pod_document("p", "3"), pod_document("big", "9"))
    assert result.exit_code == 1
    assert "the only node that fits" in result.output
    assert "0/1 nodes are available: 1 Insufficient cpu." in result.output


def test_json_has_nodes_scores_and_reasons(tmp_path: Path) -> None:
    documents = [node_document("a", "4"), node_document("b", "64"), pod_document("p", "3"), pod_document("big", "90")]
    result = fit(tmp_path, *documents, options=("-o", "json"))
    big, small = sorted(json.loads(result.output)["pods"], key=lambda pod: pod["pod"])
    assert (small["node"], small["tied"], small["message"]) == ("b", ["b"], None)
    assert [(score["node"], sorted(score["plugins"])) for score in small["scores"]] == [
        ("a", ["NodeResourcesBalancedAllocation", "NodeResourcesFit", "TaintToleration"]),
        ("b", ["NodeResourcesBalancedAllocation", "NodeResourcesFit", "TaintToleration"]),
    ]
    assert big["refusals"][0]["reasons"] == ["Insufficient cpu"]
    assert big["refusals"][0]["nodes"] == ["b", "a"]


def test_in_a_large_cluster_json_has_counts_instead_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [node_document("a", "4"), node_document("b", "64"), pod_document("p", "3"), pod_document("big", "90")]
    whole = json.loads(fit(tmp_path, *documents, options=("-o", "json")).output)
    assert [refusal["count"] for pod in whole["pods"] for refusal in pod["refusals"]] == [2]
    monkeypatch.setattr("dranode.sim.cli.fit._MOST_NAMED", 3)
    counted = json.loads(fit(tmp_path, *documents, options=("-o", "json")).output)
    assert any("nodes are only counted" in note for note in counted["notes"])
    for one, other in zip(whole["pods"], counted["pods"], strict=True):
        assert (other["tied"], other["scores"]) == (None, None)
        assert {
            **one,
            "tied": None,
            "scores": None,
            "refusals": [{**each, "nodes": None} for each in one["refusals"]],
        } == other


def test_the_command_succeeds_if_every_pod_fits(tmp_path: Path) -> None:
    result = fit(tmp_path, node_document("a"), pod_document("p", "1"), options=("--scores",))
    assert result.exit_code == 0, result.output


def test_no_file_is_a_usage_error() -> None:
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert isinstance(result.exception, UsageError)


def test_a_gate_about_whole_nodes_is_refused_by_allocate(tmp_path: Path) -> None:
    gate = "DRANodeAllocatableResources=true"
    assert fit(tmp_path, node_document("a"), pod_document("p", "1"), options=("--feature-gates", gate)).exit_code == 0
    result = CliRunner().invoke(allocate, [str(tmp_path / "cluster.yaml"), "--feature-gates", gate])
    assert isinstance(result.exception, UsageError)
    assert "use dranode fit" in str(result.exception)


def test_changes_are_answered_next_to_the_placements(tmp_path: Path) -> None:
    nodes = [node_document("a", "4"), node_document("b", "4")]
    small = [pod_document("s", "2", node="a"), pod_document("t", "2", node="b")]
    options = ("--how-many", "--evict", "--move", "--add", "like:a", "-o", "json")
    result = fit(tmp_path, *nodes, *small, pod_document("large", "4"), options=options)
    answer = json.loads(result.output)
    assert result.exit_code == 1
    assert answer["room"]["default/large"]["count"] == 0
    assert answer["evictions"]["default/large"]["pods"] == [{"pod": "default/s", "priority": 0}]
    (move,) = answer["moves"]["default/large"]["moves"]
    assert (move["pod"], move["from"], move["to"]) == ("default/s", "a", "b")
    assert answer["additions"] == [{"node": "like-a", "count": 1, "placed": ["default/large"], "unplaced": {}}]


def page_data(path: Path) -> Any:
    (text,) = re.findall(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(text)


def test_the_page_has_the_cluster_before_and_after_in_one_layout(tmp_path: Path) -> None:
    documents = [
        CLASS, node_document("a"), slice_document("a", 2), claim_document("held", on=("a", "gpu-0"), users=["old"]),
        pod_document("old", claims=["held"], node="a"), claim_document("one"), pod_document("new", claims=["one"]),
        claim_document("three", 3), pod_document("big", claims=["three"]),
    ]  # fmt: skip
    page, picture = tmp_path / "fit.html", tmp_path / "fit.svg"
    result = fit(tmp_path, *documents, options=("--html", str(page), "--svg", str(picture)))
    assert result.exit_code == 1  # big fits nowhere
    data = page_data(page)
    assert data["title"] == "Where pods fit in cluster.yaml"
    assert data["facts"] == ["default/new goes to a"]
    before, after = data["moments"]
    assert (before["title"], after["title"]) == ("before", "after")
    held = {moment["title"]: {claim[0]: claim[2:3] for claim in moment["claims"]} for moment in (before, after)}
    assert held["before"]["default/held"] == held["after"]["default/held"] == [[[0]]]
    assert held["before"]["default/one"] == []
    assert held["after"]["default/one"] == [[[1]]]
    (waiting,) = data["waiting"]
    assert waiting[:2] == ["default/big", ["default/three"]]
    assert "0/1 nodes are available" in waiting[2][0]
    assert "default/one" in picture.read_text()


def test_the_page_has_the_claims_that_templates_make(tmp_path: Path) -> None:
    documents = [CLASS, node_document("a"), slice_document("a", 2), template_document("t-gpu"),
                 pod_document("p", claims=["t-gpu"])]  # fmt: skip
    page = tmp_path / "fit.html"
    assert fit(tmp_path, *documents, options=("--html", str(page))).exit_code == 0
    before, after = page_data(page)["moments"]
    assert before["claims"] == []
    (claim,) = after["claims"]
    assert claim[0].startswith("default/p-t-gpu")
    assert claim[2] == [[0]]


def test_thousands_of_pods_have_a_row_each_and_share_their_reason(tmp_path: Path) -> None:
    many = [pod_document(f"p{number}", "1") for number in range(1_100)]
    result = fit(tmp_path, node_document("a", "64", pods="2000"), *many)
    lines = result.output.splitlines()
    del lines[: next(number for number, line in enumerate(lines) if line.startswith("pod "))]
    assert lines[0].split() == ["pod", "node", "because"]
    assert lines[1].split(None, 2) == ["default/p0", "a", "the only node that fits"]
    assert lines[1100].split(None, 2) == ["default/p1099", "-", "no room on 1 node"]
    assert lines[1].index("the only") == lines[0].index("because")
    assert result.output.count("0/1 nodes are available: 1 Insufficient cpu.") == 1
    assert "default/p64, default/p65, default/p66 and 1033 more pods" in result.output


def test_only_the_first_of_many_reasons_are_shown(tmp_path: Path) -> None:
    many = [pod_document(f"p{number}", f"{number + 10}") for number in range(25)]
    result = fit(tmp_path, node_document("a"), *many)
    assert result.output.count("0/1 nodes are available") == 20
    assert "and 5 more pods fit nowhere for other reasons; see -o json" in result.output


def test_an_added_node_has_the_devices_of_the_named_drivers(tmp_path: Path) -> None:
    catalog = tmp_path / "nodes.yaml"
    catalog.write_text('nodes: [{name: server, machine: "cores=2,gpus=2", allocatable: {cpu: "2"}}]')
    gpus = {**CLASS, "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.gpu"'}}]}}
    pods = [pod_document(name, "1", claims=["t-work"]) for name in ("p", "q")]
    documents = [node_document("a"), slice_document("a", 0), gpus, template_document("t-work"), *pods]

    def addition(*options: str) -> dict[str, Any]:
        result = fit(tmp_path, *documents, options=("--add", str(catalog), "-o", "json", *options))
        (added,) = json.loads(result.output)["additions"]
        return dict(added)

    with_gpus = addition("--drivers", "cpu,gpu")
    assert (with_gpus["count"], with_gpus["placed"], with_gpus["unplaced"]) == (1, ["default/p", "default/q"], {})
    without = addition("--drivers", "cpu")
    assert without["count"] == 0
    assert "driver dra.gpu publishes none here" in without["unplaced"]["default/p"]
