"""The contract test finds drivers whose shared settings depend on anything but the claims that need them."""

from collections.abc import Collection
from pathlib import Path

import pytest

from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver import Grant, Notes, Record, Tunes
from dranode.driver.testing import check_plugin
from dranode.sim.machines import ScratchMachine
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import Lamps
from tests.fakes.settings import DEFAULT, RPS, WORKQUEUE, XPS, eight_cpus

DIMMER = "sys/class/lamps/dimmer"


class Dimmed(Lamps, Tunes):
    """Lamps with one dimmer for all; each claim lowers it by one step."""

    def __init__(self, machine: ScratchMachine) -> None:
        super().__init__(2)
        self.machine = machine

    def tunes(self, grants: tuple[Grant, ...]) -> bool:
        return bool(grants)

    def now(self) -> int:
        return int(self.machine.read_bytes(DIMMER)) if self.machine.exists(DIMMER) else 0

    def set(self, level: int) -> None:
        if self.machine.exists(DIMMER):
            self.machine.write(DIMMER, str(level))

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        before = notes.read() or {"original": self.now()}
        notes.write(before)
        taken = {device for claim in claims for device in claim.devices}
        self.set(before["original"] - sum(int(device[-1]) + 1 for device in taken))
        if not claims and self.machine.exists(DIMMER):
            notes.write(None)


class Forgetful(Dimmed):
    """Mistakes the current value for the original one."""

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        notes.write(None)
        super().tune(claims, notes)


class Stepping(Dimmed):
    """Changes the value by one step each time instead of setting it."""

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        del notes
        self.set(self.now() - len(claims) if claims else 100)


class Careless(Dimmed):
    """Leaves the dimmer where the last claim set it."""

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        if claims:
            super().tune(claims, notes)


class Grown(Dimmed):
    """Never takes back what an earlier claim needed."""

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        level = self.now()
        super().tune(claims, notes)
        if claims:
            self.set(min(level, self.now()))


def dimmer(folder: Path) -> ScratchMachine:
    place = folder / DIMMER
    place.parent.mkdir(parents=True)
    place.write_text("100")
    return ScratchMachine(folder)


def test_a_driver_with_a_setting_for_all_claims_keeps_the_contract(tmp_path: Path) -> None:
    machine = dimmer(tmp_path / "machine")
    check_plugin(Dimmed(machine), tmp_path / "state", machine=machine)
    assert machine.contents() == {DIMMER: b"100"}


@pytest.mark.parametrize(
    ("faulty", "sentence"),
    [
        (Forgetful, "Unprepare of lamp-0 must restore the hardware"),
        (Stepping, "tune.. must be idempotent"),
        (Careless, "Unprepare of lamp-0 must restore the hardware"),
        (Grown, "tune.. must make the settings of the remaining claims"),
    ],
)
def test_a_driver_that_breaks_a_setting_is_found(tmp_path: Path, faulty: type[Dimmed], sentence: str) -> None:
    machine = dimmer(tmp_path / "machine")
    with pytest.raises(AssertionError, match=sentence):
        check_plugin(faulty(machine), tmp_path / "state", machine=machine)


def test_the_cpu_driver_keeps_the_contract_with_quiet_claims(tmp_path: Path) -> None:
    for path, text in eight_cpus().items():
        place = tmp_path / "machine" / path.removesuffix("/.")
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/."):
            place.mkdir()
        else:
            # Masks padded as the kernel does it.
            mask = path in (DEFAULT, WORKQUEUE, RPS, XPS)
            place.write_text(f"{text.zfill(8) if mask else text}\n")
    machine = ScratchMachine(tmp_path / "machine")
    options = read_options({"max_isolation": "partition"})
    plugin = CPUPlugin(open_machine("sockets=1,numa=2,cores=4,threads=1"), options, host=machine)
    config = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig"}
    levels = [{**config, "isolation": level} for level in ("quiet", "partition")]
    check_plugin(plugin, tmp_path / "state", levels, machine=machine)
