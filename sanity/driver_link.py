"""The way to a driver under test: its sockets and its process, as kubelet and a node have them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

import psutil

from dranode.api.errors import DranodeError, UsageError
from dranode.sanity.breach import Breach, Unable, expect
from dranode.sanity.kubelet import DRA_SERVICES, NOTIFY_SECONDS, DriverCallError, DriverInfo, SocketClient

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.02
# The grace period of a pod.
_GRACE: Final = 30.0
# How long to wait for something that did not happen the last time.
_AGAIN_SECONDS: Final = 5.0
_MISSES: Final = 3
_LOG_BYTES: Final = 4000


@dataclass(frozen=True)
class BenchPlaces:
    """The places of a driver's files.

    Attributes:
        socket: the DRA service's socket; empty if GetInfo reports it.
        registration: the registration socket, or the folder in which it appears; None if there is none.
        cdi: the folder of CDI specs; None if the suite cannot see it.
        node: the node's name.
        data: the folder for plugins' data; None if the suite does not choose it.
    """

    socket: str
    registration: Path | None
    cdi: Path | None
    node: str
    data: Path | None = None


@dataclass
class DriverLink:
    """The connection to a driver.

    Attributes:
        places: the paths.
        process: the driver, if the suite has started it.
        patience: how long to wait, in seconds, for something that must happen.
        quiet: how long to watch, in seconds, for something that must not happen.
    """

    places: BenchPlaces
    process: DriverProcess | None = None
    patience: float = 60.0
    quiet: float = 5.0
    _info: DriverInfo | None = None
    _clients: list[SocketClient] = field(default_factory=list)
    _plugin: SocketClient | None = None
    _missed: set[str] = field(default_factory=set)
    _misses: Counter[str] = field(default_factory=Counter)

    @property
    def driver(self) -> str:
        """Return the driver's name."""
        return self.info.name

    @property
    def info(self) -> DriverInfo:
        """Return the driver's first answer to GetInfo."""
        if self._info is None:
            self.connect()
        if self._info is None:
            raise Unable("the driver's registration socket is unknown; pass --registration-socket")
        return self._info

    @property
    def version(self) -> str:
        """Return the version of the DRA service that kubelet would choose."""
        versions = self._info.versions if self._info else tuple(DRA_SERVICES)
        known = next((version for version in versions if version in DRA_SERVICES), None)
        return known or next(iter(DRA_SERVICES))

    def connect(self) -> None:
        """Wait until the driver answers, register it as kubelet does, and connect to its service.

        Raises:
            Breach: it does not answer.
        """
        self.disconnect()
        if self.places.registration is not None:
            socket = self.registration_socket()
            with self.registrar(socket) as client:
                try:
                    self._info = client.get_info(NOTIFY_SECONDS)
                except DriverCallError as error:
                    remedy = "serve pluginregistration.Registration at the socket"
                    raise Breach(f"GetInfo failed: {error}", remedy) from error
                # registration-notified reports a failure. The other checks do not depend on it.
                with contextlib.suppress(DriverCallError):
                    client.notify(registered=True)
        self._plugin = SocketClient(self.endpoint())
        self._clients.append(self._plugin)
        self._wait_for_service(self._plugin)

    def endpoint(self) -> str:
        """Return the path of the DRA service's socket."""
        if self._info is None:
            return self.places.socket
        return self._info.endpoint or str(self.registration_socket())

    def registration_socket(self) -> Path:
        """Return the registration socket, as soon as one answers.

        Raises:
            Unable: the suite does not know where it should be.
            Breach: none appears.
        """
        answering = self.awaited("a socket", lambda: self._ended() or next(iter(self.registration_sockets()), None))
        if not isinstance(answering, Path):
            tail = self.process.log()[-600:] if self.process else ""
            log = f"; its log ends: {tail}" if tail else "; its log is empty" if self.process else ""
            where = f"no registration socket answers at {self.places.registration}"
            if answering:
                remedy = "keep the command running in the foreground"
                raise Breach(f"{where}, and {answering}{log}", f"read the log; {remedy}" if tail else remedy)
            raise Breach(
                f"{where}{self._problems()}{log}",
                "create <registry folder>/<driver>-reg.sock and serve pluginregistration.Registration there",
            )
        return answering

    def registration_sockets(self) -> list[Path]:
        """Return the registration sockets that answer, oldest first.

        Raises:
            Unable: the suite does not know where they should be.
        """
        return [path for path in self.listed_sockets() if not self._problem(path)]

    def listed_sockets(self) -> list[Path]:
        """Return the sockets that kubelet would try, oldest first, whether they answer or not.

        Raises:
            Unable: the suite does not know where they should be.
        """
        place = self.places.registration
        if place is None:
            raise Unable("the registration socket is unknown; pass --registration-socket")
        paths = sorted(place.glob("*"), key=_birth) if place.is_dir() else [place]
        return [path for path in paths if path.is_socket() and path.name[:1] != "."]

    def _problem(self, path: Path) -> str:
        """Return why a registration socket does not answer; empty if it does."""
        with self.registrar(path) as client:
            try:
                client.get_info()
            except DriverCallError as error:
                return str(error)
        return ""

    def _problems(self) -> str:
        """Return the outcome of GetInfo for each existing socket."""
        return "".join(f"; GetInfo at {path.name} failed: {self._problem(path)}" for path in self.listed_sockets())

    @contextlib.contextmanager
    def registrar(self, socket: Path | None = None) -> Iterator[SocketClient]:
        """Return a new connection to a registration socket, as kubelet makes one for each registration."""
        client = SocketClient(str(socket or self.registration_socket()))
        try:
            yield client
        finally:
            client.close()

    @property
    def plugin(self) -> SocketClient:
        """Return the connection to the DRA service."""
        if self._plugin is None:
            self.connect()
        if self._plugin is None:
            raise Unable("the driver's service is unknown")
        return self._plugin

    def another_connection(self, endpoint: str | None = None, authority: str | None = None) -> SocketClient:
        """Return another connection to a DRA service, which is closed at the end of the check."""
        client = SocketClient(endpoint or self.endpoint(), authority)
        self._clients.append(client)
        return client

    def disconnect(self) -> None:
        """Close every connection, as a kubelet that restarts does."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._plugin = None

    def started(self) -> DriverProcess:
        """Return the driver that the suite has started.

        Raises:
            Unable: somebody else has started it.
        """
        if self.process is None:
            raise Unable("the suite did not start the driver; give its command after --")
        return self.process

    def restart(self, between: Callable[[], object] = lambda: None) -> None:
        """Kill the driver, call a function, start the driver again, and wait until it answers."""
        process = self.started()
        self.disconnect()
        process.kill()
        between()
        process.start()
        self.connect()

    def see_it_answers(self) -> None:
        """Check that the driver runs and answers; start it if need be.

        Raises:
            Breach: it does not answer.
            DranodeError: it cannot be started.
        """
        if self.process is None and not self._listens():
            self.disconnect()
        if self.process is not None and (self._plugin is None or self.process.exited() is not None):
            self.disconnect()
            self.process.kill()
            self.process.start()
        if self._plugin is None:
            self.connect()

    def start_afresh(self) -> None:
        """Start the driver with an empty folder, as on a new node; the old content is kept beside it.

        Raises:
            Unable: the suite does not know its folder.
            Breach: it still does not answer.
            DranodeError: it cannot be started, or its folder cannot be moved.
        """
        process, data = self.started(), self.places.data
        if data is None:
            raise Unable("the driver's folder is unknown")
        self.disconnect()
        process.kill()
        try:
            kept = next(path for n in itertools.count(1) if not (path := data.with_name(f"{data.name}-{n}")).exists())
            data.rename(kept)
            data.mkdir()
        except OSError as error:
            raise DranodeError(f"{data} cannot be moved away: {error.strerror}") from error
        process.start()
        self.connect()

    def ended_unasked(self) -> str:
        """Return that the driver has ended by itself, with its status; empty if it has not."""
        if self._plugin is None or self.process is None:
            return ""
        # A process that is about to end closes its sockets first.
        if not self._listens():
            self.eventually(self._ended, _AGAIN_SECONDS)
        return self._ended()

    def _listens(self) -> bool:
        """Return whether a process listens at the service's socket, if its path is known."""
        path = self._info.endpoint if self._info else self.places.socket
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError, ValueError):
            client.connect(path)
            return True
        return not path

    def _ended(self) -> str:
        """Return that the driver has ended, with its status; empty if it runs, or somebody else has started it."""
        status = None if self.process is None else self.process.exited()
        if status is None:
            return ""
        how = f"status {status}" if status >= 0 else f"signal {-status} ({signal.strsignal(-status)})"
        return f"the driver ended with {how}"

    def eventually(self, holds: Callable[[], T], seconds: float | None = None) -> T:
        """Return the result of `holds` as soon as it is true, or the last one after the bench's patience.

        A driver that has ended is not waited for.
        """
        ends = time.monotonic() + (self.patience if seconds is None else seconds)
        while not (seen := holds()) and time.monotonic() < ends and not self._ended():
            time.sleep(_LOOK_SECONDS)
        return seen

    def awaited(self, what: str, holds: Callable[[], T], again: float = _AGAIN_SECONDS) -> T:
        """Wait like `eventually`, but no longer than `again` for what did not come the last time, or three times.

        A run has to end, also if the driver comes back whenever it is started and hangs soon afterwards.
        """
        short = what in self._missed or self._misses[what] >= _MISSES
        seen = self.eventually(holds, min(self.patience, again) if short else None)
        (self._missed.discard if seen else self._missed.add)(what)
        self._misses[what] += not seen and not short
        return seen

    def terminate(self) -> int | None:
        """Send SIGTERM; returns the exit status, or None if the driver still runs after a pod's grace period."""
        seconds = _AGAIN_SECONDS if "the end" in self._missed else _GRACE
        status = self.started().terminate(min(seconds, self.patience))
        if status is None:
            self._missed.add("the end")
        return status

    def wait(self, seconds: float) -> None:
        """Wait, so that something can happen."""
        time.sleep(seconds)

    def _wait_for_service(self, plugin: SocketClient) -> None:
        """Wait until the service can be reached; checks look at the answers, and report those that do not come."""

        def reached() -> bool:
            try:
                plugin.prepare(self.version, (), NOTIFY_SECONDS)
            except DriverCallError as error:
                return error.code != "UNAVAILABLE"
            return True

        expect(
            self.awaited("the service", reached),
            f"the DRA service at {self.endpoint()} cannot be reached",
            "listen at the endpoint that GetInfo names before the registration socket appears",
        )


