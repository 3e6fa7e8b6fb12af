"""Crashes after every effect and between a claim's files, starts again, and compares with an undisturbed run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import field

from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Effect, Prepared, Refused
from dranode.driver.claims.plugin import Plugin
from dranode.driver.node.interpreter import Interpreter
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.node.specs import Specs
from tests.fakes.drivers import Board, Lamps, WiredLamps, allocated_claim, damage_ledger, reference
from tests.fakes.node import missing_mounts


class PowerCutError(BaseException):
    """Nothing after this point happens; no handler may run."""


@dataclass
class Fuse:
    """Lets this many steps through; None: any number."""

    steps_left: int | None = None

    def spend(self) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise PowerCutError
            self.steps_left -= 1


class FusedInterpreter(Interpreter):
    """Carries out effects until its power fails."""

    fuse: Fuse = field(default_factory=Fuse)

    def act(self, effect: Any) -> None:
        self.fuse.spend()
        super().act(effect)

    def commit(self, commit: Any, failures: Any) -> None:
        self.fuse.spend()
        super().commit(commit, failures)

    def carry_out(self, effects: Iterable[Effect]) -> dict[str, Refused]:
        # A Prepare's decision is committed in the transaction in which it was made.
        found = super().carry_out(effects)
        self.fuse.spend()
        return found


class FusedSpecs(Specs, frozen=True, kw_only=True):
    """Specs whose power may fail between a spec and the files that it mounts."""

    fuse: Fuse

    def write(self, *args: Any) -> bool:
        self.fuse.spend()
        return super().write(*args)

    def remove(self, uid: str) -> None:
        self.fuse.spend()
        super().remove(uid)
        self.fuse.spend()


def world(folder: Path, board: Board, fuse: Fuse, *, wired: bool) -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True)
    plugin: Plugin = WiredLamps(board) if wired else Lamps()
    metadata = DeviceMetadata.of(plugin.driver, folder / "data", folder / "cdi")
    node = NodeClaims(plugin, folder / "data", folder / "cdi", metadata=metadata)
    specs = node.files.specs
    node.files.specs = FusedSpecs(specs.directory, specs.kind, fuse=fuse)
    node.interpreter = FusedInterpreter(plugin, node.store, node.files, fuse)
    node.open()
    return node


def claims(driver: str) -> tuple[ResourceClaim, ...]:
    return (allocated_claim("a", driver, {"r": "lamp-0", "s": "lamp-1"}), allocated_claim("b", driver, ["lamp-2"]))


def state(folder: Path, node: NodeClaims, board: Board) -> Any:
    records = {record.uid: (record.state, record.devices) for record in node.records()}
    there = files(folder / "cdi", folder) | files(folder / "data" / "metadata", folder)
    return records, there, frozenset(board.lit)


def files(below: Path, world: Path) -> dict[str, bytes]:
    """Every file in a folder of a world, without the world's own path."""
    return {
        str(path.relative_to(world)): path.read_bytes().replace(str(world).encode(), b"")
        for path in sorted(below.rglob("*"))
        if path.is_file()
    }


def call(node: NodeClaims, what: str, asked: tuple[ResourceClaim, ...]) -> Any:
    if what == "prepare":
        answers = node.prepare({reference(claim): claim for claim in asked})
        # Compare only what kubelet gets; after a crash, a claim may have been on record before.
        return {uid: answer.devices if isinstance(answer, Prepared) else answer for uid, answer in answers.items()}
    return node.unprepare(tuple(map(reference, asked)))


@pytest.mark.parametrize("driver", [Lamps.driver, WiredLamps.driver])
@pytest.mark.parametrize(
    ("what", "damaged"), [("prepare", False), ("unprepare", False), ("prepare", True), ("unprepare", True)]
)
def test_a_crash_after_any_effect_leaves_the_same_state_as_no_crash(
    tmp_path: Path,
    what: str,
    driver: str,
    damaged: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    asked, wired = claims(driver), driver == WiredLamps.driver

    def before(folder: Path, board: Board, fuse: Fuse) -> NodeClaims:
        node = world(folder, board, fuse, wired=wired)
        if what == "unprepare" or damaged:
            call(node, "prepare", asked)
        if damaged:
            node.close()
            damage_ledger(folder)
            node = world(folder, board, fuse, wired=wired)
        return node

    undisturbed, board = tmp_path / "undisturbed", Board()
    undisturbed.mkdir()
    node = before(undisturbed, board, Fuse())
    answer = call(node, what, asked)
    expected = state(undisturbed, node, board)

    cuts = 0
    for cut in range(100):
        folder, board, fuse = tmp_path / str(cut), Board(), Fuse()
        folder.mkdir()
        node = before(folder, board, fuse)
        fuse.steps_left = cut
        try:
            call(node, what, asked)
        except PowerCutError:
            cuts += 1
        else:
            break
        node.close()
        assert missing_mounts(folder / "cdi") == []
        again = world(folder, board, Fuse(), wired=wired)
        held_devices = {name for _, devices in state(folder, again, board)[0].values() for name in devices}
        assert board.lit <= held_devices, "hardware is configured for a claim that is not on record"
        assert call(again, what, asked) == answer
        assert state(folder, again, board) == expected
    assert cuts >= 3
