"""A driver that the suite starts, kills and starts again by a command line."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from dranode.api.errors import DranodeError, UsageError

# The UID of the first instance's pod.
_FIRST: Final = "a0000000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class ProcessUsage:
    """The resources that a driver uses, with all that it has started.

    Attributes:
        cpu: seconds of CPU time so far.
        descriptors: open file descriptors.
        threads: threads.
        resident: bytes of resident memory.
        zombies: processes that have ended and were not waited for.
    """

    cpu: float
    descriptors: int
    threads: int
    resident: int
    zombies: int


class DriverProcess(Protocol):
    """A driver that can be started and ended; `instance` stands for the UID of its pod."""

    @property
    def rolling(self) -> bool:
        """Return whether two instances can run beside each other."""

    def start(self, instance: str = "") -> None:
        """Start an instance."""

    def kill(self, instance: str = "") -> None:
        """End it at once, as SIGKILL does, and wait until it is gone."""

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        """Ask it to end, as SIGTERM does; return its exit status, or None if it still runs after so long."""

    def exited(self, instance: str = "") -> int | None:
        """Its exit status, or None if it runs or was never started."""

    def usage(self, instance: str = "") -> ProcessUsage | None:
        """Return what it uses now; None if that cannot be seen."""

    def log(self) -> str:
        """The last lines that it wrote."""


class CommandDriver:
    """A driver by its command line, in which names in braces are replaced.

    Attributes:
        command: program and arguments.
        places: what each name in braces stands for; `pod_uid` is the instance.
    """

    def __init__(self, command: Sequence[str], places: Mapping[str, str], folder: Path) -> None:
        self._command = tuple(command)
        self._places = dict(places)
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        known = {*places, "pod_uid"}
        for argument in command:
            for name in _names(argument):
                if name not in known:
                    raise UsageError(f'"{{{name}}}" in the command is unknown; known names are {_braced(known)}')

    @property
    def rolling(self) -> bool:
        """Return whether the command names the pod's UID."""
        return any("{pod_uid}" in argument for argument in self._command)

    def start(self, instance: str = "") -> None:
        """Start it.

        Raises:
            DranodeError: the program cannot be run.
        """
        places = {**self._places, "pod_uid": instance or _FIRST}
        command = [_filled(argument, places) for argument in self._command]
        environment = {"KUBECONFIG": places["kubeconfig"], "NODE_NAME": places["node"], "POD_UID": places["pod_uid"]}
        with (self._folder / "driver.log").open("ab") as log:
            try:
                self._running[instance] = subprocess.Popen(  # noqa: S603 - the user names the command
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, **environment},
                )  # fmt: skip
            except OSError as error:
                raise DranodeError(f"the driver {command[0]} cannot be started: {error.strerror}") from error

    def kill(self, instance: str = "") -> None:
        """End it at once, with all that it started."""
        if (process := self._running.pop(instance, None)) is not None:
            _signal(process, signal.SIGKILL)
            process.wait()

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        """Ask it to end."""
        process = self._running.get(instance)
        if process is None:
            return None
        process.terminate()
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        del self._running[instance]
        return status

    def exited(self, instance: str = "") -> int | None:
        """Its exit status, if it has ended by itself."""
        process = self._running.get(instance)
        return None if process is None else process.poll()

    def usage(self, instance: str = "") -> ProcessUsage | None:
        """Return what it uses now, by the kernel; None if it has ended or the kernel does not say."""
        process = self._running.get(instance)
        if process is None:
            return None
        try:
            first = psutil.Process(process.pid)
            tree = [first, *first.children(recursive=True)]
            living = [each for each in tree if each.status() != psutil.STATUS_ZOMBIE]
            return ProcessUsage(
                cpu=sum(sum(each.cpu_times()[:2]) for each in living),
                descriptors=sum(each.num_fds() for each in living),
                threads=sum(each.num_threads() for each in living),
                resident=sum(each.memory_info().rss for each in living),
                zombies=len(tree) - len(living),
            )
        except psutil.Error:
            return None

    def log(self) -> str:
        """The last lines that it wrote."""
        try:
            return (self._folder / "driver.log").read_text(errors="replace")[-4000:]
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """End every instance."""
        for instance in tuple(self._running):
            self.kill(instance)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        process.send_signal(number)


def _names(argument: str) -> list[str]:
    parts = argument.split("{")[1:]
    return [part.partition("}")[0] for part in parts if "}" in part and part.partition("}")[0].isidentifier()]


def _filled(argument: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def _braced(names: set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
