import json

from msgspec.structs import replace

from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetDevice, FleetMoment, FleetNode, FleetPicture
from dranode.show.picture.page import compact
from tests.fakes.fleets import training_fleet


def test_nodes_with_the_same_devices_are_written_once() -> None:
    document = compact(training_fleet(100))
    # Every GPU has its own serial number, and the tainted ones are a kind of their own.
    assert len(document["kinds"]) == 2
    assert [node[0] for node in document["nodes"]][:2] == ["worker-0", "worker-1"]
    own = document["nodes"][7][4]
    assert own[4] == [("uuid", "GPU-00000007-0000-4222-8333-444455556666")]


def test_shares_lead_to_their_device() -> None:
    document = compact(training_fleet(2))
    claim = next(claim for claim in document["moments"][0]["claims"] if claim[0] == "ml/train-worker-1-3")
    offset = len(document["kinds"][document["nodes"][0][1]])
    names = [document["kinds"][document["nodes"][1][1]][share[0] - offset][1] for share in claim[2]]
    assert names == ["gpu-3", "mlx5-3", "cpudevnuma001"]
    amounts = document["moments"][0]["amounts"]
    assert [amounts[number] for number in claim[2][2][1]] == [("cpu", "4", 4)]
    assert claim[1] == [[len("train-worker-1-3"), "-0"]]  # in the claim's namespace
    assert claim[4] == 1795255200


def test_unusual_names_and_times_are_kept() -> None:
    picture = training_fleet(1)
    claims = tuple(
        FleetClaim("ns/web-gpu-x7k", (pod,), created=created)
        for pod, created in (("ns/web", "2026-11-21T10:00:00Z"), ("ns/other", "yesterday"), ("ns/web-gpu-x7k", ""))
    )
    written = compact(replace(picture, moments=(FleetMoment("now", claims),)))["moments"][0]["claims"]
    assert [claim[1:] for claim in written] == [
        [[[3]], [], [], 1795255200],
        [[[0, "other"]], [], [], "yesterday"],
        [[[11]]],
    ]


def test_attributes_that_do_not_fit_are_left_out_and_named() -> None:
    nodes = tuple(
        FleetNode(
            f"n{number}",
            (FleetDevice(DeviceKey("d", f"n{number}", "x"), attributes={"serial": f"{number:04d}" * 500}),),
        )
        for number in range(200)
    )
    document = compact(FleetPicture("t", nodes, training_fleet(1).moments))
    assert document["notes"] == ["to keep this page small, some devices are shown without serial"]
    assert 0 < sum(bool(node[4]) for node in document["nodes"]) < 200
    few = compact(FleetPicture("t", nodes[:10], training_fleet(1).moments))
    assert few["notes"] == []


def test_the_document_survives_json() -> None:
    picture = training_fleet(3, compared=True)
    assert json.loads(json.dumps(compact(picture)))["waiting"][0][0] == "ml/big-0"
    assert compact(replace(picture, facts=("a fact",)))["facts"] == ["a fact"]
