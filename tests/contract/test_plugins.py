"""Every driver of ours, and the example of a third party's, keeps the contract."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dranode.driver.core.api.errors import ClaimError, UsageError
from dranode.driver.core.api.resource import Device, DeviceAttribute
from dranode.driver.core.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.machine.forms import open_machine
from dranode.driver.plugins import installed, load_plugins
from dranode.driver.testing import check_plugin
from tests.fakes.drivers import Board, Lamps, WiredLamps

EXAMPLE = Path(__file__).parents[2] / "examples" / "lamps" / "lamps.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lamps_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wall(folder: Path) -> str:
    """A machine with two lamps."""
    for name, colour in (("lamp-a", "red"), ("lamp-b", "blue")):
        (folder / "sys/class/lamps" / name).mkdir(parents=True)
        (folder / "sys/class/lamps" / name / "colour").write_text(f"{colour}\n")
    return str(folder)


def test_the_third_party_example_keeps_the_contract(tmp_path: Path, example: ModuleType) -> None:
    root = open_machine(wall(tmp_path / "machine"))
    check_plugin(example.plugin(root, {}), tmp_path / "state", configs=[{"brightness": "dim"}])


def test_the_third_party_example_stays_under_60_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.parametrize("options", [{}, {"group_by": "socket"}, {"cpu_device_mode": "individual"}], ids=str)
def test_the_cpu_driver_keeps_the_contract(tmp_path: Path, options: dict[str, str]) -> None:
    (plugin,) = load_plugins(["cpu"], open_machine("sockets=2,cores=2,threads=2"), options)
    check_plugin(plugin, tmp_path / "state")


def test_a_driver_that_touches_hardware_keeps_the_contract(tmp_path: Path) -> None:
    board = Board()
    check_plugin(WiredLamps(board), tmp_path / "state")
    assert board.lit == set()


def test_drivers_are_found_by_name_and_an_unknown_one_is_refused_with_the_list() -> None:
    assert {"cpu", "gpu"} <= installed().keys()
    with pytest.raises(UsageError, match='no driver "fpga" is installed; there is cpu, gpu'):
        load_plugins(["fpga"], open_machine("cores=1"), {})


class Sticking(WiredLamps):
    """The first restore of all fails."""

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        if not any(action.startswith("restore") for action in self.board.actions):
            self.board.actions.append("restore, which fails")
            raise ClaimError("the switch of lamp-0 sticks")
        super().restore(claim, grants)


class Twice(Lamps):
    def discover(self) -> Inventory:
        return Inventory((Device(name="lamp"), Device(name="lamp")))


class Shifting(Lamps):
    def discover(self) -> Inventory:
        self.count += 1
        return super().discover()


class Forgetful(Lamps):
    def grant(self, claim: AllocatedClaim, held: object, inventory: Inventory) -> ClaimGrant:
        del claim, held, inventory
        return ClaimGrant(())


class Random(Lamps):
    def grant(self, claim: AllocatedClaim, held: object, inventory: Inventory) -> ClaimGrant:
        self.count += 1
        granted = super().grant(claim, held, inventory)  # type: ignore[arg-type] # a looser signature on purpose
        return ClaimGrant(granted.grants, edits=granted.grants[0].edits if self.count % 2 else None)


class Unpublishable(Lamps):
    def discover(self) -> Inventory:
        return Inventory((Device(name="lamp", attributes={"model": DeviceAttribute(string="x" * 65)}),))


class Misnamed(Lamps):
    driver = "Lamps"


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        (Lamps(0), "found no device"),
        (Twice(), "there is one of that name already"),
        (Shifting(), "must find the same devices"),
        (Forgetful(), r"must answer for lamp-0, once"),
        (Random(), "must"),
        (Unpublishable(), "the API server would refuse"),
        (Misnamed(), "must be a DNS subdomain"),
        (Sticking(Board()), "Unprepare of lamp-0 failed: .*the switch of lamp-0 sticks"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_driver_that_breaks_the_contract_is_told_where(tmp_path: Path, plugin: Lamps, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_plugin(plugin, tmp_path / "state")
