"""A claim over the three drivers of one process is read once at the API server, and again where it may have changed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dranode.driver.core.claims.answers import Prepared, Refused
from dranode.driver.core.claims.calls import Awaited, always
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.kube.client import Timing
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.source import Credentials
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.kubelet import StandInKubelet
from dranode.driver.machine.forms import open_machine
from dranode.driver.plugins import load_plugins
from dranode.driver.serve.service import DriverService
from tests.fakes.apiserver import ApiServer, Fault, api_server
from tests.fakes.waiting import PATIENCE, eventually

MACHINE: Final = Path(__file__).parents[2] / "examples" / "gpu-server.yaml"
CPU, MEMORY, GPU = "dra.cpu", "dra.memory", "dra.gpu"
SHARE: Final = "00000000-0000-0000-0000-000000000001"
ALLOCATED: Final[dict[str, dict[str, Any]]] = {
    CPU: {"device": "cpudevnuma000", "consumedCapacity": {"dra.cpu/cpu": "1"}, "shareID": SHARE},
    MEMORY: {"device": "memory-numa0", "consumedCapacity": {"size": "64Mi"}, "shareID": SHARE},
    GPU: {"device": "gpu-0000-17-00-0"},
}


def document(name: str, **changed: dict[str, Any]) -> dict[str, Any]:
    """A claim that was allocated a device of every driver; `changed` are results that differ, by request."""
    results = [
        {"driver": driver, "pool": "node", **result, **changed.get(request := driver.removeprefix("dra."), {})}
        | {"request": request}
        for driver, result in ALLOCATED.items()
    ]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-uid-{name}"}],
        },
    }


class World:
    """A process with drivers between kubelet and an API server, and a clock that only a test moves."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api, self.folder, self.now = api, folder, time.monotonic()
        self.services: dict[str, DriverService] = {}
        (folder / "plugins_registry").mkdir()
        self.kubelet = StandInKubelet(folder / "plugins_registry")
        source = Credentials(api.kubeconfig(folder / "kubeconfig"))
        timing = Timing(clock=lambda: self.now, idle=0.0)
        self.cluster = KubeCluster(source, "node", claim_status=True, fatal=pytest.fail, timing=timing)

    def start(self, *names: str) -> None:
        for plugin in load_plugins(names, open_machine(str(MACHINE)), {}):
            driver = plugin.driver
            paths = socket_paths(self.folder, driver, "")
            listener = Listener(driver, "node", paths, self.folder / "plugins" / driver, pytest.fail, rolling=False)
            service = self.services[driver] = DriverService(
                plugin, self.cluster, listener, cdi=self.folder / "cdi", taints=False
            )
            service.start()
            self.kubelet.register([driver], PATIENCE)

    def put(self, name: str, **changed: dict[str, Any]) -> ClaimRef:
        self.api.put("resourceclaims", document(name, **changed))
        return ClaimRef("default", name, f"uid-{name}")

    def prepare(self, driver: str, *refs: ClaimRef) -> tuple[list[Any], list[str]]:
        """One call for these claims; its answers, and the claims that were asked for at the API server."""
        before = len(self.reads())
        answers = self.kubelet.prepare(dict.fromkeys(refs, frozenset({driver})))
        return [answers[ref] for ref in refs], sorted(self.reads()[before:])

    def unprepare(self, driver: str, *refs: ClaimRef) -> None:
        self.kubelet.unprepare(dict.fromkeys(refs, frozenset({driver})))

    def reads(self) -> list[str]:
        return [seen.path.rsplit("/", 1)[1] for seen in self.api.requests("GET", "/resourceclaims/")]

    def close(self) -> None:
        self.kubelet.close()
        for service in reversed(self.services.values()):
            service.stop()
        self.cluster.close()


@pytest.fixture
def alone() -> Iterator[World]:
    with api_server() as api, tempfile.TemporaryDirectory(prefix="dranode-") as folder:
        made = World(api, Path(folder))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def world(alone: World) -> World:
    alone.start("cpu", "memory", "gpu")
    return alone


def device(answer: Any) -> str:
    assert isinstance(answer, Prepared), answer
    (prepared,) = answer.devices
    return prepared.device


def test_a_claim_over_three_drivers_is_read_once(world: World) -> None:
    ref = world.put("a")
    reads = []
    for driver, result in ALLOCATED.items():
        (answer,), read = world.prepare(driver, ref)
        assert device(answer) == result["device"]
        reads.append(read)
    assert reads == [["a"], [], []]


def test_the_claims_of_a_call_are_read_once_whatever_devices_they_have(world: World) -> None:
    a = world.put("a")
    b = world.put("b", gpu={"device": "gpu-0000-99-00-0", "driver": "gpu.example.com"})
    assert world.prepare(CPU, a)[1] == ["a"]
    assert world.prepare(MEMORY, a, b)[1] == ["b"]
    assert world.prepare(GPU, a)[1] == []
    assert world.prepare(CPU, b)[1] == []