def _birth(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except FileNotFoundError:
        return 0.0, path.name


# A driver that the suite starts and kills by a command line.


# The UID of the first instance's pod.
_FIRST: Final = "a0000000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class ProcessUsage:
    """The resources that a driver and its children use.

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
    """A driver that can be started and stopped; `instance` stands for its pod's UID."""

    @property
    def rolling(self) -> bool:
        """Return whether two instances can run beside each other."""

    def start(self, instance: str = "") -> None:
        """Start an instance."""

    def kill(self, instance: str = "") -> None:
        """Kill it, as SIGKILL does, and wait until it is gone."""

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        """Send SIGTERM; returns its exit status, or None if it still runs after the given time."""

    def exited(self, instance: str = "") -> int | None:
        """Return its exit status; None if it runs or was never started."""

    def usage(self, instance: str = "") -> ProcessUsage | None:
        """Return what it uses now; None if that is not known."""

    def log(self) -> str:
        """Return the last lines of its log."""


class CommandDriver:
    """A driver that is started by a command line, in which names in braces are replaced.

    Attributes:
        command: program and arguments.
        places: the value of each name in braces; `pod_uid` is the instance.
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
        """Kill it and its children."""
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
        # A shell that started the driver does not pass the signal on.
        self.kill(instance)
        return status

    def exited(self, instance: str = "") -> int | None:
        """Return its exit status, if it has ended by itself."""
        process = self._running.get(instance)
        return None if process is None else process.poll()

    def usage(self, instance: str = "") -> ProcessUsage | None:
        """Return what it uses now according to /proc; None if it has ended or /proc does not say."""
        process = self._running.get(instance)
        if process is None:
            return None
        try:
            first = psutil.Process(process.pid)
            tree = [first, *first.children(recursive=True)]
            living = [member for member in tree if member.status() != psutil.STATUS_ZOMBIE]
            return ProcessUsage(
                cpu=sum(sum(member.cpu_times()[:2]) for member in living),
                descriptors=sum(member.num_fds() for member in living),
                threads=sum(member.num_threads() for member in living),
                resident=sum(member.memory_info().rss for member in living),
                zombies=len(tree) - len(living),
            )
        except psutil.Error:
            return None

    def log(self) -> str:
        """Return the last lines of its log."""
        try:
            with (self._folder / "driver.log").open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
                return log.read(_LOG_BYTES).decode(errors="replace")
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
