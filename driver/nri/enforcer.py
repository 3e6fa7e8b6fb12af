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
from collections.abc import Callable, Collection, Iterator
from typing import Final

from msgspec.structs import replace

from dranode.api.errors import DranodeError
from dranode.driver.claims.events import Notify, Unpinned, notify_none
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.root import Root
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.inquiry import ClaimSource, Inquiry, Sightings
from dranode.driver.nri.unsolicited import ALONE, Enforced, EnforcementStatus, Instance, Unsolicited
from dranode.driver.nri.verifier import StartGate, Verifier, limits_in_time
from dranode.driver.pinning import enforcement
from dranode.driver.pinning.container_index import (
    Containers,
    Drift,
    by_configuration,
    claims_of,
    drifted,
    overruled,
    to_compare,
)
from dranode.driver.pinning.containers import Container, ContainerUpdate, Pinned, Resources
from dranode.driver.pinning.enforcement import Allowed, CreationRefused
from dranode.driver.pinning.identity import Ask, AskKubelet, AskLedger, Evidence
from dranode.driver.pinning.refusals import start_refusal
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)

Starts = Callable[[Collection[str]], None]
# How many containers one line of the log names.
_NAMED: Final = 20


class RefusedError(DranodeError):
    """A container cannot be created or started; the text goes to kubelet."""


