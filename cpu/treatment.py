"""The settings of a claim's containers besides their CPU set; the CPU driver keeps them in `Grant.state`."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.documents import decode, encode
from dranode.api.errors import DocumentError
from dranode.cdi.spec import ContainerEdits, Spec
from dranode.cpu.config import CFSQuota, CPUPolicy, CPUSharing, Memory
from dranode.cpu.options import Isolation
from dranode.cpu.topology import Topology
from dranode.driver.claims.grant import ClaimGrant, Grant
from dranode.driver.claims.record import Record
from dranode.driver.pinning.given_cpus import given_cpus
from dranode.driver.pinning.snapshot import Part, PinnedClaim, PinSnapshot


class Treatment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The settings of the containers that have an allocation result, or a whole claim.

    Attributes:
        sharing: which containers may run at the same time.
        cfs_quota: whether their CPU limit is lifted.
        memory: with `local`, `mems` becomes their `cpuset.mems`.
        mems: with local memory, the NUMA nodes of the CPUs; else empty.
        isolation: what is kept off their CPUs in addition to other containers.
    """

    sharing: CPUSharing = CPUSharing.CONTAINER
    cfs_quota: CFSQuota = CFSQuota.KEEP
    memory: Memory = Memory.NONE
    mems: CPUSet = NO_CPUS
    isolation: Isolation = Isolation.CPUSET


def treatment_state(policy: CPUPolicy, mems: CPUSet) -> Any:
    """Return the plain JSON for `Grant.state`; None if every setting has its default."""
    treatment = Treatment(
        sharing=policy.sharing,
        cfs_quota=policy.cfs_quota,
        memory=policy.memory,
        mems=mems or NO_CPUS,
        isolation=policy.isolation,
    )
    return encode(treatment) or None


def treatment_of(grant: Grant) -> Treatment:
    """Return the settings of the containers of one allocation result.

    Raises:
        DocumentError: the state is not this driver's.
    """
    return decode(Treatment, grant.state or {})


def claim_treatment(grants: Iterable[Grant]) -> Treatment:
    """Return the settings of the containers of a whole claim, because pinning is per claim.

    Several containers may run at a time, and memory is local, only if every result says so. The quota is lifted if any
    result says so, and the claim's isolation is the most that any result asks for. Results with admin access do not
    count.

    Raises:
        DocumentError: a state is not this driver's.
    """
    treatments = [treatment_of(grant) for grant in grants if not grant.admin]
    if not treatments:
        return Treatment()
    shared = all(treatment.sharing is CPUSharing.POD for treatment in treatments)
    lifted = any(treatment.cfs_quota is CFSQuota.UNLIMITED for treatment in treatments)
    local = all(treatment.memory is Memory.LOCAL for treatment in treatments)
    return Treatment(
        sharing=CPUSharing.POD if shared else CPUSharing.CONTAINER,
        cfs_quota=CFSQuota.UNLIMITED if lifted else CFSQuota.KEEP,
        memory=Memory.LOCAL if local else Memory.NONE,
        mems=CPUSet.union(treatment.mems for treatment in treatments) if local else NO_CPUS,
        isolation=max((treatment.isolation for treatment in treatments), key=lambda isolation: isolation.level),
    )


def isolated_cpus(record: Record, isolation: Isolation) -> CPUSet:
    """Return the CPUs that the claim holds with this isolation or more.

    If the record does not tell which result has which CPUs, the isolation of the whole claim applies to all of them. If
    only the CDI spec of a claim is left, the isolation in the spec applies.

    Raises:
        DocumentError: a state is not this driver's.
    """
    try:
        return _isolated_cpus(record, isolation)
    except DocumentError as error:
        raise DocumentError(f"the record of claim {record.ref} is from another version: {error}") from error


def _isolated_cpus(record: Record, isolation: Isolation) -> CPUSet:
    if not record.grants:
        return record.held if env_isolation(record.uid, record.edits).level >= isolation.level else CPUSet()
    if any(grant.cpus is None for grant in record.grants):
        return record.held if claim_treatment(record.grants).isolation.level >= isolation.level else CPUSet()
    return CPUSet.union(grant.held for grant in record.grants if treatment_of(grant).isolation.level >= isolation.level)


# The CPUs that containers run on: those of their claims, or the shared pool, which is neither claimed nor reserved.


def pool(topology: Topology, reserved: CPUSet) -> PinSnapshot:
    """Return the machine without claims, for enforcement by NRI: the CPUs and NUMA nodes that pods may use."""
    nodes = CPUSet(topology.memory_nodes)
    return replace(unread_pool(topology.for_pods, reserved), mems=nodes - topology.pods.lacks_nodes(nodes))


def unread_pool(online: CPUSet, reserved: CPUSet) -> PinSnapshot:
    """Return what NRI can enforce if only these CPUs of the machine are known."""
    return PinSnapshot(
        online=online,
        reserved=reserved,
        variable=CPUSET_PREFIX,
        part_variable=REQUEST_PREFIX,
        cdi_kind=CDI_KIND,
    )


