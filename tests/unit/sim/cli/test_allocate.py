import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dranode.api.errors import DocumentError
from dranode.sim.cli.allocate import command
from tests.fakes.clusters import CLASS, claim_document
from tests.fakes.clusters import slice_document as gpus


def claim(name: str, count: int = 1, **status: Any) -> dict[str, Any]:
    return {**claim_document(name, count), "status": status}


def pod(name: str, *claims: str, **spec: Any) -> dict[str, Any]:
    entries = [{"name": each, "resourceClaimName": each} for each in claims]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"resourceClaims": entries, **spec}}


def run(folder: Path, documents: list[dict[str, Any]], *options: str) -> tuple[int, list[dict[str, Any]]]:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), "-o", "json", *options])
    return result.exit_code, json.loads(result.stdout)


def where(rows: list[dict[str, Any]]) -> list[tuple[str, str | None, list[str]]]:
    return [
        (row["name"], row["node"], [each["device"] for each in row["allocation"]["devices"]["results"]])
        if row["allocation"]
        else (row["name"], None, [])
        for row in rows
    ]


def test_claims_are_allocated_one_after_another_on_the_slices_nodes(tmp_path: Path) -> None:
    status, rows = run(tmp_path, [CLASS, gpus("a", 1), gpus("b", 1), claim("x"), claim("v"), claim("z")])
    assert status == 1
    assert where(rows) == [("x", "a", ["gpu-0"]), ("v", "b", ["gpu-0"]), ("z", None, [])]
    assert set(rows[0]) == {"namespace", "name", "node", "allocation", "error", "scope", "notes"}
    assert rows[0]["error"] is None
    assert rows[2]["scope"] is None
    assert "none of 2 nodes fits" in rows[2]["error"]


def test_a_missing_class_of_ours_is_assumed_and_named(tmp_path: Path) -> None:
    wanted = claim("x")
    wanted["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "dra.gpu"
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([CLASS, gpus("a", 1), wanted]), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), "-o", "json"])
    assert "no file has DeviceClass dra.gpu" in result.stderr
    ours = {**CLASS, "metadata": {"name": "dra.gpu"}}
    path.write_text(yaml.safe_dump_all([ours, gpus("a", 1), wanted]), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), "-o", "json"])
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_claims_of_a_pod_are_allocated_together_or_not_at_all(tmp_path: Path) -> None:
    documents = [
        CLASS,
        gpus("a", 1),
        gpus("b", 2),
        claim("x"),
        claim("v"),
        claim("z"),
        claim("w", 3),
        pod("p", "x", "v"),
    ]
    status, rows = run(tmp_path, [*documents, pod("q", "z", "w")])
    assert status == 1
    assert where(rows) == [("x", "b", ["gpu-0"]), ("v", "b", ["gpu-1"]), ("z", None, []), ("w", None, [])]


def test_a_pod_is_not_told_about_the_claims_of_a_similar_pod(tmp_path: Path) -> None:
    claims = [claim(name, 2) for name in ("a", "b", "c", "d")]
    _, rows = run(tmp_path, [gpus("m", 3), CLASS, *claims, pod("first", "a", "b"), pod("second", "c", "d")])
    errors = {row["name"]: row["error"] for row in rows}
    assert "request r of claim 2 of 2 needs 2 devices of class gpu; only 1 of 3 fits" in errors["d"]
    assert len({*errors.values()}) == 1


def test_allocated_claims_count_but_have_no_row(tmp_path: Path) -> None:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}
    held = claim("held", allocation={"devices": {"results": [result]}})
    status, rows = run(tmp_path, [CLASS, gpus("a", 2), claim("x"), held])
    assert status == 0
    assert where(rows) == [("x", "a", ["gpu-1"])]


