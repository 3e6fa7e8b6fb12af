"""The NRI client with the real decisions, and a runtime on a real socket."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot
from tests.fakes.nri import FakeRuntime, pod

NEW, OLD = "v0.12.1", ""
P1, P2 = pod("p1"), pod("p2")
ENV = ("DRA_CPUSET_a=2-3",)
EMPTY = PinSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
CLAIM = PinnedClaim(ClaimRef("default", "mine", "a"), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
HELD = replace(EMPTY, claims=PinnedClaims.of([CLAIM]))


@dataclass
class Node:
    """A node service: the claims on record, what a second read of the ledger returns, and kubelet's answers."""

    now: PinSnapshot = EMPTY
    ledger: PinSnapshot | None = None
    kubelet: Mapping[str, KubeletPodClaims] | None = field(default_factory=dict)
    asked: list[tuple[PodSandbox, ...]] = field(default_factory=list)

    def snapshot(self) -> PinSnapshot:
        return self.now

    def reread(self) -> PinSnapshot:
        if self.ledger is None:
            raise LedgerError("the ledger cannot be read: disk I/O error")
        self.now = self.ledger
        return self.now

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        self.asked.append(pods)
        return self.kubelet


@dataclass
class Bench:
    """A client and the socket on which it expects a runtime."""

    path: Path
    listener: socket.socket
    node: Node
    enforcer: Enforcer
    client: NRIClient
    fatal: list[str]
    now: list[float]
    accepted: list[socket.socket] = field(default_factory=list)

    def accept(self) -> FakeRuntime:
        sock, _ = self.listener.accept()
        self.accepted.append(sock)
        return FakeRuntime(sock)
