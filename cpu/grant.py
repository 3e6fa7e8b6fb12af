"""What CPUs a claim is given, decided from its allocation, from what other claims hold and from the machine.

In grouped mode an allocation says how many CPUs of which group, and `pick` says which; a claim's own cpuset says it
instead, and machine grouping knows nothing else. In individual mode the scheduler has chosen, and policies only verify
its choice. The results of a claim are decided one after another, in the allocation's order; no CPU is given twice.
Admin access is given no CPU: it holds nothing and is pinned to nothing.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from dranode.cpu.claim_env import claim_edits, request_edits
from dranode.cpu.config import Memory, merge
from dranode.cpu.grouped import grouped_share
from dranode.cpu.individual import individual_share, verified
from dranode.cpu.options import CPUOptions, DeviceMode
from dranode.cpu.share import Asked, NodeView, Share
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import treatment_state
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import ClaimError
from dranode.driver.core.api.resource import DeviceAttribute, DeviceRequestAllocationResult
from dranode.driver.core.claims.configs import main_request
from dranode.driver.core.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.driver.core.slices.limits import MAX_STRING


def grant_cpus(claim: AllocatedClaim, held: Held, topology: Topology, options: CPUOptions) -> ClaimGrant:
    """Decide what the claim is given. `held` is what all other claims hold; configurations are parsed already.

    Raises:
        ClaimConflictError: other claims hold the CPUs that the claim needs.
        ClaimError: the claim cannot be given what it was allocated; says which request, which CPUs and why.
    """
    node = NodeView(topology, options, held)
    decide = individual_share if options.mode is DeviceMode.INDIVIDUAL else grouped_share
    shares: tuple[Share, ...] = ()
    taken = CPUSet()
    for each in claim.results:
        asked = Asked(claim.ref, each.result, merge(each.configs), taken)
        share = Share(asked.policy) if each.result.admin_access else decide(asked, node)
        shares = (*shares, share)
        taken |= share.held
    if options.mode is DeviceMode.INDIVIDUAL:
        shares = verified(claim.ref, shares, topology, options)
    _check_shared(claim.ref, taken, node)
    cpus = CPUSet.union(share.cpus for share in shares)
    grants = tuple(
        _grant(each.result, share, _mems(each.result, share, topology), options)
        for each, share in zip(claim.results, shares, strict=True)
    )
    return ClaimGrant(
        grants=_told_apart(claim.ref.uid, grants, shares) if cpus else grants,
        edits=claim_edits(claim.ref.uid, cpus, taken),
        cpus=cpus,
        held=taken,
    )


def adopted(claim: AllocatedClaim, found: ClaimGrant, topology: Topology, options: CPUOptions) -> tuple[Grant, ...]:
    """The grants of a claim of which only the CPUs are known. Which of several results has which of them is not.

    Raises:
        ClaimError: local memory is asked for, and the CPUs' NUMA nodes have none.
    """
    alone = sum(not each.result.admin_access for each in claim.results) == 1
    grants = []
    for each in claim.results:
        policy = merge(each.configs)
        known = Share(policy) if each.result.admin_access else Share(policy, found.cpus, found.held)
        told = known if alone else replace(known, held=CPUSet())
        grants.append(_grant(each.result, told, _mems(each.result, known, topology), options))
    return tuple(grants)


def _grant(result: DeviceRequestAllocationResult, share: Share, mems: str, options: CPUOptions) -> Grant:
    grouped = options.mode is DeviceMode.GROUPED and bool(share.held)
    return Grant(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        admin=bool(result.admin_access),
        attributes=_metadata(share) if grouped else {},
        state=treatment_state(share.policy, mems),
    )


def _told_apart(uid: str, grants: tuple[Grant, ...], shares: tuple[Share, ...]) -> tuple[Grant, ...]:
    """The grants with what tells containers of one request from those of another, if the claim has several."""
    if len({main_request(grant_cpus.request) for grant_cpus in grants}) == 1:
        return grants
    return tuple(
        msgspec.structs.replace(
            grant_cpus, edits=request_edits(uid, index, share.cpus), cpus=str(share.cpus), held=str(share.held)
        )
        for index, (grant_cpus, share) in enumerate(zip(grants, shares, strict=True))
    )


def _metadata(share: Share) -> dict[str, DeviceAttribute]:
    """What the workload is told beside the group's published attributes; an individual device tells its CPU itself."""
    told = {"dra.cpu/allocatedNumCPUs": DeviceAttribute(int_=len(share.held))}
    cpus = str(share.cpus)
    if len(cpus) <= MAX_STRING:
        told["dra.cpu/cpuset"] = DeviceAttribute(string=cpus)
    return told


def _mems(result: DeviceRequestAllocationResult, share: Share, topology: Topology) -> str:
    """The NUMA nodes that the share's memory is to come from; empty unless it asks for local memory.

    A claim that comes back from its CDI spec may have CPUs that are offline by now; of those no node is known.
    """
    cpus = share.cpus & topology.online
    if share.policy.memory is not Memory.LOCAL or not cpus:
        return ""
    without = CPUSet(cpu for cpu in cpus if topology.cpus[cpu].numa not in topology.memory_nodes)
    if without:
        raise ClaimError(
            f'request "{result.request}" asks for local memory, but {_no_memory(without, topology)}; '
            "leave out memory: local"
        )
    return str(_nodes(cpus, topology))


def _no_memory(cpus: CPUSet, topology: Topology) -> str:
    nodes = _nodes(cpus, topology)
    if not nodes:
        return f"no NUMA node claims the CPUs {cpus}"
    if not topology.memory_nodes:
        return "the kernel does not tell which NUMA nodes have memory"
    return f"CPUs {cpus} are on NUMA node {nodes}, which has none by the kernel's account"


def _nodes(cpus: CPUSet, topology: Topology) -> CPUSet:
    return CPUSet(node for cpu in cpus if (node := topology.cpus[cpu].numa) is not None)


def _check_shared(claim: ClaimRef, taken: CPUSet, node: NodeView) -> None:
    """Refuse to leave containers without claims nothing to run on: an empty mask cannot be enforced."""
    if node.options.keep_shared and taken and node.topology.online <= node.held.cpus | taken:
        raise ClaimError(
            f"claim {claim} would take {taken}, the last CPUs for containers without a claim; "
            "set --reserved-cpus to keep some for them, or make the claim smaller"
        )