def test_nodes_pod_selectors_and_the_option_say_where_to_look(tmp_path: Path) -> None:
    nodes = [{"kind": "Node", "metadata": {"name": name, "labels": {"zone": name}}} for name in ("b", "a")]
    documents = [CLASS, gpus("a", 2), gpus("b", 2), *nodes, claim("x")]
    assert where(run(tmp_path, documents)[1]) == [("x", "b", ["gpu-0"])]
    assert where(run(tmp_path, documents, "--node", "a")[1]) == [("x", "a", ["gpu-0"])]
    selected = [*documents, pod("p", "x", nodeSelector={"zone": "a"})]
    assert where(run(tmp_path, selected)[1]) == [("x", "a", ["gpu-0"])]
    pinned = [*documents, pod("p", "x", nodeName="a")]
    assert where(run(tmp_path, pinned)[1]) == [("x", None, [])]
    assert "sets spec.nodeName to a" in run(tmp_path, pinned)[1][0]["error"]
    _, rows = run(tmp_path, [*documents, pod("p", "x", nodeSelector={"zone": "c"})])
    assert rows[0]["error"] == "the pod may run on no node"


def test_the_error_says_that_nodes_and_slices_are_missing(tmp_path: Path) -> None:
    _, rows = run(tmp_path, [CLASS, claim("x")])
    assert "the documents have no Node and no ResourceSlice" in rows[0]["error"]


def test_cpus_and_taints_of_nodes_are_ignored(tmp_path: Path) -> None:
    taint = {"key": "dedicated", "effect": "NoSchedule"}
    node = {
        "kind": "Node",
        "metadata": {"name": "a"},
        "spec": {"taints": [taint], "unschedulable": True},
        "status": {"allocatable": {"cpu": "1", "pods": "0"}},
    }
    large = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "64"}}}]
    documents = [CLASS, gpus("a", 1), node, claim("x"), pod("p", "x", containers=large)]
    assert where(run(tmp_path, documents)[1]) == [("x", "a", ["gpu-0"])]


def test_a_note_says_that_admin_access_took_the_wanted_device(tmp_path: Path) -> None:
    both = claim("x")
    both["spec"]["devices"]["requests"] = [
        {"name": "watch", "exactly": {"deviceClassName": "gpu", "adminAccess": True}},
        {"name": "use", "exactly": {"deviceClassName": "gpu"}},
    ]
    status, (row,) = run(tmp_path, [CLASS, gpus("a", 1), both])
    assert status == 1
    assert [note.partition(" counts as")[0] for note in row["notes"]] == ["a device taken with admin access"]


def test_a_missing_claim_stops_its_pod(tmp_path: Path) -> None:
    status, rows = run(tmp_path, [CLASS, gpus("a", 2), claim("x"), pod("p", "x", "lost")])
    assert status == 1
    assert [(row["name"], row["error"]) for row in rows] == [
        (name, "ResourceClaim lost is missing, so none of the claims of pod default/p is allocated")
        for name in ("lost", "x")
    ]


def test_the_table_has_devices_and_nearest_misses(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([CLASS, gpus("a", 1), claim("x"), claim("v")]), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 1
    assert "gpu.example.com/a/gpu-0" in result.stdout
    assert "the only one, gpu-0, is in use" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    "options",
    [
        ("--feature-gates", "Nope=true"),
        ("--feature-gates", "DRADeviceTaints=1"),
        ("--kubernetes", "1.20"),
        ("--kubernetes", "1.36", "--feature-gates", "DRADerivedAttributes=true"),
    ],
)
def test_an_unknown_feature_gate_or_release_is_a_usage_error(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("", encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), *options])
    assert type(result.exception).__name__ == "UsageError"


@pytest.mark.parametrize(
    ("kubernetes", "said"),
    [
        ("1.36.1", ["model of 1.36.3", "returns its counters", "kube-scheduler panicked", "stays pending"]),
        ("1.36.3", []),
        ("1.36", []),
        ("1.37.1", ["model of 1.37.2; no difference is known"]),
    ],
)
def test_a_note_says_how_a_patch_release_differs_from_the_modeled_one(
    tmp_path: Path, kubernetes: str, said: list[str]
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([CLASS, gpus("a", 1), claim("x")]), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), "--kubernetes", kubernetes, "-o", "json"])
    json.loads(result.stdout)
    assert bool(result.stderr) is bool(said)
    for phrase in said:
        assert phrase in result.stderr


