"""Claims for which kubelet will not call Unprepare, on a real ledger, with a clock that a test moves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dranode.api.errors import DranodeError, LedgerError, UnreadError
from dranode.api.resource import ResourceClaim
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.events import Occurrence, OrphanUnprepared
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.reconcile import ORPHAN_SECONDS
from dranode.driver.claims.users import ClaimUse
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.orphans import ClaimLookup, Orphans, take_over
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import KIND, ApiClaims, cpu_claim, group_claim, leave_spec

GROUP = "cpudevnuma000"


class Kubelet(PodResources):
    """kubelet's answers, without a socket."""

    def __init__(self) -> None:
        self.uses: list[ClaimUse] | None = []

    def claims(self, driver: str) -> tuple[ClaimUse, ...]:
        assert driver == "dra.cpu"
        if self.uses is None:
            raise PodResourcesError("kubelet does not answer")
        return tuple(self.uses)

    def run(self, name: str, uid: str) -> None:
        assert self.uses is not None
        self.uses.append(ClaimUse("default", f"pod-{name}", "main", name, frozenset({f"{KIND}=claim-{uid}"})))


@dataclass
class World:
    folder: Path
    kubelet: Kubelet = field(default_factory=Kubelet)
    api: ApiClaims = field(default_factory=ApiClaims)
    running: frozenset[str] | None = frozenset()
    now: float = 1000.0
    told: list[Occurrence] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "data").mkdir()
        self.node = NodeClaims(
            CPUPlugin(open_machine("sockets=1,cores=8"), CPUOptions()), self.folder / "data", self.folder / "cdi"
        )
        self.lookup = ClaimLookup("dra.cpu", self.api, self.kubelet, lambda: self.running)
        self.orphans = Orphans(self.node, self.lookup, self.told.append, lambda: self.now)

    def prepare(self, name: str, uid: str) -> None:
        claim = cpu_claim(name, uid, GROUP, 2)
        self.api.by_name["default", name] = claim
        answer = self.node.prepare({reference(claim): claim})[uid]
        assert isinstance(answer, Prepared)

    def look_for(self, seconds: float) -> None:
        """Check once a minute."""
        end = self.now + seconds
        while self.now < end:
            self.orphans.check()
            self.now += 60

    def uids(self) -> list[str]:
        return sorted(record.uid for record in self.node.records())


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.node.open()
    return world


def test_a_deleted_unused_claim_is_unprepared_after_ten_minutes_and_reported(world: World) -> None:
    world.prepare("a", "uid-a")
    world.prepare("b", "uid-b")
    del world.api.by_name["default", "a"]
    world.look_for(ORPHAN_SECONDS)
    assert world.uids() == ["uid-a", "uid-b"]
    assert world.orphans.waiting() == 1
    world.look_for(60)
    assert world.uids() == ["uid-b"]
    (what,) = world.told
    assert isinstance(what, OrphanUnprepared)
    assert "claim default/a was unprepared, because it does not exist any more" in what.sentence
    assert not (world.folder / "cdi" / "dra.k8s.io-cpu_claim-uid-a.json").exists()
    assert world.orphans.released == 1
    world.prepare("c", "uid-c")
    assert [str(record.cpus) for record in world.node.records() if record.name == "c"] == ["0-1"]


