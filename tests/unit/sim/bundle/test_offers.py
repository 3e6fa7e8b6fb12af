"""The templates for devices that belong together, checked with the model of kube-scheduler's allocator."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.api.documents import decode, encode, encode_json
from dranode.api.resource import (
    AllocationResult,
    CapacityRequestPolicy,
    DeviceClass,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from dranode.sim.allocator.features import Features
from dranode.sim.bundle.groups import DeviceAmount
from dranode.sim.bundle.offers import Offer, Offers, offers_for
from dranode.sim.bundle.shapes import template_of
from dranode.sim.bundle.show import manifests, offers_document
from dranode.sim.cli.bundle import command
from dranode.sim.cluster.pods import ClusterDocuments
from dranode.sim.cluster.workload import PodWithClaims, default_class
from tests.fakes.gpu import AMD, DISPLAY, Machine

NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"


def shared(name: str, capacity: str, amount: str, step: str, **attributes: Any) -> dict[str, Any]:
    """A device whose capacity claims share."""
    policy = {"default": step, "validRange": {"min": step, "step": step}}
    return {
        "name": name,
        "attributes": attributes_of(attributes),
        "capacity": {capacity: {"value": amount, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }


def whole(name: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "attributes": attributes_of(attributes)}


def attributes_of(values: dict[str, Any]) -> dict[str, Any]:
    names = {"numa": NUMA, "root": ROOT}
    kinds = {bool: "bool", int: "int", str: "string"}
    return {names.get(name, name): {kinds[type(value)]: value} for name, value in values.items()}


def slices(node: str, **drivers: list[dict[str, Any]]) -> list[ResourceSlice]:
    return [
        decode(
            ResourceSlice,
            {
                "metadata": {"name": f"{node}-{driver}"},
                "spec": {
                    "driver": f"{driver}.example",
                    "nodeName": node,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                    "devices": devices,
                },
            },
        )
        for driver, devices in drivers.items()
    ]


def machine(node: str, numa_nodes: int = 2, sockets: int = 2, gpus: int = 2, nics: int = 2) -> list[ResourceSlice]:
    """16 CPUs, 64Gi, GPUs and NICs on each NUMA node; each GPU has one NIC below the same PCIe root."""
    numbers = range(numa_nodes)
    return slices(
        node,
        cpu=[
            shared(f"c{n}", "cpu.example/cpu", "16", "1", numa=n, socketID=n * sockets // numa_nodes) for n in numbers
        ],
        memory=[shared(f"m{n}", "size", f"{65536 - n}Mi", "1Mi", numa=n, hugeTLB=False) for n in numbers],
        gpu=[whole(f"g{n}-{i}", numa=n, root=f"pci0000:{n}{i}", type="gpu") for n in numbers for i in range(gpus)],
        nic=[whole(f"n{n}-{i}", numa=n, root=f"pci0000:{n}{i}") for n in numbers for i in range(nics)],
    )


def offers(found: list[ResourceSlice], *claims: ResourceClaim, classes: tuple[DeviceClass, ...] = ()) -> Offers:
    names = dict.fromkeys(one.spec.node_name for one in found)
    nodes = tuple(Node(metadata=ObjectMeta(name=name)) for name in names if name)
    pods = tuple(PodWithClaims(claim.metadata.name, (claim,)) for claim in claims)
    return offers_for(ClusterDocuments(tuple(found), classes, nodes, pods), Features())


def offer(found: Offers, name: str) -> Offer:
    return next(one for one in found.offers if one.shape.name == name)


def asked(one: Offer) -> dict[str, str]:
    return {want.name: str(want.amount) for want in one.shape.wants}


def test_a_numa_node_is_offered_with_what_the_smallest_one_has() -> None:
    whole_node = offer(offers(machine("a") + machine("b")), "numa-node")
    assert asked(whole_node) == {
        "cpu-example": "16",
        "gpu-example": "2",
        "memory-example": str(65535 << 20),
        "nic-example": "2",
    }
    assert whole_node.proof.nodes == {"a": 2, "b": 2}


def test_a_gpu_comes_with_its_share_of_the_node_and_its_nic() -> None:
    one = offer(offers(machine("a")), "one-gpu-example")
    assert asked(one) == {
        "cpu-example": "8",
        "gpu-example": "1",
        "memory-example": str((65535 << 20) // 2 >> 20 << 20),
        "nic-example": "1",
    }
    assert [(each.attribute, each.requests) for each in one.shape.alignments] == [
        (NUMA, ("cpu-example", "gpu-example", "memory-example", "nic-example")),
        (ROOT, ("gpu-example", "nic-example")),
    ]
    assert one.proof.count == 4


def test_a_gpu_without_a_nic_of_its_own_gets_one_of_its_numa_node() -> None:
    found = machine("a")
    apart = slices("a", nic=[whole(f"n{n}-{i}", numa=n, root="pci0000:ff") for n in range(2) for i in range(2)])
    one = offer(offers([each for each in found if each.spec.driver != "nic.example"] + apart), "one-gpu-example")
    assert [each.attribute for each in one.shape.alignments] == [NUMA]
    assert one.proof.count == 4


def test_half_a_socket_is_half_of_its_only_numa_node() -> None:
    found = offers(machine("a"))
    half = offer(found, "half-socket")
    assert asked(half)["cpu-example"] == "8"
    assert half.proof.count == 4


def test_half_a_socket_of_four_numa_nodes_is_two_of_one_socket() -> None:
    half = offer(offers(machine("a", numa_nodes=8, gpus=0, nics=0)), "half-socket-2-nodes")
    assert asked(half).keys() == {f"{name}-example-{n}" for name in ("cpu", "memory") for n in (0, 1)}
    assert half.proof.count == 4
    assert ("cpu.example/socketID", ("cpu-example-0", "cpu-example-1")) in [
        (each.attribute, each.requests) for each in half.shape.alignments
    ]


def test_half_a_socket_of_two_numa_nodes_is_reported_as_a_numa_node() -> None:
    found = offers(machine("a", numa_nodes=4))
    assert not [one for one in found.offers if one.shape.name.startswith("half-socket")]
    assert "half of a socket with two NUMA nodes is one NUMA node" in found.notes


def test_different_bundles_get_different_templates() -> None:
    found = offers(machine("a", gpus=2) + machine("b", gpus=1))
    by_gpus = {one.shape.name: (asked(one)["gpu-example"], dict(one.proof.nodes)) for one in found.offers[:2]}
    assert by_gpus == {"numa-node-1": ("2", {"a": 2}), "numa-node-2": ("1", {"a": 2, "b": 2})}


def test_no_template_has_more_devices_than_a_claim_may_have() -> None:
    one = offer(offers(slices("a", cpu=[whole(f"c{n}", numa=0) for n in range(33)])), "numa-node")
    assert (one.proof.count, one.proof.problem) == (0, "it has 33 devices; a claim can have at most 32")


def test_devices_that_claims_already_have_are_not_free() -> None:
    result = {"request": "r", "driver": "gpu.example", "pool": "a", "device": "g0-0"}
    allocation = decode(AllocationResult, {"devices": {"results": [result]}})
    claim = ResourceClaim(metadata=ObjectMeta(name="old", namespace="default", uid="u"))
    claim = decode(ResourceClaim, {**encode(claim), "status": {"allocation": encode(allocation)}})
    assert offer(offers(machine("a"), claim), "numa-node").proof.count == 1


def test_devices_that_do_not_say_where_they_are_are_named() -> None:
    found = offers(machine("a") + slices("a", odd=[whole("x"), whole("y")]) + slices("b", odd=[whole("z")]))
    assert (
        "3 devices of odd.example (a/x, a/y, b/z) do not report their NUMA node, so they are in no bundle of a NUMA "
        "node and in no template; a NUMA node may have more devices than shown"
    ) in found.notes


def test_many_devices_that_do_not_say_where_they_are_are_counted() -> None:
    found = offers(slices("a", odd=[whole(f"x{n}") for n in range(6)]))
    assert found.notes[0].startswith("6 devices of odd.example (a/x0, a/x1, a/x2, a/x3 and 2 more) do not report")


@pytest.mark.parametrize("unknown", [{}, {"numa": -1}])
def test_devices_of_an_unknown_numa_node_are_aligned_with_nothing(unknown: dict[str, int]) -> None:
    gpus = [whole(f"g{n}", type="gpu", pciBusID=f"0000:0{n}:00.0", **unknown) for n in (1, 2)]
    found = offers(slices("a", cpu=[shared(f"c{n}", "cpu", "16", "1", numa=n) for n in (0, 1)], gpu=gpus))
    assert {each.kind.driver for one in found.bundles for each in one.devices} == {"cpu.example"}
    assert {want.kind.driver for one in found.offers for want in one.shape.wants} == {"cpu.example"}
    assert any(
        note.startswith("2 devices of gpu.example (a/g1, a/g2) do not report their NUMA") for note in found.notes
    )


def test_a_proof_with_devices_of_an_unknown_numa_node_is_refused() -> None:
    known = [whole("g0", numa=0, type="gpu"), whole("g1", numa=0, type="gpu")]
    unknown = [whole("x0", numa=-1, type="gpu"), whole("x1", numa=-1, type="gpu")]
    found = offers(slices("a", gpu=[*known, *unknown]))
    assert [each.device.name for one in found.bundles for each in one.devices] == ["g0", "g1"]
    whole_node = offer(found, "numa-node")
    assert (whole_node.proof.count, whole_node.proof.problem) == (0, f"the devices that it got do not share {NUMA}")


def test_devices_on_pci_that_do_not_say_their_root_are_named() -> None:
    rooted = whole("g1", numa=0, pciBusID="0000:02:00.0", root="pci0000:00")
    found = offers(slices("a", gpu=[whole("g0", numa=0, pciBusID="0000:01:00.0"), rooted]))
    (note,) = found.notes
    assert note == (
        "1 device of gpu.example (a/g0) does not report its PCIe root, so it is in no bundle of a PCIe root"
    )


@pytest.mark.parametrize(("numa_nodes", "single"), [(1, True), (2, False)])
def test_on_a_single_numa_node_every_gpu_has_a_known_place(tmp_path: Path, numa_nodes: int, *, single: bool) -> None:
    machine = Machine()
    for node in range(numa_nodes):
        machine.numa(node, f"{node * 8}-{node * 8 + 7}")
    machine.pci("0000:01:00.0", AMD, 0x74A1, DISPLAY)
    arguments = ["--machine", str(machine.write(tmp_path)), "--drivers", "cpu,gpu", "-o", "json"]
    done = CliRunner().invoke(command, arguments, env={"NODE_NAME": "n"})
    (note,) = [note for note in json.loads(done.stdout)["notes"] if "gpu-0000-01-00-0" in note]
    assert ("the node has only one" in note) is single
    assert ("a NUMA node may have more devices than shown" in note) is not single
    assert ("the machine does not report which NUMA node GPU 0000:01:00.0 is near" in done.stderr) is not single


def test_each_page_size_is_requested_separately() -> None:
    huge = shared("h0", "size", "4Gi", "2Mi", numa=0, hugeTLB=True, pageSize="2m")
    plain = shared("m0", "size", "64Gi", "1Mi", numa=0, hugeTLB=False)
    found = offers(slices("a", memory=[plain, huge]))
    assert {kind.name for kind in found.classes} == {"memory.example", "memory.example-hugetlb-2m"}
    one = offer(found, "numa-node")
    assert one.proof.count == 1
    assert asked(one) == {"memory-example": str(64 << 30), "memory-example-hugetlb-2m": str(4 << 30)}


@pytest.mark.parametrize(
    ("expression", "config", "used"),
    [
        ('device.driver == "gpu.example"', (), True),
        ("true", (), False),
        ('device.driver == "gpu.example"', ({"opaque": {"driver": "gpu.example", "parameters": {}}},), False),
        ("device.nothing", (), False),
    ],
)
def test_a_class_of_the_cluster_is_used_if_it_selects_only_these_devices(
    expression: str, config: tuple[Any, ...], *, used: bool
) -> None:
    spec = {"selectors": [{"cel": {"expression": expression}}], "config": list(config)}
    mine = decode(DeviceClass, {"metadata": {"name": "my-gpus"}, "spec": spec})
    found = offers(machine("a"), classes=(mine,))
    names = {kind.driver: name for kind, name in found.classes.items()}
    assert names["gpu.example"] == ("my-gpus" if used else "gpu.example")
    assert ("gpu.example" in [one.metadata.name for one in found.missing]) is not used
    assert offer(found, "one-gpu-example").proof.count == 4


def test_the_manifests_are_those_that_were_checked() -> None:
    found = offers(machine("a"))
    items = manifests(found)["items"]
    assert [one["kind"] for one in items] == ["DeviceClass"] * 4 + ["ResourceClaimTemplate"] * len(found.offers)
    documents = offers_document(found)
    assert [one["template"] for one in documents["templates"]] == items[4:]
    assert items[4] == encode(template_of(found.offers[0].shape, found.classes))


def test_nodes_that_are_alike_are_filled_once_and_counted_each() -> None:
    found = offers([each for number in range(50) for each in machine(f"n{number:02}")])
    assert offer(found, "numa-node").proof.count == 100
    assert len(found.bundles) == 50 * (2 + 4)


def test_a_pool_with_a_missing_slice_is_left_out_and_named() -> None:
    cut = encode(machine("a"))
    cut[0]["spec"]["pool"]["resourceSliceCount"] = 2
    found = offers([decode(ResourceSlice, each) for each in cut])
    assert "the devices of pool cpu.example/a are in no bundle: not all of its slices were seen" in found.notes
    assert {each.kind.driver for one in found.bundles for each in one.devices} == {
        "gpu.example",
        "memory.example",
        "nic.example",
    }


def test_claims_that_were_not_read_are_reported(tmp_path: Path) -> None:
    documents = [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **each} for each in encode(machine("a"))]
    file = tmp_path / "slices.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    done = CliRunner().invoke(command, [str(file), "-o", "json"])
    assert "the files have no ResourceClaim, so every device counts as free" in json.loads(done.stdout)["notes"]
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "n"}}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*documents, claim]}))
    done = CliRunner().invoke(command, [str(file), "-o", "json"])
    assert not [note for note in json.loads(done.stdout)["notes"] if "counts as free" in note]


_MACHINE = "sockets=1,numa=1,cores=4,threads=2,memory=16,hugepages1g=1,hugepages2m=64"


def test_a_single_page_cannot_be_halved_and_a_note_says_so() -> None:
    done = CliRunner().invoke(command, ["--drivers", "cpu,memory", "--machine", _MACHINE, "-o", "json"])
    document = json.loads(done.stdout)
    (half,) = (one for one in document["templates"] if one["name"] == "half-socket")
    requests = {one["name"]: one["exactly"] for one in half["template"]["spec"]["spec"]["devices"]["requests"]}
    assert set(requests) == {"cpu", "memory", "hugepages-2m"}
    assert requests["hugepages-2m"]["capacity"] == {"requests": {"size": "64Mi"}}
    assert half["fits"] == 2
    assert any("half-socket asks for no dra.hugepages-1g" in note for note in document["notes"])


def test_classes_are_those_of_the_deployment() -> None:
    done = CliRunner().invoke(command, ["--drivers", "cpu,memory", "--machine", _MACHINE, "-o", "json"])
    missing = json.loads(done.stdout)["deviceClasses"]
    names = ["dra.cpu", "dra.memory", "dra.hugepages-1g", "dra.hugepages-2m"]
    assert missing == [json.loads(encode_json(default_class(name))) for name in names]


def _policy(**policy: Any) -> CapacityRequestPolicy:
    return decode(CapacityRequestPolicy, policy)


@pytest.mark.parametrize(
    ("policy", "limit", "amount"),
    [
        (None, "5/2", 2),
        (_policy(validValues=["3", "5"]), "4", 3),
        (_policy(validValues=["3", "5"]), "2", 0),
        (_policy(validRange={"min": "2", "step": "3"}), "7", 5),
        (_policy(validRange={"min": "2", "max": "6"}), "9", 6),
        (_policy(validRange={"min": "2"}), "1", 0),
        (_policy(default="4"), "3", 3),
    ],
)
def test_an_amount_is_one_that_the_policy_allows(policy: CapacityRequestPolicy | None, limit: str, amount: int) -> None:
    assert DeviceAmount(Fraction(10), policy).rounded(Fraction(limit)) == amount
