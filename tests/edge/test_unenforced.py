"""A node whose runtime accepts no NRI plug-ins: no claim is prepared whose containers would not be pinned."""

from collections.abc import Iterator

import pytest

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import BY_OPTION, NOT_ENFORCED, Prepared, Refused
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored, EnforcementLost
from dranode.driver.claims.status import PREPARED, prepared_states
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.serve.service import DriverService
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.machine import EIGHT_CPUS
from tests.fakes.pinning_node import CLAIM, DRIVER, OTHER, World, pinning_node
from tests.fakes.waiting import PATIENCE, eventually

NO_RUNTIME = "no container runtime has been connected over NRI"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A node without grace time for a restart of the runtime."""
    monkeypatch.setattr("dranode.driver.serve.pinning.GRACE_SECONDS", 0.0)
    monkeypatch.setattr("dranode.driver.serve.service._HEALTH_SECONDS", 0.05)
    with pinning_node() as world:
        yield world


def told(world: World, kind: type) -> list[object]:
    return [each for each in world.api.occurrences if isinstance(each, kind)]


def test_without_a_runtime_no_claim_is_prepared_and_no_device_is_published(world: World) -> None:
    service = world.start()
    refused = world.prepare(CLAIM)
    assert isinstance(refused, Refused)
    assert NO_RUNTIME in refused.reason
    assert "--nri-socket none" in refused.reason
    eventually(lambda: world.api.capacities[-1:] == [{}])
    eventually(lambda: len(told(world, EnforcementLost)) == 1)
    (missing,) = service.missing()
    assert NO_RUNTIME in missing


def test_recorded_claims_are_reported_when_the_runtime_goes_and_when_it_is_back(world: World) -> None:
    service = world.start()
    runtime, _ = world.synchronized()
    eventually(lambda: isinstance(world.prepare(CLAIM), Prepared))
    runtime.sock.close()
    eventually(lambda: told(world, ClaimImpaired))
    (lost,) = told(world, ClaimImpaired)
    assert isinstance(lost, ClaimImpaired)
    assert lost.reason == NOT_ENFORCED
    assert [(state.ready, state.reason) for state in lost.states] == [(False, NOT_ENFORCED)]
    # kubelet prepares again before the pod gets a new sandbox, whose containers would not be pinned.
    again = service.node.prepare({reference(CLAIM): CLAIM})[reference(CLAIM).uid]
    assert isinstance(again, Refused)
    assert NO_RUNTIME in again.reason
    assert isinstance(world.prepare(OTHER), Refused)
    world.synchronized()
    eventually(lambda: told(world, ClaimRestored))
    (restored,) = told(world, ClaimRestored)
    assert isinstance(restored, ClaimRestored)
    assert [(state.ready, state.reason) for state in restored.states] == [(True, PREPARED)]
    assert isinstance(world.prepare(OTHER), Prepared)
    eventually(lambda: world.api.capacities[-1] != {})


def test_a_restarted_driver_reports_the_recovery_of_claims_that_its_predecessor_reported(world: World) -> None:
    world.start()
    runtime, _ = world.synchronized()
    eventually(lambda: isinstance(world.prepare(CLAIM), Prepared))
    runtime.sock.close()
    eventually(lambda: told(world, ClaimImpaired))
    world.stop()
    world.api.occurrences.clear()
    world.start()
    world.synchronized()
    eventually(lambda: told(world, ClaimRestored))


def test_a_restarted_driver_prepares_no_claim_before_the_runtime_connects(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start()
    world.admit()
    eventually(lambda: told(world, EnforcementLost))
    world.stop()
    monkeypatch.setattr("dranode.driver.serve.pinning.GRACE_SECONDS", 10 * PATIENCE)
    world.start()
    refused = world.prepare(CLAIM)
    assert isinstance(refused, Refused)
    assert NO_RUNTIME in refused.reason
    # From the first connection on, a restarting runtime has its grace time again.
    runtime, _ = world.synchronized()
    eventually(lambda: isinstance(world.prepare(CLAIM), Prepared))
    runtime.sock.close()
    assert isinstance(world.prepare(OTHER), Prepared)


def test_claims_are_prepared_while_the_runtime_restarts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dranode.driver.serve.pinning.GRACE_SECONDS", 10 * PATIENCE)
    world.start()
    runtime, _ = world.synchronized()
    runtime.sock.close()
    assert isinstance(world.prepare(CLAIM), Prepared)
    assert not told(world, ClaimImpaired)


def test_a_driver_without_nri_prepares_claims_and_reports_that_they_are_not_enforced(world: World) -> None:
    folder = world.folder / "plugins" / DRIVER
    listener = Listener(DRIVER, "node", socket_paths(world.folder, DRIVER, ""), folder, pytest.fail)
    plugin = CPUPlugin(open_machine(EIGHT_CPUS), CPUOptions())
    service = DriverService(plugin, world.api, listener, cdi=world.folder / "cdi")
    world.services[""] = service
    service.start()
    world.kubelet.register([DRIVER], PATIENCE)
    assert isinstance(world.prepare(CLAIM), Prepared)
    assert service.node.impediment is None
    record = service.node.record(reference(CLAIM).uid)
    assert record is not None
    (state,) = prepared_states(service.plugin, record, service.node.inventory, service.node.not_enforced())
    assert (state.ready, state.reason, state.message) == (True, NOT_ENFORCED, BY_OPTION.message)
    assert not told(world, ClaimImpaired)
