"""A driver that cannot read its machine's `/sys`, over the real sockets of kubelet and the container runtime.

The rules are those of an unreadable ledger. Alone, the driver changes nobody's CPUs, gets no more pods, and recovers by
itself. Beside an instance that can read the machine, it never becomes active.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.machine.root import Root
from dranode.driver.serve.service import DriverService
from dranode.sim.machines.confined import ConfinedRoot, FolderFiles
from tests.fakes.drivers import reference
from tests.fakes.machine import CPU, write_machine
from tests.fakes.nri import CallFailedError, pod, updates_of
from tests.fakes.pinning_node import (
    CLAIM,
    CLAIMS,
    DRIVER,
    EVERYBODY,
    EXCLUSIVE,
    OTHER,
    PODS,
    SHARED,
    World,
    both_look_often,
    given,
    handed_over,
    hung_up,
    mended,
    pinning_node,
    with_a_claim,
)
from tests.fakes.waiting import eventually

Mend = Callable[[], object]
Break = Callable[[Path], Mend]


@pytest.fixture
def world() -> Iterator[World]:
    with pinning_node() as world:
        yield world


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_machine(tmp_path)
    return tmp_path


def machine(folder: Path) -> Root:
    return ConfinedRoot(FolderFiles(str(folder)))


def no_sys(folder: Path) -> Mend:
    """/sys is not mounted."""
    sys = folder / "sys"
    sys.rename(folder / "away")
    sys.mkdir()

    def mend() -> None:
        sys.rmdir()
        (folder / "away").rename(sys)

    return mend


def replaced(path: Path, put: Callable[[Path], object], remove: Callable[[Path], object]) -> Mend:
    content = path.read_bytes()
    path.unlink()
    put(path)

    def mend() -> None:
        remove(path)
        path.write_bytes(content)

    return mend


def garbled_online(folder: Path) -> Mend:
    """The kernel's list of online CPUs is malformed."""
    return replaced(folder / CPU / "online", lambda path: path.write_text("0-"), Path.unlink)


def garbled_core(folder: Path) -> Mend:
    """One CPU's core id is not a number; the online CPUs can be read."""
    return replaced(folder / CPU / "cpu3/topology/core_id", lambda path: path.write_text("?"), Path.unlink)


def unreadable_core(folder: Path) -> Mend:
    """The kernel refuses to read one file."""
    return replaced(folder / CPU / "cpu3/topology/core_id", Path.mkdir, Path.rmdir)


# The CPUs of a new container without a claim in the meantime, if the online CPUs are known.
FAULTS: list[tuple[Break, str | None]] = [
    (no_sys, None),
    (garbled_online, None),
    (garbled_core, SHARED),
    (unreadable_core, SHARED),
]


def the_only_error(caplog: pytest.LogCaptureFixture) -> str:
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    return said


def the_only_sentence(service: DriverService) -> str:
    (missing,) = [sentence for sentence in service.missing() if "published" not in sentence]
    return missing.removeprefix(f"{DRIVER}: ")


@pytest.mark.parametrize(("broken", "left"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_single_instance_changes_and_grants_nothing_until_it_recovers(
    world: World, folder: Path, broken: Break, left: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with_a_claim(world)
    published = world.api.capacities[-1]
    world.stop()
    mend = broken(folder)
    caplog.clear()
    service = world.start(machine=machine(folder))
    runtime, updates = world.synchronized()
    assert updates == {}
    assert updates_of(runtime.stop(EVERYBODY[1], PODS[1])) == {}
    if left is None:
        with pytest.raises(CallFailedError, match="hardware cannot be read"):
            given(runtime, "plain", pod("p3"))
    else:
        assert given(runtime, "plain", pod("p3")) == left
    assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE
    with pytest.raises(CallFailedError, match="not prepared on this node"):
        given(runtime, "unknown", pod("p4"), ("DRA_CPUSET_uid-z=2",))
    for claim in (CLAIM, OTHER):
        answer = world.prepare(claim)
        assert isinstance(answer, Refused)
        assert "the hardware cannot be read" in str(answer)
    eventually(lambda: service.pinning is not None and service.pinning.synchronized)
    eventually(lambda: world.api.capacities[-1] == {})
    assert the_only_sentence(service) in the_only_error(caplog)
    mend()
    mended(world, service, runtime, published)


def test_new_containers_get_the_reserved_cpus_if_the_online_cpus_are_unknown(world: World, folder: Path) -> None:
    with_a_claim(world)
    world.stop()
    no_sys(folder)
    world.start(machine=machine(folder), reserved="7")
    runtime, updates = world.synchronized()
    assert updates == {}
    assert given(runtime, "plain", pod("p3")) == "7"
    assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE


def test_a_claim_that_ends_meanwhile_is_unprepared_and_no_mask_changes(world: World, folder: Path) -> None:
    with_a_claim(world)
    world.stop()
    mend = garbled_core(folder)
    service = world.start(machine=machine(folder))
    runtime, _ = world.synchronized()
    world.kubelet.unprepare({reference(CLAIM): frozenset({DRIVER})})
    assert updates_of(runtime.stop(EVERYBODY[0], PODS[0])) == {}
    assert given(runtime, "plain", pod("p3")) == "0-7"
    mend()
    hung_up(runtime)
    _, updates = world.synchronized()
    assert set(updates) >= {"shared"}
    eventually(lambda: service.missing() == ())


def test_a_new_instance_does_not_become_active_until_it_can_read(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    eventually(lambda: old.missing() == ())
    published = list(world.api.capacities)
    mend = no_sys(folder)
    new = world.start("new", machine(folder))
    runtime, updates = world.synchronized()
    assert updates == {}
    eventually(lambda: new.pinning is not None and new.pinning.synchronized)
    both_look_often(monkeypatch, old, new)
    assert (old.active, new.active) == (True, False)
    assert old.missing() == ()
    assert any("the hardware cannot be read" in sentence for sentence in new.missing())
    assert world.api.capacities == published
    mend()
    handed_over(world, old, new, runtime)
    assert world.api.capacities[-1] == published[-1]


def test_an_instance_that_loses_access_keeps_masks_and_grants_nothing_until_it_recovers(
    world: World, folder: Path
) -> None:
    service = world.start(machine=machine(folder))
    runtime, _ = world.synchronized()
    assert isinstance(world.prepare(CLAIM), Prepared)
    assert given(runtime, "mine", PODS[0], CLAIMS) == EXCLUSIVE
    eventually(lambda: service.missing() == ())
    published = world.api.capacities[-1]
    mend = garbled_online(folder)
    with contextlib.suppress(Exception):
        service.node.rescan()
    assert isinstance(world.prepare(OTHER), Refused)
    assert given(runtime, "plain", pod("p3")) == SHARED
    assert "the hardware cannot be read" in the_only_sentence(service)
    mend()
    mended(world, service, runtime, published)
