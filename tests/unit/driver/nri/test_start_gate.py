"""A container starts once the kernel shows that it shares no CPU of a claim, and in any case after a minute."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.folder import HostRoot
from dranode.driver.nri.enforcer import Enforcer, RefusedError
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.state import Instance
from dranode.driver.nri.verifier import START_DELAY_SECONDS
from dranode.driver.pinning.containers import Container, Resources
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot

EMPTY = PinSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
CLAIM = PinnedClaim(ClaimRef("default", "mine", "a"), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
HELD = replace(EMPTY, claims=PinnedClaims.of([CLAIM]))


def made(name: str, *env: str) -> Container:
    return Container(f"id-{name}", name, PodSandbox(f"s-{name}", name, "default", name), env=env, cgroup=f"/{name}")


MINE = replace(made("p1", "DRA_CPUSET_a=2-3"), name="main")
OTHER = made("other")


@dataclass
class Kernel(HostRoot):
    """The CPUs of cgroups by name; those in `empty` have no processes."""

    cpus: dict[str, str] = field(default_factory=dict)
    empty: Collection[str] = ()

    def __post_init__(self) -> None:
        super().__init__()

    def exists(self, path: str) -> bool:
        del path
        return True

    def read_bytes(self, path: str) -> bytes:
        _, _, name, file = path.rsplit("/", 3)
        if file == "cpuset.cpus.effective" and name in self.cpus:
            return f"{self.cpus[name]}\n".encode()
        if file == "cgroup.events":
            return b"populated 0\n" if name in self.empty else b"populated 1\n"
        raise FileNotFoundError(path)


@dataclass
class Bench:
    """A node on which a claim came after another container."""

    kernel: Kernel = field(default_factory=Kernel)
    now: float = 0.0
    on_record: PinSnapshot = EMPTY

    def __post_init__(self) -> None:
        self.enforcer = Enforcer(self, self.kernel, clock=lambda: self.now)
        self.enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.0"))

    def snapshot(self) -> PinSnapshot:
        return self.on_record

    def reread(self) -> PinSnapshot:
        return self.on_record

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        return {each.uid: KubeletPodClaims({}) for each in pods}

    def run(self, container: Container, cpus: str) -> None:
        """Create and start a container."""
        resources, _ = self.enforcer.create(container)
        self.kernel.cpus[container.cgroup.strip("/")] = cpus or str(resources.cpus)
        self.enforcer.starting(container)
        self.enforcer.started(container)

    def prepare(self) -> None:
        self.on_record = HELD


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.run(OTHER, "")
    bench.prepare()
    return bench


def test_a_container_starts_when_the_others_have_left(bench: Bench) -> None:
    (update,) = bench.enforcer.create(MINE)[1]
    bench.kernel.cpus["other"] = str(update.resources.cpus)
    bench.kernel.cpus["p1"] = "2-3"
    bench.enforcer.starting(MINE)
    assert bench.enforcer.status().refused == 0


def test_a_container_does_not_start_beside_one_whose_update_was_lost(bench: Bench) -> None:
    assert len(bench.enforcer.create(MINE)[1]) == 1
    with pytest.raises(RefusedError, match='container "other" of pod default/other is on CPUs 0-7, but claim'):
        bench.enforcer.starting(MINE)
    assert bench.enforcer.status().refused == 1
    # The runtime removes a container that did not start, and kubelet creates it again.
    again = replace(MINE, id="again", cgroup="/again")
    for answer in (bench.enforcer.stop(MINE), bench.enforcer.create(again)[1]):
        # The runtime may have failed to move the other one again.
        (update,) = answer
        assert (update.container_id, update.resources.cpus) == (OTHER.id, HELD.shared)
    bench.kernel.cpus |= {"other": str(HELD.shared), "again": "2-3"}
    bench.enforcer.starting(again)
    bench.enforcer.started(again)
    assert bench.enforcer.create(made("next"))[1] == ()


def test_an_old_unconfirmed_update_is_sent_again_unsolicited(bench: Bench) -> None:
    bench.enforcer.configured(RuntimePeer("containerd", "v2.4.2", "v0.12.1"))
    bench.enforcer.create(MINE)
    assert bench.enforcer.unsolicited.updates() == ()
    with pytest.raises(RefusedError):
        bench.enforcer.starting(MINE)
    (update,) = bench.enforcer.unsolicited.updates()
    assert update.container_id == OTHER.id


def test_a_container_starts_after_a_minute_beside_one_that_does_not_move(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []
    for attempt, pause in enumerate((0.0, 10.0, 20.0, 40.0)):
        bench.now += pause
        again = replace(MINE, id=f"c{attempt}", cgroup=f"/c{attempt}")
        bench.enforcer.create(again)
        bench.kernel.cpus[f"c{attempt}"] = "2-3"
        try:
            bench.enforcer.starting(again)
            tries.append("starts")
        except RefusedError:
            tries.append("refused")
            bench.enforcer.stop(again)
    assert tries == ["refused", "refused", "refused", "starts"]
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert "started although its CPUs are not free, after a wait of 60 s" in line
    assert 'container "other"' in line


def test_the_minute_starts_again_for_each_time_in_the_way(bench: Bench) -> None:
    for beginning in (0.0, 2 * START_DELAY_SECONDS):
        bench.now = beginning
        bench.kernel.cpus["other"] = "0-7"
        bench.enforcer.create(MINE)
        with pytest.raises(RefusedError):
            bench.enforcer.starting(MINE)
        bench.kernel.cpus["other"] = str(HELD.shared)
        bench.enforcer.create(MINE)
        bench.enforcer.starting(MINE)
        bench.enforcer.stop(MINE)


def test_a_container_created_before_a_claim_and_started_after_it_is_refused(bench: Bench) -> None:
    bench.on_record = EMPTY
    late = made("late")
    assert bench.enforcer.create(late)[0].cpus == CPUSet(range(8))
    bench.kernel.cpus["late"] = "0-7"
    bench.prepare()
    bench.enforcer.create(MINE)
    bench.kernel.cpus["other"] = str(HELD.shared)
    bench.kernel.cpus["p1"] = "2-3"
    # The runtime changes only its configuration, from which the container was created already.
    bench.enforcer.starting(MINE)
    bench.enforcer.started(MINE)
    with pytest.raises(RefusedError, match="kubelet will create it again, on other CPUs"):
        bench.enforcer.starting(late)


def test_a_container_that_starts_during_an_update_is_unconfirmed(bench: Bench) -> None:
    bench.on_record = EMPTY
    late = made("late")
    bench.enforcer.create(late)
    bench.prepare()
    bench.enforcer.create(MINE)
    bench.enforcer.starting(late)
    assert bench.enforcer.started(late)
    assert not bench.enforcer.started(OTHER)


def test_an_ended_container_is_not_in_the_way(bench: Bench) -> None:
    bench.kernel.empty = ("other",)
    bench.enforcer.create(MINE)
    bench.enforcer.starting(MINE)


def test_a_standby_instance_refuses_no_start() -> None:
    class Waiting(Instance):
        active = speaks = False

        def adjusts(self, request: str) -> bool:
            del request
            return False

    bench = Bench()
    bench.enforcer = Enforcer(bench, bench.kernel, instance=Waiting())
    bench.run(OTHER, "0-7")
    bench.prepare()
    bench.enforcer.create(MINE)
    bench.enforcer.starting(MINE)


def test_updates_count_as_applied_once_the_runtime_calls_again(bench: Bench) -> None:
    bench.enforcer.create(MINE)
    assert bench.enforcer.verify() == ()
    bench.kernel.cpus["p1"] = "2-3"
    bench.kernel.empty = ("other",)
    bench.enforcer.starting(MINE)
    assert [str(drift.actual.cpus) for drift in bench.enforcer.verify()] == ["0-7"]


def test_a_container_that_is_resized_is_updated_after_the_runtime_has_called_again(bench: Bench) -> None:
    assert len(bench.enforcer.update(replace(OTHER, started=True), Resources(), 0)) == 1
    bench.enforcer.removed(made("gone"))
    assert bench.enforcer.verify() == ()
