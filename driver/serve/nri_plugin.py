"""Connects the records of drivers with the container runtime, so that containers get what their claims hold.

All drivers of a process that pin form one NRI plug-in: two plug-ins would both set the memory nodes of a container,
which a runtime refuses. The plug-in has the name of the first driver in alphabetical order, and is active when that
driver's instance is.

The NRI thread never waits for a Prepare. It reads an immutable snapshot, which is replaced before the call that changed
the records is answered. It reads the ledgers only for a claim that the snapshot does not have.
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
from dranode.driver.claims.users import PodSandbox
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.machine.root import Root
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcer import Enforcer, Starts
from dranode.driver.nri.state import ALONE, Instance
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import JoinedSnapshots, PinSnapshot, claim_key
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)

_VERIFY_SECONDS: Final = 30.0
# How long after the start of a container with claims all containers are verified, in seconds: CRI-O starts a container
# even if its start was refused.
_CARRIED_OUT_SECONDS: Final = 1.0
# How long kubelet may take to answer, and calls of kubelet to release the ledgers, in seconds. The container runtime
# waits 2 s meanwhile. After that it would go on without this plug-in, and containers would run on all CPUs.
_KUBELET_SECONDS: Final = 1.0
_LEDGERS_SECONDS: Final = 0.8
Answered = Callable[[str, float], None]


class PinningDriver(msgspec.Struct, frozen=True):
    """One of the drivers whose records are enforced together.

    Attributes:
        node: the driver's claims.
        instance: the role of this instance of the driver.
        answered: called after every answered request with the seconds that it took.
        notify: reports to people that containers were not on the right CPUs.
        starts: called with the UIDs of a container's claims before the container starts and after it has started.
    """

    node: NodeClaims
    instance: Instance = ALONE
    answered: Answered = lambda _request, _seconds: None
    notify: Notify = notify_none
    starts: Starts = lambda _claims: None

    @property
    def name(self) -> str:
        """Return the driver's name."""
        return self.node.plugin.driver


class Enforcement:
    """Enforces the records of some drivers through one NRI plug-in, and verifies the result in the kernel."""

    def __init__(
        self, drivers: Sequence[PinningDriver], access: ContainerAccess, pod_resources: PodResources, fatal: Fatal
    ) -> None:
        """Set enforcement up; `start` connects."""
        # Whatever the order of --drivers: both instances of a rolling update need the same first driver.
        self._drivers = tuple(sorted(drivers, key=lambda driver: driver.name))
        self.first = self._drivers[0]
        self._pod_resources = pod_resources
        # Not an empty snapshot: until the ledgers are read, any CPU may be held.
        self._snapshot = PinSnapshot(unread=Unread("the ledger has not been read yet", blind=True))
        self._joined = JoinedSnapshots()
        self._joining = threading.Lock()
        self._stopping = threading.Event()
        self._verifies = threading.Event()
        self._others_move = threading.Event()
        self._silence: str | None = None
        self.enforcer = Enforcer(
            self,
            access.root,
            notify=self.first.notify,
            own_pod=access.own_pod,
            instance=self.first.instance,
            starts=self._starts,
        )
        self.client = NRIClient(
            access.nri_socket, self.enforcer, name=self.first.name, fatal=fatal, answered=self._answered
        )
        self._verifier = OwnedThread(f"{self.first.name}-verify", self._verify, fatal)

    def start(self) -> None:
        """Read the records, connect to the runtime, and verify cgroups from time to time."""
        # Before connecting, because the runtime's first request lists all containers, which need the records.
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
        """Enforce from now on, beginning with what another instance may have left undone."""
        self._verifies.set()
        self.client.notify()

    def key(self, driver: str, uid: str) -> str:
        """Return the key of a driver's claim in the snapshot of all drivers."""
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
        # All containers are verified once the runtime has carried out the start.
        self._others_move.set()
        self._verifies.set()

    @property
    def certain(self) -> bool:
        """Return whether it is certain which claims every container has."""
        return self.client.synchronized and self.enforcer.is_certain() and not self._snapshot.lacks_claims

    def _records_changed(self, driver: str, snapshot: PinSnapshot | None) -> None:
        if snapshot is None:
            return
        with self._joining:
            # Joined and replaced under one lock, or an older joint snapshot could replace a newer one.
            self._snapshot = snapshot if len(self._drivers) == 1 else self._joined.put(driver, snapshot)
        self.client.notify()

    def _answered(self, request: str, seconds: float) -> None:
        if request == "Synchronize":
            # Cgroups that could not be read in time for the answer are read right after it.
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
        """Return the present snapshot."""
        return self._snapshot

    def reread(self) -> PinSnapshot:
        """Read the ledgers again and return the snapshot, which says which of them cannot be read.

        Raises:
            UnreadError: none of the ledgers can be read.
        """
        errors: list[DranodeError] = []
        for driver in self._drivers:
            try:
                driver.node.records(_LEDGERS_SECONDS / len(self._drivers))
            except (UnreadError, LedgerError) as error:
                errors.append(error)
        # A ledger that can be read may already have the claim that is asked for.
        if len(errors) == len(self._drivers):
            raise errors[0]
        return self._snapshot

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        """Return what kubelet's pod-resources API says about these pods, by UID; None if it does not answer in time."""
        others = tuple(driver.name for driver in self._drivers[1:])
        more = {"also": others} if others else {}
        try:
            listed = self._pod_resources.listed(self.first.name, _KUBELET_SECONDS, **more)
        except PodResourcesError as error:
            # The question is repeated every few seconds while containers wait for the answer, so log it only once.
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
        # A pod that kubelet does not list is left out: that kubelet does not know it yet is not a denial.
        return {uid: KubeletPodClaims(devices.get(name, {})) for uid, name in names.items() if name in listed.pods}


class ContainerAccess(msgspec.Struct, frozen=True):
    """How to reach the containers of a node.

    Attributes:
        nri_socket: the runtime's NRI socket.
        root: where the cgroups of containers are read.
        own_pod: the UID of the pod that the driver runs in; empty if it is not known.
    """

    nri_socket: str
    root: Root
    own_pod: str = ""
