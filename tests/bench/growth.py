"""Ten thousand claims prepared and unprepared by one process: what memory and latency do meanwhile."""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import grpc
import psutil

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.store import Store
from dranode.proto import dra_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from tests.bench.table import Row

_CLAIMS = 10_000
_BLOCK = 1000
_MIB = 1 << 20
# Python's table of interned names, into which pathlib puts the parts of paths, doubles once and takes 0.9 MiB for it.
_ONCE_MIB = 1.25
# What remains of a thousand claims, most times: a leak of 50 bytes a claim would be 0.05 MiB.
_STEP_MIB = 0.04
_DRIVER = "dra.cpu"


def _claim(uid: str) -> ResourceClaim:
    result = {
        "request": "r",
        "driver": _DRIVER,
        "pool": "node",
        "device": "cpudevnuma000",
        "consumedCapacity": {"dra.cpu/cpu": "2"},
        "shareID": "00000000-0000-4000-8000-000000000000",
    }
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": "c", "uid": uid},
            "status": {"allocation": {"devices": {"results": [result]}}},
        },
    )


def _serve(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    program = Path(sys.executable).with_name("dranode")
    arguments = ["--machine", "sockets=1,numa=2,cores=8,threads=2", "--node-name", "node", "--nri-socket", "none"]
    places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--http-address", "127.0.0.1:0"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([program, "serve", *arguments, *places], cwd=folder, stderr=log)


def _flush(file: BinaryIO) -> float:
    """Seconds that one flushed write takes now: what the disk and everybody else on the machine leave of it."""
    began = time.perf_counter()
    file.write(b"x" * 600)
    os.fsync(file.fileno())
    return time.perf_counter() - began


def _one(prepare: Callable[..., Any], unprepare: Callable[..., Any], uid: str) -> float:
    """Prepare a claim and unprepare it; seconds of the first."""
    claims = [api.Claim(namespace="default", name="c", uid=uid)]
    began = time.perf_counter()
    answer = prepare(api.NodePrepareResourcesRequest(claims=claims), timeout=10).claims[uid]
    took = time.perf_counter() - began
    gone = unprepare(api.NodeUnprepareResourcesRequest(claims=claims), timeout=10).claims[uid]
    if answer.error or gone.error:
        raise RuntimeError(answer.error or gone.error)
    return took


def bench() -> Iterator[Row]:
    """Resident memory and median latency after each thousand, the last beside the second."""
    memory: list[float] = []
    latency: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name:
        folder = Path(name)
        store = Store(folder / "store")
        process = _serve(folder)
        try:
            socket = socket_paths(folder / "kubelet", _DRIVER).dra
            while not re.search("listening http", (folder / "log").read_text()):
                time.sleep(0.01)
            with grpc.insecure_channel(f"unix:{socket}") as channel, (folder / "floor").open("wb", 0) as file:
                prepare = DRAPluginStub(channel).NodePrepareResources
                unprepare = DRAPluginStub(channel).NodeUnprepareResources
                for start in range(0, _CLAIMS, _BLOCK):
                    took, flushed = [], []
                    for number in range(start, start + _BLOCK):
                        uid = f"7f0c1f0e-0000-4000-8000-{number:012d}"
                        store.put(_claim(uid))
                        took.append(_one(prepare, unprepare, uid))
                        flushed.append(_flush(file))
                    floor.append(statistics.median(flushed) * 1e6)
                    latency.append(statistics.median(took) * 1e6)
                    memory.append(psutil.Process(process.pid).memory_info().rss / _MIB)
        finally:
            process.terminate()
            process.wait(20)
    growth = memory[-1] - memory[1]
    step = statistics.median(after - before for before, after in itertools.pairwise(memory[1:]))
    yield Row("RSS after 2,000 claims", memory[1], "MiB")
    yield Row(
        f"growth from there to {_CLAIMS:,} claims", growth, "MiB", None, "", f"{_ONCE_MIB} MiB, once",
        growth <= _ONCE_MIB,
    )  # fmt: skip
    yield Row("growth with each thousand, median", step, "MiB", None, "", "none", step <= _STEP_MIB)
    # The machine may be slower or faster by then, for Prepare and for a flush alike.
    expected = latency[1] * floor[-1] / floor[1]
    yield Row("Prepare, median of the second thousand", latency[1], "us", floor[1], "one flushed write")
    yield Row(
        "Prepare, median of the last thousand", latency[-1], "us", expected, "second thousand x flushes' change",
        "at most 1.10", latency[-1] <= 1.1 * expected,
    )  # fmt: skip
