"""The CPU or core of an allocation result in individual mode: the scheduler chose it, and policies only verify that.

A policy that demands something (`full-core`, `one-per-core`, `l3: require`, a cpuset) is verified over all CPUs for
which the claim demands it. A policy that only prefers something (packed, spread, `l3: prefer`) refuses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError
from dranode.cpu.config import CPUPolicy
from dranode.cpu.devices import individual_cpu, individual_cpus
from dranode.cpu.grouped import Asked, NodeView, Share, conflict
from dranode.cpu.options import CPUOptions
from dranode.cpu.pick_l3 import Caches
from dranode.cpu.policies import L3, Threads
from dranode.cpu.topology import Topology
from dranode.driver.claims.held import ClaimRef

_ANEW: Final = "delete the claim so that it is allocated anew"


def individual_share(asked: Asked, node: NodeView) -> Share:
    """Return the CPUs that the result's device stands for: one, or those of a core.

    Raises:
        ClaimConflictError: another claim holds one of them.
        ClaimError: they do not exist, or the driver does not hand them out.
    """
    cpu, cpus = individual_cpu(asked.result.device), individual_cpus(asked.result.device, node.topology)
    what = f"{asked} was allocated {asked.result.device}"
    if cpu is None or cpus is None:
        raise ClaimError(f"{what}, which is no CPU of this node in individual mode, nor a core; {_ANEW}")
    present = node.topology.present
    for wrong, why in (
        (cpu not in present, f"which this machine does not have; it has {present}"),
        (cpu not in node.topology.online, f"which is not online; {node.topology.online} are"),
        (cpus & node.topology.not_for_pods, f"on which no pod may run, since {_pods(node.topology)}"),
        (cpus & node.options.reserved, f"which is reserved by --reserved-cpus {node.options.reserved}"),
        (cpus & asked.mine, "which it was allocated twice"),
    ):
        if wrong:
            raise ClaimError(f"{what}, {why}; {_ANEW}")
    for chosen in asked.policy.cpusets:
        if cpus - chosen:
            raise ClaimError(
                f"{what}, which is not in the cpuset of its configuration, {chosen}; select its CPUs by dra.cpu/cpuID, "
                "or leave the cpuset out"
            )
    if cpus & node.held.cpus:
        raise conflict(f"{what}, which is not free", node.held, cpus)
    return Share(asked.policy, cpus, cpus)


def _pods(topology: Topology) -> str:
    return f"{topology.pods.folder} has CPUs {topology.pods.cpus}"


def verified(claim: ClaimRef, shares: Sequence[Share], topology: Topology, options: CPUOptions) -> tuple[Share, ...]:
    """Verify every policy of a claim, and return its shares; with `one-per-core` they run on one thread of each core.

    Raises:
        ClaimError: the scheduler's choice is not what a policy demands.
    """
    for threads in (Threads.FULL_CORE, Threads.ONE_PER_CORE):
        cpus = CPUSet.union(share.held for share in shares if _threads(share.policy, options) is threads)
        missing = topology.whole_cores(cpus) - cpus
        if missing:
            raise ClaimError(
                f"claim {claim} demands threads: {threads}, but was allocated {cpus}, which splits cores: {missing} "
                "are missing; ask for the siblings as well, or use grouped mode"
            )
    near = CPUSet.union(share.held for share in shares if share.policy.l3 is L3.REQUIRE)
    if near and not Caches.of(topology.groups, topology.online.mask, whole=False).accept(near.mask):
        raise ClaimError(
            f"claim {claim} demands l3: require, but was allocated {near}, which does not keep to L3 caches; "
            "ask for one with a matchAttribute on dra.cpu/cacheL3ID, or use grouped mode"
        )
    firsts = CPUSet(core.first() for core in topology.cores)
    return tuple(
        replace(share, cpus=share.held & firsts) if share.policy.threads is Threads.ONE_PER_CORE else share
        for share in shares
    )


def _threads(policy: CPUPolicy, options: CPUOptions) -> Threads:
    return policy.threads if policy.threads is not Threads.ANY else options.threads
