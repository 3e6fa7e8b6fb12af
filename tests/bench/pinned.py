"""Prepare and Unprepare with pinning on: an empty ledger beside one with a thousand claims, the same containers known.

Each case is a process of its own, with a runtime that takes every update at once; they are asked in turn.
"""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.store import Store
from dranode.proto import dra_v1_pb2 as api
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from tests.bench.table import Row
from tests.fakes.nri import FakeRuntime, container, pod

_CLAIMS = 1000
_ROUNDS = 200
_CALM = 0.02
_MIB = 1 << 20
_MACHINE = "sockets=8,cores=64,threads=2"
_OTHERS = 20


def _uid(number: int) -> str:
    return f"7f0c1f0e-0000-4000-8000-{number:012d}"


def _claim(number: int) -> ResourceClaim:
    """The claim that wants CPU `number`."""
    result = {
        "request": "r",
        "driver": "dra.cpu",
        "pool": "node",
        "device": "cpudevmachine",
        "consumedCapacity": {"dra.cpu/cpu": "1"},
        "shareID": f"00000000-0000-4000-8000-{number:012d}",
    }
    config = {"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": {"cpuset": str(number)}}}
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": f"claim-{number}", "uid": _uid(number)},
            "status": {
                "allocation": {"devices": {"results": [result], "config": [config]}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{number}", "uid": f"pod-{number}"}],
            },
        },
    )


def _named(number: int) -> api.Claim:
    return api.Claim(namespace="default", name=f"claim-{number}", uid=_uid(number))


def _serve(folder: Path, nri_socket: str) -> subprocess.Popen[bytes]:
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    arguments = ["--machine", _MACHINE, "--node-name", "node", "--group-by", "machine", "--reserved-cpus", "1023"]
    places = ["--store", "../store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--http-address", "127.0.0.1:0"]
    program = Path(sys.executable).with_name("dranode")
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [program, "serve", *arguments, *places, "--nri-socket", nri_socket], cwd=folder, stderr=log
        )


def _run(listener: socket.socket, containers: list[nri.Container], ready: threading.Event) -> None:
    """A runtime: it tells of its containers and takes what it is told, until the driver goes."""
    with contextlib.suppress(OSError), listener.accept()[0] as sock:
        runtime = FakeRuntime(sock, patience=3600)
        runtime.handshake([pod(each.pod_sandbox_id.removeprefix("sandbox-")) for each in containers], containers)
        ready.set()
        while True:
            runtime.pump()
            runtime.wire.received.clear()


@contextlib.contextmanager
def _driver(
    folder: Path, held: int, containers: list[nri.Container]
) -> Iterator[tuple[Callable[[], tuple[float, float]], int]]:
    """A driver with that many claims on record; what one Prepare and one Unprepare of another take, and its process."""
    folder.mkdir()
    ready = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        process = _serve(folder, "nri.sock")
        try:
            while not re.search("listening http", (folder / "log").read_text()):
                time.sleep(0.01)
            with grpc.insecure_channel(f"unix:{socket_paths(folder / 'kubelet', 'dra.cpu').dra}") as channel:
                prepare = DRAPluginStub(channel).NodePrepareResources
                unprepare = DRAPluginStub(channel).NodeUnprepareResources
                for first in range(0, held, 100):
                    _checked(prepare, api.NodePrepareResourcesRequest, range(first, first + 100))
                threading.Thread(target=_run, args=(listener, containers, ready), daemon=True).start()
                ready.wait(60)

                def once() -> tuple[float, float]:
                    return (
                        _checked(prepare, api.NodePrepareResourcesRequest, (_CLAIMS,)),
                        _checked(unprepare, api.NodeUnprepareResourcesRequest, (_CLAIMS,)),
                    )

                yield once, process.pid
        finally:
            process.terminate()
            process.wait(20)


def _checked(call: Callable[..., Any], request: Callable[..., Any], numbers: Any) -> float:
    """Seconds of a call for these claims, after a pause in which updates of the last one go out."""
    time.sleep(_CALM)
    claims = [_named(number) for number in numbers]
    began = time.perf_counter()
    answers = call(request(claims=claims), timeout=60).claims
    took = time.perf_counter() - began
    if errors := [answer.error for answer in answers.values() if answer.error]:
        raise RuntimeError(errors[0])
    return took


def _claimed(count: int) -> list[nri.Container]:
    return [
        container(f"c-{n}", f"pod-{n}", (f"DRA_CPUSET_{_uid(n)}={n}",), cpus=str(n), state=nri.CONTAINER_RUNNING)
        for n in range(count)
    ]


def _plain(count: int) -> list[nri.Container]:
    return [container(f"s-{n}", f"plain-{n}", state=nri.CONTAINER_RUNNING) for n in range(count)]


def bench() -> Iterator[Row]:
    """Medians of Prepare and of Unprepare, and memory before and after."""
    cases = {
        "empty": (0, _plain(_OTHERS)),
        "claims": (_CLAIMS, [*_claimed(_CLAIMS), *_plain(_OTHERS)]),
        "empty, shared": (0, _plain(_CLAIMS)),
        "claims, shared": (_CLAIMS, _plain(_CLAIMS)),
    }
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="dra-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        store = Store(folder / "store")
        for number in range(_CLAIMS + 1):
            store.put(_claim(number))
        calls = {
            case: stack.enter_context(_driver(folder / str(n), held, containers))
            for n, (case, (held, containers)) in enumerate(cases.items())
        }
        took: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        memory = {case: psutil.Process(pid).memory_info().rss / _MIB for case, (_, pid) in calls.items()}
        for _ in range(_ROUNDS):
            for case, (once, _) in calls.items():
                took[case].append(once())
        after = {case: psutil.Process(pid).memory_info().rss / _MIB for case, (_, pid) in calls.items()}
    median = {
        case: [statistics.median(each[at] for each in pairs) * 1e6 for at in (0, 1)] for case, pairs in took.items()
    }
    for suffix, which in (("", "a container each"), (", shared", f"{_CLAIMS:,} shared containers")):
        for at, call in enumerate(("Prepare", "Unprepare")):
            value, floor = median[f"claims{suffix}"][at], median[f"empty{suffix}"][at]
            yield Row(
                f"{call}, pinned, {_CLAIMS:,} claims and {which}", value, "us", floor, "empty ledger", "at most 1.10",
                value <= 1.1 * floor,
            )  # fmt: skip
        case = f"claims{suffix}"
        yield Row(f"RSS after {_ROUNDS} more of each", after[case], "MiB", memory[case], "before")
