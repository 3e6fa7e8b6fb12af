"""The host's services, where systemd decides on which CPUs they run."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dranode.cpu.isolation.peers import Systemd
from dranode.cpu.isolation.settings import Setting, kernels_words
from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Refused
from dranode.driver.node.node import NodeClaims
from dranode.sim.machines.forms import open_machine
from tests.fakes.node import prepare, unprepare
from tests.fakes.settings import SYSTEM, Kernel, MemoryNotes, peered, quiet_claim, quiet_record, settle
from tests.fakes.systemd import FakeSystemd
from tests.fakes.waiting import PATIENCE

A, B = quiet_record("a", "2-3"), quiet_record("b", "5")


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    return tmp_path / "system_bus_socket"


@pytest.fixture
def systemd(bus: Path) -> Iterator[FakeSystemd]:
    fake = FakeSystemd(bus)
    yield fake
    fake.end()


def test_systemd_moves_services_and_its_cgroups_are_not_written_to(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    # Bottlerocket has kubelet and the runtime in a slice of their own; what else is beside the slices is reported.
    kernel.files["sys/fs/cgroup/runtime.slice/cgroup.events"] = "populated 1\nfrozen 0\n"
    kernel.files["sys/fs/cgroup/kubepods/cgroup.events"] = "populated 1\n"
    kernel.files["sys/fs/cgroup/dev-hugepages.mount/cgroup.events"] = "populated 0\n"
    kernel.files["sys/fs/cgroup/machine.slice/cgroup.events"] = "populated 1\n"
    systemd.allowed["user.slice"] = b"\x0f"
    notes, tuner = MemoryNotes(kernel), peered(kernel, systemd=Systemd(str(bus)))
    settle(tuner, [A], notes)
    units = ("system.slice", "init.scope", "runtime.slice")
    assert systemd.allowed == {"user.slice": b"\x03"} | dict.fromkeys(units, b"\xf3")
    assert kernel.files[SYSTEM] == ""
    (sentence,) = tuner.remaining
    assert sentence.startswith("machine.slice stays, because only system.slice, user.slice, init.scope, runtime.slice ")
    settle(tuner, [A, B], notes)
    assert systemd.allowed["system.slice"] == b"\xd3"
    settle(tuner, [B], notes)
    settle(tuner, [], notes)
    assert systemd.allowed == {"user.slice": b"\x0f"} | dict.fromkeys(units, b"")
    assert systemd.cgroups == {"user.slice": b"\x0f"} | dict.fromkeys(units, b"\xff")
    assert notes.document is None


def test_all_cpus_and_no_mask_are_the_same_original(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, systemd=Systemd(str(bus)))
    settle(tuner, [A], notes)
    systemd.allowed["system.slice"] = b"\xff"
    settle(tuner, [], notes)
    assert notes.document is None
    settle(tuner, [A], notes)
    settle(tuner, [], notes)
    assert systemd.allowed["system.slice"] == b""


def test_a_value_set_by_somebody_else_becomes_the_original(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, systemd=Systemd(str(bus)))
    settle(tuner, [A], notes)
    systemd.allowed["system.slice"] = b"\x07"
    settle(tuner, [A], notes)
    assert systemd.allowed["system.slice"] == b"\x03"
    settle(tuner, [], notes)
    assert systemd.allowed["system.slice"] == b"\x07"


def test_a_temporarily_missing_bus_loses_nothing(bus: Path) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, systemd=Systemd(str(bus)))
    first = FakeSystemd(bus)
    settle(tuner, [A], notes)
    first.end()
    settle(tuner, [A], notes)
    settle(tuner, [], notes)
    assert kernel.files[SYSTEM] == "", "what systemd said is not undone behind its back"
    assert notes.document is not None
    bus.unlink()
    again = FakeSystemd(bus)
    again.allowed = first.allowed
    settle(tuner, [], notes)
    assert again.allowed == {"system.slice": b"", "user.slice": b"", "init.scope": b""}
    assert notes.document is None
    again.end()


def test_cgroups_written_before_systemd_was_reachable_are_restored(bus: Path) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, systemd=Systemd(str(bus)))
    settle(tuner, [A], notes)
    assert kernel.files[SYSTEM] == "0-1,4-7"
    fake = FakeSystemd(bus)
    settle(tuner, [A], notes)
    assert (fake.allowed["system.slice"], kernel.files[SYSTEM]) == (b"\xf3", "0-7")
    settle(tuner, [], notes)
    assert notes.document is None
    fake.end()


def test_a_refusal_by_systemd_is_reported(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    systemd.refuses = "Access denied"
    tuner = peered(kernel, systemd=Systemd(str(bus)))
    settle(tuner, [A], MemoryNotes(kernel))
    assert tuner.remaining == tuple(
        f"{unit} stays where it is: systemd says Access denied" for unit in ("init.scope", "system.slice", "user.slice")
    )


def test_a_slice_with_pods_is_left_unchanged(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    kernel.files["sys/fs/cgroup/system.slice/k3s.service/kubepods/cgroup.procs"] = ""
    tuner = peered(kernel, systemd=Systemd(str(bus)))
    settle(tuner, [A], MemoryNotes(kernel))
    assert "system.slice" not in systemd.allowed
    assert tuner.remaining == ("system.slice stays, because pods are in it",)


def test_without_cgroup_v2_systemd_is_not_asked(bus: Path, systemd: FakeSystemd) -> None:
    kernel = Kernel()
    del kernel.files["sys/fs/cgroup/cgroup.controllers"]
    settle(peered(kernel, systemd=Systemd(str(bus))), [A], MemoryNotes(kernel))
    assert systemd.allowed == {}


def test_a_socket_that_is_not_a_bus_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("")
    kernel = Kernel()
    settle(peered(kernel, systemd=Systemd(str(tmp_path / "bus"))), [A], MemoryNotes(kernel))
    assert kernel.files[SYSTEM] == "0-1,4-7"


@pytest.mark.parametrize("said", ["", " "])
def test_a_refusal_without_a_reason_is_reported_in_words(bus: Path, systemd: FakeSystemd, said: str) -> None:
    systemd.refuses = said
    tuner = peered(Kernel(), systemd=Systemd(str(bus)))
    settle(tuner, [A], MemoryNotes(Kernel()))
    assert tuner.remaining[0] == (
        "init.scope stays where it is: systemd says SetUnitProperties is refused, without a reason"
    )
    assert kernels_words(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize("where", ["AUTH", "Hello", "LoadUnit", "Get", "SetUnitProperties"])
def test_a_hanging_systemd_costs_one_deadline_a_round_and_then_rounds_are_skipped(
    bus: Path, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("dranode.cpu.isolation.peers._SECONDS", 0.2)
    now = [0.0]
    systemd.hangs = where
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, systemd=Systemd(str(bus), clock=lambda: now[0]))
    settle(tuner, [A], notes)
    # A round ends with the first call without an answer, and does not wait for the other units.
    waited = systemd.calls
    assert waited == (2 if where == "SetUnitProperties" else 1)
    assert (kernel.files[SYSTEM] == "0-1,4-7") == (where != "SetUnitProperties"), "it is done without systemd"
    for seconds in (9.0, 11.0, 29.0):
        now[0] = seconds
        settle(tuner, [A], notes)
        left_out = seconds in (9.0, 29.0)
        assert (systemd.calls == waited) == left_out
        waited = systemd.calls
    systemd.hangs = ""
    now[0] = 1000.0
    settle(tuner, [A], notes)
    assert systemd.allowed["system.slice"] == b"\xf3"
    settle(tuner, [], notes)
    assert notes.document is None


def test_changes_that_a_silent_systemd_missed_are_reported(
    bus: Path, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranode.cpu.isolation.peers._SECONDS", 0.2)
    systemd.hangs = "SetUnitProperties"
    tuner = peered(Kernel(), systemd=Systemd(str(bus)))
    settle(tuner, [A], MemoryNotes(Kernel()))
    assert "init.scope stays where it is: systemd says nothing: no answer within" in tuner.remaining[0]


class Hanging(Systemd):
    """A systemd that answers only when a test lets it."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.asked, self.answers = threading.Event(), threading.Event()

    def settings(self, units: Iterable[str]) -> tuple[Setting, ...]:  # noqa: ARG002 - as the real one
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        return ()


