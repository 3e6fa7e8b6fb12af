"""Work that no request of the runtime asks for: unsolicited updates, questions to kubelet, and reconnections.

Unsolicited is NRI's word for an update that answers no request. The thread that owns the connection calls all methods
but `waiting` and `lag`, which other threads may read.
"""

import logging
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.nri.inquiry import Inquiry
from dranode.driver.nri.state import Instance, RuntimeState
from dranode.driver.pinning import enforcement
from dranode.driver.pinning.container_index import ContainerChange, corrections, effective_of, updates_for
from dranode.driver.pinning.containers import ContainerUpdate
from dranode.driver.pinning.drift import Drift, Lag
from dranode.driver.pinning.enforcement import Allowed
from dranode.driver.pinning.identity import Ask, Evidence
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)


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
    """

    state: RuntimeState
    inquiry: Inquiry
    instance: Instance
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
        self.inquiry.catch_up(self.state)
        containers = self.state.mended()
        snapshot = self._snapshot()
        due = tuple(corrections(containers, snapshot))
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
            for pinned, resources in corrections(containers, self._snapshot())
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
        return self.inquiry.source.snapshot()