@pytest.mark.parametrize(("counts", "fits"), [((1, 2), False), ((2, 1), True)])
def test_a_note_names_a_pool_whose_slices_disagree_on_their_count(
    tmp_path: Path, counts: tuple[int, int], *, fits: bool
) -> None:
    slices = [gpus("a", 1), gpus("a", 1)]
    for number, (slice_, count) in enumerate(zip(slices, counts, strict=True)):
        slice_["metadata"]["name"] = f"a-{number}"
        slice_["spec"]["devices"][0]["name"] = f"gpu-{number}"
        slice_["spec"]["pool"]["resourceSliceCount"] = count
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([CLASS, *slices, claim("x")]), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path)])
    assert (result.exit_code == 0) is fits
    assert "pool gpu.example.com/a say 1 and 2 as resourceSliceCount" in result.stderr


@pytest.mark.parametrize(("options", "listed"), [(("--kubernetes", "1.36"), ["r"]), ((), None)])
def test_the_release_decides_how_a_configuration_is_listed(
    tmp_path: Path, options: tuple[str, ...], listed: list[str] | None
) -> None:
    configured = claim("x")
    opaque = {"driver": "gpu.example.com", "parameters": {}}
    configured["spec"]["devices"]["config"] = [{"requests": ["r"], "opaque": opaque}]
    _, rows = run(tmp_path, [CLASS, gpus("a", 1), configured], *options)
    assert rows[0]["allocation"]["devices"]["config"][0].get("requests") == listed


def test_a_later_pod_that_shares_a_claim_is_answered(tmp_path: Path) -> None:
    documents = [CLASS, gpus("a", 1), gpus("b", 1), claim("x"), pod("p", "x"), pod("q", "x")]
    status, rows = run(tmp_path, documents)
    assert status == 0
    assert where(rows) == [("x", "a", ["gpu-0"]), ("x", "a", ["gpu-0"])]
    assert rows[1]["notes"] == ["already allocated; pod default/q shares it"]
    labeled = [{"kind": "Node", "metadata": {"name": name, "labels": {"zone": name}}} for name in ("a", "b")]
    status, rows = run(tmp_path, [*documents[:-1], *labeled, pod("q", "x", nodeSelector={"zone": "b"})])
    assert status == 1
    assert "no node fits for pod default/q" in rows[1]["error"]


def test_a_pod_that_only_lacks_a_node_has_a_row_and_a_running_pod_has_none(tmp_path: Path) -> None:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}
    held = claim("held", allocation={"devices": {"results": [result]}})
    _, rows = run(tmp_path, [CLASS, gpus("a", 2), held, pod("runs", "held", nodeName="a"), pod("waits", "held")])
    assert [(row["name"], row["node"], row["notes"]) for row in rows] == [
        ("held", "a", ["already allocated; pod default/waits shares it"])
    ]


def test_an_invalid_object_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    uses = [{"name": "c", "resources": {"claims": [{"name": "x", "request": "r/big"}]}}]
    for documents, message in (
        ([claim("x"), pod("p", "x", containers=uses)], "(Pod p): spec.containers[0].resources.claims[0].request:"),
        ([{**claim("x"), "kind": "ResourceClam"}], "(ResourceClam x): kind: the API group resource.k8s.io has no kind"),
        ([CLASS, gpus("a", 1)], "no claim, template or pod in"),
    ):
        path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
        result = CliRunner().invoke(command, [str(path)])
        assert result.exit_code == 1
        assert isinstance(result.exception, DocumentError)
        assert str(path) in str(result.exception)
        assert message in str(result.exception)


def templated(name: str, *, made: str = "", **spec: Any) -> dict[str, Any]:
    entries = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    statuses = [{"name": "gpu", "resourceClaimName": made}] if made else []
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    return {**document, "spec": {"resourceClaims": entries, **spec}, "status": {"resourceClaimStatuses": statuses}}


TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t", "namespace": "default"},
    "spec": {"spec": claim("any")["spec"]},
}


