"""Claims that are reserved for a PodGroup (KEP-5729): the record does not list its pods, but kubelet does."""

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cpu.isolation.tuner import Tuner
from dranode.cpu.treatment import pinned_claim
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.identity import AskKubelet, Evidence, KubeletPodClaims, identify
from dranode.driver.pinning.snapshot import PinnedClaims, PinSnapshot
from tests.fakes.settings import MemoryNotes, quiet_record
from tests.unit.cpu.isolation.test_partitions import CONTAINER, OTHER, PartitioningKernel, partition

UID, KIND = "7d3a1f64-5c0b-4a55-9d0f-3a5c8c7b1e10", "dra.k8s.io/cpu"
GROUP = ResourceClaimConsumerReference(
    api_group="scheduling.k8s.io", resource="podgroups", name="crew", uid="0f1e2d3c-0000-4000-8000-0000000000ff"
)
MEMBER = PodSandbox("s1", "0f1e2d3c-0000-4000-8000-000000000001", "default", "crew-0")
CPUS = CPUSet((2, 3))
CLAIM = pinned_claim(Record(uid=UID, namespace="default", name="team", cpus=CPUS, held=CPUS, pods=(GROUP,)))
SNAPSHOT = PinSnapshot(PinnedClaims.of([CLAIM]), CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind=KIND)
LISTED = Evidence(pods={MEMBER.uid: KubeletPodClaims({"main": (f"{KIND}=claim-{UID}",)})})
SILENT = Evidence(pods={MEMBER.uid: None})
UNGIVEN = Evidence(pods={MEMBER.uid: KubeletPodClaims({})})


def container(pod: PodSandbox = MEMBER, *, cpus: CPUSet = CPUS) -> Container:
    return Container("c", "main", pod, env=(f"DRA_CPUSET_{UID}=2-3",), cpus=cpus)


def test_a_group_is_not_a_pod_of_the_claim() -> None:
    assert CLAIM.pods == frozenset()
    assert identify(container(PodSandbox("s2", GROUP.uid, "default", "crew")), SNAPSHOT, Evidence()).ask is not None


def test_a_container_of_a_groups_pod_has_the_claim_if_kubelet_says_so() -> None:
    assert identify(container(), SNAPSHOT, Evidence()).ask == AskKubelet((MEMBER,))
    assert identify(container(), SNAPSHOT, LISTED).claims == (CLAIM,)


def test_an_existing_container_has_the_claim_by_its_cpus_or_if_kubelet_says_so() -> None:
    assert identify(container(), SNAPSHOT, Evidence(), exists=True).claims == (CLAIM,)
    moved = container(cpus=CPUSet(range(8)))
    assert identify(moved, SNAPSHOT, Evidence(), exists=True).ask == AskKubelet((MEMBER,))
    assert identify(moved, SNAPSHOT, LISTED, exists=True).claims == (CLAIM,)


@pytest.mark.parametrize(("evidence", "unanswered"), [(SILENT, True), (UNGIVEN, False)])
def test_a_container_is_refused_unless_kubelet_gave_it_the_claim(evidence: Evidence, *, unanswered: bool) -> None:
    identity = identify(container(), SNAPSHOT, evidence)
    assert (identity.claims, identity.unanswered, identity.denied) == ((), unanswered, not unanswered)
    (sentence,) = identity.refusals
    assert ("did not answer" if unanswered else "kubelet has not given") in sentence


def test_a_groups_container_is_a_partition_although_its_pod_is_not_on_record() -> None:
    kernel = PartitioningKernel()
    tuner = Tuner(kernel)
    claim = msgspec.structs.replace(quiet_record("a", "2-3", "partition"), pods=(GROUP,))
    tuner.tune([claim], MemoryNotes(kernel))
    assert (partition(kernel), partition(kernel, OTHER)) == ("isolated", "member")
    assert not tuner.remaining


def test_a_container_on_more_than_a_groups_cpus_is_not_its_container() -> None:
    kernel = PartitioningKernel()
    kernel.files[f"{OTHER}/cpuset.cpus"] = kernel.files[f"{OTHER}/cpuset.cpus.effective"] = "0-7"
    tuner = Tuner(kernel)
    claim = msgspec.structs.replace(quiet_record("a", "2-3", "partition"), pods=(GROUP,))
    tuner.tune([claim], MemoryNotes(kernel))
    assert (partition(kernel, CONTAINER), partition(kernel, OTHER)) == ("isolated", "member")
    assert not tuner.remaining
