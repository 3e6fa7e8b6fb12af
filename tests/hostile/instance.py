"""One instance of the driver: a process, started by exec or forked by a zygote, and kubelet's connection to it."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.driver.kubelet.sockets import socket_paths
from tests.fakes.waiting import PATIENCE, eventually
from tests.hostile.book import RESERVED
from tests.hostile.kubelet import DriverConnection
from tests.hostile.zygote import ForkedProcess, zygote

DRIVER: Final = "dra.cpu"
# How long to wait for an answer that was sent before the driver was killed.
_ARRIVES: Final = 0.01
_LAUNCH: Final = Path(__file__).with_name("launch.py")


@dataclass
class Instance:
    """A running instance of the driver."""

    process: subprocess.Popen[bytes] | ForkedProcess
    connection: DriverConnection
    tracing: subprocess.Popen[bytes] | None = None

    def wait(self) -> int:
        """Wait until it has exited and its whole trace is written; return its exit status."""
        status = self.process.wait(PATIENCE)
        if self.tracing is not None:
            self.tracing.wait(PATIENCE)
        return status

    def close_at_end(self) -> None:
        """Close the connection once the process has exited, so that a pending call ends."""
        self.process.wait()
        # Let an answer arrive that was already sent.
        time.sleep(_ARRIVES)
        self.connection.close()


def start(folder: Path, name: str) -> Instance:
    """Start an instance by exec."""
    command = [sys.executable, str(_LAUNCH), *_arguments(name)]
    with (folder / "log").open("ab") as log:
        return _connected(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log), folder, name)


def fork(folder: Path, name: str) -> Instance:
    """Start an instance by forking the zygote."""
    return _connected(zygote().fork(folder, _arguments(name)), folder, name)


def trace(folder: Path, name: str, tracer: Sequence[str]) -> Instance:
    """Fork an instance that `tracer`, an strace command, traces from its command line on."""
    process = zygote().fork(folder, _arguments(name), stopped=True)
    state = Path(f"/proc/{process.pid}/status")
    eventually(lambda: "State:\tT" in state.read_text())
    with (folder / "log").open("ab") as log:
        tracing = subprocess.Popen([*tracer, "-p", str(process.pid)], cwd=folder, stdout=log, stderr=log)
    eventually(lambda: "TracerPid:\t0\n" not in state.read_text())
    process.resume()
    instance = _connected(process, folder, name)
    instance.tracing = tracing
    return instance


def _arguments(name: str) -> list[str]:
    return [
        "clock", "serve", "--machine", "machine", "--node-name", "node", "--http-address", "none", "--store", "store",
        "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "nri.sock", "--reserved-cpus", str(RESERVED),
        "--pod-uid", name,
    ]  # fmt: skip


def _connected(process: subprocess.Popen[bytes] | ForkedProcess, folder: Path, name: str) -> Instance:
    return Instance(process, DriverConnection(socket_paths(folder / "kubelet", DRIVER, name).dra))
