"""An unreadable ledger is not an empty one: what is known about claims without it, and that this is reported."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError, UnreadError
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.node import decision_lock
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.snapshot import PinSnapshot
from dranode.driver.process.locks import FileLock
from dranode.sim.machines.forms import open_machine
from tests.fakes.doctor import forbid
from tests.fakes.drivers import reference
from tests.fakes.ledger import FAULTS, Fault, newer_schema
from tests.fakes.lifecycle import cpu_claim

CLAIM = cpu_claim("a", "uid-a", "cpudevnuma000", 4)
OTHER = cpu_claim("b", "uid-b", "cpudevnuma000", 1)


class World:
    """A node with one recorded claim, whose driver starts again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        node = self.node()
        node.open()
        node.prepare({reference(CLAIM): CLAIM})
        (record,) = node.records()
        self.held = str(record.held)
        node.close()

    def node(self) -> NodeClaims:
        plugin = CPUPlugin(open_machine("sockets=1,cores=4,threads=2"), CPUOptions())
        return NodeClaims(plugin, self.folder / "data", self.folder / "cdi")

    def opened(self, told: list[PinSnapshot]) -> NodeClaims:
        node = self.node()
        node.open()
        node.watch(lambda snapshot: told.append(snapshot or PinSnapshot()))
        return node


def held(snapshot: PinSnapshot) -> list[tuple[str, str, str]]:
    """The claims in a snapshot: UID, name, CPUs."""
    return [(claim.claim.uid, claim.claim.name, str(claim.held)) for claim in snapshot.claims.values()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def fault(request: pytest.FixtureRequest, world: World) -> Iterator[Callable[[], None]]:
    broken: Fault = request.param
    with broken(world.folder / "data" / "ledger.db") as mend:
        yield mend


def test_the_watcher_gets_an_unread_ledger_with_what_the_specs_say_and_nothing_is_granted(
    world: World, fault: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[PinSnapshot] = []
    node = world.opened(told)
    (known,) = told
    assert known.unread is not None
    assert not known.unread.blind
    assert held(known) == [("uid-a", "", world.held)]
    assert [node.impediment] == [known.unread.reason]
    for claim in (CLAIM, OTHER):
        (answer,) = node.prepare({reference(claim): claim}).values()
        assert answer == Refused(known.unread.reason)
    with pytest.raises(UnreadError):
        node.records()
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert known.unread.reason in said
    fault()
    caplog.clear()
    assert [record.uid for record in node.records()] == ["uid-a"]
    assert held(told[-1]) == [("uid-a", "a", world.held)]
    assert told[-1].unread is None
    assert node.impediment is None
    assert [message.partition(": ")[2] for message in caplog.messages] == ["the ledger can be read again"]
    assert isinstance(node.prepare({reference(OTHER): OTHER})["uid-b"], Prepared)


def test_records_that_were_read_before_stay_known(world: World) -> None:
    told: list[PinSnapshot] = []
    node = world.opened(told)
    for spec in (world.folder / "cdi").iterdir():
        spec.unlink()
    (before,) = told
    with newer_schema(world.folder / "data" / "ledger.db"):
        world.folder.joinpath("data", "serialize.lock").unlink()
        world.folder.joinpath("data", "serialize.lock").mkdir()
        with pytest.raises(UnreadError, match=r"serialize\.lock cannot be opened"):
            node.records()
    assert held(told[-1]) == held(before)
    assert told[-1].unread is not None
    assert not told[-1].unread.blind


def test_the_records_stay_known_if_specs_cannot_be_listed(world: World, tmp_path: Path) -> None:
    (tmp_path / "cdi").rename(tmp_path / "away")
    (tmp_path / "cdi").touch()
    told: list[PinSnapshot] = []
    node = world.opened(told)
    (known,) = told
    assert known.unread is not None
    assert "cannot be listed: Not a directory" in known.unread.reason
    assert not known.unread.blind
    assert held(known) == [("uid-a", "a", world.held)]
    assert node.prepare({reference(OTHER): OTHER})["uid-b"] == Refused(known.unread.reason)
    (tmp_path / "cdi").unlink()
    (tmp_path / "away").rename(tmp_path / "cdi")
    assert isinstance(node.prepare({reference(OTHER): OTHER})["uid-b"], Prepared)
    assert told[-1].unread is None


@pytest.mark.parametrize("garbage", [True, False], ids=["spec is garbage", "specs cannot be listed"])
def test_a_snapshot_is_blind_if_neither_ledger_nor_specs_can_be_read(world: World, *, garbage: bool) -> None:
    (spec,) = (world.folder / "cdi").iterdir()
    if garbage:
        spec.write_text("{")
    else:
        spec.unlink()
        (world.folder / "cdi").rmdir()
        (world.folder / "cdi").touch()
    told: list[PinSnapshot] = []
    with newer_schema(world.folder / "data" / "ledger.db"):
        world.opened(told)
    (known,) = told
    assert known.unread is not None
    assert known.unread.blind


def test_a_hardware_change_meanwhile_is_notified_with_the_known_claims(world: World) -> None:
    told: list[PinSnapshot] = []
    with newer_schema(world.folder / "data" / "ledger.db"):
        node = world.opened(told)
        node.discovery._plugin = CPUPlugin(open_machine("sockets=1,cores=8,threads=2"), CPUOptions())
        assert node.rescan()
    assert told[-1].online == CPUSet(range(16))
    assert told[-1].unread is not None
    assert held(told[-1]) == [("uid-a", "", world.held)]


def test_a_spec_in_a_forbidden_folder_is_not_taken_for_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = world.opened([])
    spec = node.files.path("uid-a")
    assert spec is not None
    forbid(monkeypatch, world.folder / "cdi")
    with pytest.raises(LedgerError, match="Permission denied"):
        node.files.path("uid-a")
    monkeypatch.undo()
    spec.unlink()
    assert node.files.path("uid-a") is None


@pytest.mark.parametrize("holder", ["process", "call"])
def test_a_lock_that_is_not_released_is_reported(world: World, monkeypatch: pytest.MonkeyPatch, holder: str) -> None:
    """The other instance may be stopped, and the disk may hang under another call."""
    monkeypatch.setattr(decision_lock, "PATIENCE", 0.1)
    node = world.opened([])
    lock = FileLock(world.folder / "data" / "serialize.lock").held(0)
    with node._lock.among_threads() if holder == "call" else lock, ThreadPoolExecutor() as pool:
        pool.submit(node.check).result()
        assert f"another {holder} has held the l" in str(node.impediment)
    assert isinstance(node.prepare({reference(OTHER): OTHER})["uid-b"], Prepared)
    assert node.impediment is None
