"""What a driver reports about its devices, to whom and how often."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from dranode.api.errors import MachineError, UnreadError
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import DeviceHealth, Health, Inventory
from dranode.driver.claims.record import Record
from dranode.driver.kubelet.health import HealthService
from dranode.driver.node.ledger import Ledger
from dranode.driver.node.lost_ledger import LOST
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.announcer import Announcer
from tests.fakes.cluster import MemoryCluster
from tests.fakes.drivers import Lamps
from tests.fakes.ledger import Mend, newer_schema


class FragileLamps(Lamps):
    """Lamps, some of which may be broken."""

    broken: tuple[str, ...] = ()
    error: Exception | None = None

    def health(self, inventory: Inventory) -> Iterable[DeviceHealth]:
        del inventory
        if self.error is not None:
            raise self.error
        return [DeviceHealth(name, Health.UNHEALTHY, "burnt out") for name in self.broken]


class World:
    """A node with lamps, its announcer, and its peers."""

    def __init__(self, folder: Path, *, taints: bool = True) -> None:
        (folder / "data").mkdir()
        self.lamps, self.cluster, self.health = FragileLamps(2), MemoryCluster(), HealthService("node")
        self.node = NodeClaims(self.lamps, folder / "data", folder / "cdi")
        self.node.open()
        self.announcer = Announcer(self.node, self.health, self.cluster, taints=taints)

    @property
    def taints(self) -> list[list[list[str]]]:
        """For each publication, the taints of each lamp."""
        return [[[taint.key for taint in lamp.taints] for lamp in each.devices] for each in self.cluster.published]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


TAINT = [f"{Lamps.driver}/unhealthy"]


def test_an_instance_that_does_not_publish_reports_only_to_kubelet(world: World) -> None:
    world.lamps.broken = ("lamp-1",)
    world.announcer.report()
    assert world.cluster.published == []
    assert [device.health for device in world.health.devices] == [Health.HEALTHY, Health.UNHEALTHY]


def test_only_an_added_or_removed_taint_is_published_at_once(world: World) -> None:
    world.announcer.begin()
    world.announcer.report()
    world.lamps.broken = ("lamp-1",)
    for _ in range(3):
        world.announcer.report()
    world.lamps.broken = ()
    for _ in range(3):
        world.announcer.report()
    assert world.taints == [[[], []], [[], TAINT], [[], []]]


def test_a_health_change_is_logged_once_and_equal_changes_in_one_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.announcer.begin()
    for broken in (("lamp-0", "lamp-1"), ("lamp-0", "lamp-1"), ("lamp-1",)):
        world.lamps.broken = broken
        world.announcer.report()
    assert [message for message in caplog.messages if "health=" in message] == [
        f"driver={Lamps.driver} devices=lamp-0,lamp-1 health=unhealthy: burnt out",
        f"driver={Lamps.driver} devices=lamp-0 health=healthy",
    ]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error", "lamp-0/state"), MachineError("lamp-0 is odd")])
def test_unreadable_health_is_unknown_until_it_can_be_read(world: World, error: Exception) -> None:
    world.announcer.begin()
    world.lamps.error = error
    world.announcer.report()
    assert {device.health for device in world.health.devices} == {Health.UNKNOWN}
    assert {device.message for device in world.health.devices} == {str(error)}
    assert world.taints == [[[], []]]
    world.lamps.error = None
    world.announcer.report()
    assert {device.health for device in world.health.devices} == {Health.HEALTHY}


def test_without_taints_health_is_reported_only_to_kubelet(tmp_path: Path) -> None:
    world = World(tmp_path, taints=False)
    world.announcer.begin()
    world.lamps.broken = ("lamp-1",)
    world.announcer.report()
    assert world.taints == [[[], []]]
    assert world.health.devices[1].message == "burnt out"


def test_new_devices_are_published_by_the_reading_that_noticed_them(world: World) -> None:
    world.announcer.begin()
    world.lamps.count = 3
    world.node.rescan()
    world.announcer.report()
    assert [len(each.devices) for each in world.cluster.published] == [2]
    world.announcer.publish()
    assert [len(each.devices) for each in world.cluster.published] == [2, 3]


def test_a_paused_instance_publishes_nothing_until_it_begins_again(world: World) -> None:
    world.announcer.begin()
    world.announcer.pause()
    world.lamps.broken = ("lamp-1",)
    world.announcer.report()
    world.announcer.publish()
    assert (len(world.cluster.published), world.cluster.paused) == (1, [Lamps.driver])
    world.announcer.begin()
    assert world.taints[-1] == [[], TAINT]


def test_a_removed_broken_lamp_is_still_reported_to_kubelet(world: World) -> None:
    world.lamps.broken = ("lamp-9",)
    world.announcer.begin()
    assert [device.device for device in world.health.devices] == ["lamp-0", "lamp-1", "lamp-9"]
    assert world.taints == [[[], []]]


def test_devices_are_withdrawn_while_nothing_can_be_prepared_and_stay_healthy(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.announcer.begin()
    world.lamps.count = 3
    with newer_schema_at_the_next_look(tmp_path / "data" / "ledger.db", world.node) as mend:
        world.node.check()
        world.announcer.report()
        world.announcer.report()
        world.node.rescan()
        world.announcer.publish()
        assert [len(each.devices) for each in world.cluster.published] == [2, 0, 0]
        assert [device.health for device in world.health.devices] == [Health.HEALTHY] * 3
        mend()
    world.node.check()
    world.announcer.report()
    world.announcer.report()
    assert [len(each.devices) for each in world.cluster.published] == [2, 0, 0, 3]
    assert [message for message in caplog.messages if message.startswith("driver=")] == [
        f"driver={Lamps.driver} devices withdrawn",
        f"driver={Lamps.driver} devices published again",
    ]


def newer_schema_at_the_next_look(path: Path, node: NodeClaims) -> contextlib.AbstractContextManager[Mend]:
    # An open connection does not check the schema again.
    node.close()
    return newer_schema(path)


def test_devices_are_withdrawn_while_claims_may_be_missing(world: World, tmp_path: Path) -> None:
    world.announcer.begin()
    other = Ledger(tmp_path / "data" / "ledger.db")
    with other.transaction():
        other.set_loss(LOST)
    world.node.check()
    world.announcer.report()
    assert "run `dranode forget-lost" in str(world.node.impediment)
    # The ledger itself is usable, so this does not affect which of two instances pins.
    assert world.node.unusable is None
    with other.transaction():
        other.set_loss("")
    world.node.check()
    world.announcer.report()
    assert world.node.impediment is None
    assert [len(each.devices) for each in world.cluster.published] == [2, 0, 2]
    other.close()


def test_devices_are_withdrawn_while_a_claim_may_hold_anything(world: World, tmp_path: Path) -> None:
    world.announcer.begin()
    other = Ledger(tmp_path / "data" / "ledger.db")
    with other.transaction():
        other.commit(put=(Record(uid="uid-lost"),))
    world.node.check()
    world.announcer.report()
    assert "the claim with UID uid-lost may hold anything" in str(world.node.impediment)
    assert world.node.unprepare((ClaimRef("", "", "uid-lost"),)) == {"uid-lost": None}
    world.announcer.report()
    assert world.node.impediment is None
    assert [len(each.devices) for each in world.cluster.published] == [2, 0, 2]
    other.close()


def test_no_health_is_reported_while_devices_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def dark() -> Inventory:
        raise MachineError("it is dark")

    reported: list[object] = []
    monkeypatch.setattr(world.lamps, "discover", dark)
    with pytest.raises(UnreadError):
        world.node.rescan()
    monkeypatch.setattr(world.health, "report", reported.append)
    world.announcer.begin()
    world.announcer.report()
    assert reported == []
    assert [len(each.devices) for each in world.cluster.published] == [0]
