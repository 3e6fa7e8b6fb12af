"""Unreadable hardware: what is known meanwhile, and what happens once it can be read."""

import shutil
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError, UnreadError, UsageError
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.claims.plugin import Inventory
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.snapshot import PinSnapshot
from tests.fakes.drivers import Lamps, allocated_claim, reference
from tests.fakes.machine import CPU, machine
from tests.fakes.node import opened, prepare, prepared_before

CLAIM = allocated_claim("a", Lamps.driver, ["lamp-0"])


class DarkLamps(Lamps):
    """Lamps that cannot be read while it is dark."""

    dark = True
    darkness: Exception = MachineError("it is dark")
    looks = 0

    def discover(self) -> Inventory:
        self.looks += 1
        if self.dark:
            raise self.darkness
        return super().discover()


@pytest.fixture
def lamps() -> DarkLamps:
    return DarkLamps()


@pytest.mark.parametrize("darkness", [MachineError("it is dark"), OSError("it is dark")], ids=["said", "unopened"])
def test_without_hardware_there_is_no_inventory_and_nothing_is_granted(
    tmp_path: Path, lamps: DarkLamps, darkness: Exception
) -> None:
    lamps.darkness = darkness
    node = opened(tmp_path, lamps)
    with pytest.raises(
        UnreadError, match="the hardware cannot be read, so no new claims are prepared: it is dark; check the"
    ):
        _ = node.inventory
    assert node.impediment == node.discovery.unread
    assert prepare(node, CLAIM) == {"a": Refused(str(node.impediment))}
    lamps.dark = False
    node.check()
    assert node.impediment is None
    assert isinstance(node.prepare({reference(CLAIM): CLAIM})[CLAIM.metadata.uid], Prepared)


def test_hardware_is_retried_only_while_it_cannot_be_read(tmp_path: Path, lamps: DarkLamps) -> None:
    node = opened(tmp_path, lamps)
    node.check()
    lamps.dark = False
    for _ in range(3):
        node.check()
    assert lamps.looks == 3


def test_unreadable_hardware_is_logged_once_and_its_recovery_once(
    tmp_path: Path, lamps: DarkLamps, caplog: pytest.LogCaptureFixture
) -> None:
    node = opened(tmp_path, lamps)
    node.check()
    lamps.dark = False
    node.check()
    assert [message.partition(": ")[2].partition(",")[0] for message in caplog.messages] == [
        "the hardware cannot be read",
        "the hardware can be read again",
    ]


def test_hardware_that_becomes_unreadable_stays_known_and_is_not_granted(tmp_path: Path, lamps: DarkLamps) -> None:
    lamps.dark = False
    node = opened(tmp_path, lamps)
    lamps.dark = True
    with pytest.raises(UnreadError):
        node.rescan()
    assert len(node.inventory.devices) == 4
    assert isinstance(prepare(node, CLAIM)["a"], Refused)


def test_missing_specs_are_written_after_a_reboot_once_the_hardware_is_read(tmp_path: Path, lamps: DarkLamps) -> None:
    lamps.dark = False
    prepared_before(tmp_path, CLAIM, plugin=lamps)
    shutil.rmtree(tmp_path / "cdi")
    lamps.dark = True
    again = opened(tmp_path, lamps)
    assert again.mend_files([CLAIM.metadata.uid]) == {}
    assert again.files.path(CLAIM.metadata.uid) is None
    lamps.dark = False
    again.check()
    assert again.files.path(CLAIM.metadata.uid) is not None


def test_options_that_do_not_fit_late_hardware_are_a_usage_error(tmp_path: Path) -> None:
    files = {f"{CPU}/online": "?"}
    plugin = CPUPlugin(machine(files), CPUOptions(reserved=CPUSet((9,))))
    (tmp_path / "data").mkdir()
    node = NodeClaims(plugin, tmp_path / "data", tmp_path / "cdi")
    node.open()
    plugin._root = machine({f"{CPU}/online": "0-3"})
    with pytest.raises(UsageError, match="9"):
        node.check()


def test_a_pinning_driver_reports_its_known_cpus_at_every_notification(tmp_path: Path) -> None:
    plugin = CPUPlugin(machine({f"{CPU}/online": "?"}), CPUOptions(reserved=CPUSet((3,))))
    node = opened(tmp_path, plugin)
    snapshots: list[PinSnapshot | None] = []
    node.watch(snapshots.append)
    # Other files are still damaged.
    plugin._root = machine({f"{CPU}/online": "0-3", f"{CPU}/cpu1/topology/core_id": "?"})
    node.check()
    assert [str(each.online) for each in snapshots if each] == ["3", "0-3"]
    assert [str(each.shared) for each in snapshots if each] == ["3", "0-2"]
    assert all(each is not None and each.unread is not None for each in snapshots)
