"""Work that no request of the runtime asks for: unsolicited updates, questions to kubelet, and reconnections.

Unsolicited is NRI's word for an update that answers no request. The thread that owns the connection calls all methods
but `waiting` and `lag`, which other threads may read.
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
    updates_for,
)
from dranode.driver.pinning.containers import ContainerUpdate
from dranode.driver.pinning.enforcement import Allowed
from dranode.driver.pinning.identity import Ask, Evidence
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)


class EnforcementStatus(msgspec.Struct, frozen=True):
    """The state of enforcement, for metrics, health and `doctor`. All counters begin at the start of the process.

    Attributes:
        runtime: the runtime that is connected; None while there is none.
        containers: the number of known containers.
        waiting: the number of containers that do not have the right mask yet.
        lag: for how many seconds the first of them has been waiting.
        refused: the number of container creations that were refused.
        updates: the number of masks that were sent to existing containers.
        drifts: the number of containers that were found on other CPUs than they should have.
        unpinned: the number of containers that were found without a CPU set when a runtime connected.
        reconnections: the number of reconnections to correct masks.
        connections: the number of connections to a runtime.
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


# How long a runtime may take to apply the masks that it was sent, one after another, in seconds. A call from it ends
# that time earlier.
_SETTLING: Final = 10.0


