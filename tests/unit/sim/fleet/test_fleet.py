import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, ResourceSlice
from dranode.driver.claims.plugin import Inventory
from dranode.show.picture.svg import fleet_svg
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.cluster.node_kinds import NodeKind, nodes_of
from dranode.sim.cluster.nodes_file import read_nodes, slices_of
from dranode.sim.fleet.report import FleetReport, fleet_document, report_picture, unit_amount
from dranode.sim.fleet.run import ImaginedFleet, place
from dranode.sim.scheduler.documents import SchedulingNode

CPU = {"name": "cpu", "allowMultipleAllocations": True, "capacity": {"dra.cpu/cpu": {"value": "16"}}}
BIG = {"name": "big", "attributes": {"size": {"string": "big"}}}
SMALL = {"name": "small", "attributes": {"size": {"string": "small"}}}


def slices(node: str, **drivers: list[dict[str, Any]]) -> list[ResourceSlice]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return [
        decode(
            ResourceSlice,
            {
                "metadata": {"name": f"{node}-{driver}"},
                "spec": {"driver": driver, "pool": pool, "nodeName": node, "devices": devices},
            },
        )
        for driver, devices in drivers.items()
    ]


def class_documents(*drivers: str) -> list[SourceDocument]:
    return [
        source("DeviceClass", driver, {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]})
        for driver in drivers
    ]


def nodes(*names: str, **more: Any) -> tuple[tuple[SchedulingNode, str], ...]:
    return tuple((node, "m") for node in nodes_of([NodeKind(name=name, **more) for name in names]))


def source(kind: str, name: str, spec: dict[str, Any]) -> SourceDocument:
    return SourceDocument("f", 0, {"kind": kind, "metadata": {"name": name}, "spec": spec})


def claim_document(name: str, *requests: dict[str, Any]) -> SourceDocument:
    return source("ResourceClaim", name, {"devices": {"requests": list(requests)}})


def pod_document(name: str, *claims: str, **spec: Any) -> SourceDocument:
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    return source("Pod", name, {"resourceClaims": entries, "containers": [{"name": "c"}], **spec})


def asking(**requests: str) -> list[dict[str, Any]]:
    return [{"name": "c", "resources": {"requests": requests}}]


def placed_on(
    fleet: ImaginedFleet, documents: list[SourceDocument], *, scores: bool = False, version: str = ""
) -> FleetReport:
    everything = [*class_documents("gpu", "cpu"), *documents]
    features = Features.parse("", release(version)) if version else Features()
    return place(fleet, everything, features, scores=scores, progress=lambda _: None)