class Enforcer:
    """Answers what a runtime asks. Every method is to return within a fraction of the 2 s that a runtime waits.

    Attributes:
        node: the node service.
        root: where cgroups are read.
        clock: seconds, monotonic.
        notify: makes known to people that containers were not where they should be.
        own_pod: the UID of the pod that this runs in; empty if it is not known.
        instance: whether this instance answers, or another one.
        starts: called with the claims of a container that is made and about to start, and when it has; does not wait.
        unsolicited: what is due without being asked.
    """

    def __init__(
        self,
        node: ClaimSource,
        root: Root,
        *,
        clock: Callable[[], float] = time.monotonic,
        notify: Notify = notify_none,
        own_pod: str = "",
        instance: Instance = ALONE,
    ) -> None:
        self.node, self.root, self.clock, self.notify = node, root, clock, notify
        self.own_pod, self.instance = own_pod, instance
        self.starts: Starts = lambda _claims: None
        self._enforced = Enforced(clock)
        self._sightings = Sightings(root)
        self._inquiry = Inquiry(node, self._sightings)
        self._verifier = Verifier(root, notify)
        self._gate = StartGate(root, clock)
        self.unsolicited = Unsolicited(self._enforced, self._inquiry, instance, self._catch_up)

    # --- what the runtime reports and requests ---

    def configured(self, runtime: RuntimePeer) -> None:
        """Take note of the runtime."""
        status = self._enforced.status
        self._enforced.status = replace(status, runtime=runtime, connections=status.connections + 1)

    def disconnected(self) -> None:
        """Take note that the connection has ended. What is known of containers waits for the next Synchronize."""
        self.instance.disconnected()
        self._enforced.status = replace(self._enforced.status, runtime=None)

    def synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        """Return what has to change of these containers: they exist, and no others."""
        # The runtime says where all of them are.
        self._enforced.elsewhere = False
        # The runtime synchronizes each instance apart, so that takes no turn.
        with self._speaking(allowed=self.instance.speaks):
            updates = self._said(self._synchronize(listed))
        self.instance.connected()
        return updates

    def create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        """Return what a container gets that is about to be created, and what has to change of others.

        Raises:
            RefusedError: it may not be created; the text is for kubelet.
            UnreadError: the ledger cannot be read.
        """
        with self._speaking(allowed=self.instance.adjusts(f"create {container.id}")):
            try:
                resources, updates = self._create(container)
            except DranodeError as error:
                if not self._enforced.silent:
                    raise
                log.debug("the other instance has to refuse this: %s", error)
                return Resources(), ()
            return self._given(container, resources), self._said(updates)

    def update(self, container: Container, requested: Resources, quota: int) -> tuple[ContainerUpdate, ...]:
        """Return the answer to a request for other CPUs, memory nodes or quota (microseconds, 0 if none)."""
        with self._speaking(allowed=self.instance.adjusts(f"update {container.id}")):
            containers = self._enforced.mended()
            if containers.get(container.id) is None:
                self._meet(container)
            self._enforced.resized = container.id
            allowed = enforcement.update(containers, self.node.snapshot(), container, requested, quota)
            return self._said(self._enforced.carry_out(allowed))

    def stop(self, container: Container) -> tuple[ContainerUpdate, ...]:
        """Return what has to change of others now that a container has stopped."""
        with self._speaking(allowed=self.instance.adjusts(f"stop {container.id}")):
            allowed = enforcement.stop(self._enforced.mended(), self.node.snapshot(), container)
            return self._said(self._enforced.carry_out(allowed))

    def _meet(self, container: Container) -> None:
        """Take in a container of which nothing was reported: it was created while another instance was asked."""

        def decide(snapshot: PinSnapshot, evidence: Evidence) -> Allowed | Ask:
            return enforcement.meet(snapshot, container, evidence)

        self._enforced.carry_out(self._inquiry.decide_in_any_case(decide, self._enforced.containers))

    def _synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        found = self._enforced.drifts
        drifts = (*self.unsolicited.reconnecting, *found)
        running = ((each, by_configuration(each)) for each in listed if each.started)
        effective = limits_in_time(Cgroups(self.root), running, self.clock)

        def decide(snapshot: PinSnapshot, evidence: Evidence) -> Allowed | AskLedger | AskKubelet:
            return enforcement.synchronize(snapshot, listed, evidence, drifts, effective)

        allowed = self._inquiry.decide_in_any_case(decide, self._enforced.containers)
        self.unsolicited.synchronized()
        if self._enforced.drifts is found:
            self._enforced.drifts = ()
        # In one step: other threads ask meanwhile which claims are in use.
        self._enforced.containers = Containers(allowed.change.put)
        self._sightings.keep(pinned.container.id for pinned in self._enforced.containers)
        self._sightings.require(self._users(*allowed.change.put))
        # The driver's own container always starts before the driver can answer for it.
        unpinned = () if self._enforced.silent else tuple(each for each in allowed.unpinned if not self._is_own(each))
        if not self._enforced.silent:
            self._verifier.met(allowed.drifts, self._enforced.containers, self.node.snapshot())
        if unpinned:
            status = self._enforced.status
            self._enforced.status = replace(status, unpinned=status.unpinned + len(unpinned))
            pods = dict.fromkeys(str(each.pod) for each in unpinned[:_NAMED])
            log.warning("pod=%s: %s", ",".join(pods), _unpinned(unpinned))
        updates = self._enforced.carry_out(allowed)
        for container in unpinned:
            claims = claims_of(container, self._enforced.containers, self.node.snapshot())
            if claims:
                self.notify(Unpinned(container.pod, claims, _unpinned((container,))))
        return updates

    def _create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        containers = self._enforced.mended()
        if self._gate.drifts:
            # They get their CPUs again, whatever they were sent since.
            containers.carry_out(drifted(containers, self._gate.drifts))

        def decide(snapshot: PinSnapshot, evidence: Evidence) -> Allowed | Ask:
            decision = enforcement.create(containers, snapshot, container, evidence)
            if isinstance(decision, CreationRefused):
                raise self._refused(decision.reason)
            return decision

        allowed = self._inquiry.decide(decide, containers)
        updates = self._enforced.carry_out(allowed)
        created = containers.get(container.id)
        if created is not None and created.claims:
            updates = self.unsolicited.overtaken(updates)
        return allowed.resources, updates

    def starting(self, container: Container) -> None:
        """Let a container start that is made, so that its cgroup is there, however soon it ends.

        Raises:
            RefusedError: by the kernel it would share CPUs of a claim; the text is for kubelet.
        """
        self._enforced.called()
        containers = self._enforced.containers
        pinned = containers.get(container.id)
        if pinned is not None and self.instance.speaks:
            overlapping = self._gate.in_the_way(containers, self.node.snapshot(), pinned)
            if overlapping:
                containers.carry_out(drifted(containers, self._gate.drifts))
                raise self._refused(start_refusal(container, overlapping))
        if pinned is not None and pinned.claims:
            self._sightings.check((container,))
            self.starts(pinned.claims)

    def started(self, container: Container) -> bool:
        """Take note that a container runs, and return whether it may have other CPUs than it was given."""
        self._enforced.called()
        containers = self._enforced.containers
        containers.carry_out(enforcement.start(containers, self.node.snapshot(), container))
        pinned = containers.get(container.id)
        if pinned is not None:
            self._sightings.require(self._users(pinned))
        if pinned is not None and pinned.claims:
            self.starts(pinned.claims)
        return pinned is not None and pinned.doubtful

    def removed(self, container: Container) -> None:
        """Take note that a container is gone."""
        self._enforced.called()
        self._sightings.forget(container.id)
        self._enforced.containers.carry_out(enforcement.remove(self._enforced.containers, container))

    def pod_gone(self, pod: PodSandbox) -> None:
        """Take note that a pod sandbox is gone."""
        self._enforced.called()
        self._enforced.containers.carry_out(enforcement.remove_pod(self._enforced.containers, pod))

    # --- from other threads ---

    def verify(self) -> tuple[Drift, ...]:
        """Compare every container's CPUs with what the kernel says; what has drifted is mended from now on.

        Returns:
            Every drift, also those that repairs do not mend.
        """
        drifts = self._verifier.check(lambda: self._enforced.containers, self.node.snapshot(), self._enforced.moving())
        self._enforced.drifts = self._verifier.worth
        return drifts

    def status(self) -> EnforcementStatus:
        """Return how things are."""
        return replace(
            self._enforced.status,
            containers=len(self._enforced.containers),
            waiting=self.unsolicited.waiting,
            lag=self.unsolicited.lag,
            drifts=self._verifier.drifts,
        )

    def running(self) -> tuple[Pinned, ...]:
        """The containers that have claims and run, as far as the runtime has reported them."""
        return tuple(each for each in self._enforced.containers if each.claims and each.container.started)

    def is_certain(self) -> bool:
        """Return whether it is certain of every container which claims it has."""
        return self._enforced.containers.certain

    def claims_in_use(self) -> frozenset[str]:
        """The UIDs of the claims that a container has, as far as the runtime has listed them."""
        return self._enforced.containers.claims

    # --- how ---

    def _refused(self, reason: str) -> RefusedError:
        status = self._enforced.status
        self._enforced.status = replace(status, refused=status.refused + (not self._enforced.silent))
        return RefusedError(reason)

    @contextlib.contextmanager
    def _speaking(self, *, allowed: bool) -> Iterator[None]:
        """Decide meanwhile; the other instance counts and makes known what this one is not allowed to answer."""
        self._enforced.called()
        self._enforced.silent = not allowed
        try:
            if not allowed:
                self._enforced.elsewhere = True
            elif not self.instance.active:
                # The active one may have prepared claims since this one last looked.
                self._inquiry.look_again()
            self._catch_up()
            yield
        finally:
            self._enforced.silent = False

    def _catch_up(self) -> None:
        """Find out where containers are that another instance may have moved, once this one speaks."""
        snapshot = self.node.snapshot()
        # While records cannot be read no container is moved.
        if self._enforced.silent or not self._enforced.elsewhere or snapshot.unread is not None:
            return
        self._enforced.elsewhere = False
        containers = self._enforced.containers
        limits = limits_in_time(Cgroups(self.root), to_compare(containers, snapshot), self.clock)
        containers.carry_out(overruled(containers, snapshot, limits))

    def _said(self, updates: tuple[ContainerUpdate, ...]) -> tuple[ContainerUpdate, ...]:
        """Return what is answered of these updates: all of them, or none while this instance is silent."""
        if self._enforced.silent:
            self._enforced.take_back(update.container_id for update in updates)
            return ()
        return updates

    def _given(self, container: Container, resources: Resources) -> Resources:
        """Return what is answered for a new container: these resources, or none while this instance is silent."""
        if not self._enforced.silent:
            return resources
        pinned = self._enforced.containers.get(container.id)
        if pinned is not None and not pinned.claims:
            # The other instance may not know yet of a claim that this one has prepared, and share its CPUs.
            self._enforced.take_back((container.id,))
        return Resources()

    def _users(self, *known: Pinned) -> Iterator[Container]:
        """The containers among these that run and have claims."""
        return (each.container for each in known if each.claims and each.container.started)

    def _is_own(self, container: Container) -> bool:
        return bool(self.own_pod) and container.pod.uid == self.own_pod


def _unpinned(containers: tuple[Container, ...]) -> str:
    if len(containers) == 1:
        return f"{containers[0]} had no CPU set and is pinned now; it was created while nobody answered the runtime"
    names = ", ".join(f"{each.pod}/{each.name}" for each in containers[:_NAMED])
    more = f" and {len(containers) - _NAMED} more" if len(containers) > _NAMED else ""
    return (
        f"{len(containers)} containers had no CPU set and are pinned now; they were created while nobody answered the "
        f"runtime: {names}{more}"
    )
