"""The serving process: memory at rest, and how soon it answers after exec."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil

from dranode.driver.kubelet.sockets import socket_paths
from dranode.proto import pluginregistration_v1_pb2 as api
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub
from tests.bench.compiled import compile_all, environment
from tests.bench.table import Row

_STARTS = 7
_MIB = 1 << 20
_MAX_MIB = 50
_MAX_MS = 150


@contextlib.contextmanager
def _serving(folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    program = Path(sys.executable).with_name("dranode")
    arguments = [
        "serve",
        "--store",
        "store",
        "--kubelet-root",
        "kubelet",
        "--cdi-dir",
        "cdi",
        "--http-address",
        "none",
        *more,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], cwd=folder, stderr=log, env=environment(NODE_NAME="node"))
        yield process
        process.terminate()
        process.wait(20)


def _get_info(socket: Path) -> None:
    """Ask until there is an answer, as often as a fresh channel allows."""
    while not socket.is_socket():
        time.sleep(0.001)
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        RegistrationStub(channel).GetInfo(api.InfoRequest(), timeout=10, wait_for_ready=True)


def _bare(code: str) -> tuple[float, float]:
    """Milliseconds and MiB of a Python that runs `code`."""
    began = time.perf_counter()
    script = f"{code}\nprint(open('/proc/self/statm').read())"
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment()
    ).stdout
    took = (time.perf_counter() - began) * 1000
    return took, int(printed.split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB


def _at_rest(process: subprocess.Popen[bytes]) -> float:
    time.sleep(0.5)
    return psutil.Process(process.pid).memory_info().rss / _MIB


def bench() -> Iterator[Row]:
    """`serve` without Kubernetes edges, with and without pinning, beside a Python that only imports gRPC."""
    compile_all()
    answers, pinning, memory, floors = [], [], [], []
    for _ in range(_STARTS):
        floors.append(_bare("import grpc"))
        with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name:
            folder = Path(name)
            began = time.perf_counter()
            with _serving(folder) as process:
                _get_info(socket_paths(folder / "kubelet", "dra.cpu").registration)
                answers.append((time.perf_counter() - began) * 1000)
                pinning.append(_at_rest(process))
        with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name:
            folder = Path(name)
            with _serving(folder, "--nri-socket", "none") as process:
                _get_info(socket_paths(folder / "kubelet", "dra.cpu").registration)
                memory.append(_at_rest(process))
    took, rss, pins = statistics.median(answers), statistics.median(memory), statistics.median(pinning)
    ms, mib = (statistics.median(column) for column in zip(*floors, strict=True))
    bare = "python -c 'import grpc'"
    yield Row("from exec to GetInfo's answer", took, "ms", ms, bare, "150 ms", took <= _MAX_MS)
    yield Row("serve at rest, without pinning", rss, "MiB", mib, bare, "under 50 MiB", rss < _MAX_MIB)
    yield Row("serve at rest, pinning", pins, "MiB", mib, bare)
