"""Hardware that changes while something else goes wrong."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import LedgerError, MachineError
from dranode.driver.claims.events import ClaimImpaired, Occurrence
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.plugin import Impairment, Inventory
from dranode.driver.claims.record import Record
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.snapshot import PinSnapshot
from dranode.driver.serve.lifecycle import Hardware
from tests.fakes.drivers import Lamps, allocated_claim, reference


class FadingLamps(Lamps):
    """Lamps that can be removed, with hooks that may fail."""

    stumbles = 0
    error: Exception = MachineError("the lamp does not answer")

    def impairments(self, inventory: Inventory, records: Iterable[Record]) -> Iterable[Impairment]:
        for record in records:
            if any(inventory.device(device) is None for device in record.devices):
                yield Impairment(record.ref, "LampGone", "a lamp is gone")

    def describe(self, grant: Grant, record: Record, inventory: Inventory) -> Mapping[str, Any]:
        self._stumble()
        return super().describe(grant, record, inventory)

    def _stumble(self) -> None:
        if self.stumbles:
            self.stumbles -= 1
            raise self.error


class World:
    """A node whose hardware is checked, and its reports."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir()
        self.driver = FadingLamps()
        self.node = NodeClaims(self.driver, folder / "data", folder / "cdi")
        self.node.open()
        self.published: list[int] = []
        self.reports = 0
        self.told: list[Occurrence] = []
        self.hardware = Hardware(
            self.node, lambda: self.published.append(len(self.node.inventory.devices)), self._report, self.told.append
        )

    def _report(self) -> None:
        self.reports += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_removed_device_is_withdrawn_while_the_ledger_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable() -> tuple[Record, ...]:
        raise LedgerError("the ledger cannot be used")

    monkeypatch.setattr(world.node, "records", unreadable)
    world.driver.count = 3
    for _ in range(2):
        world.hardware.check()
    assert (world.published, world.reports) == ([3], 1)
    assert [message for message in caplog.messages if "ledger" in message] == [
        "driver=lamps.example.com: the ledger cannot be used"
    ]


def test_changed_hardware_is_published_even_if_pinning_fails_with_it(world: World) -> None:
    stumbles = [MachineError("the watcher stumbles")]

    def watcher(snapshot: PinSnapshot | None) -> None:
        del snapshot
        if len(world.node.inventory.devices) == 3 and stumbles:
            raise stumbles.pop()

    world.node.watch(watcher)
    world.driver.count = 3
    for _ in range(2):
        world.hardware.check()
    assert (world.published, world.hardware.changes) == ([3], 1)


@pytest.mark.parametrize("error", [FadingLamps.error, OSError(5, "Input/output error", "lamp-0/state")])
def test_an_impaired_claim_is_reported_at_the_next_check_if_describing_it_fails(world: World, error: Exception) -> None:
    world.driver.error = error
    claim = allocated_claim("a", Lamps.driver, ["lamp-3"])
    world.node.prepare({reference(claim): claim})
    world.driver.count, world.driver.stumbles = 3, 1
    world.hardware.check()
    assert (world.told, world.published) == ([], [3])
    for _ in range(2):
        world.hardware.check()
    (told,) = world.told
    assert isinstance(told, ClaimImpaired)
    assert (told.sentence, list(world.hardware.impaired)) == ("a lamp is gone", [claim.metadata.uid])
