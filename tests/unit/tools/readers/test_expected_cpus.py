"""Enforcement, `claims --verify` and `explain` expect a container on the same CPUs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cdi.spec import ContainerEdits
from dranode.cpu.config import CPUPolicy, CPUSharing
from dranode.cpu.treatment import pinned_claim, treatment_state
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import ClaimUse
from dranode.driver.machine.root import Root
from dranode.driver.pinning.containers import resources_for
from dranode.driver.pinning.snapshot import PinnedClaims, PinSnapshot
from dranode.tools.diagnosis.placement import ContainerClaims, placements, pod_uids
from dranode.tools.readers.host import NodeHost
from dranode.tools.readers.processes import online_for_pods, pods_seen

POD = "0f1e2d3c-0000-4000-8000-00000000000a"
ID = "ab" * 32
CGROUP = f"kubepods/pod{POD}/{ID}"


@dataclass(frozen=True)
class Case:
    """A container of a pod that has claims.

    Attributes:
        has: by claim, the numbers of the allocation results that the container has; None for all of the claim.
        expected: its CPUs; None for those of the shared pool.
    """

    records: tuple[Record, ...]
    has: dict[str, tuple[int, ...] | None]
    expected: str | None
    online: str = "0-7"


def record(uid: str, cpus: str, *requests: tuple[str, str], sharing: CPUSharing = CPUSharing.CONTAINER) -> Record:
    """A claim with its CPUs, and with the CPUs of each request if it has several."""
    state = treatment_state(CPUPolicy(sharing=sharing), CPUSet())
    parts = tuple(
        Grant(
            request=name,
            pool="node",
            device="cpudevnuma000",
            admin=name == "watch",
            edits=ContainerEdits(env=(f"DRANODE_CPUSET_{uid}_{index}={part}",)),
            cpus=CPUSet.parse(part),
            held=CPUSet.parse(part),
        )
        for index, (name, part) in enumerate(requests)
    )
    return Record(
        uid=uid,
        namespace="default",
        name=uid,
        grants=parts or (Grant(request="all", pool="node", device="cpudevnuma000", state=state),),
        edits=ContainerEdits(env=(f"DRA_CPUSET_{uid}={cpus}",)),
        cpus=CPUSet.parse(cpus),
        held=CPUSet.parse(cpus),
        pods=(ResourceClaimConsumerReference(resource="pods", name="pod-a", uid=POD),),
    )


ALONE = record("a", "1,5")
OTHER = record("b", "2,6")
PARTS = record("a", "0-2", ("first", "0-1"), ("second", "2"))
WATCHED = record("a", "0-1", ("first", "0-1"), ("watch", ""))
POOLED = msgspec.structs.replace(ALONE, grants=(msgspec.structs.replace(ALONE.grants[0], with_pool=True),))
HALF_POOLED = msgspec.structs.replace(
    PARTS, grants=(PARTS.grants[0], msgspec.structs.replace(PARTS.grants[1], with_pool=True))
)

CASES = {
    "exclusive": Case((ALONE, OTHER), {"a": None}, "1,5"),
    "two claims": Case((ALONE, OTHER), {"a": None, "b": None}, "1-2,5-6"),
    "shared in its pod": Case((record("a", "1,5", sharing=CPUSharing.POD),), {"a": None}, "1,5"),
    "all requests of a claim": Case((PARTS,), {"a": None}, "0-2"),
    "one request": Case((PARTS,), {"a": (0,)}, "0-1"),
    "the other request": Case((PARTS,), {"a": (1,)}, "2"),
    "both requests by name": Case((PARTS,), {"a": (0, 1)}, "0-2"),
    "an init container with one request beside a whole claim": Case((PARTS, OTHER), {"a": (1,), "b": None}, "2,6"),
    "a CPU that is offline": Case((ALONE,), {"a": None}, "1", online="0-4,6-7"),
    "a request with a CPU that is offline": Case((PARTS,), {"a": (0,)}, "0", online="0,2-7"),
    "admin access beside a claim": Case((WATCHED, OTHER), {"a": (1,), "b": None}, "2,6"),
    "admin access alone": Case((WATCHED,), {"a": (1,)}, None),
    "all of a claim with admin access": Case((WATCHED,), {"a": None}, "0-1"),
    "the shared pool besides": Case((POOLED, OTHER), {"a": None}, "0-1,3-5,7"),
    "the shared pool besides, for another claim too": Case((POOLED, OTHER), {"a": None, "b": None}, "0-7"),
    "the shared pool besides, by another request": Case((HALF_POOLED, OTHER), {"a": (0,)}, "0-1"),
    "the shared pool besides, by this request": Case((HALF_POOLED, OTHER), {"a": (1,)}, "2-5,7"),
    "the shared pool besides, by one of both": Case((HALF_POOLED, OTHER), {"a": None}, "0-5,7"),
    "the shared pool besides, with a CPU that is offline": Case((POOLED,), {"a": None}, "0-4,6", online="0-4,6"),
}


def by_enforcement(case: Case, folder: Path) -> str | None:
    del folder
    claims = {one.uid: pinned_claim(one) for one in case.records}
    snapshot = PinSnapshot(PinnedClaims.of(claims.values()), online=CPUSet.parse(case.online))
    cpus = resources_for((claims[uid].of_parts(parts or ()) for uid, parts in case.has.items()), snapshot).cpus
    return None if cpus == snapshot.shared else str(cpus)


def by_verify(case: Case, folder: Path) -> str | None:
    files = machine(case, folder)
    seen = pods_seen(files, pod_uids(case.records))
    found = placements(case.records, seen.containers, seen.processes, online_for_pods(files))
    expected = {str(each.expected) for placement in found.values() for each in placement.containers}
    return expected.pop() if expected else None


def by_explain(case: Case, folder: Path) -> str | None:
    files = machine(case, folder)
    # kubelet names every CDI device of a claim, whichever of its requests a container uses.
    uses = tuple(ClaimUse("default", "pod-a", "main", uid, frozenset()) for uid in case.has)
    first, *_ = case.records
    claims = ContainerClaims(case.records, uses, {})
    seen = pods_seen(files, pod_uids(case.records))
    containers = claims.running(first, ClaimRef("default", "a", first.uid), seen.containers, online_for_pods(files))
    expected = [str(each.expected) for each in containers]
    return expected.pop() if expected else None


def machine(case: Case, folder: Path) -> Root:
    """The files of a machine on which the container may run on all CPUs."""
    env = [entry for one in case.records if one.uid in case.has and one.edits for entry in one.edits.env]
    for one in case.records:
        env += [entry for index in case.has.get(one.uid) or () for entry in _edits(one, index).env]
    for path, text in {
        "sys/devices/system/cpu/online": case.online,
        f"sys/fs/cgroup/{CGROUP}/cpuset.cpus.effective": case.online,
        "proc/7/status": f"Name:\tapp\nState:\tS (sleeping)\nPPid:\t1\nCpus_allowed_list:\t{case.online}\n",
        "proc/7/cgroup": f"0::/{CGROUP}\n",
        "proc/7/environ": "\0".join(env),
    }.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return NodeHost.at(str(folder)).files


def _edits(of: Record, index: int) -> ContainerEdits:
    edits = of.grants[index].edits
    assert edits is not None
    return edits


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("user", [by_enforcement, by_verify, by_explain])
def test_enforcement_verify_and_explain_expect_the_same_cpus(
    user: Callable[[Case, Path], str | None], case: Case, tmp_path: Path
) -> None:
    assert user(case, tmp_path) == case.expected


def test_results_are_told_apart_only_if_each_has_its_own_cpus(tmp_path: Path) -> None:
    first, second = PARTS.grants
    mixed = msgspec.structs.replace(PARTS, grants=(first, msgspec.structs.replace(second, cpus=None, edits=None)))
    case = replace(CASES["one request"], records=(mixed,), expected="0-2")
    assert {user(case, tmp_path) for user in (by_enforcement, by_verify, by_explain)} == {"0-2"}
