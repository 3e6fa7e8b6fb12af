"""The host's services, where systemd says on which CPUs they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.cpu.systemd import Systemd
from dranode.cpu.tuner import Tuner
from tests.fakes.settings import SYSTEM, Kernel, MemoryNotes, quiet_record
from tests.fakes.systemd import FakeSystemd

A, B = quiet_record("a", "2-3"), quiet_record("b", "5")


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    return tmp_path / "system_bus_socket"


@pytest.fixture
def systemd(bus: Path) -> Iterator[FakeSystemd]:
    fake = FakeSystemd(bus)
    yield fake
    fake.end()


def test_systemd_keeps_services_off_and_nothing_is_written_to_its_cgroups(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    systemd.allowed["user.slice"] = b"\x0f"
    notes, tuner = MemoryNotes(kernel), Tuner(kernel, systemd=Systemd(str(bus)))
    tuner.tune([A], notes)
    assert systemd.allowed == {"system.slice": b"\xf3", "user.slice": b"\x03", "init.scope": b"\xf3"}
    assert kernel.files[SYSTEM] == ""
    assert tuner.unmoved == ()
    tuner.tune([A, B], notes)
    assert systemd.allowed["system.slice"] == b"\xd3"
    tuner.tune([B], notes)
    tuner.tune([], notes)
    assert systemd.allowed == {"system.slice": b"", "user.slice": b"\x0f", "init.scope": b""}
    assert systemd.cgroups == {"system.slice": b"\xff", "user.slice": b"\x0f", "init.scope": b"\xff"}
    assert notes.document is None


def test_a_process_may_die_between_all_cpus_and_none(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel, systemd=Systemd(str(bus)))
    tuner.tune([A], notes)
    systemd.allowed["system.slice"] = b"\xff"
    tuner.tune([], notes)
    assert notes.document is None
    tuner.tune([A], notes)
    tuner.tune([], notes)
    assert systemd.allowed["system.slice"] == b""


def test_what_somebody_else_says_is_the_original_from_then_on(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel, systemd=Systemd(str(bus)))
    tuner.tune([A], notes)
    systemd.allowed["system.slice"] = b"\x07"
    tuner.tune([A], notes)
    assert systemd.allowed["system.slice"] == b"\x03"
    tuner.tune([], notes)
    assert systemd.allowed["system.slice"] == b"\x07"


def test_a_bus_that_is_away_for_a_while_loses_nothing(bus: Path) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel, systemd=Systemd(str(bus)))
    first = FakeSystemd(bus)
    tuner.tune([A], notes)
    first.end()
    tuner.tune([A], notes)
    tuner.tune([], notes)
    assert kernel.files[SYSTEM] == "", "what systemd said is not undone behind its back"
    assert notes.document is not None
    bus.unlink()
    again = FakeSystemd(bus)
    again.allowed = first.allowed
    tuner.tune([], notes)
    assert again.allowed == {"system.slice": b"", "user.slice": b"", "init.scope": b""}
    assert notes.document is None
    again.end()


def test_cgroups_that_were_written_before_systemd_could_be_asked_go_back(bus: Path) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel, systemd=Systemd(str(bus)))
    tuner.tune([A], notes)
    assert kernel.files[SYSTEM] == "0-1,4-7"
    fake = FakeSystemd(bus)
    tuner.tune([A], notes)
    assert (fake.allowed["system.slice"], kernel.files[SYSTEM]) == (b"\xf3", "0-7")
    tuner.tune([], notes)
    assert notes.document is None
    fake.end()


def test_what_systemd_refuses_is_said(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    systemd.refuses = "Access denied"
    tuner = Tuner(kernel, systemd=Systemd(str(bus)))
    tuner.tune([A], MemoryNotes(kernel))
    assert tuner.unmoved == tuple(
        f"{unit} stays where it is: systemd says Access denied" for unit in ("init.scope", "system.slice", "user.slice")
    )


def test_a_slice_with_pods_is_left_alone(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    kernel.files["sys/fs/cgroup/system.slice/k3s.service/kubepods/cgroup.procs"] = ""
    tuner = Tuner(kernel, systemd=Systemd(str(bus)))
    tuner.tune([A], MemoryNotes(kernel))
    assert "system.slice" not in systemd.allowed
    assert tuner.unmoved == ("system.slice stays, because pods are in it",)


def test_without_cgroup_v2_systemd_is_not_asked(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    del kernel.files["sys/fs/cgroup/cgroup.controllers"]
    Tuner(kernel, systemd=Systemd(str(bus))).tune([A], MemoryNotes(kernel))
    assert systemd.allowed == {}


def test_a_socket_that_is_no_bus_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("")
    kernel = Kernel()
    Tuner(kernel, systemd=Systemd(str(tmp_path / "bus"))).tune([A], MemoryNotes(kernel))
    assert kernel.files[SYSTEM] == "0-1,4-7"
