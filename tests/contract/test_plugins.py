"""All our drivers, and the example of a third party's, keep the contract."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from dranode.api.documents import encode
from dranode.api.errors import ClaimError, DocumentError, UsageError
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceRequestAllocationResult,
)
from dranode.cdi.spec import ContainerEdits
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef, Held, Holding
from dranode.driver.claims.hooks import Configures
from dranode.driver.claims.plugin import Inventory
from dranode.driver.plugins import installed, load_plugins
from dranode.driver.testing import check_plugin
from dranode.sim.machines import ScratchMachine
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import Board, Lamps, WiredLamps

EXAMPLE = Path(__file__).parents[2] / "examples" / "lamps" / "lamps.py"
# The example in each minor version, never edited: others have written drivers like it (docs/stability.md).
KEPT = sorted((Path(__file__).parent / "seams").glob("lamps_*.py"))


@pytest.fixture(scope="module", params=[EXAMPLE, *KEPT], ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lamps_example", request.param)
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


@pytest.mark.parametrize("options", [{}, {"memory_group_by": "socket"}, {"memory_group_by": "machine"}], ids=str)
def test_the_memory_driver_keeps_the_contract(tmp_path: Path, options: dict[str, str]) -> None:
    (plugin,) = load_plugins(["memory"], open_machine("sockets=2,cores=2,threads=2"), options)
    configs = [{"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", "policy": "interleave", "sharing": "pod"}]
    check_plugin(plugin, tmp_path / "state", configs=configs)


def test_a_driver_that_touches_hardware_keeps_the_contract(tmp_path: Path) -> None:
    board = Board()
    check_plugin(WiredLamps(board), tmp_path / "state")
    assert board.lit == set()


def test_drivers_are_found_by_name_and_an_unknown_one_is_refused_with_the_list() -> None:
    assert {"cpu", "gpu", "memory"} <= installed().keys()
    with pytest.raises(UsageError, match='no driver "fpga" is installed; installed: cpu, gpu, memory'):
        load_plugins(["fpga"], open_machine("cores=1"), {})


class Sticking(WiredLamps):
    """The first restore fails."""

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


class Unrecordable(Lamps):
    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        del held, inventory
        return ClaimGrant(tuple(Grant.of(asked.result, state=object()) for asked in claim.results))


class Unwell(Lamps):
    def health(self, inventory: Inventory) -> Any:
        del inventory
        return [("lamp-0", "burnt out")]


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        (Lamps(0), "found no device"),
        (Twice(), "another one has that name"),
        (Shifting(), "must find the same devices"),
        (Forgetful(), r"must return one grant for lamp-0"),
        (Random(), "must"),
        (Unpublishable(), "the API server would reject"),
        (Misnamed(), "must be a DNS subdomain"),
        (Unrecordable(), r"not plain JSON, for example in Grant\.state: a value of type object has no form"),
        (Unwell(), r"health\(\) returned \('lamp-0', 'burnt out'\), which must be a DeviceHealth"),
        (Sticking(Board()), "Unprepare of lamp-0 failed: .*the switch of lamp-0 sticks"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_says_where_a_driver_breaks_the_contract(tmp_path: Path, plugin: Lamps, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_plugin(plugin, tmp_path / "state")


def discovering(devices: Any, counters: Any = ()) -> Lamps:
    """A driver that publishes these devices."""

    class Publishing(Lamps):
        def discover(self) -> Inventory:
            return Inventory(devices, counters)

    return Publishing()


def test_plain_values_are_published_as_attributes_capacities_and_counters(tmp_path: Path) -> None:
    device = Device(
        name="a",
        attributes={"model": "A100", "numaNode": 1, "healthy": True, "driver": DeviceAttribute(version="1.2.3")},
        capacity={"memory": "80Gi", "cores": 4, "size": Quantity("1k"), "slots": DeviceCapacity(value="2")},
        consumes_counters=(DeviceCounterConsumption(counter_set="set", counters={"parts": 2}),),
    )
    counters = CounterSet(name="set", counters={"parts": "7"})
    check_plugin(discovering((device,), (counters,)), tmp_path / "state")
    assert encode(device) == {
        "name": "a",
        "attributes": {
            "model": {"string": "A100"},
            "numaNode": {"int": 1},
            "healthy": {"bool": True},
            "driver": {"version": "1.2.3"},
        },
        "capacity": {
            "memory": {"value": "80Gi"},
            "cores": {"value": "4"},
            "size": {"value": "1k"},
            "slots": {"value": "2"},
        },
        "consumesCounters": ({"counterSet": "set", "counters": {"parts": {"value": "2"}}},),
    }
    assert encode(counters) == {"name": "set", "counters": {"parts": {"value": "7"}}}


def test_a_grants_device_status_may_use_plain_values() -> None:
    result = DeviceRequestAllocationResult(request="r", driver="lamps.example.com", pool="node", device="lamp-0")
    assert Grant.of(result, attributes={"colour": "red"}).attributes == {"colour": DeviceAttribute(string="red")}
    with pytest.raises(DocumentError, match=r"^device lamp-0: attribute colour is 0\.5; write a str"):
        Grant.of(result, attributes={"colour": cast("Any", 0.5)})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"attributes": {"model": None}}, r"^device a: attribute model is None; write a str, .* or leave it out"),
        ({"attributes": {"model": 0.5}}, r"^device a: attribute model is 0\.5; write a str, an int, a bool or a"),
        ({"attributes": {"model": ["x"]}}, r"^device a: attribute model is \['x'\]; write a str"),
        ({"capacity": {"size": 0.5}}, r"^device a: capacity size is 0\.5; write an int, a quantity"),
        ({"capacity": {"size": True}}, r"^device a: capacity size is True; write an int, a quantity"),
        ({"capacity": {"size": "4 GB"}}, r'^device a: capacity size: "4 GB" is not a quantity'),
    ],
    ids=str,
)
def test_a_device_with_a_value_of_a_wrong_type_cannot_be_made(fields: Any, sentence: str) -> None:
    with pytest.raises(DocumentError, match=sentence):
        Device(name="a", **fields)


def test_a_counter_of_a_wrong_type_is_named_with_its_set() -> None:
    with pytest.raises(DocumentError, match=r"^counter set board: counter parts is None; write an int"):
        CounterSet(name="board", counters={"parts": cast("Any", None)})


def test_a_device_that_cannot_be_made_breaks_the_contract(tmp_path: Path) -> None:
    class Loose(Lamps):
        def discover(self) -> Inventory:
            return Inventory((Device(name="a", attributes={"model": cast("Any", None)}),))

    with pytest.raises(AssertionError, match=r"discover\(\) failed: device a: attribute model is None"):
        check_plugin(Loose(), tmp_path / "state")


AMOUNT: Any = "4Gi"


@pytest.mark.parametrize(
    ("discovered", "sentence"),
    [
        (
            (Device(name="a", capacity={"size": DeviceCapacity(value=cast("Any", 0.5))}),),
            "device a, whose capacity size has a value that is 0.5 of type float; it must be a Quantity",
        ),
        (
            (Device(name="a", attributes={"model": DeviceAttribute(string=cast("Any", 4))}),),
            "string: a string is expected, not a whole number",
        ),
        ((Device(name=cast("Any", 4)),), "a device whose name is 4 of type int; it must be a str"),
        ((Device(name="a", taints=(AMOUNT,)),), "taint is '4Gi' of type str; it must be a DeviceTaint"),
        (({"name": "a"},), "a device that is \\{'name': 'a'\\} of type dict; it must be a Device"),
        (
            (Device(name="a", allow_multiple_allocations=cast("Any", "yes")),),
            "device a, which is not a valid document of the API",
        ),
    ],
    ids=str,
)
def test_an_attribute_whose_type_the_api_does_not_have_is_named(tmp_path: Path, discovered: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_plugin(discovering(discovered), tmp_path / "state")


def test_a_list_of_attributes_that_lacks_a_published_one_is_refused(tmp_path: Path) -> None:
    class Listing(Lamps):
        def attribute_names(self) -> frozenset[str]:
            return frozenset(("size",))

        def discover(self) -> Inventory:
            return Inventory((Device(name="lamp-0", attributes={"size": 1}),))

    with pytest.raises(AssertionError, match=r"attribute_names\(\) .* lacks lamps.example.com/size"):
        check_plugin(Listing(), tmp_path / "state")


def test_a_discovery_that_returns_no_inventory_is_named(tmp_path: Path) -> None:
    class Loose(Lamps):
        def discover(self) -> Any:
            return [Device(name="a")]

    with pytest.raises(AssertionError, match=r"discover\(\) returned \[Device.* of type list; it must be a Inventory"):
        check_plugin(Loose(), tmp_path / "state")


# --- what only a second look sees ---


class Wall:
    """Lamps that a register switches, on a machine that can be written to."""

    def __init__(self, folder: Path) -> None:
        for name in ("lamp-0", "lamp-1"):
            (folder / "sys/class/lamps" / name).mkdir(parents=True)
            (folder / "sys/class/lamps" / name / "lit").write_text("0")
        self.machine = ScratchMachine(folder)


class Switched(Lamps, Configures):
    """A correct driver, which each faulty one below breaks in one place."""

    def __init__(self, machine: ScratchMachine) -> None:
        super().__init__(2)
        self.machine = machine

    def configures(self, grants: tuple[Grant, ...]) -> bool:
        return bool(grants)

    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim
        for grant in grants:
            self.machine.write(self.register(grant), "1")

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim
        for grant in grants:
            if self.machine.exists(self.register(grant)):
                self.machine.write(self.register(grant), "0")

    def register(self, grant: Grant) -> str:
        return f"sys/class/lamps/{grant.device}/lit"


class Toggling(Switched):
    """Toggles the switch instead of setting it."""

    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim
        for grant in grants:
            lit = self.machine.read_bytes(self.register(grant)) == b"1"
            self.machine.write(self.register(grant), "0" if lit else "1")


class Once(Switched):
    """Refuses to repeat what it has done."""

    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        if self.machine.read_bytes(self.register(grants[0])) == b"1":
            raise ClaimError("lamp-0 is lit already")
        super().configure(claim, grants)


class Sure(Switched):
    """Assumes that lamps stay on the wall."""

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim
        for grant in grants:
            self.machine.write(self.register(grant), "0")


class Leaving(Switched):
    """Leaves the lamps on."""

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim, grants


class Remembering(Lamps):
    """Grants something else after another claim of the same process."""

    def __init__(self) -> None:
        super().__init__(2)
        self.last = ""

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        before, self.last = self.last, claim.results[0].result.device
        granted = super().grant(claim, held, inventory)
        changed = before not in ("", self.last)
        return ClaimGrant(granted.grants, edits=ContainerEdits(env=("SECOND=1",)) if changed else None)


class Shuffled(Lamps):
    """Writes a set in its iteration order."""

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        names = {device.name for device in inventory.devices}
        env = (f"LAMPS={','.join(names)}",)
        return ClaimGrant(super().grant(claim, held, inventory).grants, edits=ContainerEdits(env=env))


class Taking(Lamps):
    """Records its grants by itself."""

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        held.add(Holding(claim.ref))
        return super().grant(claim, held, inventory)


def test_a_driver_that_writes_to_hardware_keeps_the_contract(tmp_path: Path) -> None:
    wall = Wall(tmp_path / "machine")
    check_plugin(Switched(wall.machine), tmp_path / "state", machine=wall.machine)
    assert set(wall.machine.contents().values()) == {b"0"}


@pytest.mark.parametrize(
    ("faulty", "sentence"),
    [
        (Toggling, "configure.. must be idempotent: called again, it left the hardware in another state"),
        (Once, "configure.. must be idempotent: called again, as after a crash, it failed: .*lamp-0 is lit already"),
        (Sure, "restore.. must work when the hardware is gone: FileNotFoundError"),
        (Leaving, "Unprepare of lamp-0 must restore the hardware to its state"),
    ],
)
def test_a_driver_that_configures_hardware_wrongly_is_found(
    tmp_path: Path, faulty: type[Switched], sentence: str
) -> None:
    wall = Wall(tmp_path / "machine")
    with pytest.raises(AssertionError, match=sentence):
        check_plugin(faulty(wall.machine), tmp_path / "state", machine=wall.machine)


@pytest.mark.parametrize(
    ("faulty", "sentence"),
    [
        (Remembering(), r"claim default/claim-\d got another grant after other calls"),
        (Shuffled(12), "in another process it returned something else"),
        (Taking(), r"grant\(\) must not change what other claims hold"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_grant_that_depends_on_anything_but_its_arguments_is_found(
    tmp_path: Path, faulty: Lamps, sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_plugin(faulty, tmp_path / "state")
