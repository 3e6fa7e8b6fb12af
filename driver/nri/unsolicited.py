"""Does what is due without a request: updates out of turn, another question to kubelet, and reconnections.

NRI calls an update that answers no request of the runtime unsolicited. The thread that owns the connection calls all
methods but `waiting` and `lag`, which other threads may read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.core.pinning import enforcement
from dranode.driver.core.pinning.container_index import ContainerChange
from dranode.driver.core.pinning.containers import ContainerUpdate
from dranode.driver.core.pinning.corrections import Drift, changes, effective_of, settled
from dranode.driver.core.pinning.enforcement import Allowed
from dranode.driver.core.pinning.identity import Ask, Evidence
from dranode.driver.core.pinning.mending import Lag
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.nri.enforced import Enforced
from dranode.driver.nri.inquiry import Inquiry
from dranode.driver.nri.instance import Instance

log = logging.getLogger(__name__)

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
        and has not answered by then it carries out afterwards, if at all: a container would have started.
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

        def decide(snapshot: HeldSnapshot, evidence: Evidence) -> Allowed | Ask:
            return enforcement.heard(containers, snapshot, evidence)

        self.enforced.carry_out(self.inquiry.decide_in_any_case(decide, containers))

    def _snapshot(self) -> HeldSnapshot:
        return self.inquiry.node.snapshot()
