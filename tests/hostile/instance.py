"""One instance of the driver: a process, started by exec or forked by a zygote, and kubelet's connection to it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.driver.kubelet.sockets import socket_paths
from tests.hostile.book import RESERVED
from tests.hostile.kubelet import DriverConnection
from tests.hostile.zygote import ForkedProcess, zygote

DRIVER: Final = "dra.cpu"
# How long an answer takes that was sent before the driver was killed.
_ARRIVES: Final = 0.01
_LAUNCH: Final = Path(__file__).with_name("launch.py")


@dataclass
class Instance:
    """A running instance of the driver."""

    process: subprocess.Popen[bytes] | ForkedProcess
    connection: DriverConnection

    def close_at_end(self) -> None:
        """Close the connection once the process has ended, so that a call ends too."""
        self.process.wait()
        # An answer that is on its way arrives.
        time.sleep(_ARRIVES)
        self.connection.close()


def start(folder: Path, name: str, before: Sequence[str] = ()) -> Instance:
    """Start an instance by exec, with something before its command."""
    command = [*before, sys.executable, str(_LAUNCH), *_arguments(name)]
    with (folder / "log").open("ab") as log:
        return _connected(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log), folder, name)


def fork(folder: Path, name: str) -> Instance:
    """Have an instance forked."""
    return _connected(zygote().fork(folder, _arguments(name)), folder, name)


def _arguments(name: str) -> list[str]:
    return [
        "clock", "serve", "--machine", "machine", "--node-name", "node", "--http-address", "none", "--store", "store",
        "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "nri.sock", "--reserved-cpus", str(RESERVED),
        "--pod-uid", name,
    ]  # fmt: skip


def _connected(process: subprocess.Popen[bytes] | ForkedProcess, folder: Path, name: str) -> Instance:
    return Instance(process, DriverConnection(socket_paths(folder / "kubelet", DRIVER, name).dra))
