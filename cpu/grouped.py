"""Decides which CPUs an allocation result gets in grouped mode: a number of CPUs of a group, or those of a cpuset."""

from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimConflictError, ClaimError, number_of
from dranode.api.names import named_value
from dranode.api.resource import DeviceRequestAllocationResult
from dranode.cpu.config import CPUPolicy
from dranode.cpu.devices import CAPACITY, Group, groups
from dranode.cpu.options import CPUOptions, GroupBy, Isolation, Threads
from dranode.cpu.picking.pick import Pick, PickError, pick
from dranode.cpu.topology import Topology
from dranode.driver.claims.held import ClaimRef, Held

_NAMED_HOLDERS: Final = 4


class NodeView(msgspec.Struct, frozen=True):
    """The node's state on which a decision depends.

    Attributes:
        topology: the machine's CPUs.
        options: how the driver publishes them and gives them to claims.
        held: what all other claims hold.
    """

    topology: Topology
    options: CPUOptions
    held: Held


class Asked(msgspec.Struct, frozen=True):
    """One allocation result for which CPUs have to be found.

    Attributes:
        claim: the claim that it belongs to.
        result: what the scheduler allocated.
        policy: the result of its configurations.
        own: the CPUs that earlier results of the same claim hold.
    """

    claim: ClaimRef
    result: DeviceRequestAllocationResult
    policy: CPUPolicy
    own: CPUSet = msgspec.field(default_factory=CPUSet)

    def __str__(self) -> str:
        return f'request "{self.result.request}" of claim {self.claim}'


class Share(msgspec.Struct, frozen=True):
    """The CPUs that one allocation result gets.

    Attributes:
        policy: the result of its configurations.
        cpus: the CPUs that its containers run on.
        held: the CPUs that no other claim gets; a superset of `cpus`.
    """

    policy: CPUPolicy
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    held: CPUSet = msgspec.field(default_factory=CPUSet)


def named_holders(held: Held, cpus: CPUSet) -> str:
    """Return which claims hold the CPUs: `0-3 held by default/a and 5 by default/b`; empty if none is held."""
    holders = sorted(held.cpu_holders(cpus).items(), key=lambda item: item[1].first())
    named = [f"{held_cpus} by {claim}" for claim, held_cpus in holders[:_NAMED_HOLDERS]]
    rest = len(holders) - len(named)
    if rest:
        named.append(f"more by {rest} other claim{'s' if rest > 1 else ''}")
    return f"{' and '.join(named)}".replace(" by", " held by", 1) if named else ""


def conflict(message: str, held: Held, cpus: CPUSet) -> ClaimConflictError:
    """Return the error for CPUs that other claims hold; it names these claims."""
    return ClaimConflictError(f"{message}; {named_holders(held, cpus)}")


_GATE: Final = "enable the DRAConsumableCapacity feature gate, and request a capacity"


def grouped_share(asked: Asked, node: NodeView) -> Share:
    """Decide which CPUs the result gets.

    Raises:
        ClaimConflictError: other claims hold CPUs that it needs.
        ClaimError: it cannot get what it was allocated.
    """
    name = asked.result.device
    group = next((group for group in groups(node.topology, node.options) if group.name == name), None)
    if group is None:
        raise ClaimError(
            f"{asked} was allocated {name}, which is not a group of CPUs of this node "
            f"with --group-by {node.options.group_by}; delete the claim so that it is allocated again"
        )
    count = consumed_cpus(asked.result)
    if asked.policy.cpusets or node.options.group_by is GroupBy.MACHINE:
        cpus = _chosen(asked, group, count, node)
        return Share(asked.policy, cpus, cpus)
    picked = _picked(asked, group, count, node)
    return Share(asked.policy, picked.cpus, picked.held)


def consumed_cpus(result: DeviceRequestAllocationResult) -> int:
    """Return how many CPUs the result was allocated.

    Raises:
        ClaimError: the amount is missing, fractional, zero or negative.
    """
    amount = named_value(result.consumed_capacity, CAPACITY, result.driver)
    if amount is None:
        raise ClaimError(f'CPU capacity "{CAPACITY}" for device "{result.device}" is missing; {_GATE}')
    if amount.value <= 0:
        raise ClaimError(f'CPU capacity for device "{result.device}" must be positive, got {amount}')
    if not isinstance(amount.value, int):
        raise ClaimError(f'CPU capacity for device "{result.device}" must be a whole number, got {amount}')
    return amount.value