def test_a_claim_is_read_again_after_an_unprepare_and_has_what_it_was_allocated_then(world: World) -> None:
    ref = world.put("a")
    world.prepare(CPU, ref)
    world.unprepare(CPU, ref)
    other = document("a", gpu={"device": "gpu-0000-ca-00-0"}, memory={"device": "memory-numa1"})
    world.api.objects.edit("resourceclaims", "a", lambda one: one["status"].update(other["status"]), "default")
    (answer,), reads = world.prepare(MEMORY, ref)
    assert (device(answer), reads) == ("memory-numa1", ["a"])


@pytest.mark.parametrize("undoing", [CPU, MEMORY, GPU])
def test_an_unprepare_by_any_driver_ends_what_was_read(world: World, undoing: str) -> None:
    ref = world.put("a")
    world.prepare(CPU, ref)
    world.unprepare(undoing, ref)
    assert world.prepare(MEMORY, ref)[1] == ["a"]


def test_a_claim_is_read_again_while_another_driver_undoes_it(world: World) -> None:
    ref = world.put("a")
    world.prepare(CPU, ref)
    node, reads = world.services[CPU].node, list[list[str]]()
    undo = node.unprepare

    def unprepare(refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> dict[str, Refused | None]:
        reads.append(world.prepare(MEMORY, *refs)[1])
        return undo(refs, awaited)

    node.unprepare = unprepare  # type: ignore[method-assign]
    world.unprepare(CPU, ref)
    assert reads == [["a"]]


def test_a_claim_is_read_again_after_a_second(world: World) -> None:
    ref = world.put("a")
    world.prepare(CPU, ref)
    world.now += 1.0
    assert world.prepare(MEMORY, ref)[1] == []
    world.now += 0.1
    assert world.prepare(GPU, ref)[1] == ["a"]


def test_a_refusal_is_followed_by_reads_of_all_that_was_asked_for_with_it(world: World) -> None:
    a, b = world.put("a"), world.put("b", cpu={"device": "cpudevnuma009"})
    (good, bad), _ = world.prepare(CPU, a, b)
    assert isinstance(good, Prepared)
    assert isinstance(bad, Refused)
    assert world.prepare(MEMORY, a, b)[1] == ["a", "b"]


def test_a_claim_that_could_not_be_read_is_read_by_the_next_driver(world: World) -> None:
    ref = world.put("a")
    world.api.faults.append(Fault(path="/resourceclaims/a", status=403, times=1))
    (refused,), _ = world.prepare(CPU, ref)
    assert isinstance(refused, Refused)
    assert world.prepare(MEMORY, ref)[1] == ["a"]


def test_a_claim_that_is_looked_after_is_asked_for_at_the_api_server(world: World) -> None:
    ref = world.put("a")
    world.prepare(CPU, ref)
    world.cluster.get((ref,))
    assert world.reads() == ["a", "a"]
    assert world.prepare(MEMORY, ref)[1] == []


def test_a_driver_that_is_alone_reads_for_itself_and_leaves_nothing(alone: World) -> None:
    alone.start("cpu")
    ref = alone.put("a")
    assert alone.prepare(CPU, ref)[1] == ["a"]
    alone.start("memory")
    assert alone.prepare(MEMORY, ref)[1] == ["a"]


def test_an_answer_that_nobody_waits_for_any_more_offers_nothing(world: World) -> None:
    ref = world.put("a")

    def call(driver: str, awaited: Awaited) -> int:
        before = len(world.reads())
        asked = world.cluster.claims_for(driver).get((ref,))
        world.cluster.reporting(world.services[driver].node).prepare(asked, awaited)
        return len(world.reads()) - before

    assert call(CPU, lambda: world.services[CPU].node.record(ref.uid) is None) == 1
    assert call(MEMORY, always) == 1
    assert call(GPU, always) == 0


def test_a_status_that_was_taken_back_since_the_read_is_written_again(world: World) -> None:
    ref = world.put("a")

    def entries(driver: str) -> list[Any]:
        (claim,) = world.api.objects.all("resourceclaims")
        return [one for one in claim["status"].get("devices", ()) if one["driver"] == driver]

    world.prepare(MEMORY, ref)
    eventually(lambda: entries(MEMORY))
    # What takes the entries back is held up, until another driver has read them.
    taken_back = Fault(method="PATCH", path="/resourceclaims/a/status", status=503, times=100_000)
    world.api.faults.append(taken_back)
    world.unprepare(MEMORY, ref)
    world.prepare(CPU, ref)
    world.api.faults.remove(taken_back)
    eventually(lambda: not entries(MEMORY))
    world.prepare(MEMORY, ref)
    eventually(lambda: entries(MEMORY))
