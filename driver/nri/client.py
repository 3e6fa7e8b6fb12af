"""The thread that owns the connection to the container runtime's NRI socket.

It connects, registers, answers, sends updates out of turn, and connects again when the connection ends, for whatever
reason: every connection begins with the runtime's whole state, so nothing is lost but time.

A mistake in a decision costs neither the thread nor the connection: a request is answered with an error, what is
due unasked is tried again a second later, and what could not be taken in is sent again on a new connection once
decisions succeed again. Without a connection containers would start on every CPU.
"""

from __future__ import annotations

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


# Decides when to connect again.  Containers that are created while no plug-in is connected run on every CPU, so the
# driver connects within a twentieth of a second to a runtime that starts or restarts: an attempt without a listener
# disturbs no one, and a runtime opens its socket shortly before it creates containers. Waits grow only before the
# very socket that we were turned away at, because a connecting plug-in stops all pod operations of the runtime for a
# moment, and they stay short.

_NO_LISTENER: Final = (FileNotFoundError, ConnectionRefusedError)
_LOOK: Final = 0.05
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
# A connection that was synchronized and held this long was a good one: the next attempt comes soon.
_HEALTHY_AFTER: Final = 10.0
# How many reasons are logged until a connection is a good one again; garbage can be different each time.
_REASONS: Final = 8


def delay(attempt: int, jitter: float) -> float:
    """Seconds to wait after `attempt` (from 1) failures in a row at one runtime.

    They double to a limit; `jitter` from 0 to 1 halves them.
    """
    return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(attempt - 1, 32)) * (1 - jitter / 2)


