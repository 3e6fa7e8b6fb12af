"""Limits of huge pages in the runtime's messages, in the kernel's files and in reports."""

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.events import HugePagesStillCapped, Occurrence, events_of
from dranode.driver.claims.held import ClaimRef
from dranode.driver.machine.cgroups import NO_LIMIT, Cgroups
from dranode.driver.nri.session import adjustment_to, page_limits_of, updates_to
from dranode.driver.nri.verifier import Verifier
from dranode.driver.pinning.container_index import Containers
from dranode.driver.pinning.containers import Container, ContainerUpdate, Pinned, Resources
from dranode.driver.pinning.snapshot import Part, PinnedClaim, PinnedClaims, PinSnapshot
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.enforcement import pod
from tests.fakes.machine import machine

MIB = 1 << 20
HUGE = 2 * MIB
GIANT = 1 << 30
FOLDER = "kubepods/pod1/c1"
LIMITED = Resources(CPUSet((1,)), CPUSet((0,)), hugepages=((HUGE, 8 * MIB), (GIANT, 0)))


def test_a_new_container_gets_limits_in_the_runtimes_message() -> None:
    made = adjustment_to(LIMITED)
    assert made is not None
    limits = [(each.page_size, each.limit) for each in made.linux.resources.hugepage_limits]
    assert limits == [("2MB", 8 * MIB), ("1GB", 0)]
    assert dict(made.linux.resources.unified) == {}


def test_with_cgroup_v2_a_new_container_also_gets_a_limit_on_reservations() -> None:
    made = adjustment_to(replace(LIMITED, unified=True))
    assert made is not None
    assert len(made.linux.resources.hugepage_limits) == 2
    expected = {"hugetlb.2MB.rsvd.max": "8388608", "hugetlb.1GB.rsvd.max": "0"}
    assert dict(made.linux.resources.unified) == expected


@pytest.mark.parametrize("unified", [False, True])
def test_an_existing_container_gets_limits_as_files_only_with_cgroup_v2(unified: bool) -> None:  # noqa: FBT001 - a parameter
    (update,) = updates_to([ContainerUpdate("c1", replace(LIMITED, unified=unified))])
    expected = {
        "hugetlb.2MB.max": "8388608",
        "hugetlb.2MB.rsvd.max": "8388608",
        "hugetlb.1GB.max": "0",
        "hugetlb.1GB.rsvd.max": "0",
    }
    assert dict(update.linux.resources.unified) == (expected if unified else {})


def test_limits_in_a_message_are_read_and_invalid_ones_are_left_out() -> None:
    limits = [("1GB", 0), ("2MB", 5), ("huge", 7), ("64KB", (1 << 64) - 1)]
    message = nri.LinuxResources(
        hugepage_limits=[nri.HugepageLimit(page_size=size, limit=limit) for size, limit in limits]
    )
    assert page_limits_of(message) == ((64 << 10, NO_LIMIT), (HUGE, 5), (GIANT, 0))


@pytest.mark.parametrize(
    ("path", "text", "limit"),
    [
        (f"sys/fs/cgroup/{FOLDER}/hugetlb.2MB.max", "8388608\n", 8 * MIB),
        (f"sys/fs/cgroup/{FOLDER}/hugetlb.2MB.max", "max\n", NO_LIMIT),
        (f"sys/fs/cgroup/hugetlb/{FOLDER}/hugetlb.2MB.limit_in_bytes", "0\n", 0),
        (f"sys/fs/cgroup/hugetlb/{FOLDER}/hugetlb.2MB.limit_in_bytes", "9223372036854771712\n", NO_LIMIT),
        (f"sys/fs/cgroup/{FOLDER}/hugetlb.2MB.max", "many\n", None),
        (f"sys/fs/cgroup/{FOLDER}/hugetlb.1GB.max", "0\n", None),
        (f"sys/fs/cgroup/{FOLDER}/cpuset.cpus", "0\n", None),
    ],
)
def test_the_kernels_limit_is_read_in_both_cgroup_versions(path: str, text: str, limit: int | None) -> None:
    cgroups = Cgroups(machine({path: text}))
    assert cgroups.page_limit(FOLDER, HUGE) == limit
    assert cgroups.page_limit("", HUGE) is None


@pytest.mark.parametrize("name", ["cpuset.mems.effective", "cpuset.effective_mems"])
def test_the_kernels_numa_nodes_are_read_in_both_cgroup_versions(name: str) -> None:
    assert Cgroups(machine({f"sys/fs/cgroup/{FOLDER}/{name}": "0-1\n"})).effective_nodes(FOLDER) == CPUSet((0, 1))
    assert Cgroups(machine({f"sys/fs/cgroup/{FOLDER}/{name}": "x\n"})).effective_nodes(FOLDER) is None


class World:
    """A container whose claim gives it 8 MiB of huge pages, and the kernel's files of it and of its pod."""

    def __init__(self, own: str, of_pod: str) -> None:
        part = Part(0, nodes=CPUSet((0,)), binds=True, hugepages=((HUGE, 8 * MIB),))
        claim = PinnedClaim(ClaimRef("default", "mine", "a")).with_parts((part,))
        self.snapshot = PinSnapshot(PinnedClaims.of([claim]), mems=CPUSet((0, 1)), pins_cpus=False, page_sizes=(HUGE,))
        container = Container("c1", "main", pod("p1"), started=True, cgroup=f"/{FOLDER}")
        self.containers = Containers([Pinned(container, ("a",), mems=CPUSet((0,)), hugepages=((HUGE, 8 * MIB),))])
        files = {
            f"{FOLDER}/cpuset.mems.effective": "0",
            f"{FOLDER}/hugetlb.2MB.max": own,
            "kubepods/pod1/hugetlb.2MB.max": of_pod,
        }
        self.heard: list[Occurrence] = []
        root = machine({f"sys/fs/cgroup/{path}": text for path, text in files.items()})
        self.verifier = Verifier(root, self.heard.append)

    def check(self) -> list[str]:
        return [str(each) for each in self.verifier.check(lambda: self.containers, self.snapshot, ())]


def test_a_lost_limit_is_drift() -> None:
    assert World("8388608", "max").check() == []
    assert World("0", "max").check() == [
        'container "main" of pod default/p1 may have 0 in pages of 2MB, but should have 8Mi'
    ]


def test_a_pod_whose_own_limit_is_too_small_is_reported_once() -> None:
    world = World("8388608", "2097152")
    world.check()
    world.check()
    (occurrence,) = world.heard
    assert isinstance(occurrence, HugePagesStillCapped)
    assert occurrence.sentence == (
        'container "main" of pod default/p1 has huge pages by its claims, but its pod\'s cgroup allows 2Mi of 8Mi in '
        "pages of 2MB: request as many in the pod's resources too"
    )
    assert {event.reason for event in events_of(occurrence, "node")} == {"HugePagesStillCapped"}
    for enough in ("8388608", "max"):
        world = World("8388608", enough)
        world.check()
        assert world.heard == []
