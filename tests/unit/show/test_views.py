from pathlib import Path

import pytest

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.machine.folder import HostRoot
from dranode.show.picture.fleet import CPUS as CPUS_ONE_BY_ONE
from dranode.show.views import driver_views, machine_picture, records_root
from dranode.sim.machines.forms import open_machine
from tests.fakes.doctor import forbid
from tests.fakes.machine import machine

CPUS = open_machine("numa=2,cores=2")


def test_everything_is_free_on_a_machine_without_records() -> None:
    views = driver_views([CPUPlugin(CPUS, CPUOptions())], None)
    (view,) = views.drivers
    assert (view.layout is not None, view.holdings, views.unseen) == (True, (), ())


def test_hardware_that_cannot_be_read_is_named() -> None:
    views = driver_views([CPUPlugin(machine({}), CPUOptions())], None)
    assert views.unseen[0].startswith("the devices of dra.cpu are unknown: ")
    assert machine_picture("Node", CPUS, views).notes == views.unseen


def test_an_unreadable_ledger_is_named_and_the_hardware_is_shown(tmp_path: Path) -> None:
    (tmp_path / "plugins" / "dra.cpu").mkdir(parents=True)
    (tmp_path / "plugins" / "dra.cpu" / "ledger.db").write_bytes(b"nonsense" * 512)
    views = driver_views([CPUPlugin(CPUS, CPUOptions())], tmp_path)
    (sentence,) = views.unseen
    assert sentence.startswith("it is unknown who holds what of dra.cpu: ")
    assert views.drivers[0].layout is not None
    # What could not be read is not free.
    (moment,) = machine_picture("Node", CPUS, views).moments
    assert moment.unknown == {CPUS_ONE_BY_ONE}


@pytest.mark.parametrize("folder", ["plugins", "plugins/gone.example.com"])
def test_unreadable_folders_do_not_mean_that_there_are_no_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    ledger = tmp_path / "plugins" / "gone.example.com" / "ledger.db"
    ledger.parent.mkdir(parents=True)
    ledger.touch()
    assert [view.driver for view in driver_views([], tmp_path).drivers] == ["gone.example.com"]
    forbid(monkeypatch, tmp_path / folder)
    views = driver_views([], tmp_path)
    assert (views.drivers, len(views.unseen)) == ((), 1)
    assert views.unseen[0].startswith(f"which other drivers have claims is not known: {tmp_path / folder}")


def test_a_new_kubelet_has_no_other_drivers(tmp_path: Path) -> None:
    assert driver_views([], tmp_path).unseen == ()


def test_the_hosts_records_are_read_only_for_the_host() -> None:
    assert records_root(CPUS, None) is None
    assert records_root(HostRoot(), None) == Path("/var/lib/kubelet")
    assert records_root(CPUS, "state") == Path("state")