def test_claims_that_a_dump_has_are_not_generated_again(tmp_path: Path) -> None:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}
    held = claim("runs-gpu-abcde", allocation={"devices": {"results": [result]}})
    documents = [
        CLASS,
        gpus("a", 3),
        TEMPLATE,
        templated("runs", made="runs-gpu-abcde", nodeName="a"),
        held,
        templated("waits", made="waits-gpu-fghij"),
        claim("waits-gpu-fghij"),
    ]
    status, rows = run(tmp_path, documents)
    assert (status, where(rows)) == (0, [("waits-gpu-fghij", "a", ["gpu-1"])])
    status, rows = run(tmp_path, [document for document in documents if document is not held])
    assert status == 1
    assert rows[0]["error"] == (
        "ResourceClaim runs-gpu-abcde is missing from the documents, "
        "so what pod default/runs on node a holds is unknown"
    )


def test_required_node_affinity_says_where_a_pod_may_go(tmp_path: Path) -> None:
    nodes = [{"kind": "Node", "metadata": {"name": name, "labels": {"zone": name}}} for name in ("b", "a")]
    term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    choosy = pod("p", "x", affinity={"nodeAffinity": required})
    assert where(run(tmp_path, [CLASS, gpus("a", 1), gpus("b", 1), *nodes, claim("x"), choosy])[1]) == [
        ("x", "a", ["gpu-0"])
    ]


GPU = "example.com/gpu"
SPEC: dict[str, Any] = {"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": GPU}
NAMED = {**CLASS, "spec": SPEC}


def asking(
    name: str, *containers: dict[str, str], init: tuple[dict[str, str], ...] = (), **spec: Any
) -> dict[str, Any]:
    made = [{"name": f"c{number}", "resources": {"limits": each}} for number, each in enumerate(containers)]
    first = [{"name": f"i{number}", "resources": {"limits": each}} for number, each in enumerate(init)]
    return pod(name, containers=made, initContainers=first, **spec)


def node(name: str, **allocatable: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


@pytest.mark.parametrize("resource", [GPU, "deviceclass.resource.kubernetes.io/gpu"])
def test_extended_resources_are_a_claim_if_the_node_lacks_them(tmp_path: Path, resource: str) -> None:
    asked = asking("p", {resource: "1"}, {resource: "2"}, init=({resource: "4"},))
    status, rows = run(tmp_path, [NAMED, gpus("a", 4), node("a"), asked])
    assert (status, where(rows)) == (
        0,
        [("p-extended-resources", "a", ["gpu-0", "gpu-1", "gpu-2", "gpu-3"])],
    )
    requests = [each["request"] for each in rows[0]["allocation"]["devices"]["results"]]
    assert requests == ["container-0-request-0", *["container-1-request-0"], *["container-2-request-0"] * 2]


def test_a_node_that_has_the_extended_resource_gives_no_device(tmp_path: Path) -> None:
    nodes = [node("a"), node("b", **{GPU: "1"})]
    slices = [gpus("a", 1), gpus("b", 1)]
    pods = [asking(name, {GPU: "1"}) for name in ("p", "q", "r")]
    status, rows = run(tmp_path, [NAMED, *slices, *nodes, *pods])
    # The others go to b, which has the resource itself; how much of it is left is not counted here.
    assert (status, where(rows)) == (0, [("p-extended-resources", "a", ["gpu-0"])])


def test_before_1_36_and_without_its_gate_extended_resources_ask_for_no_device(tmp_path: Path) -> None:
    documents = [NAMED, gpus("a", 1), node("a"), claim("x"), asking("p", {GPU: "1"})]
    for options in (("--kubernetes", "1.35"), ("--kubernetes", "1.36", "--feature-gates", "DRAExtendedResource=false")):
        assert where(run(tmp_path, documents, *options)[1]) == [("x", "a", ["gpu-0"])]
    assert where(run(tmp_path, documents, "--kubernetes", "1.36")[1]) == [
        ("x", "a", ["gpu-0"]),
        ("p-extended-resources", None, []),
    ]


def test_a_pod_with_a_claim_and_the_nodes_own_resource_cannot_be_bound(tmp_path: Path) -> None:
    documents = [NAMED, gpus("a", 1), node("a", **{GPU: "1"}), claim("x")]
    asked = asking("p", {GPU: "1"}, resourceClaims=[{"name": "x", "resourceClaimName": "x"}])
    status, rows = run(tmp_path, [*documents, asked])
    assert status == 1
    assert "nil or empty request mappings" in rows[0]["error"]
