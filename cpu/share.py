"""The question that one allocation result asks of a node's CPUs, the facts that decide it, and the answer."""

from __future__ import annotations

from typing import Final

import msgspec

from dranode.cpu.config import CPUPolicy
from dranode.cpu.options import CPUOptions
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import ClaimConflictError
from dranode.driver.core.api.resource import DeviceRequestAllocationResult
from dranode.driver.core.claims.held import ClaimRef, Held

_NAMED_HOLDERS: Final = 4


class NodeView(msgspec.Struct, frozen=True):
    """The facts that a decision depends on.

    Attributes:
        topology: the machine's CPUs.
        options: how the driver hands them out.
        held: what all other claims hold.
    """

    topology: Topology
    options: CPUOptions
    held: Held


class Asked(msgspec.Struct, frozen=True):
    """One allocation result of which it has to be decided what it gets.

    Attributes:
        claim: the claim that it belongs to.
        result: what the scheduler allocated.
        policy: the result of its configurations.
        mine: the CPUs that the claim's earlier results hold.
    """

    claim: ClaimRef
    result: DeviceRequestAllocationResult
    policy: CPUPolicy
    mine: CPUSet = msgspec.field(default_factory=CPUSet)

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
    """Say which claims hold the CPUs: `0-3 held by default/a and 5 by default/b`; empty if none is held."""
    holders = sorted(held.cpu_holders(cpus).items(), key=lambda item: item[1].first())
    named = [f"{theirs} by {claim}" for claim, theirs in holders[:_NAMED_HOLDERS]]
    rest = len(holders) - len(named)
    if rest:
        named.append(f"more by {rest} other claim{'s' if rest > 1 else ''}")
    return f"{' and '.join(named)}".replace(" by", " held by", 1) if named else ""


def conflict(message: str, held: Held, cpus: CPUSet) -> ClaimConflictError:
    """Return the error for CPUs that other claims hold; it names these claims and lists their UIDs."""
    holders = frozenset(claim.uid for claim in held.cpu_holders(cpus))
    return ClaimConflictError(f"{message}; {named_holders(held, cpus)}", holders)