def pinned_claim(record: Record) -> PinnedClaim:
    """Return a record's claim, for enforcement by NRI."""
    treatment = claim_treatment(record.grants)
    given = given_cpus(record)
    return PinnedClaim(
        claim=record.ref,
        cpus=given.whole,
        held=record.held,
        pods=frozenset(pod.uid for pod in record.pods if pod.is_pod and pod.uid),
        shared_in_pod=treatment.sharing is CPUSharing.POD,
        mems=treatment.mems,
        lift_quota=treatment.cfs_quota is CFSQuota.UNLIMITED,
        with_pool=any(grant.with_pool for grant in record.grants),
        parts=tuple(_part(index, cpus, record.grants[index]) for index, cpus in given.parts.items()),
    )


def _part(index: int, cpus: CPUSet, grant: Grant) -> Part:
    """Return what one allocation result was given."""
    return Part(index, cpus, grant.held, treatment_of(grant).mems, grant.with_pool)


# The variables with a claim's CPUs in its CDI spec: a contract with containers, NRI plug-ins and dra-driver-cpu.
#
# `DRA_CPUSET_<claim UID>=<cpu-list>` is dra-driver-cpu's, so that either driver can take over a node from the other. If
# a claim holds more CPUs than it runs on, `DRANODE_HELD_<claim UID>` lists the held CPUs. If they are isolated beyond
# `cpuset`, `DRANODE_ISOLATION_<claim UID>` is the level: `quiet` or `partition`. If containers also run on the shared
# pool, `DRANODE_SHARED_<claim UID>=true` says that only the CPUs in the first variable are their own.
#
# If a claim has several requests, each of its allocation results also has its own CDI device, with
# `DRANODE_CPUSET_<claim UID>_<number of the result>=<cpu-list>`, and `DRANODE_SHARED_` in the same form: kubelet passes
# a container the devices of the requests that it names. The claim has `DRANODE_SHARED_` if all results asked for it.


CDI_KIND: Final = "dra.k8s.io/cpu"
CPUSET_PREFIX: Final = "DRA_CPUSET_"
HELD_PREFIX: Final = "DRANODE_HELD_"
SHARED_PREFIX: Final = "DRANODE_SHARED_"
ISOLATION_PREFIX: Final = "DRANODE_ISOLATION_"
REQUEST_PREFIX: Final = "DRANODE_CPUSET_"


def claim_edits(
    uid: str, cpus: CPUSet, held: CPUSet, isolation: Isolation = Isolation.CPUSET, *, shared: bool = False
) -> ContainerEdits | None:
    """Return the edits that every container with the claim gets; None for a claim without CPUs."""
    if not cpus:
        return None
    env = [f"{CPUSET_PREFIX}{uid}={cpus}"]
    if held != cpus:
        env.append(f"{HELD_PREFIX}{uid}={held}")
    if isolation is not Isolation.CPUSET:
        env.append(f"{ISOLATION_PREFIX}{uid}={isolation}")
    if shared:
        env.append(f"{SHARED_PREFIX}{uid}=true")
    return ContainerEdits(env=tuple(env))


def request_edits(uid: str, index: int, cpus: CPUSet, *, shared: bool = False) -> ContainerEdits:
    """Return the edits for containers that name the request of result number `index`; the result may have no CPUs."""
    env = [f"{REQUEST_PREFIX}{uid}_{index}={cpus}"]
    if shared:
        env.append(f"{SHARED_PREFIX}{uid}_{index}=true")
    return ContainerEdits(env=tuple(env))


def env_isolation(uid: str, edits: ContainerEdits | None) -> Isolation:
    """Return how far a claim's CPUs are isolated, according to the variables of its containers."""
    prefix = f"{ISOLATION_PREFIX}{uid}="
    levels = [entry.removeprefix(prefix) for entry in (edits.env if edits else ()) if entry.startswith(prefix)]
    return next((isolation for isolation in Isolation if isolation in levels), Isolation.CPUSET)


def spec_cpus(uid: str, spec: Spec) -> ClaimGrant | None:
    """Return the CPUs that a CDI spec grants a claim, or None if the spec has no valid entry of this claim."""
    edits = [device.container_edits for device in spec.devices]
    entries = dict(entry.partition("=")[::2] for edit in edits for entry in edit.env)
    try:
        cpus = CPUSet.parse(entries.get(f"{CPUSET_PREFIX}{uid}", ""))
        held = CPUSet.parse(entries.get(f"{HELD_PREFIX}{uid}", str(cpus)))
        isolation = Isolation(entries.get(f"{ISOLATION_PREFIX}{uid}", Isolation.CPUSET))
    except ValueError:
        return None
    held |= cpus
    if not cpus:
        return None
    given = claim_edits(uid, cpus, held, isolation, shared=entries.get(f"{SHARED_PREFIX}{uid}") == "true")
    return ClaimGrant(grants=(), edits=given, cpus=cpus, held=held)
