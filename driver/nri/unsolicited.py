"""Does what is due without a request: updates out of turn, another question to kubelet, and reconnections.

NRI calls an update that answers no request of the runtime unsolicited. The thread that owns the connection calls all
methods but `waiting` and `lag`, which other threads may read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.inquiry import Inquiry
from dranode.driver.pinning import enforcement
from dranode.driver.pinning.container_index import (
    ContainerChange,
    Containers,
    Drift,
    Lag,
    changes,
    drifted,
    effective_of,
    settled,
)
from dranode.driver.pinning.containers import ContainerUpdate
from dranode.driver.pinning.enforcement import Allowed
from dranode.driver.pinning.identity import Ask, Evidence
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)


# The state of enforcement, for metrics, health and `doctor`.


class EnforcementStatus(msgspec.Struct, frozen=True):
    """The state of enforcement that metrics, health and `doctor` show.

    Attributes:
        runtime: the runtime at the other end; None while there is none.
        containers: how many are known.
        waiting: how many have a mask that is not (yet) the right one.
        lag: for how many seconds the first of them has been waiting.
        refused: container creations that were refused, since start.
        updates: masks that were sent to containers that existed, since start.
        drifts: containers that were found on other CPUs than they should have, since start.
        unpinned: containers that were found without a CPU set when a runtime connected, since start.
        reconnections: those made to mend masks, since start.
        connections: connections to a runtime, since start.
    """

    runtime: RuntimePeer | None = None
    containers: int = 0
    waiting: int = 0
    lag: float = 0.0
    refused: int = 0
    updates: int = 0
    drifts: int = 0
    unpinned: int = 0
    reconnections: int = 0
    connections: int = 0


# The containers that are enforced: what is known of them, what they were sent, and the figures of both.

# Seconds that a runtime may take for the masks that it was sent, which it applies one after another, unless it says
# something before.
_SETTLING: Final = 10.0


class Enforced(msgspec.Struct):
    """The containers of one runtime. The thread that owns the connection changes them.

    Attributes:
        clock: seconds, monotonic.
        containers: those that are known.
        status: the figures so far.
        drifts: what the verifier, another thread, found since it was last looked at.
        silent: whether another instance answers what is decided now, and counts it.
        elsewhere: whether another instance may have moved containers since this one knew where they are.
        out_of_turn: whether updates are on their way that answer no request.
        resized: the container that the last request was to update, whose own update comes last.
    """

    clock: Callable[[], float]
    containers: Containers = msgspec.field(default_factory=Containers)
    status: EnforcementStatus = msgspec.field(default_factory=EnforcementStatus)
    drifts: tuple[Drift, ...] = ()
    silent: bool = False
    elsewhere: bool = False
    out_of_turn: bool = False
    resized: str = ""
    # When containers were last sent a mask.
    _sent_at: Mapping[str, float] = msgspec.field(default_factory=dict)

    def mended(self) -> Containers:
        """Return the containers, with what the kernel was found to say of them since the last decision."""
        drifts, self.drifts = self.drifts, ()
        if drifts:
            self.containers.carry_out(drifted(self.containers, drifts))
        return self.containers

    def carry_out(self, allowed: Allowed) -> tuple[ContainerUpdate, ...]:
        """Take note of a decision, and return the updates that are to be sent."""
        for warning in allowed.warnings:
            log.warning("%s", warning)
        self.containers.carry_out(allowed.change)
        if allowed.updates and not self.silent:
            self.status = replace(self.status, updates=self.status.updates + len(allowed.updates))
        if allowed.updates:
            now = self.clock()
            self._sent_at = {**self.moving(), **{update.container_id: now for update in allowed.updates}}
        return allowed.updates

    def take_back(self, ids: Iterable[str]) -> None:
        """Take note that updates were decided and did not arrive: these containers may have other resources."""
        late = map(self.containers.get, ids)
        self.containers.carry_out(ContainerChange(tuple(each.in_doubt() for each in late if each)))

    def called(self) -> None:
        """Take note that the runtime calls: it has done, or failed to do, what its last calls were answered with.

        Runtimes call for one thing after another and hold their lock until its answer is carried out.
        """
        if not self.out_of_turn:
            self._sent_at = {key: at for key, at in self._sent_at.items() if key == self.resized}
        self.resized = ""

    def moving(self) -> dict[str, float]:
        """Return the ids of containers that were sent a mask a moment ago, with the time at which it was sent."""
        now = self.clock()
        return {key: at for key, at in self._sent_at.items() if now - at < _SETTLING}


# An instance of a driver at a runtime: alone, or one of two while the driver is being replaced.


class Instance(Protocol):
    """An instance's part: this one answers, or the other.

    Both instances are asked everything and both decide, so that either can go on where the other ends; one answers.
    """

    @property
    def active(self) -> bool:
        """Return whether this instance sends updates out of turn."""

    @property
    def speaks(self) -> bool:
        """Return whether this instance answers with adjustments where no other is shown the same.

        Without being active it does so as long as the active one is not connected to the runtime.
        """

    def adjusts(self, request: str) -> bool:
        """Return whether this instance answers the request with adjustments."""

    def connected(self) -> None:
        """Take note that a runtime shows requests to this instance from now on."""

    def disconnected(self) -> None:
        """Take note that no runtime shows requests to this instance any more."""


class _Alone(msgspec.Struct, frozen=True):
    active: bool = True
    speaks: bool = True

    def adjusts(self, request: str) -> bool:
        del request
        return self.speaks

    def connected(self) -> None:
        pass

    def disconnected(self) -> None:
        pass


ALONE: Final[Instance] = _Alone()
"""The only instance: it answers everything."""


# Seconds after an unsolicited update that failed.
_RETRY: Final = 30.0
# Seconds until kubelet is asked again about containers that are there.
_ASK_AGAIN: Final = 5.0
# The same where it has answered that they have not the claims that they name: it may just have started.
_ASK_DENIED: Final = 30.0


class Unsolicited(msgspec.Struct):
    """Decides what to do for containers that nothing is asked about at the moment.

    Attributes:
        enforced: the containers.
        inquiry: finds out what a decision needs to know.
        instance: whether this instance acts, or another one.
        catch_up: finds out where containers are that another instance may have moved.
    """

    enforced: Enforced
    inquiry: Inquiry
    instance: Instance
    catch_up: Callable[[], None]
    _lag: Lag = msgspec.field(default_factory=Lag)
    # The drifts that the reconnection which was asked for is to mend.
    _reconnecting: tuple[Drift, ...] = ()
    _sent: tuple[ContainerUpdate, ...] = ()
    # Whether an answer has said the same as the updates that are on their way.
    _overtaken: bool = False
    _not_before: float = 0.0
    _asked_at: float = float("-inf")

    @property
    def waiting(self) -> int:
        """Return how many containers have a mask that is not (yet) the right one."""
        return len(self._lag.waiting)

    @property
    def waits(self) -> bool:
        """Return whether a container waits for a mask, for kubelet's word or for a reconnection."""
        containers = self.enforced.containers
        return bool(self._lag.waiting or containers.unheard or containers.denied or containers.unsure)

    @property
    def lag(self) -> float:
        """For how many seconds the first of them has been waiting."""
        return self._lag.seconds(self.enforced.clock())

    @property
    def reconnecting(self) -> tuple[Drift, ...]:
        """The drifts that a reconnection is to mend; none unless one was due since `synchronized`."""
        return self._reconnecting

    def synchronized(self) -> None:
        """Take note that a connection has begun: its drifts are mended, and kubelet has just been asked."""
        self._reconnecting = ()
        self._settle()
        self._asked_at = self.enforced.clock()

    def updates(self) -> tuple[ContainerUpdate, ...]:
        """Updates to send out of turn; none to a runtime that cannot take them, none from an instance that waits."""
        now = self.enforced.clock()
        self._ask_again(now)
        if not self.instance.active:
            self.enforced.elsewhere = True
            return ()
        self.catch_up()
        containers = self.enforced.mended()
        snapshot = self._snapshot()
        due = tuple(changes(containers, snapshot))
        waiting = frozenset(pinned.container.id for pinned, _ in due)
        self._lag = self._lag.seen(waiting, now)
        if not due:
            # So that the next look begins here.
            containers.carry_out(ContainerChange(settled=snapshot))
            return ()
        runtime = self.enforced.status.runtime
        if runtime is None or not runtime.takes_unsolicited_updates or now < self._not_before:
            return ()
        change, self._sent = settled(due, snapshot, ignore_failure=False)
        self.enforced.out_of_turn = True
        return self.enforced.carry_out(Allowed(change, updates=self._sent))

    def answered(self, error: str) -> None:
        """Take note of what became of the updates. The runtime does not say which of them failed."""
        if error:
            log.warning(
                "runtime=%s: it did not apply every CPU set of %d containers: %s",
                self.enforced.status.runtime,
                len(self._sent),
                error,
            )
            self._not_before = self.enforced.clock() + _RETRY
            self.enforced.take_back(update.container_id for update in self._sent)
        self._settle()

    def overtaken(self, updates: tuple[ContainerUpdate, ...]) -> tuple[ContainerUpdate, ...]:
        """Return the updates that an answer has to bring so that no container starts before them: with those sent.

        A runtime holds its lock from its question to the end of what the answer asks for. What it was sent out of turn
        and has not answered by then, it is carried out afterwards, if at all, when the container has started.
        """
        if self._overtaken:
            return updates
        named, known = {each.container_id for each in updates}, self.enforced.containers
        sent = [each for each in self._sent if each.container_id not in named and known.get(each.container_id)]
        self._overtaken = bool(self._sent)
        return (*updates, *(replace(each, ignore_failure=True) for each in sent))

    def reconnection_due(self) -> bool:
        """Return whether masks have waited so long that a reconnection has to mend them; a true answer is noted.

        So it is once ledger and hardware can be read again: of containers that were taken in meanwhile only the runtime
        knows all that shows whose they are, and it says that once a connection. Before that it would say it in vain,
        and containers that are created between two connections are held to nothing. An instance that waits for its
        time needs one for that reason as well, and for no other: no other instance can tell it.
        """
        containers, runtime = self.enforced.containers, self.enforced.status.runtime
        if runtime is None or not (self.instance.active or containers.unsure):
            return False
        now = self.enforced.clock()
        if containers.clarified(self._snapshot()):
            log.warning(
                "runtime=%s: reconnecting, because containers came while ledger or hardware was unread", runtime
            )
            self._count_reconnection()
            return True
        if runtime.takes_unsolicited_updates or not self._lag.reconnection_due(now):
            return False
        log.warning(
            "runtime=%s: reconnecting, because %d containers have had the wrong CPU set for %.0f s",
            runtime,
            len(self._lag.waiting),
            self._lag.seconds(now),
        )
        self._lag = replace(self._lag, since=None, reconnected=now)
        self._count_reconnection()
        # The runtime would tell the masks that it set, not those that containers have.
        self._reconnecting = tuple(
            Drift(pinned.container, *effective_of(resources).beside(pinned.effective))
            for pinned, resources in changes(containers, self._snapshot())
        )
        return True

    def _settle(self) -> None:
        """Take note that no update is on its way any more."""
        self._sent, self._overtaken, self.enforced.out_of_turn = (), False, False
        self.enforced.called()

    def _count_reconnection(self) -> None:
        status = self.enforced.status
        self.enforced.status = replace(status, reconnections=status.reconnections + 1)

    def _ask_again(self, now: float) -> None:
        """Look again, after a while, at the containers that kubelet did not vouch for."""
        containers = self.enforced.containers
        if not (containers.unheard or containers.denied) or self._snapshot().unread is not None:
            return
        if now - self._asked_at < (_ASK_AGAIN if containers.unheard else _ASK_DENIED):
            return
        self._asked_at = now

        def decide(snapshot: PinSnapshot, evidence: Evidence) -> Allowed | Ask:
            return enforcement.heard(containers, snapshot, evidence)

        self.enforced.carry_out(self.inquiry.decide_in_any_case(decide, containers))

    def _snapshot(self) -> PinSnapshot:
        return self.inquiry.node.snapshot()