def test_no_call_waits_for_a_hanging_systemd(tmp_path: Path) -> None:
    kernel, systemd = Kernel(), Hanging()
    options = read_options({"group_by": "machine", "max_isolation": "quiet"})
    plugin = CPUPlugin(open_machine("sockets=1,cores=4,threads=2"), options, host=kernel)
    plugin._tuner = peered(kernel, systemd=systemd)
    (tmp_path / "data").mkdir()
    node = NodeClaims(plugin, tmp_path / "data", tmp_path / "cdi")
    node.open("first")
    woken: list[bool] = []
    node.settings_changed = lambda: woken.append(True)
    quiet, plain = quiet_claim("a", "2-3"), quiet_claim("plain", "6", isolation="cpuset")
    assert not isinstance(prepare(node, quiet)["a"], Refused)
    assert woken, "systemd is told soon after"
    look = threading.Thread(target=node.tune)
    look.start()
    assert systemd.asked.wait(PATIENCE)
    assert not isinstance(prepare(node, plain)["plain"], Refused)
    assert unprepare(node, quiet) == {quiet.metadata.uid: None}
    systemd.answers.set()
    look.join(PATIENCE)
    assert not look.is_alive()
    node.tune()
    assert kernel.files[SYSTEM] in ("", "0-7")
