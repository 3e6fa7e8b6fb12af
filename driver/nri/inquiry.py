"""Finds out what a decision asks to know: of the ledger, of kubelet and of the kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from dranode.api.errors import LedgerError, UnreadError
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder
from dranode.driver.machine.root import Root
from dranode.driver.pinning.container_index import Containers
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.enforcement import Allowed
from dranode.driver.pinning.identity import Ask, AskKubelet, AskLedger, AskProcesses, Evidence, KubeletPodClaims
from dranode.driver.pinning.snapshot import PinSnapshot

log = logging.getLogger(__name__)


# Remembers which containers the kernel of this host shows, and which of those have ended.  A cgroup without processes
# says that a container has ended only if it once had some. That of a container in a virtual machine (Kata) never
# exists on the host, and that of one with a kernel of its own (gVisor) is empty: such a container runs until the
# runtime says that it has ended.


class Sightings:
    """The containers whose processes were seen. The thread that owns the connection calls all methods."""

    def __init__(self, root: Root) -> None:
        """Nothing is seen yet; cgroups are read under `root`."""
        self._root = root
        self._seen: set[str] = set()
        self._unseen: set[str] = set()

    def check(self, containers: Iterable[Container]) -> None:
        """See which of these containers, which were made and have not ended, have processes on this host."""
        new = [each for each in containers if each.id not in self._seen]
        if new:
            cgroups = Cgroups(self._root)
            self._seen.update(each.id for each in new if cgroups.shows_processes(cgroup_folder(each.cgroup)))

    def require(self, containers: Iterable[Container]) -> None:
        """Say once for each of these containers, which run, that it is not to be seen."""
        containers = tuple(containers)
        self.check(containers)
        for each in containers:
            if each.id in self._seen or each.id in self._unseen:
                continue
            self._unseen.add(each.id)
            log.warning(
                "pod=%s container=%s: no process of it is in a cgroup of this host (a virtual machine as with Kata?), "
                "so its CPUs and quota cannot be verified, and its claims are in use until the runtime says that it "
                "has ended",
                each.pod,
                each.name,
            )

    def ended(self, containers: Iterable[Container]) -> frozenset[str]:
        """Return the ids of those containers that were seen and have no process any more."""
        cgroups = Cgroups(self._root)
        seen = (each for each in containers if each.id in self._seen)
        return frozenset(each.id for each in seen if not cgroups.has_processes(cgroup_folder(each.cgroup)))

    def keep(self, ids: Iterable[str]) -> None:
        """Forget all containers but these."""
        ids = set(ids)
        self._seen &= ids
        self._unseen &= ids

    def forget(self, *ids: str) -> None:
        """Forget containers that are gone."""
        self._seen.difference_update(ids)
        self._unseen.difference_update(ids)


Decide: TypeAlias = Callable[[PinSnapshot, Evidence], Allowed | Ask]


class ClaimSource(Protocol):
    """The node service as enforcement needs it."""

    def snapshot(self) -> PinSnapshot:
        """Return what is on record now; costs nothing."""

    def reread(self) -> PinSnapshot:
        """Return what is on record after another look at the ledger.

        Raises:
            UnreadError: the ledger cannot be read.
        """

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        """Return what kubelet's pod-resources API says of the pods that it lists, by UID.

        None without an answer in 1 s.
        """


class Inquiry(msgspec.Struct, frozen=True):
    """The witnesses to ask.

    Attributes:
        node: the node service.
        sightings: which containers have ended.
    """

    node: ClaimSource
    sightings: Sightings

    def decide(self, decide: Decide, containers: Containers) -> Allowed:
        """Decide, find out what is asked, decide again; every kind of question is asked once at most.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        return self._decide(decide, containers, self.node.reread)

    def decide_in_any_case(self, decide: Decide, containers: Containers) -> Allowed:
        """The same by what was last known of claims if the ledger cannot be read: what runs already is not refused."""
        return self._decide(decide, containers, self.look_again)

    def _decide(self, decide: Decide, containers: Containers, reread: Callable[[], PinSnapshot]) -> Allowed:
        snapshot, evidence = self.node.snapshot(), Evidence()
        while True:
            decision = decide(snapshot, evidence)
            match decision:
                case AskLedger():
                    snapshot, evidence = reread(), replace(evidence, reread=True)
                case AskKubelet():
                    answer = self.node.pod_claims(decision.pods)
                    answers = {pod.uid: None if answer is None else answer.get(pod.uid) for pod in decision.pods}
                    evidence = replace(evidence, pods={**evidence.pods, **answers})
                case AskProcesses():
                    gone = self._gone(decision.containers, containers)
                    evidence = replace(evidence, gone=(evidence.gone or frozenset()) | gone)
                case _:
                    return decision

    def look_again(self) -> PinSnapshot:
        """Return what is on record after another look at the ledger, or what was last known if it cannot be read."""
        try:
            return self.node.reread()
        except UnreadError:
            return self.node.snapshot()
        except LedgerError as error:
            log.warning("containers are compared with what was last known of claims: %s", error)
            return self.node.snapshot()

    def _gone(self, ids: tuple[str, ...], containers: Containers) -> frozenset[str]:
        return self.sightings.ended(pinned.container for key in ids if (pinned := containers.get(key)))
