"""The thread that owns the connection to the container runtime's NRI socket.

It connects, registers, answers, sends unsolicited updates, and connects again whenever the connection ends. Every
connection begins with the runtime's whole state, so a lost connection costs only time.

An error in a decision ends neither the thread nor the connection, because without a connection containers would start
on every CPU. A request is answered with an error. Unsolicited work is tried again a second later. For an event that
could not be processed, a new connection is made once decisions succeed again, and the runtime lists everything.
"""

import contextlib
import logging
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, assert_never

from dranode.api.errors import DranodeError, in_words
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import (
    Configured,
    ContainerRemoved,
    ContainerStarted,
    CreateRequest,
    Notification,
    NRIEvent,
    NRIRequest,
    PluginAccepted,
    PodGone,
    RegistrationRefused,
    ShutdownAnnounced,
    StartRequest,
    StopRequest,
    SynchronizeRequest,
    UpdateRequest,
    UpdatesAnswered,
    about,
)
from dranode.driver.nri.session import Session
from dranode.driver.pinning.containers import ContainerUpdate
from dranode.driver.process.logs import operation
from dranode.driver.process.threads import Fatal, OwnedThread, Wake

log = logging.getLogger(__name__)


# Decides when to connect again. Containers that are created while no plug-in is connected run on every CPU, so the
# driver connects within 50 ms to a runtime that starts or restarts: an attempt without a listener disturbs nobody, and
# a runtime opens its socket shortly before it creates containers. Waiting times grow only for a socket that refused
# this plug-in, because a plug-in that connects stops all pod operations of the runtime for a moment.

_NO_LISTENER: Final = (FileNotFoundError, ConnectionRefusedError)
_POLL: Final = 0.05
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
# After a connection that was synchronized and lasted this long, in seconds, the next attempt comes soon.
_HEALTHY_AFTER: Final = 10.0
# How many different reasons are logged until a connection lasts again; a broken peer may send other garbage each time.
_REASONS: Final = 8


def delay(attempt: int, jitter: float) -> float:
    """Return the seconds to wait after so many failures in a row (from 1) at one runtime.

    They double up to a limit; `jitter`, from 0 to 1, reduces them by up to a half.
    """
    return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(attempt - 1, 32)) * (1 - jitter / 2)


