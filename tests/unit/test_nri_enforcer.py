"""What other threads see of enforcement while the runtime asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dranode.driver.core.claim_identity import PodClaims
from dranode.driver.core.containers import Container, Pod
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.events import DriftRepaired, Occurrence
from dranode.driver.core.held import ClaimRef
from dranode.driver.core.held_claims import HeldClaim, HeldSnapshot
from dranode.driver.core.mending import REPAIRS
from dranode.driver.machine.folder import HostRoot
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import Runtime

EMPTY = HeldSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
CLAIM = HeldClaim(ClaimRef("default", "mine", "a"), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
HELD = replace(EMPTY, claims={"a": CLAIM})
MINE = Container("c1", "main", Pod("s1", "p1", "default", "p1"), env=("DRA_CPUSET_a=2-3",), cpus=CLAIM.cpus)
OTHER = Container("c2", "main", Pod("s2", "p2", "default", "p2"), cpus=HELD.shared, started=True, cgroup="/c2")


@dataclass
class Node:
    """A node service: what is on record."""

    now: HeldSnapshot = HELD

    def snapshot(self) -> HeldSnapshot:
        return self.now

    def reread(self) -> HeldSnapshot:
        return self.now

    def pod_claims(self, pods: tuple[Pod, ...]) -> Mapping[str, PodClaims] | None:
        del pods
        return {}


class Meanwhile(logging.Handler):
    """Looks at something whenever a line is logged."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self._look = look
        self.seen: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        del record
        self.seen.append(self._look())


def test_a_mask_that_changes_while_the_kernel_is_asked_is_no_drift() -> None:
    node = Node()

    class Slow(HostRoot):
        def read_bytes(self, path: str) -> bytes:
            del path
            node.now = EMPTY
            enforcer.stop(MINE)
            return b"0-7\n"

    told: list[Occurrence] = []
    enforcer = Enforcer(node, Slow(), tell=told.append)
    assert enforcer.synchronize((OTHER,)) == ()
    assert enforcer.verify() == ()
    assert told == []


def test_a_container_whose_cgroup_the_runtime_has_yet_to_limit_is_no_drift() -> None:
    class Unlimited(HostRoot):
        def read_bytes(self, path: str) -> bytes:
            del path
            return b"0-7\n"

    enforcer = Enforcer(Node(), Unlimited())
    created = replace(OTHER, cpus=CPUSet(), started=False)
    assert enforcer.create(created)[0].cpus == HELD.shared
    assert enforcer.verify() == ()
    enforcer.started(created)
    assert [drift.found for drift in enforcer.verify()] == [CPUSet(range(8))]


def test_drift_that_no_reconnection_cures_is_left_alone_on_an_old_runtime_too() -> None:
    class Elsewhere(HostRoot):
        def read_bytes(self, path: str) -> bytes:
            del path
            return b"7\n"

    now = [0.0]
    told: list[Occurrence] = []
    enforcer = Enforcer(Node(), Elsewhere(), clock=lambda: now[0], tell=told.append)
    enforcer.configured(Runtime("containerd", "v1.7.27"))
    enforcer.synchronize((OTHER,))
    for _ in range(240):
        now[0] += 30.0
        enforcer.verify()
        assert enforcer.unsolicited() == ()
        if enforcer.reconnection_due():
            enforcer.synchronize((OTHER,))
    assert enforcer.status().reconnections == REPAIRS
    assert enforcer.status().drifts == 1
    assert [type(each) for each in told] == [DriftRepaired]


def test_what_a_reconnection_is_to_mend_is_not_forgotten_while_the_runtime_takes_its_time() -> None:
    class Elsewhere(HostRoot):
        def read_bytes(self, path: str) -> bytes:
            del path
            return b"7\n"

    now = [0.0]
    enforcer = Enforcer(Node(), Elsewhere(), clock=lambda: now[0])
    enforcer.configured(Runtime("containerd", "v1.7.27"))
    enforcer.synchronize((OTHER,))
    enforcer.verify()
    for now[0] in (0.0, 60.0):
        enforcer.unsolicited()
    assert enforcer.reconnection_due()
    enforcer.verify()  # a runtime waits with Synchronize until containers that are being stopped have stopped
    (update,) = enforcer.synchronize((OTHER,))
    assert (update.container_id, update.resources.cpus) == ("c2", HELD.shared)


def test_the_claims_in_use_stay_known_while_the_runtime_tells_everything_again() -> None:
    enforcer = Enforcer(Node(), HostRoot())
    enforcer.synchronize((MINE, OTHER))
    meanwhile = Meanwhile(enforcer.claims_in_use)
    logger = logging.getLogger("dranode.driver.nri.enforcer")
    logger.addHandler(meanwhile)
    try:
        enforcer.synchronize((MINE, replace(OTHER, cpus=CPUSet())))
    finally:
        logger.removeHandler(meanwhile)
    assert meanwhile.seen == [{"a"}]