def test_a_check_that_is_stopped_while_it_waits_for_the_api_server_unprepares_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another instance may look after the claims, or the ledger may be closed."""
    world.prepare("a", "uid-a")
    del world.api.by_name["default", "a"]
    world.look_for(ORPHAN_SECONDS)
    ask = world.api.get

    def slow(refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        world.orphans.stopping.set()
        world.node.close()
        return ask(refs)

    monkeypatch.setattr(world.api, "get", slow)
    world.look_for(120)
    assert (world.told, world.orphans.released) == ([], 0)
    assert world.uids() == ["uid-a"]


def test_a_claim_whose_name_now_belongs_to_another_one_is_an_orphan(world: World) -> None:
    world.prepare("a", "uid-a")
    world.api.by_name["default", "a"] = cpu_claim("a", "uid-new", GROUP, 2)
    world.look_for(ORPHAN_SECONDS + 60)
    assert world.uids() == []


def test_a_claim_stays_while_it_is_in_use_or_an_answer_is_missing(world: World) -> None:
    world.prepare("a", "uid-a")
    del world.api.by_name["default", "a"]
    world.kubelet.run("a", "uid-a")
    world.look_for(ORPHAN_SECONDS * 2)
    world.kubelet.uses = None
    world.look_for(ORPHAN_SECONDS * 2)
    world.kubelet.uses = []
    world.running = frozenset({"uid-a"})
    world.look_for(ORPHAN_SECONDS * 2)
    world.running = None
    world.look_for(ORPHAN_SECONDS * 2)
    assert world.uids() == ["uid-a"]
    world.running = frozenset()
    world.look_for(ORPHAN_SECONDS + 60)
    assert world.uids() == []


def test_nothing_is_released_while_the_api_server_is_away(world: World) -> None:
    world.prepare("a", "uid-a")
    del world.api.by_name["default", "a"]
    world.api.away = True
    world.look_for(ORPHAN_SECONDS * 3)
    assert world.uids() == ["uid-a"]


def test_the_api_server_is_asked_only_about_suspicious_claims(world: World) -> None:
    for name in "abc":
        world.prepare(name, f"uid-{name}")
        world.kubelet.run(name, f"uid-{name}")
    world.look_for(300)
    assert world.api.asked == []


def test_a_stale_spec_of_dra_driver_cpu_is_removed_once_kubelet_lists_other_claims(world: World) -> None:
    leave_spec(world.folder / "cdi", "uid-stale", "0-3")
    world.node.close()
    take_over(world.node, world.lookup)
    world.look_for(ORPHAN_SECONDS + 120)
    assert world.uids() == ["uid-stale"]
    world.prepare("a", "uid-a")
    world.kubelet.run("a", "uid-a")
    world.look_for(ORPHAN_SECONDS + 60)
    assert world.uids() == ["uid-a"]


def test_a_claim_of_a_pod_group_is_taken_over_with_its_group(world: World, caplog: pytest.LogCaptureFixture) -> None:
    leave_spec(world.folder / "cdi", "uid-a", "0-3")
    world.node.close()
    world.kubelet.run("a", "uid-a")
    world.api.by_name["default", "a"] = group_claim("a", "uid-a", GROUP, 4)
    take_over(world.node, world.lookup)
    assert "pods=podgroup crew" in caplog.text


def test_a_name_that_becomes_known_later_is_recorded(world: World) -> None:
    leave_spec(world.folder / "cdi", "uid-a", "0-3")
    world.node.close()
    take_over(world.node, world.lookup)
    world.kubelet.run("a", "uid-a")
    world.api.by_name["default", "a"] = cpu_claim("a", "uid-a", GROUP, 4)
    world.look_for(60)
    (record,) = world.node.records()
    assert (record.name, str(record.cpus), record.devices) == ("a", "0-3", (GROUP,))


def test_a_claim_that_is_prepared_again_at_the_last_moment_is_kept(world: World) -> None:
    leave_spec(world.folder / "cdi", "uid-a", "0-3")
    world.node.close()
    (stale,) = world.node.records()
    claim = cpu_claim("a", "uid-a", GROUP, 4)
    world.node.prepare({reference(claim): claim})
    assert world.node.release([stale]) == {}
    assert world.uids() == ["uid-a"]


def test_nothing_is_released_while_the_ledger_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.prepare("a", "uid-a")

    def broken() -> None:
        raise LedgerError("the ledger cannot be used: disk I/O error")

    monkeypatch.setattr(world.node.store, "refresh", broken)
    with pytest.raises(UnreadError, match="disk I/O error"):
        world.orphans.check()
    take_over(world.node, world.lookup)
    monkeypatch.undo()
    assert world.uids() == ["uid-a"]


def test_temporary_files_of_a_killed_driver_are_removed(world: World) -> None:
    metadata = DeviceMetadata.of("dra.cpu", world.folder / "data", world.folder / "cdi")
    world.node.files.metadata = metadata
    world.prepare("mine", "a")
    for folder in (metadata.cdi, metadata.folder):
        left = folder / "spec.0123456789abcdef.tmp"
        left.touch()
        os.utime(left, (0, 0))
    world.look_for(60)
    assert [path.name for path in metadata.cdi.iterdir()] == ["dra.k8s.io-cpu_claim-a.json"]
    assert [path.name for path in metadata.folder.iterdir()] == ["a_r"]
