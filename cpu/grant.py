"""Decides which CPUs a claim gets, from its allocation, the CPUs that other claims hold, and the machine.

In grouped mode an allocation says how many CPUs of which group a claim gets, and `pick` chooses them, unless the claim
names a cpuset, which it must do with `--group-by machine`. In individual mode the scheduler has chosen the CPUs, and
policies only verify its choice. The results of a claim are decided one after another, in the allocation's order, so
that no CPU is given twice. A result with admin access gets no CPU: it holds nothing, and its containers are not pinned.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.errors import ClaimError
from dranode.api.resource import DeviceRequestAllocationResult, PlainAttribute
from dranode.api.slice_validation import MAX_STRING
from dranode.cpu.config import CPUPolicy, Memory, merge
from dranode.cpu.devices import individual_cpu, individual_cpus, is_core
from dranode.cpu.grouped import Asked, NodeView, Share, conflict, grouped_share
from dranode.cpu.options import L3, CPUOptions, DeviceMode, Isolation, Threads
from dranode.cpu.picking.packed import Caches
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import claim_edits, request_edits, treatment_state
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant, main_request
from dranode.driver.claims.held import ClaimRef, Held


def grant_cpus(claim: AllocatedClaim, held: Held, topology: Topology, options: CPUOptions) -> ClaimGrant:
    """Decide which CPUs the claim gets.

    `held` is what all other claims hold. The claim's configurations are parsed already.

    Raises:
        ClaimConflictError: other claims hold the CPUs that the claim needs.
        ClaimError: the claim cannot get what it was allocated; the message says which request, which CPUs and why.
    """
    node = NodeView(topology, options, held)
    decide = individual_share if options.mode is DeviceMode.INDIVIDUAL else grouped_share
    shares: tuple[Share, ...] = ()
    taken = CPUSet()
    for allocated in claim.results:
        asked = Asked(claim.ref, allocated.result, merge(allocated.configs), taken)
        _check_isolation(asked, options)
        share = Share(asked.policy) if allocated.result.admin_access else decide(asked, node)
        shares = (*shares, share)
        taken |= share.held
    if options.mode is DeviceMode.INDIVIDUAL:
        shares = verified(claim.ref, shares, topology, options)
    _check_shared(claim.ref, taken, node)
    cpus = CPUSet.union(share.cpus for share in shares)
    grants = tuple(
        _grant(allocated.result, share, _mems(allocated.result, share, topology), options)
        for allocated, share in zip(claim.results, shares, strict=True)
    )
    return ClaimGrant(
        grants=_with_own_cpus(claim.ref.uid, grants, shares) if cpus else grants,
        edits=claim_edits(
            claim.ref.uid,
            cpus,
            taken,
            _isolation(shares),
            shared=all(share.policy.shared for share in shares if share.cpus),
        ),
        cpus=cpus,
        held=taken,
    )


def adopted(claim: AllocatedClaim, recovered: ClaimGrant, topology: Topology, options: CPUOptions) -> tuple[Grant, ...]:
    """Return the grants of a claim that was recovered from its CDI spec.

    The spec has the claim's CPUs, but does not tell which of its results got which.

    Raises:
        ClaimError: the claim asks for local memory, and the CPUs' NUMA nodes have none.
    """
    single = sum(not allocated.result.admin_access for allocated in claim.results) == 1
    grants = []
    for allocated in claim.results:
        policy = merge(allocated.configs)
        whole = Share(policy) if allocated.result.admin_access else Share(policy, recovered.cpus, recovered.held)
        share = whole if single else replace(whole, held=CPUSet())
        grants.append(_grant(allocated.result, share, _mems(allocated.result, whole, topology), options))
    return tuple(grants)


def _grant(result: DeviceRequestAllocationResult, share: Share, mems: CPUSet, options: CPUOptions) -> Grant:
    attributes = _metadata(share, result.device, options) if share.held else {}
    grant = Grant.of(result, attributes=attributes, state=treatment_state(share.policy, mems))
    return replace(grant, with_pool=share.policy.shared and not result.admin_access)


def _with_own_cpus(uid: str, grants: tuple[Grant, ...], shares: tuple[Share, ...]) -> tuple[Grant, ...]:
    """Give each grant its own CPUs and edits, so that containers of different requests are pinned differently.

    A claim with a single request does not need this.
    """
    if len({main_request(grant.request) for grant in grants}) == 1:
        return grants
    return tuple(
        msgspec.structs.replace(
            grant,
            edits=request_edits(uid, index, share.cpus, shared=grant.with_pool),
            cpus=share.cpus,
            held=share.held,
        )
        for index, (grant, share) in enumerate(zip(grants, shares, strict=True))
    )


def _metadata(share: Share, device: str, options: CPUOptions) -> dict[str, PlainAttribute]:
    """Return the attributes that the workload sees in addition to those that the device publishes.

    A device that is a single CPU already publishes it as an attribute.
    """
    attributes: dict[str, PlainAttribute] = {}
    if share.policy.isolation is not Isolation.CPUSET:
        attributes["dra.cpu/isolation"] = share.policy.isolation.value
    if share.policy.shared:
        attributes["dra.cpu/shared"] = True
    if options.mode is DeviceMode.INDIVIDUAL and not is_core(device):
        return attributes
    attributes["dra.cpu/allocatedNumCPUs"] = len(share.held)
    cpus = str(share.cpus)
    if len(cpus) <= MAX_STRING:
        attributes["dra.cpu/cpuset"] = cpus
    return attributes


def _mems(result: DeviceRequestAllocationResult, share: Share, topology: Topology) -> CPUSet:
    """Return the NUMA nodes that the share's memory comes from; empty unless it asks for local memory.

    A claim that was recovered from its CDI spec may have CPUs that are offline now, whose node is not known.
    """
    cpus = share.cpus & topology.online
    if share.policy.memory is not Memory.LOCAL or not cpus:
        return NO_CPUS
    without = CPUSet(cpu for cpu in cpus if topology.cpus[cpu].numa not in topology.memory_nodes)
    without = without or CPUSet(cpu for cpu in cpus if topology.pods.lacks_nodes(_nodes(CPUSet((cpu,)), topology)))
    if without:
        raise ClaimError(
            f'request "{result.request}" asks for local memory, but {_no_memory(without, topology)}; '
            "leave out memory: local"
        )
    return _nodes(cpus, topology)


def _no_memory(cpus: CPUSet, topology: Topology) -> str:
    nodes = _nodes(cpus, topology)
    if not nodes:
        return f"no NUMA node lists CPUs {cpus}"
    if not topology.memory_nodes:
        return "the kernel does not report which NUMA nodes have memory"
    if nodes <= CPUSet(topology.memory_nodes):
        return f"CPUs {cpus} are on NUMA node {nodes}, whose memory {topology.pods.folder} does not give to pods"
    return f"CPUs {cpus} are on NUMA node {nodes}, which has no memory according to the kernel"


def _nodes(cpus: CPUSet, topology: Topology) -> CPUSet:
    return CPUSet(node for cpu in cpus if (node := topology.cpus[cpu].numa) is not None)


def _isolation(shares: Iterable[Share]) -> Isolation:
    return max(
        (share.policy.isolation for share in shares), key=lambda isolation: isolation.level, default=Isolation.CPUSET
    )


def _check_isolation(asked: Asked, options: CPUOptions) -> None:
    isolation, limit = asked.policy.isolation, options.max_isolation
    if isolation.level > limit.level:
        raise ClaimError(
            f"{asked} asks for isolation: {isolation}, but this node allows no more than {limit} (--max-isolation); "
            "ask for less, or let its administrator allow more"
        )


def _check_shared(claim: ClaimRef, taken: CPUSet, node: NodeView) -> None:
    """Refuse a claim that would leave no CPU to the containers without claims: NRI cannot set an empty mask.

    Raises:
        ClaimConflictError: other claims hold what it would leave. One CPU is never published, so the scheduler has
            deallocated these claims already (a pod was deleted by force), and their Unprepare will follow.
        ClaimError: it would leave none even if there were no other claims.
    """
    online = node.topology.for_pods
    if not node.options.keep_shared or not taken or not online <= node.held.cpus | taken:
        return
    last = f"claim {claim} would take {taken}, the last CPUs for containers without a claim"
    advice = "set --reserved-cpus to keep some for them, or make the claim smaller"
    if online <= taken:
        raise ClaimError(f"{last}; {advice}")
    raise conflict(f"{last} ({advice})", node.held, node.held.cpus & online)


# The CPU or core of an allocation result in individual mode: the scheduler chose it, and policies only verify the
# choice.
#
# A requirement (`full-core`, `one-per-core`, `l3: require`, a cpuset) is verified over all CPUs for which the claim has
# it. A preference (packed, spread, `l3: prefer`) refuses nothing.


_REALLOCATE: Final = "delete the claim so that it is allocated again"


def individual_share(asked: Asked, node: NodeView) -> Share:
    """Return the CPUs of the result's device: one, or those of a core.

    Raises:
        ClaimConflictError: another claim holds one of them.
        ClaimError: they do not exist, or the driver does not hand them out.
    """
    cpu, cpus = individual_cpu(asked.result.device), individual_cpus(asked.result.device, node.topology)
    what = f"{asked} was allocated {asked.result.device}"
    if cpu is None or cpus is None:
        raise ClaimError(f"{what}, which is neither a CPU nor a core of this node in individual mode; {_REALLOCATE}")
    present, pods = node.topology.present, node.topology.pods
    for wrong, why in (
        (cpu not in present, f"which this machine does not have; it has {present}"),
        (cpus - node.topology.online, f"which is not online; {node.topology.online} are"),
        (cpus & node.topology.not_for_pods, f"on which no pod may run: {pods.folder} has CPUs {pods.cpus}"),
        (cpus & node.options.reserved, f"which is reserved by --reserved-cpus {node.options.reserved}"),
        (cpus & asked.own, "which it was allocated twice"),
    ):
        if wrong:
            raise ClaimError(f"{what}, {why}; {_REALLOCATE}")
    for chosen in asked.policy.cpusets:
        if cpus - chosen:
            raise ClaimError(
                f"{what}, which is not in the cpuset of its configuration, {chosen}; select its CPUs by dra.cpu/cpuID, "
                "or leave out the cpuset"
            )
    if cpus & node.held.cpus:
        raise conflict(f"{what}, which is not free", node.held, cpus)
    return Share(asked.policy, cpus, cpus)


def verified(claim: ClaimRef, shares: Sequence[Share], topology: Topology, options: CPUOptions) -> tuple[Share, ...]:
    """Verify every policy of a claim and return its shares; with `one-per-core` they run on one thread of each core.

    Raises:
        ClaimError: the scheduler's choice does not meet the requirement of a policy.
    """
    for threads in (Threads.FULL_CORE, Threads.ONE_PER_CORE):
        cpus = CPUSet.union(share.held for share in shares if _threads(share.policy, options) is threads)
        missing = topology.whole_cores(cpus) - cpus
        if missing:
            raise ClaimError(
                f"claim {claim} requires threads: {threads}, but was allocated {cpus}, which splits cores: {missing} "
                "are missing; ask for the siblings too, or use grouped mode"
            )
    near = CPUSet.union(share.held for share in shares if share.policy.l3 is L3.REQUIRE)
    if near and not Caches.of(topology.groups, topology.online.mask, whole=False).accept(near.mask):
        raise ClaimError(
            f"claim {claim} has l3: require, but was allocated {near}, which does not keep to L3 caches; "
            "ask for CPUs of one with a matchAttribute on dra.cpu/cacheL3ID, or use grouped mode"
        )
    firsts = CPUSet(core.first() for core in topology.cores)
    return tuple(
        replace(share, cpus=share.held & firsts) if share.policy.threads is Threads.ONE_PER_CORE else share
        for share in shares
    )


def _threads(policy: CPUPolicy, options: CPUOptions) -> Threads:
    return policy.threads if policy.threads is not Threads.ANY else options.threads
