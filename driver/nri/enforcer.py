"""Enforcement with its surroundings: asks what a decision needs to know, keeps what was decided, counts and reports.

Decisions are those of `core.pinning.enforcement`. The thread that owns the connection calls all methods but
`verify`, `status` and `claims_in_use`; those three look at the containers while that thread may change them.

While a driver is being replaced two instances are asked everything. The one whose turn it is not decides the same, so
that it can go on where the other one ends, and keeps it to itself: it is silent.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.claims.events import Notify, Unpinned, notify_none
from dranode.driver.core.pinning import enforcement
from dranode.driver.core.pinning.container_index import ContainerChange, Containers, claims_of
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.corrections import Drift, changes, drifted, settled
from dranode.driver.core.pinning.enforcement import Allowed, CreationRefused
from dranode.driver.core.pinning.identity import Ask, AskKubelet, AskLedger, Evidence
from dranode.driver.core.pinning.mending import Lag
from dranode.driver.core.pinning.pinned import Pinned
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.root import Root
from dranode.driver.nri.enforcement_status import EnforcementStatus
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.inquiry import ClaimSource, Inquiry
from dranode.driver.nri.instance import ALONE, Instance
from dranode.driver.nri.sightings import Sightings
from dranode.driver.nri.verifier import Verifier

log = logging.getLogger(__name__)

# After a failed unsolicited update.
_RETRY: Final = 30.0
# How soon kubelet is asked again about containers that are there.
_ASK_AGAIN: Final = 5.0
# The same where it has answered that they have not the claims that they name: it may just have started.
_ASK_DENIED: Final = 30.0
# How long a runtime may take for the masks that an answer carries; it applies them one after another.
_SETTLING: Final = 10.0
# How long cgroups may be read before Synchronize is answered, for which a runtime waits 2 s.
_READING: Final = 0.5
# How many containers one line of the log names.
_NAMED: Final = 20


class RefusedError(DranodeError):
    """A container cannot be created; the text goes to kubelet."""


@dataclass(slots=True)
class Enforcer:
    """Answers what a runtime asks. Every method is to return within a fraction of the 2 s that a runtime waits.

    Attributes:
        node: the node service.
        root: where cgroups are read.
        clock: seconds, monotonic.
        notify: makes known to people that containers were not where they should be.
        own_pod: the UID of the pod that this runs in; empty if it is not known.
        instance: whether this instance answers, or another one.
    """

    node: ClaimSource
    root: Root
    clock: Callable[[], float] = time.monotonic
    notify: Notify = notify_none
    own_pod: str = ""
    instance: Instance = ALONE
    _containers: Containers = field(default_factory=Containers)
    _status: EnforcementStatus = field(default_factory=EnforcementStatus)
    _lag: Lag = field(default_factory=Lag)
    # What `verify`, another thread, found since it was last looked at, and what a reconnection is to mend.
    _drifts: tuple[Drift, ...] = ()
    _reconnecting: tuple[Drift, ...] = ()
    _sent: tuple[ContainerUpdate, ...] = ()
    _not_before: float = 0.0
    _asked_at: float = float("-inf")
    _silent: bool = False
    # When containers were last sent a mask.
    _sent_at: Mapping[str, float] = field(default_factory=dict)
    _sightings: Sightings = field(init=False)
    _inquiry: Inquiry = field(init=False)
    _verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self._sightings = Sightings(self.root)
        self._inquiry = Inquiry(self.node, self._sightings)
        self._verifier = Verifier(self.root, self.notify)

    # --- what the runtime tells and asks ---

    def configured(self, runtime: RuntimePeer) -> None:
        """Take note of the runtime."""
        self._status = replace(self._status, runtime=runtime, connections=self._status.connections + 1)

    def disconnected(self) -> None:
        """Take note that the connection has ended. What is known of containers waits for the next Synchronize."""
        self._status = replace(self._status, runtime=None)

    def synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        """What has to change of these containers: they exist, and no others."""
        # The runtime synchronizes each instance apart, so that takes no turn.
        with self._speaking(allowed=self.instance.active):
            return self._said(self._synchronize(listed))

    def create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        """What a container gets that is about to be created, and what has to change of others.

        Raises:
            RefusedError: it may not be created; the text is for kubelet.
            UnreadError: the ledger cannot be read.
        """
        with self._speaking(allowed=self.instance.turn(f"create {container.id}")):
            try:
                resources, updates = self._create(container)
            except DranodeError as error:
                if not self._silent:
                    raise
                log.debug("the other instance has to refuse this: %s", error)
                return Resources(), ()
            return Resources() if self._silent else resources, self._said(updates)

    def update(self, container: Container, requested: Resources, quota: int) -> tuple[ContainerUpdate, ...]:
        """What becomes of a request for other CPUs, memory nodes or quota (microseconds, 0 if none) of a container."""
        with self._speaking(allowed=self.instance.turn(f"update {container.id}")):
            snapshot = self.node.snapshot()
            return self._said(
                self._carry_out(enforcement.update(self._mended(), snapshot, container, requested, quota))
            )

    def stop(self, container: Container) -> tuple[ContainerUpdate, ...]:
        """What has to change of others now that a container has stopped."""
        with self._speaking(allowed=self.instance.turn(f"stop {container.id}")):
            return self._said(self._carry_out(enforcement.stop(self._mended(), self.node.snapshot(), container)))

    def _synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        found = self._drifts
        drifts = (*self._reconnecting, *found)
        effective = self._verifier.read(listed, _READING)

        def decide(snapshot: HeldSnapshot, evidence: Evidence) -> Allowed | AskLedger | AskKubelet:
            return enforcement.synchronize(snapshot, listed, evidence, drifts, effective)

        allowed = self._inquiry.decide_in_any_case(decide, self._containers)
        self._reconnecting = ()
        self._asked_at = self.clock()
        if self._drifts is found:
            self._drifts = ()
        # In one step: other threads ask meanwhile which claims are in use.
        self._containers = Containers(allowed.change.put)
        self._sightings.keep(pinned.container.id for pinned in self._containers)
        self._sightings.require(self._users(*allowed.change.put))
        # The driver's own container always starts before the driver can answer for it.
        unpinned = () if self._silent else tuple(each for each in allowed.unpinned if not self._is_own(each))
        if not self._silent:
            self._verifier.met(allowed.drifts, self._containers, self.node.snapshot())
        if unpinned:
            self._status = replace(self._status, unpinned=self._status.unpinned + len(unpinned))
            pods = dict.fromkeys(str(each.pod) for each in unpinned[:_NAMED])
            log.warning("pod=%s: %s", ",".join(pods), _unpinned(unpinned))
        updates = self._carry_out(allowed)
        for container in unpinned:
            claims = claims_of(container, self._containers, self.node.snapshot())
            if claims:
                self.notify(Unpinned(container.pod, claims, _unpinned((container,))))
        return updates

    def _create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        containers = self._mended()

        def decide(snapshot: HeldSnapshot, evidence: Evidence) -> Allowed | Ask:
            decision = enforcement.create(containers, snapshot, container, evidence)
            if isinstance(decision, CreationRefused):
                self._status = replace(self._status, refused=self._status.refused + (not self._silent))
                raise RefusedError(decision.reason)
            return decision

        allowed = self._inquiry.decide(decide, containers)
        return allowed.resources, self._carry_out(allowed)

    def starting(self, container: Container) -> None:
        """Take note that a container is made, so that its cgroup is there, however soon it ends."""
        pinned = self._containers.get(container.id)
        if pinned is not None and pinned.claims:
            self._sightings.look((container,))

    def started(self, container: Container) -> None:
        """Take note that a container runs."""
        self._containers.carry_out(enforcement.start(self._containers, self.node.snapshot(), container))
        pinned = self._containers.get(container.id)
        if pinned is not None:
            self._sightings.require(self._users(pinned))

    def removed(self, container: Container) -> None:
        """Take note that a container is gone."""
        self._sightings.forget(container.id)
        self._containers.carry_out(enforcement.remove(self._containers, container))

    def pod_gone(self, pod: PodSandbox) -> None:
        """Take note that a pod sandbox is gone."""
        self._containers.carry_out(enforcement.remove_pod(self._containers, pod))

    # --- what is due without being asked ---

    def unsolicited(self) -> tuple[ContainerUpdate, ...]:
        """Updates to send out of turn; none to a runtime that cannot take them, none from an instance that waits."""
        now = self.clock()
        self._ask_again(now)
        if not self.instance.active:
            return ()
        containers = self._mended()
        snapshot = self.node.snapshot()
        due = tuple(changes(containers, snapshot))
        waiting = frozenset(pinned.container.id for pinned, _ in due)
        self._lag = self._lag.seen(waiting, now)
        if not due:
            # So that the next look begins here.
            containers.carry_out(ContainerChange(settled=snapshot))
            return ()
        runtime = self._status.runtime
        if runtime is None or not runtime.takes_unsolicited_updates or now < self._not_before:
            return ()
        change, self._sent = settled(due, snapshot, ignore_failure=False)
        return self._carry_out(Allowed(change, updates=self._sent))

    def updates_answered(self, error: str) -> None:
        """Take note of what became of unsolicited updates. The runtime does not say which of them failed."""
        if error:
            log.warning(
                "runtime=%s: it did not apply every CPU set of %d containers: %s",
                self._status.runtime,
                len(self._sent),
                error,
            )
            self._not_before = self.clock() + _RETRY
            self._take_back(self._sent)
        self._sent = ()

    def reconnection_due(self) -> bool:
        """Whether masks have been waiting for so long that a reconnection has to mend them; asked once, it is noted.

        So it is once ledger and hardware can be read again: of containers that were taken in meanwhile only the runtime
        knows all that tells whose they are, and it tells that once a connection. An instance that waits for its time
        needs one for that reason as well, and for no other: no other instance can tell it.
        """
        if not self.instance.active and not self._containers.unsure:
            return False
        now = self.clock()
        runtime = self._status.runtime
        if runtime is not None and self._containers.unsure and self.node.snapshot().unread is None:
            log.warning(
                "runtime=%s: reconnecting, because containers came while ledger or hardware was unread", runtime
            )
            self._status = replace(self._status, reconnections=self._status.reconnections + 1)
            return True
        if runtime is None or runtime.takes_unsolicited_updates or not self._lag.reconnection_due(now):
            return False
        log.warning(
            "runtime=%s: reconnecting, because %d containers have had the wrong CPU set for %.0f s",
            runtime,
            len(self._lag.waiting),
            self._lag.seconds(now),
        )
        self._lag = replace(self._lag, since=None, reconnected=now)
        self._status = replace(self._status, reconnections=self._status.reconnections + 1)
        # The runtime would tell the masks that it set, not those that containers have.
        self._reconnecting = tuple(
            Drift(pinned.container, resources.cpus, pinned.cpus)
            for pinned, resources in changes(self._containers, self.node.snapshot())
        )
        return True

    # --- from other threads ---

    def verify(self) -> tuple[Drift, ...]:
        """Compare every container's CPUs with what the kernel says; what has drifted is mended from now on.

        Returns:
            Every drift, also those that repairs do not mend.
        """
        drifts = self._verifier.look(lambda: self._containers, self.node.snapshot(), self._moving())
        self._drifts = self._verifier.worth
        return drifts

    def status(self) -> EnforcementStatus:
        """How things are."""
        waiting = self._lag
        return replace(
            self._status,
            containers=len(self._containers),
            waiting=len(waiting.waiting),
            lag=waiting.seconds(self.clock()),
            drifts=self._verifier.drifts,
        )

    def is_certain(self) -> bool:
        """Whether it is certain of every container which claims it has."""
        return self._containers.certain

    def claims_in_use(self) -> frozenset[str]:
        """The UIDs of the claims that a container has, as far as the runtime has told."""
        return self._containers.claims

    # --- how ---

    @contextlib.contextmanager
    def _speaking(self, *, allowed: bool) -> Iterator[None]:
        """Decide meanwhile; the other instance counts and makes known what this one is not allowed to answer."""
        self._silent = not allowed
        try:
            yield
        finally:
            self._silent = False

    def _said(self, updates: tuple[ContainerUpdate, ...]) -> tuple[ContainerUpdate, ...]:
        """What is answered of these updates: all of them, or none while this instance is silent."""
        if self._silent:
            self._take_back(updates)
            return ()
        return updates

    def _take_back(self, updates: tuple[ContainerUpdate, ...]) -> None:
        """Take note that these updates were decided and not sent: the containers may have other CPUs."""
        late = (self._containers.get(update.container_id) for update in updates)
        self._containers.carry_out(ContainerChange(tuple(replace(each, cpus=CPUSet()) for each in late if each)))

    def _users(self, *known: Pinned) -> Iterator[Container]:
        """The containers among these that run and have claims."""
        return (each.container for each in known if each.claims and each.container.started)

    def _is_own(self, container: Container) -> bool:
        return bool(self.own_pod) and container.pod.uid == self.own_pod

    def _mended(self) -> Containers:
        """The containers, with what the kernel was found to say of them since the last decision."""
        drifts, self._drifts = self._drifts, ()
        if drifts:
            self._containers.carry_out(drifted(self._containers, drifts))
        return self._containers

    def _ask_again(self, now: float) -> None:
        """Look again, after a while, at the containers that kubelet did not vouch for."""
        containers = self._containers
        if not (containers.unheard or containers.denied) or self.node.snapshot().unread is not None:
            return
        if now - self._asked_at < (_ASK_AGAIN if containers.unheard else _ASK_DENIED):
            return
        self._asked_at = now

        def decide(snapshot: HeldSnapshot, evidence: Evidence) -> Allowed | Ask:
            return enforcement.heard(containers, snapshot, evidence)

        self._carry_out(self._inquiry.decide_in_any_case(decide, containers))

    def _carry_out(self, allowed: Allowed) -> tuple[ContainerUpdate, ...]:
        for warning in allowed.warnings:
            log.warning("%s", warning)
        self._containers.carry_out(allowed.change)
        if allowed.updates and not self._silent:
            self._status = replace(self._status, updates=self._status.updates + len(allowed.updates))
        if allowed.updates:
            now = self.clock()
            self._sent_at = {**self._moving(), **{update.container_id: now for update in allowed.updates}}
        return allowed.updates

    def _moving(self) -> dict[str, float]:
        now = self.clock()
        return {key: at for key, at in self._sent_at.items() if now - at < _SETTLING}


def _unpinned(containers: tuple[Container, ...]) -> str:
    if len(containers) == 1:
        return f"{containers[0]} had no CPU set and is pinned now; it was created while nobody answered the runtime"
    names = ", ".join(f"{each.pod}/{each.name}" for each in containers[:_NAMED])
    more = f" and {len(containers) - _NAMED} more" if len(containers) > _NAMED else ""
    return (
        f"{len(containers)} containers had no CPU set and are pinned now; they were created while nobody answered the "
        f"runtime: {names}{more}"
    )
