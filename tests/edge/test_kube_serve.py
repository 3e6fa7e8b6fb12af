"""`dranode serve` as a process, between the stand-in kubelet and an API server."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.held import ClaimRef
from dranode.sim.local.kubelet import StandInKubelet
from tests.fakes.apiserver import ApiServer, api_server
from tests.fakes.drivers import allocated_claim, plain, reference
from tests.fakes.waiting import PATIENCE, eventually

CPU = "dra.cpu"
MACHINE = "sockets=1,numa=2,l3=1,cores=4,threads=2"
SHARE = "00000000-0000-0000-0000-000000000001"


@dataclass
class Serving:
    """A running `serve` and its peers."""

    api: ApiServer
    folder: Path
    process: subprocess.Popen[bytes]
    kubelet: StandInKubelet

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def eventually(self, holds: Callable[[], Any]) -> Any:
        """Wait until a condition holds while the process lives; return the condition's value."""

        def alive() -> Any:
            assert self.process.poll() is None, self.log()
            return holds()

        return eventually(alive, self.log)

    def slices(self) -> list[Any]:
        return self.api.objects.all("resourceslices")


@contextlib.contextmanager
def serving(api: ApiServer, *arguments: str) -> Iterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        program = Path(sys.executable).with_name("dranode")
        machine = ["serve", "--machine", MACHINE, "--nri-socket", "none"]
        options = ["--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--http-address", "none", "--node-name", "node"]
        token = folder / "token"
        token.write_text("first")
        kubeconfig = api.kubeconfig(folder / "kubeconfig", token)
        command: list[str | Path] = [program, *machine, *options, "--kubeconfig", kubeconfig, *arguments]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stderr=log, env=dict(os.environ, NODE_NAME="node"))
        kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
        try:
            yield Serving(api, folder, process, kubelet)
        finally:
            kubelet.close()
            process.kill()
            process.wait(PATIENCE)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server(tls=True, tokens={"first"}) as server:
        server.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        yield server


def put_claim(api: ApiServer, name: str, cpus: str = "2") -> ClaimRef:
    claim = allocated_claim(name, CPU, ["cpudevnuma001"], consumedCapacity={"dra.cpu/cpu": cpus}, shareID=SHARE)
    api.put("resourceclaims", plain(claim))
    return reference(claim)


def test_a_driver_publishes_prepares_reports_and_leaves_its_slices(api: ApiServer) -> None:
    ref = put_claim(api, "a")
    missing = ClaimRef("default", "gone", "uid-gone")
    with serving(api) as it:
        it.kubelet.register([CPU], PATIENCE)
        (published,) = it.eventually(it.slices)
        assert published["metadata"]["name"].startswith("00000-dra.cpu-node-")
        assert published["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "node-uid", "controller": True}
        ]
        assert [device["name"] for device in published["spec"]["devices"]] == ["cpudevnuma000", "cpudevnuma001"]

        answers = it.kubelet.prepare({ref: frozenset({CPU}), missing: frozenset({CPU})})
        prepared = answers[ref]
        assert isinstance(prepared, Prepared)
        (device,) = prepared.devices
        assert device.cdi == (f"dra.k8s.io/cpu=claim-{ref.uid}",)
        assert "claim default/gone no longer exists" in str(answers[missing])

        (status,) = it.eventually(lambda: api.objects.all("resourceclaims")[0]["status"].get("devices"))
        (condition,) = status["conditions"]
        # The driver runs without a runtime and reports that.
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "NotEnforced")
        assert "--nri-socket none" in condition["message"]
        assert status["data"] == {"cpus": "4,12", "numaNodes": [1]}
        (event,) = it.eventually(lambda: api.objects.all("events"))
        assert (event["reason"], event["regarding"]["name"]) == ("PrepareFailed", "gone")

        it.kubelet.unprepare({ref: frozenset({CPU})})
        it.eventually(lambda: "devices" not in api.objects.all("resourceclaims")[0]["status"])
        it.process.send_signal(signal.SIGTERM)
        assert it.process.wait(PATIENCE) == 0
        assert len(it.slices()) == 1
        assert "Traceback" not in it.log()


def test_a_prepare_waits_for_the_unprepare_of_a_conflicting_claim(api: ApiServer) -> None:
    """As after `kubectl delete pod --force`: the successor starts before kubelet has ended the old pod."""
    held, successor = put_claim(api, "a", "8"), put_claim(api, "b", "8")
    with serving(api) as it, ThreadPoolExecutor(1) as pool:
        it.kubelet.register([CPU], PATIENCE)
        assert isinstance(it.kubelet.prepare({held: frozenset({CPU})})[held], Prepared)
        call = pool.submit(it.kubelet.prepare, {successor: frozenset({CPU})})
        it.eventually(lambda: api.requests("GET", path="/resourceclaims/b"))
        it.kubelet.unprepare({held: frozenset({CPU})})
        assert isinstance(call.result(PATIENCE)[successor], Prepared)


def test_a_claim_over_several_drivers_is_prepared_by_each_of_them(api: ApiServer) -> None:
    results = [
        {"request": "cpus", "driver": CPU, "device": "cpudevnuma001", "consumedCapacity": {"dra.cpu/cpu": "2"}},
        {"request": "mem", "driver": "dra.memory", "device": "memory-numa1", "consumedCapacity": {"size": "64Mi"}},
    ]
    api.put(
        "resourceclaims",
        {
            "metadata": {"namespace": "default", "name": "a", "uid": "uid-a"},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": [{**one, "pool": "node", "shareID": SHARE} for one in results]}},
                "reservedFor": [{"resource": "pods", "name": "pod-a", "uid": "pod-uid-a"}],
            },
        },
    )
    drivers = {ClaimRef("default", "a", "uid-a"): frozenset({CPU, "dra.memory"})}
    with serving(api, "--drivers", "cpu,memory") as it:
        it.kubelet.register([CPU, "dra.memory"], PATIENCE)
        (answer,) = it.kubelet.prepare(drivers).values()
        assert isinstance(answer, Prepared)
        assert len(answer.devices) == 2
        it.kubelet.unprepare(drivers)


def test_a_late_api_server_delays_neither_registration_nor_slices(api: ApiServer) -> None:
    ref = put_claim(api, "a")
    api.stop()
    with serving(api) as it:
        it.kubelet.register([CPU], PATIENCE)
        it.eventually(lambda: "does not answer" in it.log())
        api.start()
        it.eventually(it.slices)
        assert isinstance(it.kubelet.prepare({ref: frozenset({CPU})})[ref], Prepared)


def test_serve_without_a_cluster_says_which_option_to_pass() -> None:
    program = Path(sys.executable).with_name("dranode")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
    for arguments, message in (
        ((), "this is not a pod (KUBERNETES_SERVICE_HOST is not set); name a cluster with --kubeconfig"),
        (("--kubeconfig", "missing"), "there is no kubeconfig missing"),
    ):
        command = [program, "serve", "--machine", MACHINE, "--nri-socket", "none", *arguments]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=PATIENCE)
        assert ended.returncode == 2
        assert message in ended.stderr
