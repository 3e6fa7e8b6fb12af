"""One driver on a node: what it grants, what it remembers, what it refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dranode.api.errors import ClaimError
from dranode.api.resource import ResourceClaim
from dranode.cdi.spec import Spec
from dranode.driver.claims.answers import Conflict, Refused
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import PreparedDevice, Record
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.pinning.snapshot import PinSnapshot
from tests.fakes.drivers import Lamps, allocated_claim, damage_ledger, reference
from tests.fakes.node import LAMPS, given, in_pool, opened, prepare, prepared_before, spec_of, specs, unprepare


@pytest.mark.parametrize("uid", ["a/b", "ü", "../x", "x" * 101])
def test_a_uid_that_is_not_a_file_name_is_refused_and_not_recorded(tmp_path: Path, uid: str) -> None:
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claim = allocated_claim("a", LAMPS, ["lamp-0"], uid=uid)
    assert "recreate the claim" in str(prepare(node, claim)["a"])
    assert node.records() == ()
    assert unprepare(node, claim) == {uid: None}


def test_the_longest_names_that_kubernetes_allows_are_prepared_and_unprepared(tmp_path: Path) -> None:
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claim = allocated_claim("n" * 253, LAMPS, ["lamp-0"])
    claim = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, namespace="s" * 63))
    assert isinstance(prepare(node, claim)["n" * 253], tuple)
    assert len(list((tmp_path / "metadata").iterdir())) == 1
    assert unprepare(node, claim) == {claim.metadata.uid: None}
    assert list((tmp_path / "metadata").iterdir()) == []


def test_a_file_in_place_of_the_metadata_folder_blocks_no_claim(tmp_path: Path) -> None:
    (tmp_path / "metadata").touch()
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    assert isinstance(prepare(node, claim)["a"], tuple)
    assert unprepare(node, claim) == {claim.metadata.uid: None}


def test_a_claim_gets_its_devices_and_a_cdi_spec(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, {"big": "lamp-0", "small/dim": "lamp-2"}, shareID="s-1")
    uid = claim.metadata.uid
    assert prepare(node, claim)["a"] == (
        PreparedDevice("big", "node", "lamp-0", (f"{LAMPS}/claim=claim-{uid}-0",), "s-1"),
        PreparedDevice("small", "node", "lamp-2", (f"{LAMPS}/claim=claim-{uid}-1",), "s-1"),
    )
    (name,), (spec,) = zip(*specs(tmp_path).items(), strict=True)
    assert name == f"{LAMPS}-claim_claim-{uid}.json"
    assert given(spec) == [["LAMP=lamp-0"], ["LAMP=lamp-2"]]
    assert spec["cdiVersion"] == "0.3.0"


def test_a_repeated_prepare_answers_the_same_and_rewrites_a_lost_spec(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    first, written = prepare(node, claim), specs(tmp_path)
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    assert prepare(node, claim) == first
    assert specs(tmp_path) == written


def test_a_restart_rewrites_lost_specs_and_keeps_assignments(tmp_path: Path) -> None:
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    node = opened(tmp_path)
    first, written = prepare(node, claim), specs(tmp_path)
    node.close()
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    again = opened(tmp_path)
    assert specs(tmp_path) == written
    assert prepare(again, claim) == first


def test_unprepare_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    assert unprepare(node, claim) == {claim.metadata.uid: None}
    assert node.records() == ()
    assert specs(tmp_path) == {}
    assert unprepare(node, claim) == {claim.metadata.uid: None}


def test_unprepare_of_an_unknown_claim_succeeds(tmp_path: Path) -> None:
    ref = ClaimRef("default", "never-seen", "uid-x")
    assert opened(tmp_path).unprepare((ref,)) == {"uid-x": None}


@pytest.mark.parametrize(
    ("name", "told"), [("b", "once that one is unprepared"), ("a", "on record is another one, with UID 1")]
)
def test_a_device_that_another_claim_holds_is_refused_with_both_named(tmp_path: Path, name: str, told: str) -> None:
    clock = iter(range(0, 1000, 3))
    node = opened(tmp_path, clock=lambda: float(next(clock)))
    first, second = allocated_claim("a", LAMPS, ["lamp-1"], uid="1"), allocated_claim(name, LAMPS, ["lamp-1"], uid="2")
    prepare(node, first)
    refused = prepare(node, second)[name]
    assert isinstance(refused, Conflict)
    assert f'claim default/{name} was allocated device "lamp-1", which claim default/a still holds' in str(refused)
    assert refused.reason.endswith(told)
    assert [record.uid for record in node.records()] == ["1"]


def test_claims_of_one_call_see_each_other(tmp_path: Path) -> None:
    clock = iter(range(0, 1000, 3))
    node = opened(tmp_path, clock=lambda: float(next(clock)))
    answers = prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]), allocated_claim("b", LAMPS, ["lamp-1"]))
    assert len(answers["a"]) == 1
    assert isinstance(answers["b"], Conflict)


@pytest.mark.parametrize("described", [True, False])
def test_a_claim_without_edits_has_a_spec_with_a_copy_of_its_record(
    tmp_path: Path,
    described: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    class Silent(Lamps, Recovers):
        """Lamps with their own form of specs, which says nothing about a claim without edits."""

        def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
            del uid, spec
            return None

        def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
            given = super().grant(claim, held, inventory)
            return ClaimGrant(tuple(msgspec.structs.replace(grant, edits=None) for grant in given.grants))

    metadata = DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi") if described else None
    node = opened(tmp_path, Silent(), metadata=metadata)
    claim = allocated_claim("a", LAMPS, ["lamp-1"])
    ids = (f"{LAMPS}/claim=claim-{claim.metadata.uid}",) if described else ()
    assert [device.cdi for device in prepare(node, claim)["a"]] == [ids]
    assert claim.metadata.uid in node.files.written
    assert node.files.unwritten() == ()
    node.close()
    damage_ledger(tmp_path)
    (tmp_path / "data" / "ledger.db-copy").unlink()
    again = opened(tmp_path, Silent(), metadata=metadata)
    assert [(record.name, record.devices) for record in again.records()] == [("a", ("lamp-1",))]
    spec_of(tmp_path, claim).unlink()
    assert [record.name for record in again.files.unwritten()] == ["a"]


def test_admin_access_is_granted_beside_the_holder_and_holds_nothing(tmp_path: Path) -> None:
    node = opened(tmp_path)
    admin = allocated_claim("admin", LAMPS, ["lamp-1"], adminAccess=True)
    assert len(prepare(node, admin)["admin"]) == 1
    assert len(prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))["a"]) == 1
    assert len(prepare(node, allocated_claim("other", LAMPS, ["lamp-1"], adminAccess=True))["other"]) == 1


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (allocated_claim("a", LAMPS, ["lamp-9"]), 'device "lamp-9" of pool "node", which this node does not have'),
        (
            allocated_claim("a", LAMPS, ["lamp-1", "lamp-1"]),
            'device "lamp-1" twice, which cannot be shared; delete the claim',
        ),
        (
            allocated_claim(
                "a",
                LAMPS,
                ["lamp-1"],
                config=[{"source": "FromClaim", "opaque": {"driver": LAMPS, "parameters": {"color": "red"}}}],
            ),
            r"config\[0\].opaque.parameters: a lamp's configuration is a colour",
        ),
    ],
)
def test_an_invalid_claim_is_refused_without_affecting_others(
    tmp_path: Path, claim: ResourceClaim, sentence: str
) -> None:
    node = opened(tmp_path)
    good = allocated_claim("good", LAMPS, ["lamp-3"])
    answers = prepare(node, claim, good)
    assert isinstance(answers["a"], Refused)
    with pytest.raises(ClaimError, match=sentence):
        raise ClaimError(answers["a"].reason)
    assert len(answers["good"]) == 1
    assert [record.name for record in node.records()] == ["good"]


def test_a_claim_with_another_uid_is_refused(tmp_path: Path) -> None:
    claim = allocated_claim("a", LAMPS, ["lamp-1"], uid="new")
    answer = opened(tmp_path).prepare({ClaimRef("default", "a", "old"): claim})["old"]
    assert "its UID is new, but kubelet asked for old" in str(answer)


def test_two_claims_with_one_uid_in_a_call_are_refused_and_hold_nothing(tmp_path: Path) -> None:
    node = opened(tmp_path)
    one, other = (allocated_claim(name, LAMPS, [lamp], uid="same") for name, lamp in (("a", "lamp-0"), ("b", "lamp-1")))
    third = allocated_claim("c", LAMPS, ["lamp-2"])
    answers = node.prepare({reference(each): each for each in (one, other, third)})
    assert str(answers["same"]) == (
        "claims default/a and default/b have the same UID same in one call, so neither is prepared; recreate their pods"
    )
    assert [record.name for record in node.records()] == ["c"]
    assert isinstance(prepare(node, one)["a"], tuple)
    assert node.unprepare((reference(one), reference(other))) == {"same": None}
    assert [record.name for record in node.records()] == ["c"]


@pytest.mark.parametrize("result", [{}, {"adminAccess": True}])
def test_a_claim_on_another_nodes_pool_is_refused_with_both_pools_named(tmp_path: Path, result: dict[str, Any]) -> None:
    node = opened(tmp_path, pool="node")
    elsewhere = in_pool(allocated_claim("a", LAMPS, ["lamp-0"], **result), "node-77")
    error = prepare(node, elsewhere)["a"]
    assert str(error) == (
        'request "r" of claim default/a was allocated device "lamp-0" of pool "node-77", but this node\'s pool is '
        '"node"; delete the claim so that it is allocated again'
    )
    assert node.records() == ()
    assert [one.device for one in prepare(node, allocated_claim("b", LAMPS, ["lamp-0"]))["b"]] == ["lamp-0"]


def test_a_prepared_claim_keeps_its_answer_whatever_its_pool(tmp_path: Path) -> None:
    claim = in_pool(allocated_claim("a", LAMPS, ["lamp-0"]), "node-77")
    answer = prepared_before(tmp_path, claim)
    assert prepare(opened(tmp_path, pool="node"), claim) == answer


def test_a_claim_without_an_allocation_is_refused(tmp_path: Path) -> None:
    claim = ResourceClaim(metadata=allocated_claim("a", LAMPS, []).metadata)
    answer = str(prepare(opened(tmp_path), claim)["a"])
    assert "claim default/a has no allocation" in answer
    assert "recreate its pod" in answer


@pytest.mark.parametrize(("used", "reason"), [("yes", "a container still uses it"), ("unknown", "neither NRI nor")])
def test_a_changed_allocation_is_refused_while_a_container_may_use_the_claim(
    tmp_path: Path, used: str, reason: str
) -> None:
    answer = {"yes": True, "unknown": None}[used]
    node = opened(tmp_path, in_use=lambda _: answer)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    refused = prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))["a"]
    assert reason in str(refused)
    assert str(refused).endswith("; delete the pods that name the claim, this one too, and kubelet unprepares it")
    assert [record.devices for record in node.records()] == [("lamp-0",)]
    # kubelet does so when the refused pod is deleted.
    assert set(unprepare(node, allocated_claim("a", LAMPS, ["lamp-1"])).values()) == {None}
    assert [device.device for device in prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))["a"]] == ["lamp-1"]


def test_a_changed_allocation_is_decided_again_once_if_no_container_uses_it(tmp_path: Path) -> None:
    changed = allocated_claim("a", LAMPS, ["lamp-1"])
    granted: list[Record] = []

    def in_use(_: ClaimRef) -> bool:
        # Another pod with the claim starts at the same time, and its call is faster than the first one.
        if len(granted) == 1:
            granted.append(granted[0])
            prepare(node, changed)
        return False

    node = opened(tmp_path, in_use=in_use)
    node.granted = granted.append
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    assert [device.device for device in prepare(node, changed)["a"]] == ["lamp-1"]
    assert len(granted) == 3
    assert len(prepare(node, allocated_claim("b", LAMPS, ["lamp-0"]))["b"]) == 1


def test_another_instances_change_is_notified_even_after_a_failed_call(tmp_path: Path) -> None:
    here, there = opened(tmp_path), opened(tmp_path)
    told: list[int] = []
    here.watch(lambda _: told.append(len(here.store.book.records())))
    prepare(there, allocated_claim("a", LAMPS, ["lamp-0"]))

    def broken() -> Iterator[Any]:
        yield from ()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        here.finish(broken())
    here.records()
    assert told == [0, 1]


def test_a_watcher_that_failed_is_notified_again_at_the_next_call(tmp_path: Path) -> None:
    node = opened(tmp_path)
    told: list[int] = []

    def watcher(_: PinSnapshot | None) -> None:
        told.append(len(node.store.book.records()))
        if told == [0, 1]:
            raise ClaimError("the watcher stumbles")

    node.watch(watcher)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    assert isinstance(prepare(node, claim)["a"], Refused)
    assert len(prepare(node, claim)["a"]) == 1
    assert told == [0, 1, 1]