def _picked(asked: Asked, group: Group, count: int, node: NodeView) -> Pick:
    free = group.cpus - asked.own
    remaining = free - node.held.cpus
    try:
        return _preferred(node, remaining, count, asked) or _pick(node, remaining, count, asked)
    except PickError as error:
        what = f"{asked} was granted {number_of(count, 'CPU')} of {group.name}"
        has = f"which has {len(remaining)} left: {remaining}" if remaining else "which has none left"
        message = f"{what}, {has}" if count > len(remaining) else f"{what}: {error}"
        if not _fits(node, free, count, asked):
            raise ClaimError(f"{message}; claims may get {len(group.cpus)} in total: {group.cpus}") from error
        raise conflict(message, node.held, free) from error


def _preferred(node: NodeView, remaining: CPUSet, count: int, asked: Asked) -> Pick | None:
    """Return a pick among the CPUs that the kernel's command line isolates, for a claim that asks for isolation."""
    if asked.policy.isolation is Isolation.CPUSET:
        return None
    isolated, nohz_full = node.topology.isolated, node.topology.nohz_full
    # CPUs with both first: they have neither load balancing nor, while one task runs, a timer tick.
    for cpus in (isolated & nohz_full, isolated | nohz_full):
        try:
            if len(cpus & remaining) >= count:
                return _pick(node, cpus & remaining, count, asked)
        except PickError:
            continue
    return None


def _pick(node: NodeView, candidates: CPUSet, count: int, asked: Asked) -> Pick:
    policy = asked.policy
    threads = policy.threads if policy.threads is not Threads.ANY else node.options.threads
    return pick(
        node.topology,
        candidates,
        count,
        policy=policy.spread.policy,
        group=policy.spread.group,
        threads=threads,
        l3=policy.l3,
        order=node.options.order,
        own=asked.own,
    )


def _fits(node: NodeView, candidates: CPUSet, count: int, asked: Asked) -> bool:
    """Return whether the CPUs would be enough if no other claim held any of them."""
    try:
        _pick(node, candidates, count, asked)
    except PickError:
        return False
    return True


def _chosen(asked: Asked, group: Group, count: int, node: NodeView) -> CPUSet:
    """Check the cpuset in the claim's configuration and return its CPUs; the error messages are dra-driver-cpu's."""
    cpusets = asked.policy.cpusets
    if len(cpusets) != 1:
        raise ClaimError(
            f'opaque config: request "{asked.result.request}" is targeted by {len(cpusets)} configurations, '
            "must be targeted by exactly 1 with a cpuset"
        )
    (cpus,) = cpusets
    if len(cpus) != count:
        raise ClaimError(
            f"{asked}: opaque config cpuset size {len(cpus)} does not match requested capacity {count}: {cpus}"
        )
    what = f"{asked}: requested CPUs {cpus} from opaque config"
    topology = node.topology
    for wrong, why in (
        (cpus - topology.online, "contain offline cores"),
        (cpus & topology.not_for_pods, f"contain cores on which {topology.pods.folder} lets no pod run"),
        (cpus & node.options.reserved, "contain reserved cores"),
        (cpus - group.whole, f"contain cores outside {group.name}, which has {group.whole}"),
        (cpus & asked.own, "are already assigned to another device in this claim"),
    ):
        if wrong:
            unknown = wrong - topology.present
            has = f"; this machine has no CPU {unknown}, only {topology.present}" if unknown else ""
            raise ClaimError(f"{what} {why}: {wrong}{has}")
    if not cpus.isdisjoint(node.held.cpus):
        raise conflict(f"{what} conflict with already allocated claims", node.held, cpus)
    siblings = topology.whole_cores(cpus) - cpus
    if siblings and node.options.threads is Threads.FULL_CORE:
        raise ClaimError(f"{what} split cores, but this node hands out whole cores: {siblings} are missing")
    return cpus
