"""Decides which of two instances publishes, verifies and pins: the holder of `active.lock`, a kernel lock on a file.

A newer instance registers with everybody and is passive. When it has heard from all of them it holds `handover.lock`;
the active one sees that, leaves its slices alone and lets go of `active.lock`; the newer one takes it and is ready. The
older one stays at hand until it is ended: should the newer one die, both locks are free and the older takes its work
back. A holder that dies frees its locks, so nothing has to be cleaned up. An instance that cannot use the ledger takes
authority only where no other instance wants it, and gives it back to an older one that can: that one holds
`standby.lock`. As long as there are two instances they look five times a second; one that is alone waits for another to
come (`dranode.driver.serve.companions`). Requests that the container runtime shows to both while authority passes are
shared out by `dranode.driver.serve.turns`. The active one holds `connected.lock` as long as a runtime shows it
requests: while it does not, another instance that is connected answers in its stead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import LedgerError
from dranode.driver.process.locks import FileLock
from dranode.driver.process.threads import Fatal, OwnedThread
from dranode.driver.serve.companions import Companions
from dranode.driver.serve.turns import Turns

log = logging.getLogger(__name__)

# How soon authority passes once it can.
_LOOK_SECONDS: Final = 0.2
# How soon one that is alone looks all the same: an instance of an older version does not show itself.
_ALONE_SECONDS: Final = 5.0


class Role(Enum):
    """The state of an instance: WAITING for authority, ACTIVE, or RETIRED after it has handed over."""

    WAITING = "waiting"
    ACTIVE = "active"
    RETIRED = "retired"


class Authority:
    """One instance's part in who is active. `begin`, `end` and `follow` are called by its own thread."""

    def __init__(
        self,
        data: Path,
        name: str,
        *,
        prepared: Callable[[], bool],
        able: Callable[[], bool],
        begin: Callable[[], None],
        end: Callable[[], None],
        follow: Callable[[], None],
        fatal: Fatal,
    ) -> None:
        """Prepare to take part; `start` begins.

        Args:
            data: the driver's folder, which all instances share.
            name: the driver, for the thread's name.
            prepared: whether everything has been heard from that an active instance needs.
            able: whether it can decide at all, as it is asked between two requests of the runtime.
            begin: called when this instance has become the active one.
            end: called before this instance lets go of its authority.
            follow: called at every look, to see what another instance has done.
            fatal: ends the process with a sentence.
        """
        self.role = Role.WAITING
        self._name = name
        self._prepared, self._able = prepared, able
        self._begin, self._end, self._follow = begin, end, follow
        self._active = FileLock(data / "active.lock")
        self._handover = FileLock(data / "handover.lock")
        self._standby = FileLock(data / "standby.lock")
        self._offers = False
        self._stands_by = False
        self._begun = False
        instance = f"{os.getpid()}-{uuid.uuid4()}"
        self._companions = Companions(data / "instances", instance)
        self._turns = Turns(data / "turns.db", instance, died=self._companions.has_died)
        self._answers = FileLock(data / "connected.lock")
        self._connected = self._shows = False
        # The thread that answers the container runtime takes turns; the own thread passes authority on.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = OwnedThread(f"{name}-authority", self._run, fatal)

    @property
    def active(self) -> bool:
        """Return whether this instance is the one that publishes, verifies and pins."""
        return self.role is Role.ACTIVE

    @property
    def speaks(self) -> bool:
        """Return whether this instance answers the runtime where no other is shown the same.

        While authority passes it does, unless it can decide nothing and another one that can is about to take it.
        """
        try:
            return self.active or not (self._answers.is_held() or self._leaves_it_to_one_that_can())
        except LedgerError as error:
            log.warning("driver=%s: only the active instance answers the runtime: %s", self._name, error)
            return self.active

    @property
    def retired(self) -> bool:
        """Return whether this instance has handed over to a newer one."""
        return self.role is Role.RETIRED

    def start(self) -> None:
        """Take the authority if it is free, and watch it from now on."""
        self._companions.arrive()
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Let go of the authority for good; an instance that waits for it has it with the next request.

        Turns are still taken until `close`, as long as the runtime shows requests to this instance.
        """
        self._stopped.set()
        self._companions.wake()
        if self._thread.ident is not None:
            self._thread.join()
        if self._begun:
            self._end()
            self._begun = False
        with self._lock:
            self.role = Role.RETIRED
            self._show()
            self._active.release()
            self._handover.release()
            self._standby.release()

    def close(self) -> None:
        """Take no turn any more, and go out of the other instances' sight."""
        with self._lock:
            self._turns.close()
        self._companions.leave()

    def turn(self, request: str) -> bool:
        """Return whether this instance answers a request of the container runtime with adjustments."""
        with self._lock:
            # It may be that no instance has the authority at this moment, and that there is no other one to ask.
            if self._take():
                self._companions.wake()
            return self._turns.take(request, authority=self.speaks)

    def connected(self) -> None:
        """Take note that the container runtime shows requests to this instance from now on."""
        with self._lock:
            self._connected = True
            self._turns.connected()
            self._show()

    def disconnected(self) -> None:
        """Take note that it shows this instance none any more."""
        with self._lock:
            self._connected = False
            self._turns.disconnected()
            self._show()

    def look(self) -> None:
        """Take the authority, offer to take it, or hand it over, as things are."""
        with self._lock:
            self._take()
            # A request may bring the authority at any moment from here on; then it is the next look that begins.
            active = self.active
            self._show()
        if active and not self._begun:
            self._withdraw_offer()
            self._begun = True
            log.info("driver=%s this instance publishes and pins from now on", self._name)
            self._begin()
        elif active:
            if self._is_contested():
                log.info("driver=%s a newer instance takes over", self._name)
                self._let_go(Role.RETIRED)
            elif not self._able() and self._standby.is_held():
                log.warning("driver=%s this instance cannot decide, and an older one that can takes over", self._name)
                self._let_go(Role.WAITING)
        elif self.role is Role.WAITING:
            self._offer()
        self._stand_by()
        self._follow()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._companions.wait(_ALONE_SECONDS if self._is_alone() else _LOOK_SECONDS)
            if not self._stopped.is_set():
                self.look()

    def _is_alone(self) -> bool:
        """Return whether this instance does all there is to do, and will see another one come."""
        alone = self._begun and self.active and self._companions.watched and not self._companions.there()
        # One of an older version shows itself by its locks alone.
        return alone and not self._is_contested() and not self._standby.is_held()

    def _take(self) -> bool:
        """Take the authority if no instance has it and no newer one is about to; whether it was taken now."""
        if self.active or self._stopped.is_set():
            return False
        if self.role is Role.RETIRED and self._is_contested():
            return False
        if self._leaves_it_to_one_that_can():
            return False
        if not self._active.acquire(wait=False):
            return False
        self.role = Role.ACTIVE
        self._show()
        return True

    def _leaves_it_to_one_that_can(self) -> bool:
        return not self._able() and (self._is_contested() or self._standby.is_held())

    def _show(self) -> None:
        """Hold the lock that says that the active instance is connected, if it is; failing that, at a later look."""
        if not (self.active and self._connected):
            self._answers.release()
            self._shows = False
        elif not self._shows:
            with contextlib.suppress(LedgerError):
                self._shows = self._answers.acquire(wait=False)

    def _is_contested(self) -> bool:
        """Return whether another instance is prepared to take the authority."""
        # Retired instances ask this too; to be taken for one that is prepared would hand the authority back to them.
        return self._handover.is_held()

    def _offer(self) -> None:
        prepared = self._prepared()
        if prepared and not self._offers:
            self._offers = self._handover.acquire(wait=False)
        elif not prepared:
            self._withdraw_offer()

    def _withdraw_offer(self) -> None:
        if self._offers:
            self._handover.release()
            self._offers = False

    def _stand_by(self) -> None:
        """Show a newer instance that this one can take its work back."""
        at_hand = self.role is Role.RETIRED and self._able()
        if at_hand and not self._stands_by:
            self._stands_by = self._standby.acquire(wait=False)
        elif self._stands_by and not at_hand:
            self._standby.release()
            self._stands_by = False

    def _let_go(self, role: Role) -> None:
        self._end()
        self._begun = False
        with self._lock:
            self.role = role
            self._show()
            self._active.release()
