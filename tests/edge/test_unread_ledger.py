"""A driver that cannot read its ledger, over the real sockets of kubelet and the container runtime.

Alone, the driver changes nobody's CPUs, gets no more pods, and recovers by itself. Beside an instance that can read the
ledger, it never becomes active.
"""

import logging
import os
from collections.abc import Iterator

import pytest

from dranode.driver.claims.answers import Prepared, Refused
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.ledger import FAULTS, OF_BOTH, OF_ONE, Fault, a_full_disk_with_shm, newer_schema
from tests.fakes.nri import CallFailedError, container, pod, updates_of
from tests.fakes.pinning_node import (
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
    mended,
    pinning_node,
    with_a_claim,
)
from tests.fakes.waiting import eventually


@pytest.fixture
def world() -> Iterator[World]:
    with pinning_node() as world:
        yield world


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_single_instance_changes_and_grants_nothing_until_it_recovers(
    world: World, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    with_a_claim(world)
    published = world.api.capacities[-1]
    world.stop()
    with fault(world.ledger) as mend:
        caplog.clear()
        service = world.start()
        runtime, updates = world.synchronized()
        assert updates == {}
        assert updates_of(runtime.stop(EVERYBODY[1], PODS[1])) == {}
        # The CPUs left by the node's CDI specs, and for the claim those of its own spec.
        assert given(runtime, "plain", pod("p3")) == SHARED
        assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE
        with pytest.raises(CallFailedError, match=r"ledger|newer dranode"):
            given(runtime, "unknown", pod("p4"), ("DRA_CPUSET_uid-z=2",))
        assert isinstance(world.prepare(OTHER), Refused)
        eventually(lambda: service.pinning is not None and service.pinning.synchronized)
        (missing,) = [sentence for sentence in service.missing() if "published" not in sentence]
        assert world.api.capacities[-1] == {}
        said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(said) == 1, said
        assert missing.removeprefix(f"{DRIVER}: ") in said[0]
        mend()
        mended(world, service, runtime, published)


@pytest.mark.parametrize("size", [0, 4096])
def test_a_truncated_ledger_is_rebuilt_from_the_specs_and_no_mask_changes(world: World, size: int) -> None:
    with_a_claim(world)
    world.stop()
    os.truncate(world.ledger, size)
    service = world.start()
    runtime, updates = world.synchronized()
    assert updates == {}
    assert given(runtime, "plain", pod("p3")) == SHARED
    eventually(lambda: service.missing() == ())


@pytest.mark.parametrize("size", [0, 4096])
def test_a_ledger_that_is_truncated_under_an_instance_is_rebuilt_and_no_mask_changes(world: World, size: int) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    eventually(lambda: old.missing() == ())
    published = world.api.capacities[-1]
    os.truncate(world.ledger, size)
    new = world.start("second")
    runtime, updates = world.synchronized()
    assert updates == {}
    eventually(lambda: new.active and not old.active)
    eventually(lambda: new.missing() == ())
    assert given(runtime, "plain", pod("p3")) == SHARED
    assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE
    assert isinstance(world.prepare(OTHER), Prepared)
    for service in (old, new):
        assert {record.uid: str(record.held) for record in service.node.records()} == {"uid-a": EXCLUSIVE, "uid-b": "2"}
    eventually(lambda: world.api.capacities[-1] == published)


@pytest.mark.parametrize("fault", OF_ONE, ids=lambda fault: fault.__name__)
def test_a_new_instance_does_not_become_active_until_it_can_read(
    world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    eventually(lambda: old.missing() == ())
    published = list(world.api.capacities)
    with fault(world.ledger) as mend:
        new = world.start("new")
        runtime, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: new.pinning is not None and new.pinning.synchronized)
        both_look_often(monkeypatch, old, new)
        assert old.active
        assert not new.active
        assert old.missing() == ()
        assert given(runtime, "plain", pod("p3")) == ""
        assert any("ledger" in sentence for sentence in new.missing())
        assert world.api.capacities == published
        mend()
        handed_over(world, old, new, runtime)
        assert world.api.capacities[-1] == published[-1]


@pytest.mark.parametrize("fault", OF_BOTH, ids=lambda fault: fault.__name__)
def test_two_instances_that_cannot_read_change_nothing_until_the_newer_one_can(
    world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    eventually(lambda: old.missing() == ())
    published = world.api.capacities[-1]
    with fault(world.ledger) as mend:
        eventually(lambda: old.missing() != ())
        eventually(lambda: world.api.capacities[-1] == {})
        new = world.start("new")
        runtime, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: new.pinning is not None and new.pinning.synchronized)
        both_look_often(monkeypatch, old, new)
        assert (old.active, new.active) == (True, False)
        assert given(runtime, "plain", pod("p3")) == ""
        assert isinstance(world.prepare(OTHER), Refused)
        mend()
        handed_over(world, old, new, runtime)
        eventually(lambda: world.api.capacities[-1] == published)


def test_a_full_disk_stops_grants_but_not_pinning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with_a_claim(world)
    published = world.api.capacities[-1]
    world.stop()
    with a_full_disk_with_shm(world.ledger) as mend:
        service = world.start()
        runtime, _ = world.synchronized()
        answer = world.prepare(OTHER)
        assert isinstance(answer, Refused)
        assert "disk is full" in str(answer)
        eventually(lambda: any("disk is full" in sentence for sentence in service.missing()))
        eventually(lambda: world.api.capacities[-1] == {})
        assert given(runtime, "plain", pod("p3")) == SHARED
        assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE
        wide = container("wide", "p4", (), "0-7", state=nri.CONTAINER_RUNNING)
        assert updates_of(runtime.synchronize([*PODS, pod("p4")], [*EVERYBODY, wide])) == {"wide": SHARED}
        mend()
        eventually(lambda: service.missing() == ())
        assert caplog.text.count("the ledger can be written again") == 1
        eventually(lambda: world.api.capacities[-1] == published)
        assert isinstance(world.prepare(OTHER), Prepared)


def test_a_cdi_folder_that_breaks_later_makes_the_driver_not_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranode.driver.serve.service._HEALTH_SECONDS", 0.05)
    with_a_claim(world)
    service = world.services[""]
    eventually(lambda: service.missing() == ())
    published, cdi = world.api.capacities[-1], world.folder / "cdi"
    cdi.rename(world.folder / "away")
    cdi.write_text("no folder")
    eventually(lambda: any("CDI specs" in sentence for sentence in service.missing()))
    eventually(lambda: world.api.capacities[-1] == {})
    cdi.unlink()
    (world.folder / "away").rename(cdi)
    eventually(lambda: service.missing() == ())
    eventually(lambda: world.api.capacities[-1] == published)
    world.kubelet.register([DRIVER])
    assert isinstance(world.prepare(OTHER), Prepared)


def test_an_active_instance_that_cannot_write_hands_authority_back_to_one_that_can(world: World) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    published = world.api.capacities[-1]
    with a_full_disk_with_shm(world.ledger) as mend:
        # kubelet registers the sockets in the order of their names and calls the last one.
        new = world.start("second")
        world.synchronized()
        eventually(lambda: new.active and not old.active)
        assert isinstance(world.prepare(OTHER), Refused)
        eventually(lambda: old.active and not new.active)
        eventually(lambda: old.missing() == ())
        assert any("disk is full" in sentence for sentence in new.missing())
        eventually(lambda: world.api.capacities[-1] == published)
        mend()
        eventually(lambda: new.active and not old.active)
        eventually(lambda: new.missing() == ())


def test_an_instance_that_takes_over_changes_nothing_until_it_can_read(world: World) -> None:
    with_a_claim(world, "old")
    with newer_schema(world.ledger):
        new = world.start("new")
        runtime, _ = world.synchronized()
        world.stop("old")
        eventually(lambda: new.active)
        assert updates_of(runtime.stop(EVERYBODY[1], PODS[1])) == {}
        assert given(runtime, "plain", pod("p3")) == SHARED
        assert new.missing() != ()
        eventually(lambda: world.api.capacities[-1] == {})
