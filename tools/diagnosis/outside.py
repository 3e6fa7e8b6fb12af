"""Decides from records alone which memory a container should have, for a look from outside the driver.

NRI is not asked there, so a container's claims follow from the names of the variables that CDI injected for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Self, TypeAlias

import msgspec

from dranode.driver.claims.record import Record
from dranode.driver.pinning.containers import Effective, bound_nodes, nodes_near_cpus
from dranode.driver.pinning.snapshot import HeldClaim, limit_sums


class RecordedClaim(msgspec.Struct, frozen=True):
    """A claim on record with what its containers are held to, and the variables by which they are known.

    Attributes:
        driver: the driver that has it on record.
        record: its record.
        held: what its containers are held to; None where its record does not say.
        names: the variables that every container with the claim has.
        parts: the variables of containers with one of its results, and the number of that.
    """

    driver: str
    record: Record
    held: HeldClaim | None
    names: frozenset[str]
    parts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, driver: str, record: Record, held: HeldClaim | None) -> Self:
        """Return the claim, with the names of its variables."""
        whole = record.edits.env if record.edits else ()
        parts = (
            (entry, index) for index, grant in enumerate(record.grants) if grant.edits for entry in grant.edits.env
        )
        return cls(
            driver,
            record,
            held,
            frozenset(entry.partition("=")[0] for entry in whole),
            tuple((entry.partition("=")[0], index) for entry, index in parts),
        )

    def part(self, env: Collection[str]) -> HeldClaim | None:
        """Return what a container with the claim and variables of these names has of it; None if that is not known."""
        return None if self.held is None else self.held.of_parts([index for name, index in self.parts if name in env])


RecordedParts: TypeAlias = "tuple[tuple[RecordedClaim, HeldClaim | None], ...]"


def claims_in(claims: Iterable[RecordedClaim], env: Collection[str]) -> RecordedParts:
    """Return the claims that a container with variables of these names has, each with the part that it has."""
    return tuple((each, each.part(env)) for each in claims if not each.names.isdisjoint(env))


def expected_memory(parts: Iterable[HeldClaim | None]) -> Effective:
    """Return the NUMA nodes from which a container with these claims takes memory, and the huge pages it may have.

    Nodes are None where its claims do not say. Of huge pages it may have more, by kubelet.
    """
    claims = tuple(each for each in parts if each is not None)
    nodes = bound_nodes(claims) or nodes_near_cpus(claims)
    return Effective(None, nodes or None, limit_sums(claim.hugepages for claim in claims))


def container_has_memory(theirs: RecordedParts, expected: Effective, actual: Effective) -> bool | None:
    """Return whether a container has the memory that its claims give it; None if the one or the other is not known."""
    return has_memory(expected, actual) if all(held is not None for _, held in theirs) else None


def has_memory(expected: Effective, actual: Effective) -> bool | None:
    """Return whether a container has the memory that it should; None if that could not be read."""
    limits = dict(actual.hugepages)
    if expected.nodes is not None and actual.nodes is not None and expected.nodes != actual.nodes:
        return False
    if any(limits.get(size, amount) < amount for size, amount in expected.hugepages):
        return False
    unread = (expected.nodes is not None and actual.nodes is None) or any(
        size not in limits for size, _ in expected.hugepages
    )
    return None if unread else True
