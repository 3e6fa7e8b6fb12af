"""Prepare of one claim, from the client's call to its answer, beside what it cannot do without.

The floor is the sum of a bare gRPC echo, one durable SQLite commit and one small-file rename, measured in turn with
the real thing, so that a machine whose speed drifts drifts for both.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from dranode.api.documents import decode
from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.plugins import load_plugins
from dranode.driver.serve.service import DriverService
from dranode.proto import dra_v1_pb2 as api
from dranode.proto import drahealth_v1_pb2 as health
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub, add_DRAPluginServicer_to_server
from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub
from dranode.sim.machines.forms import open_machine
from tests.bench.table import Row
from tests.fakes.cluster import MemoryCluster

_ROUNDS = 300
_BODY = b"x" * 600


class _Made(MemoryCluster):
    """Claims made up on demand: claim number n wants CPU n of the machine."""

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        return {ref: _claim(ref) for ref in refs}


def _claim(ref: ClaimRef) -> ResourceClaim:
    cpu = ref.name.removeprefix("claim-")
    result = {
        "request": "r",
        "driver": "dra.cpu",
        "pool": "node",
        "device": "cpudevmachine",
        "consumedCapacity": {"dra.cpu/cpu": "1"},
        "shareID": f"00000000-0000-0000-0000-{int(cpu):012d}",
    }
    config = {"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": {"cpuset": cpu}}}
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": ref.name, "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": [result], "config": [config]}}},
        },
    )


def _ref(number: int) -> ClaimRef:
    return ClaimRef("default", f"claim-{number}", f"7f0c1f0e-0000-4000-8000-{number:012d}")


def _request(number: int) -> Any:
    ref = _ref(number)
    return api.NodePrepareResourcesRequest(claims=[api.Claim(namespace="default", name=ref.name, uid=ref.uid)])


@contextlib.contextmanager
def _driver(folder: Path, machine: str, *, held: int = 0, streams: int = 0) -> Iterator[Callable[[int], None]]:
    """A driver with claims on record and health streams open; the callable prepares one more claim by its number."""
    (folder / "plugins_registry").mkdir(parents=True)
    (plugin,) = load_plugins(["cpu"], open_machine(machine), {"cpu_device_mode": "grouped", "group_by": "machine"})
    made = _Made()
    driver = DriverService(
        plugin,
        made,
        Listener(plugin.driver, "node", socket_paths(folder, plugin.driver), folder / "plugins" / plugin.driver, print),
        cdi=folder / "cdi",
    )
    driver.start()
    for start in range(0, held, 500):
        refs = [_ref(number) for number in range(start, min(start + 500, held))]
        answers = driver.node.prepare({ref: _claim(ref) for ref in refs})
        if not all(isinstance(answer, Prepared) for answer in answers.values()):
            raise RuntimeError(f"the benchmark's own claims are refused: {next(iter(answers.values()))}")
    with grpc.insecure_channel(f"unix:{socket_paths(folder, plugin.driver).dra}") as channel:
        prepare = DRAPluginStub(channel).NodePrepareResources
        watch = DRAResourceHealthStub(channel).NodeWatchResources
        open_streams = [watch(health.NodeWatchResourcesRequest()) for _ in range(streams)]
        for stream in open_streams:
            next(stream)

        def once(number: int) -> None:
            request = _request(number)
            answer = prepare(request, timeout=10).claims[_ref(number).uid]
            if answer.error or not answer.devices:
                raise RuntimeError(answer.error)

        yield once
        for stream in open_streams:
            stream.cancel()
    driver.stop()


@contextlib.contextmanager
def echo(folder: Path) -> Iterator[Callable[[int], None]]:
    """The same call and answer through gRPC, with nothing behind it."""
    device = api.Device(request_names=["r"], pool_name="node", device_name="cpudevmachine", cdi_device_ids=["k/c=d"])

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        del context
        uid = request.claims[0].uid
        return api.NodePrepareResourcesResponse(claims={uid: api.NodePrepareResourceResponse(devices=[device])})

    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_DRAPluginServicer_to_server(SimpleNamespace(NodePrepareResources=answer, NodeUnprepareResources=answer), server)
    server.add_insecure_port(f"unix:{folder}/echo.sock")
    server.start()
    with grpc.insecure_channel(f"unix:{folder}/echo.sock") as channel:
        prepare = DRAPluginStub(channel).NodePrepareResources
        yield lambda number: prepare(_request(number), timeout=10) and None
    server.stop(1)


@contextlib.contextmanager
def commit(folder: Path, rows: int) -> Iterator[Callable[[int], None]]:
    """One durable SQLite commit of a row, among `rows` others."""
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (uid TEXT PRIMARY KEY, body BLOB)")
    with db:
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?)", ((_ref(n).uid, _BODY) for n in range(rows)))

    def once(number: int) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (_ref(number).uid, _BODY))
        db.execute("COMMIT")

    yield once
    db.close()


def rename(folder: Path) -> Callable[[int], None]:
    """One small file written and renamed, not flushed."""

    def once(number: int) -> None:
        temporary = folder / "spec.tmp"
        temporary.write_bytes(_BODY[:200])
        temporary.replace(folder / f"{number}.json")

    return once


def _turns(calls: Mapping[str, Callable[[int], None]], first: int) -> dict[str, float]:
    """The median seconds of each call, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(first, first + _ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            call(number)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken[_ROUNDS // 10 :]) for name, taken in times.items()}


def bench() -> Iterator[Row]:
    """Prepare of one claim: on an empty driver, and with 10,000 claims on record."""
    held = 10_000
    machine = "sockets=8,numa=2,l3=16,cores=32,threads=2"
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for part in ("empty", "full", "watched", "echo", "commit", "commit-full", "rename"):
            (folder / part).mkdir()
        took = _turns(
            {
                "empty": stack.enter_context(_driver(folder / "empty", machine)),
                "full": stack.enter_context(_driver(folder / "full", machine, held=held)),
                "watched": stack.enter_context(_driver(folder / "watched", machine, streams=8)),
                "echo": stack.enter_context(echo(folder / "echo")),
                "commit": stack.enter_context(commit(folder / "commit", 0)),
                "commit-full": stack.enter_context(commit(folder / "commit-full", held)),
                "rename": rename(folder / "rename"),
            },
            first=held,
        )
    took = {name: seconds * 1e6 for name, seconds in took.items()}
    floor = took["echo"] + took["commit"] + took["rename"]
    yield Row("gRPC echo", took["echo"], "us")
    yield Row("durable SQLite commit", took["commit"], "us")
    yield Row("durable SQLite commit among 10,000 rows", took["commit-full"], "us")
    yield Row("small-file rename", took["rename"], "us")
    yield Row(
        "Prepare of one claim",
        took["empty"],
        "us",
        floor,
        "echo + commit + rename",
        "at most 2",
        took["empty"] <= 2 * floor,
    )
    growth = took["commit-full"] - took["commit"]
    yield Row(
        "Prepare with 10,000 claims on record",
        took["full"],
        "us",
        took["empty"] + max(growth, 0.0),
        "empty + growth of the commit",
        "at most 1.10",
        took["full"] <= 1.1 * (took["empty"] + max(growth, 0.0)),
    )
    yield Row(
        "Prepare with 8 health streams open",
        took["watched"],
        "us",
        took["empty"],
        "without streams",
        "unchanged (1.10)",
        took["watched"] <= 1.1 * took["empty"],
    )