def size(name: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": f'device.attributes["gpu"].size == "{name}"'}}]


def gpu(*sizes: str) -> dict[str, Any]:
    listed = [{"name": each, "deviceClassName": "gpu", "selectors": size(each)} for each in sizes]
    return {"name": "gpu", "firstAvailable": listed}


def cpus(count: int) -> dict[str, Any]:
    return {"name": "cpu", "exactly": {"deviceClassName": "cpu", "capacity": {"requests": {"dra.cpu/cpu": str(count)}}}}


ANY_GPU = {"name": "r", "exactly": {"deviceClassName": "gpu"}}


def test_the_node_with_the_best_alternative_has_the_highest_score() -> None:
    published = (*slices("a", gpu=[SMALL]), *slices("b", gpu=[SMALL]), *slices("c", gpu=[BIG, SMALL]))
    claims = [claim_document(name, gpu("big", "small")) for name in ("x", "y")]
    first, second = placed_on(ImaginedFleet(nodes("a", "b", "c"), published), claims, scores=True).results
    assert first.node == "c"
    assert [(score.node, score.raw, score.score) for score in first.scores] == [
        ("a", 7, 87),
        ("b", 7, 87),
        ("c", 8, 100),
    ]
    assert second.node == "a", "the first of equals"
    assert [(score.node, score.score) for score in second.scores] == [("a", 100), ("b", 100), ("c", 100)]


def test_a_pod_without_a_prioritized_list_has_no_scores() -> None:
    fleet = ImaginedFleet(nodes("a", "b"), (*slices("a", gpu=[SMALL]), *slices("b", gpu=[SMALL])))
    (result,) = placed_on(fleet, [claim_document("x", ANY_GPU)], scores=True).results
    assert [(score.raw, score.score) for score in result.scores] == [(0, 0), (0, 0)]


def test_the_scores_of_several_lists_add_up() -> None:
    fleet = ImaginedFleet(nodes("a"), tuple(slices("a", gpu=[BIG, SMALL])))
    claims = [claim_document("x", gpu("big")), claim_document("y", gpu("big", "small"))]
    (result,) = placed_on(fleet, [*claims, pod_document("p", "x", "y")], scores=True).results
    assert [score.raw for score in result.scores] == [8 + 7]


def test_a_device_for_all_nodes_is_allocated_once() -> None:
    shared = decode(
        ResourceSlice,
        {
            "metadata": {"name": "net"},
            "spec": {
                "driver": "gpu",
                "allNodes": True,
                "pool": {"name": "net", "generation": 1, "resourceSliceCount": 1},
                "devices": [BIG],
            },
        },
    )
    claims = [claim_document(name, gpu("big")) for name in ("x", "y")]
    results = placed_on(ImaginedFleet(nodes("a", "b"), (shared,)), claims).results
    assert [result.node for result in results] == ["a", None]


def test_a_claim_that_fits_nowhere_is_explained_by_group_of_nodes() -> None:
    published = (*slices("a", gpu=[SMALL]), *slices("b", gpu=[SMALL]), *slices("c", cpu=[CPU]))
    report = placed_on(ImaginedFleet(nodes("a", "b", "c"), published), [claim_document("x", cpus(20))])
    (result,) = report.results
    assert (result.node, result.error) == (None, "0/3 nodes are available: 3 cannot allocate all claims.")
    assert any("has 16 free (4 too few)" in line for line in result.details)
    assert "has 16 free (4 too few)" in str(result.outcomes[0].error)
    assert fleet_document(report, scores=False)["pods"] == [
        {"pod": "default/x", "node": None, "error": result.outcomes[0].error}
    ]


def test_a_share_holds_its_whole_device_in_a_release_without_sharing() -> None:
    result = {"request": "cpu", "driver": "cpu", "pool": "a", "device": "cpu", "shareID": "s"}
    held = claim_document("held", cpus(4))
    held.document["status"] = {
        "allocation": {"devices": {"results": [{**result, "consumedCapacity": {"dra.cpu/cpu": "4"}}]}}
    }
    fleet = ImaginedFleet(nodes("a"), tuple(slices("a", cpu=[CPU])))
    free = [
        placed_on(fleet, [held], version=version).nodes[0].units["dra.cpu/cpu"].free for version in ("1.37", "1.34")
    ]
    assert free[0] == 12
    assert free[1] == 0


# --- what else decides on a node ---


def servers(**more: Any) -> ImaginedFleet:
    published = (*slices("a", gpu=[BIG, SMALL]), *slices("b", gpu=[BIG, SMALL]))
    return ImaginedFleet(nodes("a", "b", **more), published)


SMALL_NODE = {"allocatable": {"cpu": Quantity("4"), "memory": Quantity("8Gi")}}


def test_a_pod_avoids_nodes_with_too_little_cpu_whatever_their_devices() -> None:
    large = pod_document("large", "x", containers=asking(cpu="6"))
    report = placed_on(servers(**SMALL_NODE), [claim_document("x", gpu("big")), large])
    (result,) = report.results
    assert result.node is None
    assert result.error == "0/2 nodes are available: 2 Insufficient cpu."
    assert result.outcomes[0].error == (
        "0/2 nodes are available: 2 Insufficient cpu. 2 nodes: Insufficient cpu. Closest: a. "
        "The pod needs 6 CPUs, the node has 4 CPUs free (2 CPUs too few)."
    )


def test_pods_without_devices_are_placed_and_use_the_node_too() -> None:
    plain = [pod_document(f"plain{number}", containers=asking(cpu="3")) for number in range(2)]
    last = pod_document("last", "x", containers=asking(cpu="3"))
    report = placed_on(servers(**SMALL_NODE), [*plain, claim_document("x", gpu("big")), last])
    assert [(result.pod, result.node) for result in report.results] == [
        ("default/plain0", "a"),
        ("default/plain1", "b"),
        ("default/last", None),
    ]


def test_a_node_takes_110_pods_unless_its_entry_says_otherwise() -> None:
    fleet = ImaginedFleet(nodes("a"), tuple(slices("a", cpu=[{**CPU, "capacity": {"dra.cpu/cpu": {"value": "200"}}}])))
    report = placed_on(fleet, [claim_document(f"c{number}", cpus(1)) for number in range(111)])
    assert [result.node for result in report.results].count("a") == 110
    assert "Too many pods" in report.results[-1].error


def test_a_node_of_unknown_cpu_counts_as_large_enough_and_a_note_says_so() -> None:
    report = placed_on(servers(), [pod_document("p", containers=asking(cpu="64", memory="1Gi"))])
    assert [result.node for result in report.results] == ["a"]
    assert [note.partition(",")[0] for note in report.notes] == [
        "node a has no amount of cpu",
        "node a has no amount of memory",
    ]
    assert not placed_on(servers(**SMALL_NODE), [pod_document("p", containers=asking(cpu="1"))]).notes


def test_a_note_names_the_driver_of_a_class_whose_devices_no_node_has() -> None:
    claim = claim_document(
        "x", {"name": "r", "firstAvailable": [{"name": each, "deviceClassName": each} for each in ("cpu", "gpu")]}
    )
    (note,) = placed_on(servers(**SMALL_NODE), [claim]).notes
    assert note.startswith("no node has devices of cpu;")


def test_a_claim_and_a_pod_of_the_same_name_are_both_placed() -> None:
    claims = [claim_document("x", gpu("big")), claim_document("y", gpu("big"))]
    report = placed_on(servers(), [*claims, pod_document("x", "y")])
    places = [(outcome.claim.metadata.name, outcome.node) for result in report.results for outcome in result.outcomes]
    assert sorted(places) == [("x", "a"), ("y", "b")]


# --- nodes.yaml ---


def written(folder: Path, text: str) -> Path:
    path = folder / "nodes.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nodes_of_a_machine_are_discovered_once_and_numbered(tmp_path: Path) -> None:
    path = written(
        tmp_path, "nodes:\n- {name: big, machine: m, count: 2, labels: {zone: a}}\n- {name: one, machine: m}\n"
    )
    kinds, asked = read_nodes(path), []

    def discover(machine: str) -> list[tuple[str, Inventory]]:
        asked.append(machine)
        return [("cpu.example.com", Inventory((decode(Device, CPU),)))]

    made = slices_of(kinds, discover)
    assert asked == ["m", "m"]
    assert [(one.metadata.name, one.spec.node_name, one.spec.pool.name) for one in made] == [
        ("big-0-cpu.example.com-000", "big-0", "big-0"),
        ("big-1-cpu.example.com-000", "big-1", "big-1"),
        ("one-cpu.example.com-000", "one", "one"),
    ]
    assert dict(nodes_of(kinds)[0].metadata.labels) == {
        "kubernetes.io/hostname": "big-0",
        "zone": "a",
    }


def test_nodes_of_dumped_slices_keep_their_pools_apart(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(
        """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: x}
spec: {driver: gpu, nodeName: old, pool: {name: old, generation: 4, resourceSliceCount: 1}, devices: [{name: g}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: v}
spec: {driver: gpu, nodeName: old, pool: {name: extra, generation: 1, resourceSliceCount: 1}, devices: [{name: g}]}
""",
        encoding="utf-8",
    )
    made = slices_of(read_nodes(written(tmp_path, "nodes: [{name: w, slices: gpu.yaml, count: 2}]")), lambda _: [])
    assert [(one.spec.node_name, one.spec.pool.name) for one in made] == [
        ("w-0", "w-0"),
        ("w-0", "w-0/extra"),
        ("w-1", "w-1"),
        ("w-1", "w-1/extra"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [{name: a}]", "nodes[0]: an entry has either machine or slices"),
        ("nodes: [{name: a, machine: m, slices: s}]", "nodes[0]: an entry has either"),
        ("nodes: [{name: A, machine: m}]", 'nodes[0].name: "A" is not the name of a node'),
        ("nodes: [{name: a, machine: m}, {name: a, machine: m}]", 'nodes[1].name: "a" is listed twice'),
        ("nodes: [{name: a, machine: m, count: 2}, {name: a-1, machine: m}]", '"a-1" is listed twice'),
        ("nodes: [{name: a-1, machine: m}, {name: a, machine: m, count: 2}]", '"a-1" is listed twice'),
        ("nodes: [{name: a, machine: m, count: 0}]", "nodes[0].count: 0 nodes are too few"),
        ("nodes: [{name: a, machine: m, allocatable: {cpu: -1}}]", "nodes[0].allocatable[cpu]: -1 is below 0"),
        ("nodes: [{name: a, machine: m, cuont: 2}]", "cuont"),
        ("- a", "has no nodes; list them under nodes:"),
        ("", "has no nodes; list them under nodes:"),
    ],
)
def test_a_malformed_nodes_file_is_refused_with_the_path(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_nodes(written(tmp_path, text))
    assert message in str(caught.value)
    assert "nodes.yaml" in str(caught.value)


def test_a_machine_description_may_be_longer_than_a_file_name(tmp_path: Path) -> None:
    (kind,) = read_nodes(written(tmp_path, f"nodes: [{{name: a, machine: '{'m' * 300}'}}]"))
    assert kind.machine == "m" * 300


# --- the whole run ---


def run(documents: list[SourceDocument], *, scores: bool = False) -> FleetReport:
    inventory = [
        ("cpu", Inventory((decode(Device, CPU),))),
        ("gpu", Inventory((decode(Device, BIG), decode(Device, SMALL)))),
    ]
    kinds = (NodeKind(name="n", machine="m", count=3),)
    fleet = ImaginedFleet(tuple((node, "m") for node in nodes_of(kinds)), slices_of(kinds, lambda _: inventory))
    return placed_on(fleet, documents, scores=scores)


def test_free_devices_that_no_claim_can_use_are_stranded() -> None:
    report = run([claim_document(f"c{number}", cpus(12)) for number in range(3)])
    units = [node.units for node in report.nodes]
    assert [(unit["dra.cpu/cpu"].free, unit["dra.cpu/cpu"].stranded) for unit in units] == [(4, 4)] * 3
    assert [(unit["gpu"].total, unit["gpu"].free, unit["gpu"].stranded) for unit in units] == [(2, 2, 2)] * 3
    report = run([claim_document("c0", cpus(12)), claim_document("c1", cpus(3))])
    assert [(node.units["dra.cpu/cpu"].free, node.units["dra.cpu/cpu"].stranded) for node in report.nodes] == [
        (1, 1),
        (16, 0),
        (16, 0),
    ]


def in_steps(name: str, capacity: str, step: str) -> dict[str, Any]:
    policy = {"default": step, "validRange": {"min": step, "step": step}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "capacity": {"size": {"value": capacity, "requestPolicy": policy}},
    }


def test_amounts_with_different_steps_are_not_added_up() -> None:
    memory, more, huge = in_steps("m0", "2Gi", "1Mi"), in_steps("m1", "1Gi", "1Mi"), in_steps("h", "1Gi", "2Mi")
    larger = {**huge, "name": "g", "capacity": {"size": {"value": "1Gi", "requestPolicy": {"validValues": ["1Gi"]}}}}
    published = (*slices("n0", memory=[memory, more, huge, larger], cpu=[CPU]), *slices("n1", memory=[memory]))
    report = placed_on(ImaginedFleet(nodes("n0", "n1"), published), [])
    assert [{name: unit_amount(unit.total) for name, unit in node.units.items()} for node in report.nodes] == [
        {
            "dra.cpu/cpu": "16",
            "memory/size in steps of 1Gi": "1Gi",
            "memory/size in steps of 1Mi": "3Gi",
            "memory/size in steps of 2Mi": "1Gi",
        },
        {"memory/size in steps of 1Mi": "2Gi"},
    ]


def test_memory_and_huge_pages_have_kubernetes_names_and_no_sum() -> None:
    def memory(name: str, size: str, step: str, pages: str | None) -> dict[str, Any]:
        attributes = {"hugeTLB": {"bool": pages is not None}, **({"pageSize": {"string": pages}} if pages else {})}
        return {**in_steps(name, size, step), "attributes": attributes}

    devices = [memory("m0", "2Gi", "1Mi", None), memory("m1", "1Gi", "2Mi", None), memory("h", "1Gi", "2Mi", "2m")]
    report = placed_on(ImaginedFleet(nodes("n0"), tuple(slices("n0", memory=devices))), [])
    (node,) = report.nodes
    totals = {name: unit_amount(unit.total) for name, unit in node.units.items()}
    assert totals == {"hugepages-2Mi": "1Gi", "memory": "3Gi"}


def test_alternatives_are_counted_and_shown_in_the_picture() -> None:
    report = run([claim_document(f"c{number}", gpu("big", "small")) for number in range(7)])
    assert report.alternatives == {"gpu": {"big": 3, "small": 3, None: 1}}
    picture = report_picture(report)
    assert picture.title == "6 of 7 pods placed on 3 of 3 nodes"
    assert "request gpu, alternatives taken: big 3, small 3, none fits 1" in picture.facts
    assert [each.name for each in picture.waiting] == ["default/c6"]
    root = ET.fromstring(fleet_svg(picture))  # noqa: S314 - our own text
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"n-0", "n-1", "n-2"} <= set(texts)
    assert sum("default/c0" in words for words in texts) > 1


def test_earlier_allocations_are_in_the_picture_from_the_start() -> None:
    result = {"request": "r", "driver": "gpu", "pool": "n-1", "device": "big"}
    held = claim_document("held", gpu("big"))
    held.document["status"] = {"allocation": {"devices": {"results": [result]}}}
    before, after = report_picture(run([held, claim_document("new", gpu("big"))])).moments
    assert [(claim.name, claim.shares[0].device.pool) for claim in before.claims] == [("default/held", "n-1")]
    assert [claim.name for claim in after.claims] == ["default/held", "default/new"]


def test_a_pod_that_shares_a_claim_goes_to_its_node() -> None:
    entry = {"name": "x", "resourceClaimName": "shared"}
    own = {"name": "y", "resourceClaimName": "own"}
    documents = [
        claim_document("shared", gpu("big")),
        claim_document("own", gpu("small")),
        claim_document("first", gpu("big")),
        source("Pod", "p0", {"resourceClaims": [{"name": "z", "resourceClaimName": "first"}]}),
        source("Pod", "p1", {"resourceClaims": [entry]}),
        source("Pod", "p2", {"resourceClaims": [entry, own]}),
    ]
    report = run(documents)
    assert [(result.pod, result.node) for result in report.results] == [
        ("default/p0", "n-0"),
        ("default/p1", "n-1"),
        ("default/p2", "n-1"),
    ]


def test_an_allocated_claim_counts_in_the_score_of_its_node() -> None:
    shared = source("Pod", "p0", {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}]})
    both = [{"name": "c", "resourceClaimName": "shared"}, {"name": "own", "resourceClaimName": "own"}]
    claims = [claim_document("shared", gpu("big", "small")), claim_document("own", cpus(4))]
    report = run([*claims, shared, source("Pod", "p1", {"resourceClaims": both})], scores=True)
    assert [(score.node, score.raw, score.score) for score in report.results[1].scores] == [("n-0", 8, 100)]


def test_the_document_keeps_its_format() -> None:
    report = run([claim_document("c", gpu("big", "small"))], scores=True)
    document = fleet_document(report, scores=True)
    assert document["nodes"][0] == {
        "name": "n-0",
        "machine": "m",
        "free": {"dra.cpu/cpu": 16, "gpu": 1},
        "stranded": {"dra.cpu/cpu": 16, "gpu": 0},
    }
    assert "kube-scheduler" in document["scoring"]
    assert document["scores"][0] == {"pod": "default/c", "node": "n-0", "raw": 8, "score": 100, "total": 600}
    assert document["claims"][0]["node"] == "n-0"
    assert len(document["slices"]) == 6


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (30, "30"), (20_000, "20,000"), (Fraction(1, 2), "0.5"), (247 << 30, "247Gi"), (1536 << 20, "1536Mi")],
)
def test_amounts_have_familiar_units(amount: int | Fraction, text: str) -> None:
    assert unit_amount(amount) == text
