"""Answers the container runtime: lets `driver/pinning/enforcement.py` decide, keeps the result, counts and reports.

One thread owns the NRI connection and calls all methods but `verify`, `status`, `running`, `is_certain` and
`claims_in_use`. These read the containers while that thread may change them.

During a rolling update the runtime asks both instances of the driver. Only one of them may answer. The other one makes
the same decisions, so that it can take over at any time, but it is silent: it answers without changes.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from msgspec.structs import replace

from dranode.api.errors import DranodeError
from dranode.driver.claims.events import Notify, Unpinned, notify_none
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.root import Root
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.inquiry import ClaimSource, Inquiry, Sightings
from dranode.driver.nri.state import ALONE, EnforcementStatus, Instance, RuntimeState
from dranode.driver.nri.unsolicited import Unsolicited
from dranode.driver.nri.verifier import StartGate, Verifier, limits_in_time
from dranode.driver.pinning import enforcement
from dranode.driver.pinning.container_index import Containers, claims_of, effective_of
from dranode.driver.pinning.containers import Container, ContainerUpdate, Pinned, Resources
from dranode.driver.pinning.drift import Drift, drifted
from dranode.driver.pinning.enforcement import CreationRefused
from dranode.driver.pinning.identity import Ask, Evidence
from dranode.driver.pinning.refusals import start_refusal

log = logging.getLogger(__name__)

Starts = Callable[[Collection[str]], None]
# How many containers one log line names.
_NAMED: Final = 20


class RefusedError(DranodeError):
    """A container must not be created or started; kubelet shows the text on the pod."""


class Enforcer:
    """Answers the runtime's requests. Each method has to return in much less than 2 s, the time that a runtime waits.

    Attributes:
        source: gives the snapshot of claims, and reads the ledger or asks kubelet when a decision needs that.
        root: where cgroups are read.
        clock: returns seconds, monotonic.
        notify: reports to people that containers were not on the right CPUs.
        own_pod: the UID of the pod that this process runs in; empty if it is not known.
        instance: whether this instance answers, or the other one.
        starts: called with the claims of a container before it starts and after it has started; it never waits.
        unsolicited: the updates that are due although the runtime did not ask.
    """

    def __init__(
        self,
        source: ClaimSource,
        root: Root,
        *,
        clock: Callable[[], float] = time.monotonic,
        notify: Notify = notify_none,
        own_pod: str = "",
        instance: Instance = ALONE,
        starts: Starts = lambda _claims: None,
    ) -> None:
        self.source, self.root, self.clock, self.notify = source, root, clock, notify
        self.own_pod, self.instance, self.starts = own_pod, instance, starts
        self._state = RuntimeState(clock)
        self._sightings = Sightings(root)
        self._inquiry = Inquiry(source, self._sightings)
        self._verifier = Verifier(root, notify)
        self._gate = StartGate(root, clock)
        self.unsolicited = Unsolicited(self._state, self._inquiry, instance)

    # --- Requests and reports of the runtime ---

    def configured(self, runtime: RuntimePeer) -> None:
        """Record which runtime has configured the plug-in."""
        status = self._state.status
        self._state.status = replace(status, runtime=runtime, connections=status.connections + 1)

    def disconnected(self) -> None:
        """Record that the connection has ended. The known containers are kept until the next Synchronize."""
        self.instance.disconnected()
        self._state.status = replace(self._state.status, runtime=None)

    def synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        """Answer Synchronize: these containers exist and no others; returns the updates that they need."""
        # The list has the CPUs of each container, so the earlier updates of the other instance do not matter.
        self._state.elsewhere = False
        # The runtime synchronizes each instance separately, so the instances do not take turns here.
        with self._answering(allowed=self.instance.speaks):
            updates = self._updates_to_send(self._synchronize(listed))
        self.instance.connected()
        return updates

    def create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        """Answer CreateContainer: the resources of the new container, and the updates of others.

        Raises:
            RefusedError: the container must not be created; kubelet shows the text.
            UnreadError: the ledger cannot be read.
        """
        with self._answering(allowed=self.instance.adjusts(f"create {container.id}")):
            try:
                resources, updates = self._create(container)
            except DranodeError as error:
                # An instance that does not answer must not report either, because the other one does: people would see
                # every Event twice.
                if not self._state.silent:
                    raise
                log.debug("the other instance has to refuse this: %s", error)
                return Resources(), ()
            return self._resources_to_send(container, resources), self._updates_to_send(updates)

    def update(self, container: Container, requested: Resources, quota: int) -> tuple[ContainerUpdate, ...]:
        """Answer UpdateContainer, which asks for other CPUs, memory nodes or quota (in microseconds, 0 for none)."""
        with self._answering(allowed=self.instance.adjusts(f"update {container.id}")):
            containers = self._state.mended()
            if containers.get(container.id) is None:
                self._add_unreported(container)
            # The runtime applies the container's own update last, perhaps only after its next call. So the next call
            # does not prove that this update was applied (`RuntimeState.called`).
            self._state.resized = container.id
            allowed = enforcement.update(containers, self.source.snapshot(), container, requested, quota)
            return self._updates_to_send(self._state.note(allowed))

    def stop(self, container: Container) -> tuple[ContainerUpdate, ...]:
        """Answer StopContainer: the updates of others after a container has stopped."""
        with self._answering(allowed=self.instance.adjusts(f"stop {container.id}")):
            allowed = enforcement.stop(self._state.mended(), self.source.snapshot(), container)
            return self._updates_to_send(self._state.note(allowed))

    def _add_unreported(self, container: Container) -> None:
        """Add a container that was never reported, because it was created while only the other instance was asked."""
        snapshot, evidence = self.source.snapshot(), Evidence()
        while isinstance(decision := enforcement.add_existing(snapshot, container, evidence), Ask):
            snapshot, evidence = self._inquiry.answer(decision, snapshot, evidence, self._state.containers)
        self._state.note(decision)

    def _synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        known_drifts = self._state.drifts
        drifts = (*self.unsolicited.reconnecting, *known_drifts)
        # A container that is not started has a cgroup whose limits may not be set yet.
        running = ((container, effective_of(container)) for container in listed if container.started)
        effective = limits_in_time(Cgroups(self.root), running, self.clock)
        snapshot, evidence = self.source.snapshot(), Evidence()
        while isinstance(allowed := enforcement.synchronize(snapshot, listed, evidence, drifts, effective), Ask):
            snapshot, evidence = self._inquiry.answer(allowed, snapshot, evidence, self._state.containers)
        self.unsolicited.synchronized()
        # Unless the verifier has found others meanwhile, the answer to Synchronize corrects these.
        if self._state.drifts is known_drifts:
            self._state.drifts = ()
        # In one assignment, because other threads may read at this moment which claims are in use.
        self._state.containers = Containers(allowed.change.put)
        self._sightings.keep(pinned.container for pinned in self._state.containers)
        self._sightings.report_unseen(self._users(*allowed.change.put))
        # The driver's own container is left out: it always starts before the driver can answer the runtime.
        unpinned = tuple(container for container in allowed.unpinned if not self._is_own(container))
        if self._state.silent:
            unpinned = ()
        else:
            self._verifier.note_drifts(allowed.drifts, self._state.containers, self.source.snapshot())
        if unpinned:
            status = self._state.status
            self._state.status = replace(status, unpinned=status.unpinned + len(unpinned))
            pods = dict.fromkeys(str(container.pod) for container in unpinned[:_NAMED])
            log.warning("pod=%s: %s", ",".join(pods), _unpinned(unpinned))
        updates = self._state.note(allowed)
        for container in unpinned:
            claims = claims_of(container, self._state.containers, self.source.snapshot())
            if claims:
                self.notify(Unpinned(container.pod, claims, _unpinned((container,))))
        return updates

    def _create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        containers = self._state.mended()
        if self._gate.drifts:
            # These containers were found on wrong CPUs. They get theirs again, even if an update was sent since.
            containers.apply(drifted(containers, self._gate.drifts))
        snapshot, evidence = self.source.snapshot(), Evidence()
        while isinstance(decision := enforcement.create(containers, snapshot, container, evidence), Ask):
            snapshot, evidence = self._inquiry.answer(decision, snapshot, evidence, containers, running=False)
        if isinstance(decision, CreationRefused):
            raise self._refused(decision.reason)
        updates = self._state.note(decision)
        created = containers.get(container.id)
        # The new container must not start before the others have left its CPUs.
        if created is not None and created.claims:
            updates = self.unsolicited.overtaken(updates)
        return decision.resources, updates

    def starting(self, container: Container) -> None:
        """Check a container before its process starts; its cgroup exists already, so the kernel can be asked.

        Raises:
            RefusedError: it would share CPUs of a claim with another container; kubelet shows the text.
        """
        self._state.called()
        containers = self._state.containers
        pinned = containers.get(container.id)
        # During a rolling update, the instance that answers also decides about starts.
        if pinned is not None and self.instance.speaks:
            overlapping = self._gate.in_the_way(containers, self.source.snapshot(), pinned)
            if overlapping:
                containers.apply(drifted(containers, self._gate.drifts))
                raise self._refused(start_refusal(container, overlapping))
        if pinned is not None and pinned.claims:
            self._sightings.check((container,))
            self.starts(pinned.claims)

    def started(self, container: Container) -> bool:
        """Record that a container runs; return whether its CPUs may differ from those it was given."""
        self._state.called()
        containers = self._state.containers
        containers.apply(enforcement.start(containers, self.source.snapshot(), container))
        pinned = containers.get(container.id)
        if pinned is not None:
            self._sightings.report_unseen(self._users(pinned))
        if pinned is not None and pinned.claims:
            self.starts(pinned.claims)
        return pinned is not None and pinned.resend

    def removed(self, container: Container) -> None:
        """Record that a container was removed."""
        self._state.called()
        self._sightings.forget(container.id)
        self._state.containers.apply(enforcement.remove(self._state.containers, container))

    def pod_gone(self, pod: PodSandbox) -> None:
        """Record that a pod sandbox was removed."""
        self._state.called()
        self._sightings.forget(pod.id)
        self._state.containers.apply(enforcement.remove_pod(self._state.containers, pod))

    # --- Called by other threads ---

    def verify(self) -> tuple[Drift, ...]:
        """Compare the CPUs of all containers with those in the kernel; the next answers correct what has drifted.

        Returns:
            All drifts, including those that repairs could not correct.
        """
        # The corrections go into the next answer, or into an unsolicited update if the runtime accepts these.
        drifts = self._verifier.check(lambda: self._state.containers, self.source.snapshot(), self._state.moving())
        self._state.drifts = self._verifier.worth
        return drifts

    def status(self) -> EnforcementStatus:
        """Return the state of enforcement, for metrics and probes."""
        return replace(
            self._state.status,
            containers=len(self._state.containers),
            waiting=self.unsolicited.waiting,
            lag=self.unsolicited.lag,
            drifts=self._verifier.drifts,
        )

    def running(self) -> tuple[Pinned, ...]:
        """Return the running containers with claims, as far as the runtime has reported them."""
        return tuple(pinned for pinned in self._state.containers if pinned.claims and pinned.container.started)

    def is_certain(self) -> bool:
        """Return whether it is certain for every container which claims it has."""
        return self._state.containers.certain

    def claims_in_use(self) -> frozenset[str]:
        """Return the UIDs of the claims that containers have, as far as the runtime has reported them."""
        return self._state.containers.claims

    # --- Steps of the methods above ---

    def _refused(self, reason: str) -> RefusedError:
        status = self._state.status
        self._state.status = replace(status, refused=status.refused + (not self._state.silent))
        return RefusedError(reason)

    @contextlib.contextmanager
    def _answering(self, *, allowed: bool) -> Iterator[None]:
        """Decide in the `with` block; if this instance is not `allowed` to answer, the other one counts and reports."""
        self._state.called()
        self._state.silent = not allowed
        try:
            if not allowed:
                self._state.elsewhere = True
            elif not self.instance.active:
                # The active instance may have prepared claims since this one last read the ledger.
                self._inquiry.read_again()
            self._inquiry.catch_up(self._state)
            yield
        finally:
            self._state.silent = False

    def _updates_to_send(self, updates: tuple[ContainerUpdate, ...]) -> tuple[ContainerUpdate, ...]:
        """Return the updates for the answer: all of them, or none while this instance is silent."""
        if self._state.silent:
            self._state.take_back(update.container_id for update in updates)
            return ()
        return updates

    def _resources_to_send(self, container: Container, resources: Resources) -> Resources:
        """Return the resources for the answer about a new container: these, or none while this instance is silent."""
        if not self._state.silent:
            return resources
        pinned = self._state.containers.get(container.id)
        if pinned is not None and not pinned.claims:
            # The other instance may not know a claim that this one has prepared, and give its CPUs to this container.
            self._state.take_back((container.id,))
        return Resources()

    def _users(self, *known: Pinned) -> Iterator[Container]:
        """Return the running containers with claims among these."""
        return (pinned.container for pinned in known if pinned.claims and pinned.container.started)

    def _is_own(self, container: Container) -> bool:
        return bool(self.own_pod) and container.pod.uid == self.own_pod


def _unpinned(containers: tuple[Container, ...]) -> str:
    if len(containers) == 1:
        return f"{containers[0]} had no CPU set and is pinned now; it was created while no driver answered the runtime"
    names = ", ".join(f"{container.pod}/{container.name}" for container in containers[:_NAMED])
    more = f" and {len(containers) - _NAMED} more" if len(containers) > _NAMED else ""
    return (
        f"{len(containers)} containers had no CPU set and are pinned now; they were created while no driver answered "
        f"the runtime: {names}{more}"
    )