class RuntimeState(msgspec.Struct):
    """The containers of one runtime, and what they were sent. The thread that owns the connection changes them.

    Attributes:
        clock: returns seconds, monotonic.
        containers: the known containers.
        status: the counters.
        drifts: what the verifier, another thread, has found since the last decision.
        silent: whether another instance answers the present request, and counts it.
        elsewhere: whether another instance may have moved containers since this one knew their masks.
        out_of_turn: whether unsolicited updates have not been answered yet.
        resized: the container that the last request was to update; its own update comes last.
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
        """Return the containers, after noting the drifts that were found in the kernel since the last decision."""
        drifts, self.drifts = self.drifts, ()
        if drifts:
            self.containers.apply(drifted(self.containers, drifts))
        return self.containers

    def note(self, allowed: Allowed) -> tuple[ContainerUpdate, ...]:
        """Note a decision, and return the updates to send."""
        for warning in allowed.warnings:
            log.warning("%s", warning)
        self.containers.apply(allowed.change)
        if allowed.updates and not self.silent:
            self.status = replace(self.status, updates=self.status.updates + len(allowed.updates))
        if allowed.updates:
            now = self.clock()
            self._sent_at = {**self.moving(), **{update.container_id: now for update in allowed.updates}}
        return allowed.updates

    def take_back(self, ids: Iterable[str]) -> None:
        """Note that updates were decided but did not arrive, so that these containers may have other resources."""
        late = map(self.containers.get, ids)
        self.containers.apply(ContainerChange(tuple(pinned.with_unknown_mask() for pinned in late if pinned)))

    def called(self) -> None:
        """Note that the runtime calls: it has applied, or failed to apply, the updates of earlier answers.

        A runtime makes one call after another, and holds its lock until the answer has been carried out.
        """
        # Unsolicited updates are applied outside the runtime's calls, so a call says nothing about them.
        if not self.out_of_turn:
            self._sent_at = {key: at for key, at in self._sent_at.items() if key == self.resized}
        self.resized = ""

    def moving(self) -> dict[str, float]:
        """Return the ids of containers that were sent a mask a moment ago, with the time at which it was sent."""
        now = self.clock()
        return {key: at for key, at in self._sent_at.items() if now - at < _SETTLING}


class Instance(Protocol):
    """The role of this instance of the driver: alone, or one of two during a rolling update.

    The runtime calls both instances. Both decide everything, so that either can continue alone, but only one answers.
    """

    @property
    def active(self) -> bool:
        """Return whether this instance sends unsolicited updates."""

    @property
    def speaks(self) -> bool:
        """Return whether this instance answers with changes to calls that only one instance gets.

        An instance that is not active does so as long as the active one is not connected to the runtime.
        """

    def adjusts(self, request: str) -> bool:
        """Return whether this instance answers the request with changes."""

    def connected(self) -> None:
        """Note that a runtime sends requests to this instance from now on."""

    def disconnected(self) -> None:
        """Note that no runtime sends requests to this instance any more."""


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


# How long to wait after an unsolicited update that failed, in seconds.
_RETRY: Final = 30.0
# How long until kubelet is asked again about existing containers, in seconds.
_ASK_AGAIN: Final = 5.0
# The same if it has answered that they do not have the claims that they name: it may just have started.
_ASK_DENIED: Final = 30.0


class Unsolicited(msgspec.Struct):
    """Decides what to do for containers although the runtime does not ask.

    Attributes:
        state: the containers, and what they were sent.
        inquiry: answers the questions of decisions.
        instance: the role of this instance.
        catch_up: reads the masks of containers that another instance may have moved.
    """

    state: RuntimeState
    inquiry: Inquiry
    instance: Instance
    catch_up: Callable[[], None]
    _lag: Lag = msgspec.field(default_factory=Lag)
    # The drifts that the reconnection has to correct.
    _reconnecting: tuple[Drift, ...] = ()
    _sent: tuple[ContainerUpdate, ...] = ()
    # Whether an answer has repeated the updates that were sent and not answered yet.
    _overtaken: bool = False
    _not_before: float = 0.0
    _asked_at: float = float("-inf")

    @property
    def waiting(self) -> int:
        """Return the number of containers that do not have the right mask yet."""
        return len(self._lag.waiting)

    @property
    def waits(self) -> bool:
        """Return whether a container waits for a mask, for kubelet's answer or for a reconnection."""
        containers = self.state.containers
        return bool(self._lag.waiting or containers.unanswered or containers.denied or containers.unsure)

    @property
    def lag(self) -> float:
        """Return for how many seconds the first of them has been waiting."""
        return self._lag.seconds(self.state.clock())

    @property
    def reconnecting(self) -> tuple[Drift, ...]:
        """Return the drifts that a reconnection has to correct; none if none was due since `synchronized`."""
        return self._reconnecting

    def synchronized(self) -> None:
        """Note that a connection has begun: its answer corrects the drifts, and kubelet has just been asked."""
        self._reconnecting = ()
        self._all_answered()
        self._asked_at = self.state.clock()

    def updates(self) -> tuple[ContainerUpdate, ...]:
        """Return the updates to send; none if the runtime does not accept them, or another instance is active."""
        now = self.state.clock()
        self._ask_again(now)
        if not self.instance.active:
            self.state.elsewhere = True
            return ()
        self.catch_up()
        containers = self.state.mended()
        snapshot = self._snapshot()
        due = tuple(changes(containers, snapshot))
        waiting = frozenset(pinned.container.id for pinned, _ in due)
        self._lag = self._lag.seen(waiting, now)
        if not due:
            # The next comparison needs to consider only what changes from here on.
            containers.apply(ContainerChange(settled=snapshot))
            return ()
        runtime = self.state.status.runtime
        # The next answer to a request carries these updates; a long wait ends with a reconnection.
        if runtime is None or not runtime.takes_unsolicited_updates or now < self._not_before:
            return ()
        # With `ignore_failure` the runtime would report success although a mask was not set.
        change, self._sent = updates_for(due, snapshot, ignore_failure=False)
        self.state.out_of_turn = True
        return self.state.note(Allowed(change, updates=self._sent))

    def answered(self, error: str) -> None:
        """Note the answer to the updates. The runtime does not say which of them failed."""
        if error:
            log.warning(
                "runtime=%s: it did not apply every CPU set of %d containers: %s",
                self.state.status.runtime,
                len(self._sent),
                error,
            )
            self._not_before = self.state.clock() + _RETRY
            # Any of them may have failed, so all of them get their masks again.
            self.state.take_back(update.container_id for update in self._sent)
        self._all_answered()

    def overtaken(self, updates: tuple[ContainerUpdate, ...]) -> tuple[ContainerUpdate, ...]:
        """Return the updates of an answer, with the unsolicited ones that were sent but not answered yet.

        A runtime holds its lock from its request until the answer has been carried out. It would apply unsolicited
        updates only after that, when the container has started already.
        """
        if self._overtaken:
            return updates
        named, known = {update.container_id for update in updates}, self.state.containers
        sent = [update for update in self._sent if update.container_id not in named and known.get(update.container_id)]
        self._overtaken = bool(self._sent)
        return (*updates, *(replace(update, ignore_failure=True) for update in sent))

    def reconnection_due(self) -> bool:
        """Return whether to reconnect now; if so, that is noted.

        A reconnection is due if masks have been wrong for a long time and the runtime accepts no unsolicited updates.

        It is also due when ledger and hardware can be read again, if containers were added meanwhile: only the runtime
        knows everything that identifies them, and it sends that once in a connection. It is not made before that,
        because the answer could not be used, and containers that are created without a connection are not pinned. An
        instance that is not active needs this reconnection too, since the other instance cannot pass the list on.
        """
        containers, runtime = self.state.containers, self.state.status.runtime
        if runtime is None or not (self.instance.active or containers.unsure):
            return False
        now = self.state.clock()
        if containers.clarified(self._snapshot()):
            log.warning(
                "runtime=%s: reconnecting, because containers were created while ledger or hardware could not be read",
                runtime,
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
        # The runtime will list the masks that it has set, not those that the containers really have.
        self._reconnecting = tuple(
            Drift(pinned.container, *effective_of(resources).beside(pinned.effective))
            for pinned, resources in changes(containers, self._snapshot())
        )
        return True

    def _all_answered(self) -> None:
        """Note that every update was answered."""
        self._sent, self._overtaken, self.state.out_of_turn = (), False, False
        self.state.called()

    def _count_reconnection(self) -> None:
        status = self.state.status
        self.state.status = replace(status, reconnections=status.reconnections + 1)

    def _ask_again(self, now: float) -> None:
        """Identify, after a while, the containers again whose claims kubelet did not confirm."""
        containers = self.state.containers
        if not (containers.unanswered or containers.denied) or self._snapshot().unread is not None:
            return
        # A question may take a second of the thread that answers the runtime, so it is not repeated often.
        if now - self._asked_at < (_ASK_AGAIN if containers.unanswered else _ASK_DENIED):
            return
        self._asked_at = now
        snapshot, evidence = self._snapshot(), Evidence()
        while isinstance(decision := enforcement.identify_again(containers, snapshot, evidence), Ask):
            snapshot, evidence = self.inquiry.answer(decision, snapshot, evidence, containers)
        self.state.note(decision)

    def _snapshot(self) -> PinSnapshot:
        return self.inquiry.node.snapshot()
