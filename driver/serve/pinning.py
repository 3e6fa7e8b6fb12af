"""Holds containers to what their claims were given: the node's records on one side, the container runtime on the other.

The NRI thread never waits for a Prepare: it reads a snapshot that never changes, published before the call that changed
the records is answered. Only a claim that the snapshot does not know makes it look at the ledger again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.claims.events import Notify, notify_none
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.pinning.identity import KubeletPodClaims
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.access import ContainerAccess
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcement_status import EnforcementStatus
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.instance import ALONE, Instance
from dranode.driver.process.threads import Fatal, OwnedThread
from dranode.driver.serve.usage import UsageWatch

log = logging.getLogger(__name__)

_VERIFY_SECONDS: Final = 30.0
# How long kubelet may take while the container runtime waits, which does so for 2 s.
_KUBELET_SECONDS: Final = 1.0
Answered = Callable[[str, float], None]


def _uncounted(request: str, seconds: float) -> None:
    del request, seconds


class Pinning:
    """Enforces one driver's records through NRI, and looks whether they hold."""

    def __init__(
        self,
        node: NodeClaims,
        access: ContainerAccess,
        pod_resources: PodResources,
        fatal: Fatal,
        *,
        instance: Instance = ALONE,
        answered: Answered = _uncounted,
        notify: Notify = notify_none,
    ) -> None:
        """Prepare to pin; `start` connects.

        Args:
            node: whose records are enforced.
            access: how containers are reached.
            pod_resources: kubelet's API that lists which containers have which claims.
            fatal: ends the process with a sentence.
            instance: whether this instance enforces, or another one.
            answered: called after every request that was answered, with the seconds that it took.
            notify: makes known to people that containers were not where they should be.
        """
        self.socket = access.nri_socket
        self._instance = instance
        self._node = node
        self._pod_resources = pod_resources
        self._snapshot = HeldSnapshot(unread=Unread("the ledger has not been read yet", blind=True))
        self._stopping = threading.Event()
        self._verifies = threading.Event()
        self._silence: str | None = None
        self._enforcer = Enforcer(self, access.root, notify=notify, own_pod=access.own_pod, instance=instance)
        self._observe = answered
        self._client = NRIClient(
            access.nri_socket, self._enforcer, name=node.plugin.driver, fatal=fatal, answered=self._answered
        )
        self.usage = UsageWatch(
            access.root, lambda: self._enforcer.running() if self._complete else None, self.snapshot
        )
        self._verifier = OwnedThread(f"{node.plugin.driver}-verify", self._verify, fatal)

    def start(self) -> None:
        """Take the records as they are, connect to the runtime, and look at cgroups from time to time."""
        self._node.watch(self._records_changed)
        self._client.start()
        self._verifier.start()

    def stop(self) -> None:
        """Disconnect; containers keep what they have."""
        self._stopping.set()
        self._verifies.set()
        self._client.stop()

    def become_active(self) -> None:
        """Enforce from now on, beginning with a look at what another instance may have left undone."""
        self._verifies.set()
        self._client.notify()

    @property
    def synchronized(self) -> bool:
        """Whether the runtime has listed its containers on the connection that is open."""
        return self._client.synchronized

    def status(self) -> EnforcementStatus:
        """How enforcement is doing."""
        return self._enforcer.status()

    def claims_in_use(self) -> frozenset[str] | None:
        """The UIDs of the claims that a container has; None while that is not certain of every container."""
        return self._enforcer.claims_in_use() if self._complete else None

    @property
    def _complete(self) -> bool:
        return self.synchronized and self._enforcer.is_certain() and self._snapshot.unread is None

    def in_use(self, ref: ClaimRef) -> bool | None:
        """Whether a container has the claim, by the runtime or by kubelet; None if neither can say.

        Only the runtime can say that none has it: a kubelet that has just started does not list every pod that runs.
        """
        # Asked first: a runtime that lists its containers from now on has not vouched for what is known now.
        complete = self._complete
        if ref.uid in self._enforcer.claims_in_use() or self._pod_resources.in_use(self._node.plugin.driver, ref):
            return True
        return False if complete else None

    def _records_changed(self, snapshot: HeldSnapshot | None) -> None:
        if snapshot is not None:
            self._snapshot = snapshot
            self._client.notify()

    def _answered(self, request: str, seconds: float) -> None:
        if request == "Synchronize":
            # What could not be read before the answer is looked at right after it.
            self._verifies.set()
        self._observe(request, seconds)

    def _verify(self) -> None:
        while not self._stopping.is_set():
            self._verifies.wait(_VERIFY_SECONDS)
            self._verifies.clear()
            if not self._stopping.is_set() and self._instance.active and self._enforcer.verify():
                self._client.notify()

    # --- what the enforcer asks ---

    def snapshot(self) -> HeldSnapshot:
        """What is on record now."""
        return self._snapshot

    def reread(self) -> HeldSnapshot:
        """What is on record after another look at the ledger.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        self._node.records()
        return self._snapshot

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        """What kubelet's pod-resources API says of the pods that it lists, by UID; None without an answer in time."""
        try:
            listed = self._pod_resources.listed(self._node.plugin.driver, _KUBELET_SECONDS)
        except PodResourcesError as error:
            # Asked again every few seconds while containers wait for the answer.
            if str(error) != self._silence:
                self._silence = str(error)
                log.warning("driver=%s: %s", self._node.plugin.driver, error)
            return None
        self._silence = None
        devices: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        for claim in listed.uses:
            containers = devices.setdefault((claim.namespace, claim.pod), {})
            containers[claim.container] = (*containers.get(claim.container, ()), *sorted(claim.cdi))
        names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
        return {uid: KubeletPodClaims(devices.get(name, {})) for uid, name in names.items() if name in listed.pods}
