"""Answers the questions of decisions: asks the ledger, kubelet and the kernel."""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from dranode.api.errors import LedgerError, UnreadError
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root
from dranode.driver.nri.state import RuntimeState
from dranode.driver.nri.verifier import limits_in_time
from dranode.driver.pinning.container_index import Containers
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.drift import overruled, to_compare
from dranode.driver.pinning.identity import Ask, AskKubelet, AskLedger, AskProcesses, Evidence, KubeletPodClaims
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)


# A cgroup without processes means that a container has ended only if processes were seen in it before, or in that of
# another container of its pod, since a pod has one runtime class. The cgroup of a container in a virtual machine (Kata)
# never exists on the host, and that of one with a kernel of its own (gVisor) is empty. Such containers run until
# the runtime reports their end.


class Sightings:
    """The containers whose processes were seen on this host. Only the thread with the NRI connection uses it."""

    def __init__(self, root: Root) -> None:
        """Start without any container; cgroups are read under `root`."""
        self.root = root
        self._seen: set[str] = set()
        # The sandboxes of these containers.
        self._pods: set[str] = set()
        self._unseen: set[str] = set()

    def check(self, containers: Iterable[Container]) -> None:
        """Note which of these existing containers have processes on this host."""
        new = [container for container in containers if container.id not in self._seen]
        if new:
            cgroups = Cgroups(self.root)
            shown = [container for container in new if cgroups.shows_processes(cgroup_folder(container.cgroup))]
            self._seen.update(container.id for container in shown)
            self._pods.update(container.pod.id for container in shown)

    def report_unseen(self, containers: Iterable[Container]) -> None:
        """Log once for each of these running containers if none of its processes can be seen."""
        containers = tuple(containers)
        self.check(containers)
        for container in containers:
            if self._is_visible(container) or container.id in self._unseen:
                continue
            self._unseen.add(container.id)
            log.warning(
                "pod=%s container=%s: no process of it is in a cgroup of this host (a virtual machine as with Kata?), "
                "so its CPUs and quota cannot be verified, and its claims are in use until the runtime says that it "
                "has ended",
                container.pod,
                container.name,
            )

    def ended(self, containers: Iterable[Container]) -> frozenset[str]:
        """Return the ids of the containers whose processes would be seen and are gone now."""
        cgroups = Cgroups(self.root)
        visible = filter(self._is_visible, containers)
        ended = (container for container in visible if not cgroups.has_processes(cgroup_folder(container.cgroup)))
        return frozenset(container.id for container in ended)

    def keep(self, containers: Iterable[Container]) -> None:
        """Forget all other containers."""
        ids = {key for container in containers for key in (container.id, container.pod.id)}
        for known in (self._seen, self._pods, self._unseen):
            known.intersection_update(ids)

    def forget(self, key: str) -> None:
        """Forget a container or a sandbox that is gone."""
        for known in (self._seen, self._pods, self._unseen):
            known.discard(key)

    def _is_visible(self, container: Container) -> bool:
        return container.id in self._seen or container.pod.id in self._pods


class ClaimSource(Protocol):
    """What enforcement needs to know about claims."""

    def snapshot(self) -> PinSnapshot:
        """Return the current snapshot of the records; costs nothing."""

    def reread(self) -> PinSnapshot:
        """Read the ledger again, and return the snapshot.

        Raises:
            UnreadError: the ledger cannot be read.
        """

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        """Return what kubelet's pod-resources API says about these pods, by UID; None without an answer within 1 s."""


class Inquiry(msgspec.Struct, frozen=True):
    """Asks what a decision needs to know.

    Attributes:
        source: knows the records and can ask kubelet.
        sightings: knows which containers have ended.
    """

    source: ClaimSource
    sightings: Sightings

    def answer(
        self, question: Ask, snapshot: PinSnapshot, evidence: Evidence, containers: Containers, *, running: bool = True
    ) -> tuple[PinSnapshot, Evidence]:
        """Answer a question of a decision, and return the records and the evidence for the next attempt to decide.

        Each answer is added to the evidence, and a decision asks nothing twice, so it is made after a few questions.
        If the ledger cannot be read, a decision about containers that are `running` goes by the last snapshot.

        Raises:
            UnreadError: the ledger cannot be read, and the container is not `running`.
        """
        match question:
            case AskLedger():
                snapshot = self.read_again() if running else self.source.reread()
                return snapshot, replace(evidence, reread=True)
            case AskKubelet():
                answer = self.source.pod_claims(question.pods)
                # A pod without an answer is entered as None, so that it is not asked about again.
                answers = {pod.uid: None if answer is None else answer.get(pod.uid) for pod in question.pods}
                return snapshot, replace(evidence, pods={**evidence.pods, **answers})
            case AskProcesses():
                gone = self._gone(question.containers, containers)
                return snapshot, replace(evidence, gone=(evidence.gone or frozenset()) | gone)

    def read_again(self) -> PinSnapshot:
        """Read the ledger again and return the snapshot; if the ledger cannot be read, return the last one."""
        try:
            return self.source.reread()
        except UnreadError:
            return self.source.snapshot()
        except LedgerError as error:
            log.warning("containers are compared with what was last known of claims: %s", error)
            return self.source.snapshot()

    def catch_up(self, state: RuntimeState) -> None:
        """Read from the kernel which CPUs containers have, if the other instance may have moved some."""
        snapshot = self.source.snapshot()
        # While records cannot be read, containers are not moved, so their CPUs do not matter yet.
        if state.silent or not state.elsewhere or snapshot.unread is not None:
            return
        state.elsewhere = False
        limits = limits_in_time(Cgroups(self.sightings.root), to_compare(state.containers, snapshot), state.clock)
        state.containers.apply(overruled(state.containers, snapshot, limits))

    def _gone(self, ids: tuple[str, ...], containers: Containers) -> frozenset[str]:
        asked = [pinned.container for key in ids if (pinned := containers.get(key))]
        beside = (containers.get(key) for container in asked for key in containers.of_sandbox(container.pod.id))
        self.sightings.check(pinned.container for pinned in beside if pinned and pinned.container.started)
        return self.sightings.ended(asked)