class Attempts:
    """The attempts at one socket, for the thread that makes them."""

    def __init__(self, path: str, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        """Prepare for the first; clock (seconds, monotonic) and jitter (0 to 1) as of the client."""
        self._path, self._clock, self._jitter = path, clock, jitter
        self._failures = 0
        self._began = 0.0
        self._met: tuple[int, int, int] | None = None
        self._said: set[str] = set()

    def begin(self) -> None:
        """Note that an attempt is made now."""
        self._began = self._clock()
        self._met = _identity(self._path)

    def failed(self, error: Exception, *, synchronized: bool) -> None:
        """Note that the connection was not made or came to an end, and say why, once for each reason.

        Args:
            error: why.
            synchronized: whether the runtime had listed its containers on it.
        """
        if synchronized and self._clock() - self._began >= _HEALTHY_AFTER:
            self._failures = 0
            self._said.clear()
        self._failures = 0 if isinstance(error, _NO_LISTENER) else self._failures + 1
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if reason not in self._said and len(self._said) < _REASONS:
            self._said.add(reason)
            log.warning("nri=%s: no connection, trying again until there is one: %s", self._path, reason)

    def wait(self, wake: Wake, stopping: Callable[[], bool]) -> None:
        """Wait until the next attempt is due: after a while, or as soon as another runtime has opened the socket."""
        until = self._clock() + (delay(self._failures, self._jitter()) if self._failures else _LOOK)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        while not stopping() and (left := until - self._clock()) > 0:
            if poll.poll(min(left, _LOOK) * 1000):
                wake.heard()
            if _identity(self._path) not in (self._met, None):
                self._failures = 0
                return


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what distinguishes a socket from the next one at its path; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - twenty times a second; a Path costs more than the call
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


# Mistakes that no request can be answered with.


class Mistakes:
    """Lets one thread live on after mistakes, and says each once as long as it is the same."""

    def __init__(self, driver: str) -> None:
        """None was made so far by that driver."""
        self._driver = driver
        self._said = ""

    @contextlib.contextmanager
    def survived(self, what: str) -> Iterator[None]:
        """Survive a mistake in what is done meanwhile; `what` says for the log what came of it."""
        try:
            yield
        except Exception as error:
            mistake = f"{what}: {in_words(error)}"
            if mistake == self._said:
                return
            self._said = mistake
            if isinstance(error, DranodeError):
                log.warning("driver=%s: %s: %s", self._driver, what, error)
            else:
                log.exception("driver=%s: %s", self._driver, what)

    @property
    def made(self) -> bool:
        """Return whether one was made since the last success."""
        return bool(self._said)

    def over(self) -> None:
        """Say the next one again: what was tried again succeeded."""
        self._said = ""


# How long the runtime may take over a call of ours; it handles one plug-in at a time, each for up to 5 s.
_ANSWER_WITHIN: Final = 15.0
# How long one send or the connection itself may take.
_IO_WITHIN: Final = 5.0
# How often is looked whether something is due without being asked, while something waits and while nothing does.
_TICK: Final = 1.0
_IDLE: Final = 5.0
# How soon after a change of the records containers are looked at: calls come in bursts, and their answers come first.
_CALM: Final = 0.02


class DisconnectedError(DranodeError):
    """The connection is of no more use; the text says why."""


class NRIClient:
    """A plug-in of one container runtime, from `start` to `stop`."""

    def __init__(
        self,
        socket_path: str,
        enforcer: Enforcer,
        *,
        name: str,
        index: str = "00",
        fatal: Fatal,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        answered: Callable[[str, float], None] = lambda _method, _seconds: None,
    ) -> None:
        """Prepare to connect; nothing is opened yet.

        Args:
            socket_path: the runtime's NRI socket; it need not exist yet.
            enforcer: decides what the runtime is answered.
            name: the plug-in's name; letters, digits and `_.+-`.
            index: two digits; runtimes call plug-ins in this order.
            fatal: ends the process, should the thread die.
            clock: seconds, monotonic.
            jitter: a number from 0 to 1.
            answered: called after every request that was answered, with the method and the seconds that it took.

        Raises:
            ValueError: no runtime would take the name or the index.
        """
        Session(name, index)
        self._path = socket_path
        self._enforcer = enforcer
        self._identity = (name, index)
        self._clock = clock
        self._attempts = Attempts(socket_path, clock, jitter)
        self._answered = answered
        self._thread = OwnedThread(f"nri-{name}", self._run, fatal)
        self._wake = Wake()
        self._stopping = False
        self._mistakes = Mistakes(name)
        # Whether something was not taken in because of one.
        self._missed = False
        self._session: Session | None = None
        # Since when no runtime has been connected, as far as none is.
        self._away_since = clock()

    @property
    def synchronized(self) -> bool:
        """Return whether a runtime is connected and has been answered its whole state: from then on nothing escapes."""
        session = self._session
        return session is not None and session.synchronized

    @property
    def away_seconds(self) -> float:
        """Return for how long no runtime has been connected and answered its whole state; 0 while one is."""
        return 0.0 if self.synchronized else self._clock() - self._away_since

    def start(self) -> None:
        """Connect, in the background and for as long as it takes."""
        self._away_since = self._clock()
        self._thread.start()

    def stop(self, patience: float = 5.0) -> None:
        """Disconnect for good and wait for the thread; may be called without `start` and more than once."""
        self._stopping = True
        self.notify()
        if self._thread.ident is not None:
            self._thread.join(patience)
        if not self._thread.is_alive():
            self._wake.close()

    def notify(self) -> None:
        """Look now at what is due without being asked: the claims on record have changed, or drift was found."""
        self._wake.up()

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping:
            self._attempts.begin()
            synchronized = False
            try:
                with contextlib.closing(self._connect()) as sock:
                    session = self._session = Session(*self._identity)
                    self._missed = False
                    try:
                        self._serve(sock, session)
                    finally:
                        synchronized = session.synchronized
                        if synchronized:
                            self._away_since = self._clock()
                        self._session = None
                        with self._mistakes.survived("the end of the connection was not noted"):
                            self._enforcer.disconnected()
            except (OSError, DranodeError) as error:
                if not self._stopping:
                    self._attempts.failed(error, synchronized=synchronized)
            self._attempts.wait(self._wake, lambda: self._stopping)

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(_IO_WITHIN)
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        return sock

    def _serve(self, sock: socket.socket, session: Session) -> None:
        """Serve one connection until it ends.

        Raises:
            DisconnectedError: there is a reason to give it up.
            ProtocolError: what arrives is not NRI.
            OSError: the socket failed.
        """
        session.register()
        sock.sendall(session.data_to_send())
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        # Once woken, this thread is woken by nothing but the runtime until it acts.
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
                    self._wake.heard()
                    woken = False
                if self._speak_up(sock, session):
                    asked = now
                next_tick = now + (_TICK if self._is_due(session) else _IDLE)
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
                # Not every runtime closes the connection then, and none calls the plug-in on it ever again.
                raise DisconnectedError("the runtime's containers could not be taken in")
        out = session.data_to_send()
        if out:
            sock.sendall(out)

    def _is_due(self, session: Session) -> bool:
        """Return whether time alone may make something due soon."""
        waits = session.awaiting_updates or not session.synchronized or self._missed or self._mistakes.made
        return waits or self._enforcer.unsolicited.waits

    def _speak_up(self, sock: socket.socket, session: Session) -> bool:
        """Do what is due without being asked; whether an answer is due now."""
        if not session.synchronized or session.awaiting_updates:
            return False
        updates: tuple[ContainerUpdate, ...] = ()
        due = succeeded = False
        with self._mistakes.survived("what is due for containers could not be decided"):
            updates = self._enforcer.unsolicited.updates()
            due = not updates and self._enforcer.unsolicited.reconnection_due()
            succeeded = True
        if updates:
            session.update_containers(updates)
            sock.sendall(session.data_to_send())
        elif due:
            raise DisconnectedError("a new connection is needed to set CPU sets right")
        elif succeeded and self._missed:
            raise DisconnectedError("a new connection is needed to be told again what could not be taken in")
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
                before, self._missed = self._missed, True
                with self._mistakes.survived(f"{type(event).__name__} could not be taken in"):
                    self._take_in(event)
                    self._missed = before

    def _take_in(self, event: Notification) -> None:
        match event:
            case PluginAccepted():
                pass
            case Configured():
                self._enforcer.configured(event.runtime)
                log.info("connected driver=%s nri=%s runtime=%s", self._identity[0], self._path, event.runtime)
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
                log.info("driver=%s: the runtime announces the end of the connection", self._identity[0])
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
                    log.info("synchronized driver=%s containers=%d", self._identity[0], len(request.containers))
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
            log.warning("refused driver=%s %s: %s", self._identity[0], about(request), error)
            session.refuse(request, str(error))
            # What is in the way may get other CPUs out of turn.
            self.notify()
        except Exception as error:
            # Without an answer the runtime would wait, drop the plug-in and run the container on every CPU.
            log.exception("driver=%s %s: an NRI request failed", self._identity[0], about(request))
            if isinstance(request, StartRequest):
                # The container was given its CPUs before.
                self._missed = True
                session.start(request)
            else:
                session.refuse(request, f"dranode failed: {in_words(error)}")