class Attempts:
    """The attempts to connect to one socket, for the thread that makes them."""

    def __init__(self, path: str, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        """Start without attempts; `clock` and `jitter` are those of the client."""
        self._path, self._clock, self._jitter = path, clock, jitter
        self._failures = 0
        self._began = 0.0
        self._tried: tuple[int, int, int] | None = None
        self._logged: set[str] = set()

    def begin(self) -> None:
        """Note that an attempt is made now."""
        self._began = self._clock()
        self._tried = _identity(self._path)

    def failed(self, error: Exception, *, synchronized: bool) -> None:
        """Note that the connection could not be made or has ended; each reason is logged once.

        Args:
            error: the reason.
            synchronized: whether the runtime had listed its containers on the connection.
        """
        if synchronized and self._clock() - self._began >= _HEALTHY_AFTER:
            self._failures = 0
            self._logged.clear()
        # Without a listener nobody is disturbed by the next attempt, so it does not count as a failure.
        self._failures = 0 if isinstance(error, _NO_LISTENER) else self._failures + 1
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if reason not in self._logged and len(self._logged) < _REASONS:
            self._logged.add(reason)
            log.warning("nri=%s: no connection, trying again until there is one: %s", self._path, reason)

    def wait(self, wake: Wake, stopping: Callable[[], bool]) -> None:
        """Wait until the next attempt is due: after a while, or as soon as another runtime has opened the socket."""
        until = self._clock() + (delay(self._failures, self._jitter()) if self._failures else _POLL)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        while not stopping() and (left := until - self._clock()) > 0:
            if poll.poll(min(left, _POLL) * 1000):
                wake.clear()
            # A runtime that restarts makes a new socket file, so its inode or its change time differ.
            if _identity(self._path) not in (self._tried, None):
                self._failures = 0
                return


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what distinguishes a socket from the next one at its path; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twenty times a second; a Path costs more than the call
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


class Mistakes:
    """Keeps the thread alive after errors that no request can be answered with, and logs equal ones only once."""

    def __init__(self, driver: str) -> None:
        """Start without an error; `driver` is named in the log."""
        self._driver = driver
        self._last = ""

    @contextlib.contextmanager
    def survived(self, what: str) -> Iterator[None]:
        """Catch and log errors in the `with` block; `what` says in the log what did not happen because of them."""
        try:
            yield
        except Exception as error:
            mistake = f"{what}: {in_words(error)}"
            if mistake == self._last:
                return
            self._last = mistake
            if isinstance(error, DranodeError):
                log.warning("driver=%s: %s: %s", self._driver, what, error)
            else:
                log.exception("driver=%s: %s", self._driver, what)

    @property
    def made(self) -> bool:
        """Return whether there was an error since the last success."""
        return bool(self._last)

    def over(self) -> None:
        """Note a success, so that the next error is logged even if it is the same."""
        self._last = ""


# Runtimes call plug-ins in the order of these two digits.
_INDEX: Final = "00"
# How long the runtime may take to answer a call, in seconds; it handles one plug-in at a time, each for up to 5 s.
_ANSWER_WITHIN: Final = 15.0
# How long connecting and each send may take, in seconds.
_IO_WITHIN: Final = 5.0
# How often to check for unsolicited work, in seconds: while a container waits for something, and otherwise.
_TICK: Final = 1.0
_IDLE: Final = 5.0
# How long after a change of the records containers are compared, in seconds: calls come in bursts, and the runtime's
# own requests, whose answers carry updates as well, should come first.
_CALM: Final = 0.02


class DisconnectedError(DranodeError):
    """The connection has to be given up, for the reason in the text."""


class NRIClient:
    """The plug-in's connection to one container runtime, from `start` to `stop`."""

    def __init__(
        self,
        socket_path: str,
        enforcer: Enforcer,
        *,
        name: str,
        fatal: Fatal,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        answered: Callable[[str, float], None] = lambda _method, _seconds: None,
    ) -> None:
        """Set the client up; nothing is opened yet.

        Args:
            socket_path: the runtime's NRI socket; it need not exist yet.
            enforcer: decides the answers.
            name: the plug-in's name; letters, digits and `_.+-`.
            fatal: ends the process if the thread dies.
            clock: returns seconds, monotonic.
            jitter: returns a random number from 0 to 1.
            answered: called after every answer with the method and the seconds that it took.

        Raises:
            ValueError: no runtime would accept the name.
        """
        # The session checks the name, so that a wrong one ends the start and not the thread.
        Session(name, _INDEX)
        self._path = socket_path
        self._enforcer = enforcer
        self._name = name
        self._clock = clock
        self._attempts = Attempts(socket_path, clock, jitter)
        self._answered = answered
        self._thread = OwnedThread(f"nri-{name}", self._run, fatal)
        self._wake = Wake()
        self._stopping = False
        self._mistakes = Mistakes(name)
        # Whether an event could not be processed because of an error.
        self._missed = False
        self._session: Session | None = None
        # Since when no runtime has been connected; without meaning while one is.
        self._away_since = clock()

    @property
    def synchronized(self) -> bool:
        """Return whether a runtime is connected and its whole state was answered. From then on no event is missed."""
        session = self._session
        return session is not None and session.synchronized

    @property
    def away_seconds(self) -> float:
        """Return for how many seconds no runtime has been synchronized; 0 while one is."""
        return 0.0 if self.synchronized else self._clock() - self._away_since

    def start(self) -> None:
        """Start to connect, in the background and for as long as it takes."""
        self._away_since = self._clock()
        self._thread.start()

    def stop(self, patience: float = 5.0) -> None:
        """Disconnect, and wait for the thread; may be called without `start`, and more than once."""
        self._stopping = True
        self.notify()
        if self._thread.ident is not None:
            self._thread.join(patience)
        if not self._thread.is_alive():
            self._wake.close()

    def notify(self) -> None:
        """Check for unsolicited work now: the claims on record have changed, or drift was found."""
        self._wake.set()

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping:
            self._attempts.begin()
            synchronized = False
            try:
                with contextlib.closing(self._connect()) as sock:
                    session = self._session = Session(self._name, _INDEX)
                    self._missed = False
                    try:
                        self._serve(sock, session)
                    finally:
                        synchronized = session.synchronized
                        if synchronized:
                            self._away_since = self._clock()
                        self._session = None
                        # What is known of the containers stays until the next Synchronize: they keep running without
                        # us.
                        with self._mistakes.survived("the end of the connection was not noted"):
                            self._enforcer.disconnected()
            # Everything that can end a connection comes here: the socket's errors, bytes that are not NRI, and our own
            # reasons.
            except (OSError, DranodeError) as error:
                if not self._stopping:
                    self._attempts.failed(error, synchronized=synchronized)
            self._attempts.wait(self._wake, lambda: self._stopping)

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # The time limit stays for all later sends: a runtime that does not read would block the thread otherwise.
            sock.settimeout(_IO_WITHIN)
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        return sock

    def _serve(self, sock: socket.socket, session: Session) -> None:
        """Serve one connection until it ends.

        Raises:
            DisconnectedError: the connection has to be given up.
            ProtocolError: what arrives is not NRI.
            OSError: the socket failed.
        """
        session.register()
        sock.sendall(session.data_to_send())
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        # After a wake-up only the runtime's requests are waited for until the thread acts, so that a burst of changes
        # causes one comparison.
        calm = select.poll()
        calm.register(sock, select.POLLIN)
        woken = False
        asked = self._clock()
        next_tick = asked + _TICK
        while not self._stopping:
            ready = {fd for fd, _ in (calm if woken else poll).poll(max(0.0, next_tick - self._clock()) * 1000)}
            if sock.fileno() in ready:
                self._receive(sock, session)
            now = self._clock()
            if self._wake.fileno() in ready:
                woken = True
                next_tick = min(next_tick, now + _CALM)
            if now >= next_tick:
                if woken:
                    self._wake.clear()
                    woken = False
                if self._act_unsolicited(sock, session):
                    asked = now
                next_tick = now + (_TICK if self._is_due(session) else _IDLE)
            # A runtime that hangs keeps the socket open. Only a new connection finds out whether another one has taken
            # its place.
            waiting = session.awaiting_updates or not session.registered
            if waiting and now - asked > _ANSWER_WITHIN:
                raise DisconnectedError(f"the runtime has not answered for {_ANSWER_WITHIN:.0f} s")

    def _receive(self, sock: socket.socket, session: Session) -> None:
        data = sock.recv(1 << 18)
        if not data:
            session.receive_end()
            raise DisconnectedError("the runtime closed the connection")
        for event in session.receive_data(data):
            self._handle(session, event)
            out = session.data_to_send()
            if out:
                sock.sendall(out)
            if isinstance(event, SynchronizeRequest) and not session.synchronized:
                # Not every runtime closes the connection after a failed Synchronize, but none calls the plug-in on it
                # again.
                raise DisconnectedError("the list of the runtime's containers could not be processed")
        out = session.data_to_send()
        if out:
            sock.sendall(out)

    def _is_due(self, session: Session) -> bool:
        """Return whether something may become due soon only because time passes."""
        waits = session.awaiting_updates or not session.synchronized or self._missed or self._mistakes.made
        return waits or self._enforcer.unsolicited.waits

    def _act_unsolicited(self, sock: socket.socket, session: Session) -> bool:
        """Send unsolicited updates, or reconnect, if that is due; returns whether an answer is expected now."""
        # Before Synchronize the containers are unknown. NRI allows only one unsolicited call at a time.
        if not session.synchronized or session.awaiting_updates:
            return False
        updates: tuple[ContainerUpdate, ...] = ()
        due = succeeded = False
        with self._mistakes.survived("unsolicited updates could not be decided"):
            updates = self._enforcer.unsolicited.updates()
            due = not updates and self._enforcer.unsolicited.reconnection_due()
            succeeded = True
        if updates:
            session.update_containers(updates)
            sock.sendall(session.data_to_send())
        elif due:
            raise DisconnectedError("a new connection is needed to correct CPU sets")
        elif succeeded and self._missed:
            raise DisconnectedError("a new connection is needed, because an event could not be processed")
        if succeeded:
            self._mistakes.over()
        return bool(updates)

    def _handle(self, session: Session, event: NRIEvent) -> None:
        match event:
            case SynchronizeRequest() | CreateRequest() | UpdateRequest() | StopRequest() | StartRequest():
                self._answer(session, event)
            case RegistrationRefused():
                raise DisconnectedError(f"the runtime refuses the plug-in: {event.message}")
            case _:
                # Set in advance, so that it stays set if the event cannot be processed.
                before, self._missed = self._missed, True
                with self._mistakes.survived(f"{type(event).__name__} could not be processed"):
                    self._note(event)
                    self._missed = before

    def _note(self, event: Notification) -> None:
        match event:
            case PluginAccepted():
                pass
            case Configured():
                self._enforcer.configured(event.runtime)
                log.info("connected driver=%s nri=%s runtime=%s", self._name, self._path, event.runtime)
            case ContainerStarted():
                if self._enforcer.started(event.container):
                    self.notify()
            case ContainerRemoved():
                self._enforcer.removed(event.container)
            case PodGone():
                self._enforcer.pod_gone(event.pod)
            case UpdatesAnswered():
                self._enforcer.unsolicited.answered(event.error)
            case ShutdownAnnounced():
                log.info("driver=%s: the runtime announces the end of the connection", self._name)
            case _:
                assert_never(event)

    def _answer(self, session: Session, request: NRIRequest) -> None:
        began = self._clock()
        with operation():
            self._decide(session, request)
        with self._mistakes.survived("a request was not counted"):
            self._answered(type(request).__name__.removesuffix("Request"), self._clock() - began)

    def _decide(self, session: Session, request: NRIRequest) -> None:
        try:
            match request:
                case SynchronizeRequest():
                    session.synchronize(request, self._enforcer.synchronize(request.containers))
                    log.info("synchronized driver=%s containers=%d", self._name, len(request.containers))
                case CreateRequest():
                    resources, updates = self._enforcer.create(request.container)
                    session.adjust(request, resources, updates)
                case UpdateRequest():
                    session.update(request, self._enforcer.update(request.container, request.requested, request.quota))
                case StopRequest():
                    session.update(request, self._enforcer.stop(request.container))
                case StartRequest():
                    self._enforcer.starting(request.container)
                    session.start(request)
        except DranodeError as error:
            log.warning("refused driver=%s %s: %s", self._name, about(request), error)
            session.refuse(request, str(error))
            # The container that is in the way may get other CPUs by an unsolicited update.
            self.notify()
        except Exception as error:
            # Without an answer the runtime would wait, drop the plug-in and run the container on every CPU.
            log.exception("driver=%s %s: an NRI request failed", self._name, about(request))
            if isinstance(request, StartRequest):
                # The container got its CPUs when it was created, so it can start.
                self._missed = True
                session.start(request)
            else:
                session.refuse(request, f"dranode failed: {in_words(error)}")
