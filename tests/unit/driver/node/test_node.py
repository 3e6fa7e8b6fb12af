"""One driver on a node: what it hands out, what it remembers, what it refuses."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dranode.cdi.spec import Spec
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import ClaimConflictError, ClaimError, DranodeError, LedgerError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.configs import Config
from dranode.driver.core.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.driver.core.claims.hooks import Recovers
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.metadata import metadata_spec_file
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.prepare import allocated
from dranode.driver.core.claims.record import PreparedDevice, Record, fingerprint
from dranode.driver.core.pinning.pins import Pins
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.node.patience import CONFLICT_WAIT, MAX_WAITING
from dranode.driver.serve.spec_watch import SpecWatch
from tests.fakes.drivers import (
    DAMAGES,
    Board,
    Lamps,
    WiredLamps,
    allocated_claim,
    damage_ledger,
    damage_rows,
    lose_copy,
    plain,
    reference,
)

LAMPS = Lamps.driver


def opened(folder: Path, plugin: Plugin | None = None, **options: Any) -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True)
    node = NodeClaims(plugin or Lamps(), folder / "data", folder / "cdi", **options)
    node.open()
    return node


def prepare(node: NodeClaims, *claims: ResourceClaim) -> dict[str, Any]:
    answers = node.prepare({reference(claim): claim for claim in claims})
    return {claim.metadata.name: answers[claim.metadata.uid] for claim in claims}


def unprepare(node: NodeClaims, *claims: ResourceClaim) -> dict[str, DranodeError | None]:
    return node.unprepare(tuple(map(reference, claims)))


def specs(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_bytes()) for path in (folder / "cdi").iterdir()}


def given(spec: Any) -> list[list[str]]:
    """The variables that containers are given: of every CDI device of which kubelet may be told."""
    return [each["containerEdits"]["env"] for each in spec["devices"] if each["name"].startswith("claim-")]


@pytest.mark.parametrize("uid", ["a/b", "ü", "../x", "x" * 101])
def test_a_uid_that_can_name_no_file_is_refused_and_leaves_nothing_on_record(tmp_path: Path, uid: str) -> None:
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
    (folder,) = (tmp_path / "metadata").iterdir()
    assert (folder / "r" / "metadata.json").is_file()
    assert unprepare(node, claim) == {claim.metadata.uid: None}
    assert list((tmp_path / "metadata").iterdir()) == []


def test_metadata_whose_folder_became_a_file_holds_no_claim_back(tmp_path: Path) -> None:
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


def test_a_repeated_prepare_answers_the_same_and_makes_a_lost_spec_again(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    first, written = prepare(node, claim), specs(tmp_path)
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    assert prepare(node, claim) == first
    assert specs(tmp_path) == written


def test_a_restart_makes_lost_specs_again_and_keeps_assignments(tmp_path: Path) -> None:
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


def test_unprepare_of_a_claim_nobody_knows_succeeds(tmp_path: Path) -> None:
    ref = ClaimRef("default", "never-seen", "uid-x")
    assert opened(tmp_path).unprepare((ref,)) == {"uid-x": None}


def test_a_device_that_another_claim_holds_is_refused_with_both_named(tmp_path: Path) -> None:
    clock = iter(range(0, 1000, 3))
    node = opened(tmp_path, clock=lambda: float(next(clock)))
    first, second = allocated_claim("a", LAMPS, ["lamp-1"]), allocated_claim("b", LAMPS, ["lamp-1"])
    prepare(node, first)
    refused = prepare(node, second)["b"]
    assert isinstance(refused, ClaimConflictError)
    assert 'claim default/b was allocated device "lamp-1", which claim default/a still holds' in str(refused)
    assert [record.name for record in node.records()] == ["a"]


def test_a_prepare_waits_for_the_unprepare_that_is_on_its_way(tmp_path: Path) -> None:
    node = opened(tmp_path)
    first, second = allocated_claim("a", LAMPS, ["lamp-1"]), allocated_claim("b", LAMPS, ["lamp-1"])
    prepare(node, first)

    def later() -> None:
        time.sleep(0.05)
        unprepare(node, first)

    thread = threading.Thread(target=later)
    thread.start()
    answer = prepare(node, second)["b"]
    thread.join()
    assert [device.device for device in answer] == ["lamp-1"]


def test_only_so_many_calls_wait_that_the_unprepare_gets_through(tmp_path: Path) -> None:
    now = [0.0]
    node = opened(tmp_path, clock=lambda: now[0])
    held = allocated_claim("a", LAMPS, ["lamp-1"])
    prepare(node, held)
    with ThreadPoolExecutor(MAX_WAITING) as pool:
        calls = [
            pool.submit(prepare, node, allocated_claim(f"w{number}", LAMPS, ["lamp-1"]))
            for number in range(MAX_WAITING)
        ]
        while node._places._value > 0:
            time.sleep(0.001)
        # The clock stands still: one more that waited would wait for ever.
        assert isinstance(prepare(node, allocated_claim("b", LAMPS, ["lamp-1"]))["b"], ClaimConflictError)
        unprepare(node, held)
        wait(calls, return_when=FIRST_COMPLETED)
        now[0] = CONFLICT_WAIT
        answers = [next(iter(call.result().values())) for call in calls]
    assert sum(isinstance(answer, tuple) for answer in answers) == 1
    assert [node._places.acquire(blocking=False) for _ in range(MAX_WAITING)] == [True] * MAX_WAITING


def test_claims_of_one_call_see_each_other(tmp_path: Path) -> None:
    clock = iter(range(0, 1000, 3))
    node = opened(tmp_path, clock=lambda: float(next(clock)))
    answers = prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]), allocated_claim("b", LAMPS, ["lamp-1"]))
    assert len(answers["a"]) == 1
    assert isinstance(answers["b"], ClaimConflictError)


def test_admin_access_stands_beside_the_holder_and_holds_nothing(tmp_path: Path) -> None:
    node = opened(tmp_path)
    admin = allocated_claim("admin", LAMPS, ["lamp-1"], adminAccess=True)
    assert len(prepare(node, admin)["admin"]) == 1
    assert len(prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))["a"]) == 1
    assert len(prepare(node, allocated_claim("other", LAMPS, ["lamp-1"], adminAccess=True))["other"]) == 1


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (allocated_claim("a", LAMPS, ["lamp-9"]), 'device "lamp-9" of pool "node", which this node does not have'),
        (allocated_claim("a", LAMPS, ["lamp-1", "lamp-1"]), 'device "lamp-1" twice'),
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
def test_a_claim_that_cannot_be_meant_is_refused_and_loses_nothing(
    tmp_path: Path, claim: ResourceClaim, sentence: str
) -> None:
    node = opened(tmp_path)
    good = allocated_claim("good", LAMPS, ["lamp-3"])
    answers = prepare(node, claim, good)
    assert isinstance(answers["a"], ClaimError)
    with pytest.raises(ClaimError, match=sentence):
        raise answers["a"]
    assert len(answers["good"]) == 1
    assert [record.name for record in node.records()] == ["good"]


def test_a_claim_with_another_uid_is_refused(tmp_path: Path) -> None:
    claim = allocated_claim("a", LAMPS, ["lamp-1"], uid="new")
    answer = opened(tmp_path).prepare({ClaimRef("default", "a", "old"): claim})["old"]
    assert "its UID is new, and old was asked for" in str(answer)


def test_equal_configurations_that_arrive_twice_count_once(tmp_path: Path) -> None:
    class Listening(Lamps):
        heard: tuple[Any, ...] = ()

        def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
            self.heard = tuple(config.parameters for each in claim.results for config in each.configs)
            return super().grant(claim, held, inventory)

    def config(colour: str, *requests: str) -> dict[str, Any]:
        opaque = {"driver": LAMPS, "parameters": {"colour": colour}}
        return {"source": "FromClaim", "requests": list(requests), "opaque": opaque}

    red, blue, other = config("red", "r", "s"), config("blue", "r"), config("red", "r")
    for number, (configs, heard) in enumerate(
        (([red, red], 1), ([red, red, blue, blue], 2), ([red, blue, red], 2), ([red, other], 2))
    ):
        lamps = Listening()
        folder = tmp_path / str(number)
        folder.mkdir()
        node = opened(folder, lamps)
        claim = allocated_claim("a", LAMPS, ["lamp-0"], config=configs)
        prepare(node, claim)
        assert len(lamps.heard) == heard
        # The last one wins, as it does without the entries that do not count.
        assert lamps.heard[-1] == lamps.parse_config(Config("FromClaim", configs[-1]["opaque"]["parameters"], ""))
        assert isinstance(prepare(node, claim)["a"], tuple)


def test_a_fingerprint_is_of_every_entry_so_that_a_claim_of_an_older_version_looks_the_same() -> None:
    opaque = {"driver": LAMPS, "parameters": {"colour": "red"}}
    twice = allocated_claim("a", LAMPS, ["lamp-0"], config=[{"source": "FromClaim", "opaque": opaque}] * 2)
    asked = allocated(reference(twice), twice, Lamps())
    assert fingerprint(asked) == "fe0afd780a66f76f"


def test_two_claims_of_one_uid_in_a_call_are_refused_and_hold_nothing(tmp_path: Path) -> None:
    node = opened(tmp_path)
    one, other = (allocated_claim(name, LAMPS, [lamp], uid="same") for name, lamp in (("a", "lamp-0"), ("b", "lamp-1")))
    third = allocated_claim("c", LAMPS, ["lamp-2"])
    answers = node.prepare({reference(each): each for each in (one, other, third)})
    assert str(answers["same"]) == (
        "claims default/a and default/b were asked for in one call with the same UID same, so neither is prepared; "
        "recreate their pods"
    )
    assert [record.name for record in node.records()] == ["c"]
    assert isinstance(prepare(node, one)["a"], tuple)
    assert node.unprepare((reference(one), reference(other))) == {"same": None}
    assert [record.name for record in node.records()] == ["c"]


def in_pool(claim: ResourceClaim, pool: str) -> ResourceClaim:
    document = plain(claim)
    for result in document["status"]["allocation"]["devices"]["results"]:
        result["pool"] = pool
    return decode(ResourceClaim, document)


@pytest.mark.parametrize("result", [{}, {"adminAccess": True}])
def test_a_claim_on_another_nodes_pool_is_refused_with_both_pools_named(tmp_path: Path, result: dict[str, Any]) -> None:
    node = opened(tmp_path, pool="node")
    elsewhere = in_pool(allocated_claim("a", LAMPS, ["lamp-0"], **result), "node-77")
    error = prepare(node, elsewhere)["a"]
    assert str(error) == (
        'request "r" of claim default/a was allocated device "lamp-0" of pool "node-77", but this node\'s pool is '
        '"node"; delete the claim so that it is allocated anew'
    )
    assert node.records() == ()
    assert [one.device for one in prepare(node, allocated_claim("b", LAMPS, ["lamp-0"]))["b"]] == ["lamp-0"]


def test_a_prepared_claim_keeps_its_answer_whatever_its_pool(tmp_path: Path) -> None:
    claim = in_pool(allocated_claim("a", LAMPS, ["lamp-0"]), "node-77")
    before = opened(tmp_path)
    answer = prepare(before, claim)
    before.close()
    assert prepare(opened(tmp_path, pool="node"), claim) == answer


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_that_comes_back_from_its_spec_is_not_completed_from_another_nodes_pool(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    node = opened(tmp_path, pool="node")
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    node.close()
    damage(tmp_path)
    again = opened(tmp_path, pool="node", in_use=lambda _: False)
    assert "this node's pool is" in str(prepare(again, in_pool(claim, "node-77"))["a"])
    assert again.holders.held.device_holders("lamp-0")


def test_a_claim_without_an_allocation_is_refused(tmp_path: Path) -> None:
    claim = ResourceClaim(metadata=allocated_claim("a", LAMPS, []).metadata)
    assert "claim default/a has no allocation" in str(prepare(opened(tmp_path), claim)["a"])


def test_other_drivers_results_and_configurations_are_never_looked_at(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim(
        "a",
        "other.example.com",
        ["x"],
        config=[{"source": "FromClaim", "opaque": {"driver": "other.example.com", "parameters": {"broken": 1}}}],
    )
    assert prepare(node, claim)["a"] == ()
    assert node.records() == ()
    assert specs(tmp_path) == {} if (tmp_path / "cdi").exists() else True


def test_a_configuration_that_names_the_main_request_reaches_its_alternatives(tmp_path: Path) -> None:
    def config(source: str, requests: list[str], colour: str) -> dict[str, Any]:
        return {
            "source": source,
            "requests": requests,
            "opaque": {"driver": LAMPS, "parameters": {"colour": colour}},
        }

    claim = allocated_claim(
        "a",
        LAMPS,
        {"r/big": "lamp-0", "s/small": "lamp-1", "t": "lamp-2"},
        config=[
            config("FromClass", [], "white"),
            config("FromClaim", ["r"], "red"),
            config("FromClaim", ["s/small"], "green"),
            config("FromClaim", ["s/big"], "blue"),
        ],
    )
    prepare(opened(tmp_path), claim)
    (spec,) = specs(tmp_path).values()
    assert [colour for _, colour in given(spec)] == [
        "COLOUR=red",
        "COLOUR=green",
        "COLOUR=white",
    ]


def test_a_class_never_overrides_a_claim_whatever_the_order_in_the_allocation(tmp_path: Path) -> None:
    config = [
        {"source": source, "opaque": {"driver": LAMPS, "parameters": {"colour": colour}}}
        for source, colour in (("FromClaim", "red"), ("FromClaim", "green"), ("FromClass", "white"))
    ]
    prepare(opened(tmp_path), allocated_claim("a", LAMPS, ["lamp-0"], config=config))
    (spec,) = specs(tmp_path).values()
    assert spec["devices"][0]["containerEdits"]["env"][1] == "COLOUR=green"


@pytest.mark.parametrize(("used", "reason"), [("yes", "a container still uses it"), ("unknown", "neither NRI nor")])
def test_a_changed_allocation_is_refused_while_a_container_may_use_the_claim(
    tmp_path: Path, used: str, reason: str
) -> None:
    answer = {"yes": True, "unknown": None}[used]
    node = opened(tmp_path, in_use=lambda _: answer)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    refused = prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))["a"]
    assert reason in str(refused)
    assert [record.devices for record in node.records()] == [("lamp-0",)]


def test_a_changed_allocation_is_decided_anew_if_nothing_runs_on_it(tmp_path: Path) -> None:
    node = opened(tmp_path, in_use=lambda _: False)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    answer = prepare(node, allocated_claim("a", LAMPS, ["lamp-1"]))["a"]
    assert [device.device for device in answer] == ["lamp-1"]
    assert len(prepare(node, allocated_claim("b", LAMPS, ["lamp-0"]))["b"]) == 1


def test_hardware_is_configured_once_and_restored_once(tmp_path: Path) -> None:
    board = Board()
    node = opened(tmp_path, WiredLamps(board))
    claim = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    prepare(node, claim)
    prepare(node, claim)
    assert board.lit == {"lamp-0"}
    unprepare(node, claim)
    assert board.lit == set()
    assert board.actions == ["configure a", "restore a"]


def test_hardware_is_configured_again_after_a_reboot(tmp_path: Path) -> None:
    board = Board()
    claim = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    node = opened(tmp_path, WiredLamps(board))
    prepare(node, claim)
    node.close()
    rebooted = NodeClaims(WiredLamps(board), tmp_path / "data", tmp_path / "cdi")
    rebooted.open("another boot")
    prepare(rebooted, claim)
    assert board.actions == ["configure a", "configure a"]


def test_a_reboot_is_not_forgotten_if_the_ledger_could_not_be_used_at_the_start(tmp_path: Path) -> None:
    board = Board()
    claim = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    node = opened(tmp_path, WiredLamps(board))
    prepare(node, claim)
    node.close()
    ledger = tmp_path / "data" / "ledger.db"
    ledger.rename(ledger.with_name("away"))
    ledger.mkdir()
    rebooted = NodeClaims(WiredLamps(board), tmp_path / "data", tmp_path / "cdi")
    rebooted.open("another boot")
    assert isinstance(prepare(rebooted, claim)["a"], LedgerError)
    ledger.rmdir()
    ledger.with_name("away").rename(ledger)
    assert len(prepare(rebooted, claim)["a"]) == 1
    assert board.actions == ["configure a", "configure a"]


def test_a_hardware_failure_is_the_claims_alone_and_cured_by_the_next_try(tmp_path: Path) -> None:
    class Moody(WiredLamps):
        def configure(self, claim: ClaimRef, grants: Any) -> None:
            if claim.name == "a" and not self.board.actions:
                self.board.actions.append("refused")
                raise ClaimError("the fuse has blown; replace it")
            super().configure(claim, grants)

    node = opened(tmp_path, Moody(Board()))
    a, b = (allocated_claim(name, WiredLamps.driver, [f"lamp-{n}"]) for n, name in enumerate("ab"))
    answers = prepare(node, a, b)
    assert str(answers["a"]) == "the fuse has blown; replace it"
    assert len(answers["b"]) == 1
    assert len(prepare(node, a)["a"]) == 1


def test_a_bug_in_a_driver_fails_its_claim_and_no_other(tmp_path: Path) -> None:
    class Buggy(Lamps):
        def grant(self, claim: Any, held: Any, inventory: Any) -> Any:
            if claim.ref.name == "a":
                raise KeyError("oops")
            return super().grant(claim, held, inventory)

    node = opened(tmp_path, Buggy())
    answers = prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"]))
    assert "met an error inside lamps.example.com: KeyError('oops')" in str(answers["a"])
    assert len(answers["b"]) == 1


def test_a_spec_that_cannot_be_written_is_told_and_written_by_the_next_try(tmp_path: Path) -> None:
    node = opened(tmp_path)
    (tmp_path / "cdi").rmdir() if (tmp_path / "cdi").exists() else None
    (tmp_path / "cdi").write_text("a file in the way")
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    assert "the CDI spec of claim default/a cannot be written to" in str(prepare(node, claim)["a"])
    (tmp_path / "cdi").unlink()
    assert len(prepare(node, claim)["a"]) == 1
    assert len(specs(tmp_path)) == 1


def test_a_uid_that_would_leave_the_cdi_directory_removes_nothing(tmp_path: Path) -> None:
    uid = "/../../victim"
    (tmp_path / "cdi" / f"{LAMPS}-claim_claim-").mkdir(parents=True)
    (tmp_path / "victim.json").touch()
    assert opened(tmp_path).unprepare((ClaimRef("default", "a", uid),)) == {uid: None}
    assert (tmp_path / "victim.json").exists()


def test_while_the_ledger_cannot_be_used_nothing_is_handed_out_and_the_file_stays(tmp_path: Path) -> None:
    node = opened(tmp_path)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    node.close()
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    again = opened(tmp_path)
    answer = prepare(again, allocated_claim("b", LAMPS, ["lamp-1"]))["b"]
    assert isinstance(answer, LedgerError)
    assert "newer dranode" in str(answer)
    assert [path.name for path in (tmp_path / "data").glob("*corrupt*")] == []


def spec_of(folder: Path, claim: ResourceClaim) -> Path:
    return folder / "cdi" / f"{LAMPS}-claim_claim-{claim.metadata.uid}.json"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_comes_back_from_the_spec_and_others_never_wait(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    config = {"source": "FromClaim", "opaque": {"driver": LAMPS, "parameters": {"colour": "red"}}}
    claim, new = allocated_claim("a", LAMPS, ["lamp-0"], config=[config]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    first, before, spec = prepare(node, claim), node.records(), spec_of(tmp_path, claim).read_bytes()
    node.close()
    damage(tmp_path)
    again = opened(tmp_path)
    refused = prepare(again, allocated_claim("thief", LAMPS, ["lamp-0"]))["thief"]
    assert isinstance(refused, ClaimConflictError)
    assert "which claim default/a still holds" in str(refused)
    assert len(prepare(again, new)["b"]) == 1
    assert prepare(again, claim) == first
    assert [record for record in again.records() if record.uid == claim.metadata.uid] == list(before)
    assert spec_of(tmp_path, claim).read_bytes() == spec
    again.close()
    assert {record.name for record in opened(tmp_path).records()} == {"a", "b"}
    assert again.holders.damaged == {}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_unprepared_by_the_word_of_its_spec(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    board, claim = Board(), allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    node = opened(tmp_path, WiredLamps(board))
    prepare(node, claim)
    node.close()
    damage(tmp_path)
    again = opened(tmp_path, WiredLamps(board))
    assert unprepare(again, claim) == {claim.metadata.uid: None}
    assert board.actions == ["configure a", "restore a"]
    assert board.lit == set()
    assert (again.records(), again.holders.damaged, specs(tmp_path)) == ((), {}, {})


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_that_was_allocated_anew_while_its_record_was_damaged_is_prepared_anew(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    node = opened(tmp_path)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    node.close()
    damage(tmp_path)
    again, changed = opened(tmp_path, in_use=lambda _: False), allocated_claim("a", LAMPS, ["lamp-1"])
    assert [device.device for device in prepare(again, changed)["a"]] == ["lamp-1"]
    assert [record.devices for record in again.records()] == [("lamp-1",)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_admin_access_holds_nothing_after_damage_either(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    node = opened(tmp_path)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"], adminAccess=True))
    node.close()
    damage(tmp_path)
    assert len(prepare(opened(tmp_path), allocated_claim("b", LAMPS, ["lamp-0"]))["b"]) == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_claim_whose_containers_get_nothing_is_not_forgotten_with_its_ledger(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    class Silent(Lamps):
        def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
            del held, inventory
            return ClaimGrant(tuple(Grant.of(each.result) for each in claim.results))

    node = opened(tmp_path, Silent())
    assert [device.cdi for device in prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))["a"]] == [()]
    node.close()
    damage(tmp_path)
    answer = prepare(opened(tmp_path, Silent()), allocated_claim("b", LAMPS, ["lamp-0"]))["b"]
    assert isinstance(answer, ClaimConflictError)


@pytest.mark.parametrize(
    ("damage", "answer"), [(damage_rows, "is damaged (the row does not match its checksum)"), (damage_ledger, "lamp-0")]
)
def test_what_no_spec_can_say_blocks_new_grants_until_it_is_unprepared(
    tmp_path: Path, damage: Callable[[Path], None], answer: str
) -> None:
    claim, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    prepare(node, claim)
    node.close()
    damage(tmp_path)
    spec_of(tmp_path, claim).write_text("junk")
    again = opened(tmp_path)
    assert f"the claim with UID {claim.metadata.uid} may hold anything" in str(prepare(again, new)["b"])
    # The allocation of a claim whose record is gone says what it was given; a row that is damaged may say otherwise.
    assert answer in str(prepare(again, claim)["a"])
    assert unprepare(again, claim) == {claim.metadata.uid: None}
    assert len(prepare(again, new)["b"]) == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_spec_that_can_be_read_again_blocks_no_longer(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    claim, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    first = prepare(node, claim)
    node.close()
    damage(tmp_path)
    whole = spec_of(tmp_path, claim).read_bytes()
    spec_of(tmp_path, claim).write_text("junk")
    again = opened(tmp_path)
    told: list[list[tuple[str, ...]]] = []
    again.watch(lambda _: told.append([record.devices for record in again.holders.told()]))
    assert "may hold anything" in str(prepare(again, new)["b"])
    spec_of(tmp_path, claim).write_bytes(whole)
    assert len(prepare(again, new)["b"]) == 1
    assert ("lamp-0",) in told[-1]
    assert isinstance(prepare(again, allocated_claim("thief", LAMPS, ["lamp-0"]))["thief"], ClaimConflictError)
    assert prepare(again, claim) == first


def test_a_lost_record_that_is_on_file_is_found_again_with_the_owner_that_it_got_meanwhile(tmp_path: Path) -> None:
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    node = opened(tmp_path)
    prepare(node, claim)
    node.close()
    whole = spec_of(tmp_path, claim).read_bytes()
    spec_of(tmp_path, claim).write_text("junk")
    damage_ledger(tmp_path)
    again = opened(tmp_path)
    (lost,) = again.unfinished()
    pods = claim.status.reserved_for
    again.take_in([(lost, msgspec.structs.replace(lost, namespace="default", name="renamed", pods=pods))])
    again.close()
    spec_of(tmp_path, claim).write_bytes(whole)
    (found,) = opened(tmp_path).unfinished()
    assert (found.name, found.pods, found.devices) == ("renamed", pods, ("lamp-0",))


def test_a_damaged_index_is_found_when_the_ledger_is_opened(tmp_path: Path) -> None:
    known, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    first = prepare(node, known)
    node.close()
    file = tmp_path / "data" / "ledger.db"
    with contextlib.closing(sqlite3.connect(file)) as db:
        (index,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_claims_1'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(file.read_bytes())
    content[(index - 1) * size : index * size] = b"\xff" * size
    file.write_bytes(content)
    again = opened(tmp_path)
    assert len(prepare(again, new)["b"]) == 1
    assert prepare(again, known) == first
    assert len(list((tmp_path / "data").glob("ledger.db.corrupt-*"))) == 1


def test_damage_that_only_writing_meets_moves_the_ledger_aside_too(tmp_path: Path) -> None:
    known, new = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    first = prepare(node, known)
    # A row under the new claim's key, which nobody has seen.
    behind_its_back = node.holders.refresh()._db
    behind_its_back.execute(
        "INSERT INTO claims SELECT ?, devices, held, body, checksum FROM claims", (new.metadata.uid,)
    )
    assert "is damaged: UNIQUE constraint failed" in str(prepare(node, new)["b"])
    assert prepare(node, known) == first
    assert len(list((tmp_path / "data").glob("ledger.db.corrupt-*"))) == 1
    assert len(prepare(node, new)["b"]) == 1


def test_a_damaged_row_whose_uid_can_name_no_file_keeps_unprepare_going(tmp_path: Path) -> None:
    first, second = allocated_claim("a", LAMPS, ["lamp-0"]), allocated_claim("b", LAMPS, ["lamp-1"])
    node = opened(tmp_path)
    prepare(node, first, second)
    node.close()
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        db.execute("UPDATE claims SET uid = CAST(x'2f00ff' AS TEXT) WHERE uid = ?", (first.metadata.uid,))
    lose_copy(tmp_path)
    again = opened(tmp_path)
    assert unprepare(again, second) == {second.metadata.uid: None}
    refused = str(prepare(again, second)["b"])
    assert f"run `dranode forget-lost --driver {LAMPS}`" in refused


def test_a_damaged_row_is_still_told_to_whoever_pins(tmp_path: Path) -> None:
    class Recoverable(Lamps, Pins, Recovers):
        def recover(self, uid: str, spec: Spec) -> ClaimGrant:
            del uid, spec
            return ClaimGrant((), cpus=CPUSet((3,)), held=CPUSet((3,)))

        def pool(self, inventory: Inventory) -> HeldSnapshot:
            del inventory
            return HeldSnapshot()

        def pinned(self, record: Record) -> HeldClaim:
            return HeldClaim(record.ref, CPUSet.parse(record.cpus), CPUSet.parse(record.held))

    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    node = opened(tmp_path, Recoverable())
    prepare(node, claim)
    node.close()
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        db.execute("UPDATE claims SET checksum = 0")
    lose_copy(tmp_path)
    again = opened(tmp_path, Recoverable())
    told: list[HeldSnapshot | None] = []
    again.watch(told.append)
    unprepare(again, claim)
    assert [list(map(str, each.held)) for each in told if each] == [["3"], []]
    assert [list(each.claims) for each in told if each] == [[claim.metadata.uid], []]


def test_a_damaged_row_whose_spec_names_no_device_holds_those_that_the_row_names(tmp_path: Path) -> None:
    class Recoverable(Lamps, Recovers):
        def recover(self, uid: str, spec: Spec) -> ClaimGrant:
            del uid, spec
            return ClaimGrant((), cpus=CPUSet((3,)), held=CPUSet((3,)))

    node = opened(tmp_path, Recoverable())
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    # A driver that reads specs itself has them in its own form.
    assert [len(spec["devices"]) for spec in specs(tmp_path).values()] == [1]
    node.close()
    damage_rows(tmp_path)
    again = opened(tmp_path, Recoverable())
    assert isinstance(prepare(again, allocated_claim("b", LAMPS, ["lamp-0"]))["b"], ClaimConflictError)
    assert len(prepare(again, allocated_claim("c", LAMPS, ["lamp-1"]))["c"]) == 1


def test_a_spec_from_which_a_record_came_back_is_written_again_if_it_vanishes(tmp_path: Path) -> None:
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    node = opened(tmp_path)
    prepare(node, claim)
    node.close()
    damage_ledger(tmp_path)
    again, whole = opened(tmp_path), spec_of(tmp_path, claim).read_bytes()
    spec_of(tmp_path, claim).unlink()
    assert again.mend_specs([claim.metadata.uid]) == {claim.metadata.uid: None}
    assert spec_of(tmp_path, claim).read_bytes() == whole


def test_what_another_instance_changed_is_told_even_after_a_call_that_failed(tmp_path: Path) -> None:
    here, there = opened(tmp_path), opened(tmp_path)
    told: list[int] = []
    here.watch(lambda _: told.append(len(here.recorded())))
    prepare(there, allocated_claim("a", LAMPS, ["lamp-0"]))

    def broken() -> Iterator[Any]:
        yield from ()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        here.take_in(broken())
    here.records()
    assert told == [0, 1]


def test_a_spec_that_nobody_can_read_blocks_new_grants_before_and_after_it_is_on_record(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / f"{LAMPS}-claim_claim-left.json").write_text("junk")
    new, left = allocated_claim("a", LAMPS, ["lamp-0"]), ClaimRef("", "", "left")
    node = opened(tmp_path)
    assert "UID left may hold anything" in str(prepare(node, new)["a"])
    node.take_in((record, record) for record in node.unfinished())
    assert "UID left may hold anything" in str(prepare(node, new)["a"])
    assert node.unprepare((left,)) == {"left": None}
    assert len(prepare(node, new)["a"]) == 1


def test_specs_that_lie_as_they_were_left_are_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claims = [allocated_claim(name, LAMPS, [f"lamp-{number}"]) for number, name in enumerate("ab")]
    prepare(node, *claims)
    looked_into: list[set[str]] = []
    mend = node.mend_specs

    def noted(uids: Iterable[str]) -> Any:
        looked_into.append(set(uids))
        return mend(looked_into[-1])

    monkeypatch.setattr(node, "mend_specs", noted)
    watch = SpecWatch(node)
    watch.look()
    assert looked_into == []
    altered = tmp_path / "cdi" / metadata_spec_file(LAMPS, claims[1].metadata.uid, "r")
    altered.write_text("{}")
    watch.look()
    assert looked_into == [{claims[1].metadata.uid}]
    assert "metadata" in altered.read_text()


def test_a_restart_writes_the_specs_that_are_missing_and_looks_into_the_others_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi")
    node = opened(tmp_path, Lamps(50), metadata=metadata)
    claims = [allocated_claim(f"c{number}", LAMPS, [f"lamp-{number}"]) for number in range(50)]
    prepare(node, *claims)
    node.close()
    whole = {path.name: path.read_bytes() for path in (tmp_path / "cdi").iterdir()}
    spec_of(tmp_path, claims[0]).unlink()
    (tmp_path / "cdi" / metadata_spec_file(LAMPS, claims[1].metadata.uid, "r")).unlink()
    spec_of(tmp_path, claims[2]).write_text("{}")
    again = NodeClaims(Lamps(50), tmp_path / "data", tmp_path / "cdi", metadata=metadata)
    written: list[str] = []
    write = again.interpreter.write

    def noted(record: Record) -> bool:
        written.append(record.name)
        return write(record)

    monkeypatch.setattr(again.interpreter, "write", noted)
    again.open()
    assert sorted(written) == ["c0", "c1"]
    watch = SpecWatch(again)
    looks = []
    for _ in range(4):
        before = len(written)
        watch.look()
        looks.append(len(written) - before)
    assert (max(looks) < 30, sum(looks), looks[-1]) == (True, 48, 0)
    assert {path.name: path.read_bytes() for path in (tmp_path / "cdi").iterdir()} == whole
    assert watch.rewritten == 1


def test_a_spec_that_is_altered_while_others_wait_for_their_turn_is_mended_at_once(tmp_path: Path) -> None:
    node = opened(tmp_path, Lamps(60))
    claims = [allocated_claim(f"c{number}", LAMPS, [f"lamp-{number}"]) for number in range(60)]
    prepare(node, *claims)
    node.close()
    again = opened(tmp_path, Lamps(60))
    watch = SpecWatch(again)
    watch.look()
    for claim in claims:
        whole = spec_of(tmp_path, claim).read_bytes()
        spec_of(tmp_path, claim).write_text("{}")
        watch.look()
        assert spec_of(tmp_path, claim).read_bytes() == whole


def test_whoever_could_not_take_in_the_records_is_told_them_again_with_the_next_call(tmp_path: Path) -> None:
    node = opened(tmp_path)
    told: list[int] = []

    def watcher(_: HeldSnapshot | None) -> None:
        told.append(len(node.recorded()))
        if told == [0, 1]:
            raise ClaimError("the watcher stumbles")

    node.watch(watcher)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    assert isinstance(prepare(node, claim)["a"], ClaimError)
    assert len(prepare(node, claim)["a"]) == 1
    assert told == [0, 1, 1]


def test_metadata_that_could_not_be_written_again_is_tried_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    watch = SpecWatch(node)
    watch.look()
    lost = tmp_path / "cdi" / metadata_spec_file(LAMPS, claim.metadata.uid, "r")
    lost.unlink()
    (tmp_path / "metadata").rename(tmp_path / "away")
    (tmp_path / "metadata").touch()
    for _ in range(3):
        watch.look()
    (reason,) = caplog.messages
    assert "claim default/a gets no device metadata" in reason
    (tmp_path / "metadata").unlink()
    (tmp_path / "away").rename(tmp_path / "metadata")
    watch.look()
    assert lost.exists()


def test_a_driver_that_fails_at_one_spec_is_told_of_and_has_the_others_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fragile(Lamps):
        broken = ""

        def complete(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            if claim.name == self.broken:
                raise ZeroDivisionError
            return grants

    driver = Fragile()
    node = opened(tmp_path, driver)
    claims = [allocated_claim(name, LAMPS, [f"lamp-{index}"]) for index, name in enumerate("abc")]
    prepare(node, *claims)
    watch = SpecWatch(node)
    watch.look()
    driver.broken = "b"
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    for _ in range(2):
        watch.look()
    assert {name[-41:-5] for name in specs(tmp_path)} == {claims[0].metadata.uid, claims[2].metadata.uid}
    (sentence,) = (message for message in caplog.messages if "ZeroDivisionError" in message)
    assert sentence == (
        f"uid={claims[1].metadata.uid}: the CDI spec of claim default/b cannot be written again, because "
        f"{LAMPS} met an error inside it: ZeroDivisionError()"
    )
    driver.broken = ""
    watch.look()
    assert len(specs(tmp_path)) == len(claims)
