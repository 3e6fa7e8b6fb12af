"""What the node is told of containers by the runtime and by kubelet together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.grant import AllocatedClaim, ClaimGrant
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.record import Record
from dranode.driver.core.claims.uses import ClaimUse
from dranode.driver.core.pinning.pins import Pins
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.machine.folder import HostRoot
from dranode.driver.node.node import NodeClaims
from dranode.driver.nri.access import ContainerAccess
from dranode.driver.serve.pinning import Pinning
from tests.fakes.drivers import Lamps, allocated_claim
from tests.fakes.nri import FakeRuntime, container, pod
from tests.fakes.waiting import PATIENCE, eventually

MINE = ClaimRef("default", "mine", "a")
POD = "pod-uid-mine"


class PinnedLamps(Lamps, Pins):
    """Lamps whose containers are pinned, all to the same CPUs."""

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        return replace(super().grant(claim, held, inventory), cpus=CPUSet((2, 3)), held=CPUSet((2, 3)))

    def pool(self, inventory: Inventory) -> HeldSnapshot:
        del inventory
        return HeldSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_")

    def pinned(self, record: Record) -> HeldClaim:
        pods = frozenset(pod.uid for pod in record.pods)
        return HeldClaim(record.ref, record.cpus, record.held, pods)


class Kubelet(PodResources):
    """A kubelet that answers nothing, and takes its time over it."""

    meanwhile: Callable[[], object] = bool

    def in_use(self, driver: str, ref: ClaimRef) -> bool | None:
        del driver, ref
        self.meanwhile()
        return None

    def claims(self, driver: str) -> tuple[ClaimUse, ...]:
        del driver
        return ()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.bind(str(tmp_path / "nri.sock"))
        sock.listen()
        yield sock


def test_a_runtime_that_is_heard_of_while_kubelet_is_asked_does_not_vouch_for_what_was_asked_before(
    tmp_path: Path, listener: socket.socket
) -> None:
    node = NodeClaims(PinnedLamps(), tmp_path, tmp_path / "cdi")
    node.open()
    node.prepare({MINE: allocated_claim(MINE.name, Lamps.driver, ["lamp-0"], uid=MINE.uid)})
    kubelet = Kubelet(tmp_path / "kubelet.sock")
    pinning = Pinning(node, ContainerAccess(str(tmp_path / "nri.sock"), HostRoot()), kubelet, pytest.fail)
    pinning.start()
    sock, _ = listener.accept()

    def synchronize() -> None:
        FakeRuntime(sock).handshake([pod(POD)], [container("c", POD, ("DRA_CPUSET_a=2-3",), cpus="2-3")])
        eventually(lambda: pinning.synchronized)

    kubelet.meanwhile = synchronize
    try:
        assert pinning.in_use(MINE) is None
        kubelet.meanwhile = bool
        assert pinning.in_use(MINE) is True
        assert pinning.in_use(replace(MINE, uid="b")) is False
    finally:
        pinning.stop()
        sock.close()
