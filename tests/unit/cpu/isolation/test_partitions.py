"""Containers whose cgroups become cgroup v2 partitions, on a kernel that permits them or says why not."""

import errno
import os

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cpu.isolation.tuner import Tuner
from dranode.driver.claims.record import Record
from tests.fakes.settings import Kernel, MemoryNotes, quiet_record

POD = "0f1e2d3c-0000-4000-8000-00000000000a"
SLICE = "sys/fs/cgroup/kubepods.slice"
PODS = f"{SLICE}/kubepods-pod{POD.replace('-', '_')}.slice"
CONTAINER = f"{PODS}/cri-containerd-{'ab' * 32}.scope"
OTHER = f"{PODS}/cri-containerd-{'cd' * 32}.scope"
INVALID = "isolated invalid (Parent is not a partition root)"


class PartitioningKernel(Kernel):
    """Grants a partition if its CPUs are in `cpuset.cpus.exclusive` of all parent cgroups, as Linux 6.7 does."""

    def __init__(self, *, remote: bool = True) -> None:
        super().__init__()
        for folder, cpus in ((SLICE, ""), (PODS, ""), (CONTAINER, "2-3"), (OTHER, "0-1,4-7")):
            self.files[f"{folder}/cpuset.cpus"] = cpus
            self.files[f"{folder}/cpuset.cpus.effective"] = cpus or "0-7"
            self.files[f"{folder}/cpuset.cpus.partition"] = "member"
            if remote:
                self.files[f"{folder}/cpuset.cpus.exclusive"] = ""

    def write(self, path: str, content: str) -> None:
        super().write(path, content)
        folder, _, name = path.rpartition("/")
        if name == "cpuset.cpus.partition":
            cpus = CPUSet.parse(self.files[f"{folder}/cpuset.cpus"])
            above = (self.files.get(f"{each}/cpuset.cpus.exclusive", "") for each in (SLICE, PODS, folder))
            self.files[path] = "isolated" if all(cpus <= CPUSet.parse(each) for each in above) else INVALID


def record(isolation: str = "partition", cpus: str = "2-3") -> Record:
    pods = (ResourceClaimConsumerReference(resource="pods", name="pod-a", uid=POD),)
    return msgspec.structs.replace(quiet_record("a", cpus, isolation), pods=pods)


def partition(kernel: Kernel, folder: str = CONTAINER) -> str:
    return kernel.files[f"{folder}/cpuset.cpus.partition"]


def exclusive(kernel: Kernel) -> list[str]:
    return [kernel.files[f"{folder}/cpuset.cpus.exclusive"] for folder in (SLICE, PODS)]


def test_only_the_claims_container_becomes_a_partition() -> None:
    kernel = PartitioningKernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([record()], notes)
    assert (partition(kernel), partition(kernel, OTHER)) == ("isolated", "member")
    assert exclusive(kernel) == ["2-3", "2-3"]
    assert not tuner.remaining
    kernel.written.clear()
    tuner.tune([record()], notes)
    assert kernel.written == []


def test_exclusive_cpus_of_parent_cgroups_are_taken_back_with_the_claim() -> None:
    kernel = PartitioningKernel()
    kernel.files[f"{SLICE}/cpuset.cpus.exclusive"] = "7"
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([record()], notes)
    assert exclusive(kernel) == ["2-3,7", "2-3"]
    kernel.remove(CONTAINER)
    tuner.tune([record()], notes)
    assert exclusive(kernel) == ["7", ""]
    kernel.remove(PODS)
    tuner.tune([], notes)
    assert notes.document is None


def test_a_container_that_has_not_started_is_left_unchanged() -> None:
    kernel = PartitioningKernel()
    kernel.remove(PODS)
    tuner = Tuner(kernel)
    tuner.tune([record()], MemoryNotes(kernel))
    assert kernel.files[f"{SLICE}/cpuset.cpus.exclusive"] == ""
    assert not tuner.remaining


def test_a_quiet_claim_has_no_partition() -> None:
    kernel = PartitioningKernel()
    Tuner(kernel).tune([record("quiet")], MemoryNotes(kernel))
    assert partition(kernel) == "member"


def test_a_container_of_two_claims_is_one_partition() -> None:
    kernel = PartitioningKernel()
    kernel.files |= {f"{CONTAINER}/cpuset.cpus": "2-3,5", f"{OTHER}/cpuset.cpus": "0-1,4,6-7"}
    other = msgspec.structs.replace(quiet_record("b", "5", "partition"), pods=record().pods)
    tuner = Tuner(kernel)
    tuner.tune([record(), other], MemoryNotes(kernel))
    assert partition(kernel) == "isolated"
    assert exclusive(kernel) == ["2-3,5", "2-3,5"]
    assert not tuner.remaining


def test_a_container_that_also_runs_on_other_cpus_is_reported_as_no_partition() -> None:
    kernel = PartitioningKernel()
    kernel.files[f"{CONTAINER}/cpuset.cpus"] = "2-4"
    tuner = Tuner(kernel)
    tuner.tune([record()], MemoryNotes(kernel))
    assert partition(kernel) == "member"
    assert exclusive(kernel) == ["", ""]
    said = "it also runs on CPUs 4, which no claim wants in one"
    assert tuner.remaining == (f"the container in /{CONTAINER} is not a partition: {said}",)


def test_the_kernels_reason_for_refusing_a_partition_is_reported() -> None:
    kernel = PartitioningKernel(remote=False)
    tuner = Tuner(kernel)
    tuner.tune([record()], MemoryNotes(kernel))
    assert tuner.remaining == (f"the container in /{CONTAINER} is not a partition: the kernel says {INVALID}",)


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EINVAL, os.strerror(errno.EINVAL)), (None, "there is no cpuset.cpus.partition")]
)
def test_a_cgroup_that_cannot_be_a_partition_is_reported_without_failing(number: int | None, reason: str) -> None:
    kernel = PartitioningKernel()
    state = f"{CONTAINER}/cpuset.cpus.partition"
    if number is None:
        del kernel.files[state]
    else:
        kernel.refuses[state] = number
    tuner = Tuner(kernel)
    tuner.tune([record()], MemoryNotes(kernel))
    assert tuner.remaining == (f"the container in /{CONTAINER} is not a partition: the kernel says {reason}",)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize(
    ("unread", "what"),
    [
        (PODS, f"/{PODS} cannot be listed, so its cgroups are not known"),
        (f"{CONTAINER}/cpuset.cpus", f"/{CONTAINER}/cpuset.cpus cannot be read"),
        (
            f"{CONTAINER}/cpuset.cpus.effective",
            f"the CPUs of the container in {CONTAINER.removeprefix('sys/fs/cgroup/')} cannot be read",
        ),
    ],
)
def test_partitions_stay_while_their_cgroups_cannot_be_read_which_is_reported(
    unread: str, what: str, error: int
) -> None:
    kernel = PartitioningKernel()
    notes, tuner = MemoryNotes(kernel), Tuner(kernel)
    tuner.tune([record()], notes)
    kernel.unread[unread] = error
    tuner.tune([record()], notes)
    assert (partition(kernel), exclusive(kernel)) == ("isolated", ["2-3", "2-3"])
    reason = f"{what}: {os.strerror(error)}"
    assert tuner.remaining == (f"it is not known which containers should become partitions: {reason}",)
    kernel.unread.clear()
    tuner.tune([], notes)
    assert exclusive(kernel) == ["", ""]
    assert notes.document is None
