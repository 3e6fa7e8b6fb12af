"""Forks drivers from a process that has their modules loaded, since loading them is most of a start's cost.

A forked driver is a process of its own, with its own sockets, files and exit. From its command line on it does what a
program started by exec does. `python zygote.py FD` is the process that forks them. The socket FD takes requests to
start a driver (`{"folder": ..., "arguments": [...], "stopped": false}`, answered with the process ID), and to wait for
one that has exited (`{"ended": ...}`, answered with waitpid's status).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

# Modules that a driver on a made-up machine loads sooner or later.
PACKAGES: Final = tuple(
    f"dranode.{name}"
    for name in (
        "api",
        "cdi",
        "cpu",
        "driver.claims",
        "driver.pinning",
        "driver.slices",
        "driver.nri",
        "driver.node",
        "driver.serve",
    )
)
MODULES: Final = (
    "dranode.driver.cli.serve", "dranode.driver.local.cluster",
    "dranode.sim.machines.synthetic", "dranode.driver.machine.folder_events",
    "dranode.driver.kubelet.service", "dranode.driver.kubelet.podresources", "dranode.driver.kubelet.health",
)  # fmt: skip
_MESSAGE: Final = 1 << 16
# prctl(2): where Yama permits tracing by ancestors only, -1 permits every process.
_PR_SET_PTRACER: Final = 0x59616D61


class ForkedProcess:
    """A process forked by a zygote, with the interface of `subprocess.Popen`.

    Attributes:
        pid: its ID, which is not reused before its status was read.
        returncode: its exit status, negative for a signal; None while it runs.
    """

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._zygote = zygote
        self._descriptor = os.pidfd_open(pid)
        self._lock = threading.Lock()
        # Threads that wait for its exit use the descriptor until they are done.
        weakref.finalize(self, os.close, self._descriptor)

    def poll(self) -> int | None:
        """Check whether it has exited."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has exited.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(["a forked driver"], timeout or 0.0)
        return status

    def kill(self) -> None:
        """Send it SIGKILL if it runs."""
        self._send(signal.SIGKILL)

    def resume(self) -> None:
        """Send it SIGCONT if it runs."""
        self._send(signal.SIGCONT)

    def terminate(self) -> None:
        """Send it SIGTERM if it runs."""
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            end = select.poll()
            end.register(self._descriptor, select.POLLIN)
            if end.poll(None if seconds is None else seconds * 1000):
                with self._lock:
                    self._take_status()
        return self.returncode

    def _take_status(self) -> None:
        # Another thread may have read the status meanwhile.
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(self._zygote.ask({"ended": self.pid}))


class Zygote:
    """The process that forks drivers, from the side of the process that uses it."""

    def __init__(self) -> None:
        """Start it; it exits with this process, or when it is closed."""
        self._lock = threading.Lock()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(its.fileno())]
        root = Path(__file__).parents[2]
        # A process group of its own, so that Ctrl-C reaches only this process.
        self._process = subprocess.Popen(command, cwd=root, pass_fds=[its.fileno()], process_group=0)
        its.close()

    def fork(self, folder: Path, arguments: Sequence[str], *, stopped: bool = False) -> ForkedProcess:
        """Fork a driver that runs in a folder and appends its output to `log` there.

        A `stopped` driver does nothing until SIGCONT, and lets every process trace it.
        """
        asked = {"folder": str(folder), "arguments": list(arguments), "stopped": stopped}
        return ForkedProcess(self, self.ask(asked))

    def ask(self, question: Any) -> int:
        """Send a question and return the answer."""
        with self._lock:
            self._socket.sendall(json.dumps(question).encode())
            return int(self._socket.recv(_MESSAGE))

    def close(self) -> None:
        """Stop it."""
        self._socket.close()
        self._process.wait()


@cache
def zygote() -> Zygote:
    """Return this process's zygote."""
    made = Zygote()
    atexit.register(made.close)
    return made


def _load() -> None:
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(asked: socket.socket) -> list[str]:
    """Answer until the other side has gone; in a forked process, return its command line."""
    while question := asked.recv(_MESSAGE):
        match json.loads(question):
            case {"ended": pid}:
                answer = os.waitpid(pid, 0)[1]
            case {"folder": folder, "arguments": arguments, "stopped": stopped}:
                if (answer := os.fork()) == 0:
                    asked.close()
                    os.chdir(folder)
                    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                    os.close(log)
                    if stopped:
                        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1))
                        os.kill(os.getpid(), signal.SIGSTOP)
                    return list(arguments)
        asked.sendall(str(answer).encode())
    return []


if __name__ == "__main__":
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    from tests.hostile import launch

    launch.set_up()
    _load()
    if command := _serve(socket.socket(fileno=int(sys.argv[1]))):
        launch.follow(Path(command[0]))
        sys.argv[1:] = command[1:]
        from dranode.driver.cli import main

        main()
