"""What is reported about containers that were on wrong CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.events import DriftRepaired, Occurrence, QuotaStillCaps, Unpinned, events_of
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot
from dranode.sim.machines.forms import open_machine

CLAIM = ClaimRef("default", "a", "uid-a")
HELD = PinSnapshot(
    claims=PinnedClaims.of([PinnedClaim(CLAIM, CPUSet.parse("2-3"), CPUSet.parse("2-3"), frozenset({"uid-p"}))]),
    online=CPUSet.parse("0-7"),
    variable="DRA_CPUSET_",
)


@dataclass
class Surroundings:
    """A node service with one recorded claim, and a kubelet that gave it to container `c` of pod `p`."""

    asked: list[tuple[PodSandbox, ...]] = field(default_factory=list)

    def snapshot(self) -> PinSnapshot:
        return HELD

    def reread(self) -> PinSnapshot:
        return HELD

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        self.asked.append(pods)
        return {}


def container(name: str, pod: str, cpus: str, *env: str) -> Container:
    where = PodSandbox(f"sandbox-{pod}", f"uid-{pod}", "default", pod)
    return Container(name, name, where, env, cpus=CPUSet.parse(cpus), started=True, cgroup=f"/{name}")


def test_an_unpinned_container_is_reported_only_if_it_has_a_claim(tmp_path: Path) -> None:
    told: list[Occurrence] = []
    (tmp_path / "sys").mkdir()
    enforcer = Enforcer(Surroundings(), open_machine(str(tmp_path)), notify=told.append)
    enforcer.synchronize((container("c", "p", "", "DRA_CPUSET_uid-a=2-3"), container("s", "q", "")))
    (unpinned,) = told
    assert isinstance(unpinned, Unpinned)
    assert (unpinned.pod.name, unpinned.claims) == ("p", (CLAIM,))
    assert unpinned.sentence.startswith(
        'container "c" of pod default/p had no CPU set and is pinned now; it was created'
    )


def test_drift_is_reported_once_with_the_claims_that_hold_the_cpus(tmp_path: Path) -> None:
    told: list[Occurrence] = []
    group = tmp_path / "sys" / "fs" / "cgroup" / "c"
    group.mkdir(parents=True)
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    enforcer = Enforcer(Surroundings(), open_machine(str(tmp_path)), notify=told.append)
    enforcer.synchronize((container("c", "p", "2-3", "DRA_CPUSET_uid-a=2-3"),))
    enforcer.verify()
    enforcer.verify()
    (drift,) = told
    assert isinstance(drift, DriftRepaired)
    assert drift.claims == (CLAIM,)
    assert "runs on CPUs 0-7, but should run on 2-3; it is put back" in drift.sentence


def test_a_pending_mask_becomes_drift_after_the_runtime_had_time_for_it(tmp_path: Path) -> None:
    now = [100.0]
    group = tmp_path / "sys" / "fs" / "cgroup" / "c"
    group.mkdir(parents=True)
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    enforcer = Enforcer(Surroundings(), open_machine(str(tmp_path)), clock=lambda: now[0])
    (update,) = enforcer.synchronize((container("c", "p", "0-7", "DRA_CPUSET_uid-a=2-3"),))
    assert update.resources.cpus == CPUSet.parse("2-3")
    assert enforcer.verify() == ()
    now[0] += 10.0
    assert len(enforcer.verify()) == 1


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"pod/cpu.max": "150000 100000"}, ["1.5"]),
        ({"pod/cpu.max": "200000 100000"}, []),
        ({"pod/cpu.max": "max 100000"}, []),
        ({"cpu/pod/cpu.cfs_quota_us": "50000", "cpu/pod/cpu.cfs_period_us": "100000"}, ["0.5"]),
        ({"pod/cpu.max": "max 100000", "pod/c/cpu.max": "1000 100000"}, ["0.01"]),
        ({"pod/cpu.max": "150000 100000", "pod/c/cpu.max": "max 100000"}, ["1.5"]),
        ({"cpu/pod/cpu.cfs_quota_us": "-1", "cpu/pod/cpu.cfs_period_us": "100000"}, []),
        ({}, []),
    ],
    ids=str,
)
def test_a_lifted_quota_that_a_cgroup_still_limits_is_reported_once(
    tmp_path: Path, files: dict[str, str], told: list[str]
) -> None:
    for name, text in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "sys").mkdir(exist_ok=True)

    class Lifted(Surroundings):
        def snapshot(self) -> PinSnapshot:
            return replace(HELD, claims=PinnedClaims.of([replace(HELD.claims["uid-a"], lift_quota=True)]))

        reread = snapshot

    heard: list[Occurrence] = []
    enforcer = Enforcer(Lifted(), open_machine(str(tmp_path)), notify=heard.append)
    enforcer.synchronize((replace(container("c", "p", "2-3", "DRA_CPUSET_uid-a=2-3"), cgroup="/pod/c"),))
    enforcer.verify()
    enforcer.verify()
    caps = [each for each in heard if isinstance(each, QuotaStillCaps)]
    assert [each.sentence.partition(" still allows ")[2].partition(" ")[0] for each in caps] == told
    assert all(events_of(each, "node")[0].reason == "QuotaStillCaps" for each in caps)
