"""Cut after every effect, start again, and compare with a run that was not disturbed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.answers import Refused
from dranode.driver.core.claims.effects import Effect
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.node.interpreter import Interpreter
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from tests.fakes.drivers import Board, Lamps, WiredLamps, allocated_claim, damage_ledger, reference


class PowerCutError(BaseException):
    """Nothing after this point happens; no handler gets a say."""


class Fused(Interpreter):
    """Carries effects out until its power goes."""

    effects_left: int | None = None

    def _spend(self) -> None:
        if self.effects_left is not None:
            if self.effects_left == 0:
                raise PowerCutError
            self.effects_left -= 1

    def act(self, effect: Any) -> None:
        self._spend()
        super().act(effect)

    def commit(self, commit: Any, failures: Any) -> None:
        self._spend()
        super().commit(commit, failures)

    def carry_out(self, effects: Iterable[Effect]) -> dict[str, Refused]:
        # The commit of a Prepare's decision is part of the transaction in which it was made.
        found = super().carry_out(effects)
        self._spend()
        return found


def world(folder: Path, board: Board, *, wired: bool) -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True)
    plugin: Plugin = WiredLamps(board) if wired else Lamps()
    metadata = DeviceMetadata.of(plugin.driver, folder / "data", folder / "cdi")
    node = NodeClaims(plugin, folder / "data", folder / "cdi", metadata=metadata)
    node.interpreter = node.unfinished.interpreter = Fused(plugin, node.store, node.files)
    node.open()
    return node


def claims(driver: str) -> tuple[ResourceClaim, ...]:
    return (
        allocated_claim("a", driver, {"r": "lamp-0", "s": "lamp-1"}),
        allocated_claim("b", driver, ["lamp-2"]),
    )


def state(folder: Path, node: NodeClaims, board: Board) -> Any:
    records = {record.uid: (record.state, record.devices) for record in node.records()}
    there = files(folder / "cdi", folder) | files(folder / "data" / "metadata", folder)
    return records, there, frozenset(board.lit)


def files(below: Path, world: Path) -> dict[str, bytes]:
    """Every file below a folder of a world, without the world's own path."""
    return {
        str(path.relative_to(world)): path.read_bytes().replace(str(world).encode(), b"")
        for path in sorted(below.rglob("*"))
        if path.is_file()
    }


def call(node: NodeClaims, what: str, asked: tuple[ResourceClaim, ...]) -> Any:
    if what == "prepare":
        return node.prepare({reference(claim): claim for claim in asked})
    return node.unprepare(tuple(map(reference, asked)))


@pytest.mark.parametrize("driver", [Lamps.driver, WiredLamps.driver])
@pytest.mark.parametrize(
    ("what", "damaged"), [("prepare", False), ("unprepare", False), ("prepare", True), ("unprepare", True)]
)
def test_a_crash_after_any_effect_ends_as_if_there_was_none(
    tmp_path: Path,
    what: str,
    driver: str,
    damaged: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    asked, wired = claims(driver), driver == WiredLamps.driver

    def before(folder: Path, board: Board) -> NodeClaims:
        node = world(folder, board, wired=wired)
        if what == "unprepare" or damaged:
            call(node, "prepare", asked)
        if damaged:
            node.close()
            damage_ledger(folder)
            node = world(folder, board, wired=wired)
        return node

    undisturbed, board = tmp_path / "undisturbed", Board()
    undisturbed.mkdir()
    node = before(undisturbed, board)
    answer = call(node, what, asked)
    expected = state(undisturbed, node, board)

    cuts = 0
    for cut in range(100):
        folder, board = tmp_path / str(cut), Board()
        folder.mkdir()
        node = before(folder, board)
        node.interpreter.effects_left = cut  # type: ignore[attr-defined] # it is fused
        try:
            call(node, what, asked)
        except PowerCutError:
            cuts += 1
        else:
            break
        node.close()
        again = world(folder, board, wired=wired)
        held_devices = {name for _, devices in state(folder, again, board)[0].values() for name in devices}
        assert board.lit <= held_devices, "hardware is configured for a claim that is not on record"
        assert call(again, what, asked) == answer
        assert state(folder, again, board) == expected
    assert cuts >= 3
