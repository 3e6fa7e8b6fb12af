"""Holds containers to what the claims of some drivers were given: records on one side, the runtime on the other.

All drivers of a process that pin are one NRI plug-in: two would both set the memory nodes of a container, which a
runtime refuses. It is called after the first of them by name, and is active when that one's instance is.

The NRI thread never waits for a Prepare: it reads a snapshot that never changes, published before the call that changed
the records is answered. Only a claim that the snapshot does not know makes it look at the ledgers again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dranode.api.errors import DranodeError, LedgerError, UnreadError
from dranode.driver.claims.events import Notify, notify_none
from dranode.driver.claims.record import Unread
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.machine.root import Root
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcer import Enforcer, Starts
from dranode.driver.nri.unsolicited import ALONE, Instance
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import JoinedSnapshots, PinSnapshot, claim_key
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)

_VERIFY_SECONDS: Final = 30.0
# Until a claim's container that has started is looked at again with all others: not every runtime heeds a refusal then.
_CARRIED_OUT_SECONDS: Final = 1.0
# How long kubelet may take while the container runtime waits, which does so for 2 s.
_KUBELET_SECONDS: Final = 1.0
Answered = Callable[[str, float], None]


def uncounted(request: str, seconds: float) -> None:
    """Count nothing."""
    del request, seconds


def unfollowed(claims: Collection[str]) -> None:
    """Do nothing when containers start."""
    del claims


class PinningDriver(msgspec.Struct, frozen=True):
    """One of the drivers whose records are enforced together.

    Attributes:
        node: its claims.
        instance: whether this instance of it acts, or another one.
        answered: called after every request that was answered, with the seconds that it took.
        notify: makes known to people that containers were not where they should be.
        starts: called with the UIDs of its claims when a container that has them is about to start, and when it has.
    """

    node: NodeClaims
    instance: Instance = ALONE
    answered: Answered = uncounted
    notify: Notify = notify_none
    starts: Starts = unfollowed

    @property
    def name(self) -> str:
        """The driver."""
        return self.node.plugin.driver


class Enforcement:
    """Enforces the records of some drivers through one NRI plug-in, and looks whether they hold."""

    def __init__(
        self, drivers: Sequence[PinningDriver], access: ContainerAccess, pod_resources: PodResources, fatal: Fatal
    ) -> None:
        """Prepare to enforce; `start` connects."""
        self._drivers = tuple(sorted(drivers, key=lambda driver: driver.name))
        self.first = self._drivers[0]
        self._pod_resources = pod_resources
        self._snapshot = PinSnapshot(unread=Unread("the ledger has not been read yet", blind=True))
        self._joined = JoinedSnapshots()
        self._joining = threading.Lock()
        self._stopping = threading.Event()
        self._verifies = threading.Event()
        self._others_move = threading.Event()
        self._silence: str | None = None
        self.enforcer = Enforcer(
            self, access.root, notify=self.first.notify, own_pod=access.own_pod, instance=self.first.instance
        )
        self.enforcer.starts = self._starts
        self.client = NRIClient(
            access.nri_socket, self.enforcer, name=self.first.name, fatal=fatal, answered=self._answered
        )
        self._verifier = OwnedThread(f"{self.first.name}-verify", self._verify, fatal)

    def start(self) -> None:
        """Take the records as they are, connect to the runtime, and look at cgroups from time to time."""
        for driver in self._drivers:
            driver.node.watch(partial(self._records_changed, driver.name))
        self.client.start()
        self._verifier.start()

    def stop(self) -> None:
        """Disconnect; containers keep what they have."""
        self._stopping.set()
        self._verifies.set()
        self.client.stop()

    def become_active(self) -> None:
        """Enforce from now on, beginning with a look at what another instance may have left undone."""
        self._verifies.set()
        self.client.notify()

    def key(self, driver: str, uid: str) -> str:
        """Return what a driver's claim is called among those that are enforced."""
        return uid if len(self._drivers) == 1 else claim_key(driver, uid)

    def own(self, driver: str, keys: Iterable[str]) -> frozenset[str]:
        """Return the UIDs of a driver's claims among these keys."""
        prefix = self.key(driver, "")
        return frozenset(key.removeprefix(prefix) for key in keys if key.startswith(prefix))

    def _starts(self, claims: Collection[str]) -> None:
        for driver in self._drivers:
            uids = self.own(driver.name, claims)
            if uids:
                driver.starts(uids)
        self._others_move.set()
        self._verifies.set()

    @property
    def complete(self) -> bool:
        """Return whether it is certain which claims every container has."""
        return self.client.synchronized and self.enforcer.is_certain() and not self._snapshot.lacks_claims

    def _records_changed(self, driver: str, snapshot: PinSnapshot | None) -> None:
        if snapshot is None:
            return
        with self._joining:
            self._snapshot = snapshot if len(self._drivers) == 1 else self._joined.put(driver, snapshot)
        self.client.notify()

    def _answered(self, request: str, seconds: float) -> None:
        if request == "Synchronize":
            # What could not be read before the answer is looked at right after it.
            self._verifies.set()
        self.first.answered(request, seconds)

    def _verify(self) -> None:
        while not self._stopping.is_set():
            self._verifies.wait(_VERIFY_SECONDS)
            self._verifies.clear()
            if self._others_move.is_set():
                self._others_move.clear()
                self._stopping.wait(_CARRIED_OUT_SECONDS)
            if not self._stopping.is_set() and self.first.instance.active and self.enforcer.verify():
                self.client.notify()

    # --- what the enforcer asks ---

    def snapshot(self) -> PinSnapshot:
        """Return what is on record now."""
        return self._snapshot

    def reread(self) -> PinSnapshot:
        """Return what is on record after another look at the ledgers, and for each that cannot be read that it cannot.

        Raises:
            UnreadError: none of the ledgers can be read.
        """
        errors: list[DranodeError] = []
        for driver in self._drivers:
            try:
                driver.node.records()
            except (UnreadError, LedgerError) as error:
                errors.append(error)
        if len(errors) == len(self._drivers):
            raise errors[0]
        return self._snapshot

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        """Return what kubelet's pod-resources API says of the pods that it lists, by UID.

        None without an answer in time.
        """
        others = tuple(driver.name for driver in self._drivers[1:])
        more = {"also": others} if others else {}
        try:
            listed = self._pod_resources.listed(self.first.name, _KUBELET_SECONDS, **more)
        except PodResourcesError as error:
            # Asked again every few seconds while containers wait for the answer.
            if str(error) != self._silence:
                self._silence = str(error)
                log.warning("driver=%s: %s", self.first.name, error)
            return None
        self._silence = None
        devices: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        for claim in listed.uses:
            containers = devices.setdefault((claim.namespace, claim.pod), {})
            containers[claim.container] = (*containers.get(claim.container, ()), *sorted(claim.cdi))
        names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
        return {uid: KubeletPodClaims(devices.get(name, {})) for uid, name in names.items() if name in listed.pods}


class ContainerAccess(msgspec.Struct, frozen=True):
    """The ways to the containers of a node.

    Attributes:
        nri_socket: the runtime's NRI socket.
        root: where the cgroups of containers are read.
        own_pod: the UID of the pod that the driver runs in; empty if it is not known.
    """

    nri_socket: str
    root: Root
    own_pod: str = ""
