"""Finds, when a container is about to start, which CPUs of a claim another container would use besides.

A runtime carries out what an answer asks for other containers before it goes on, and says nothing of what it could not
do: `runc update` failed, kubelet had hung up, the container was still being made and read its configuration before. So
the kernel is asked where containers are, and what was sent to them counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.pinning.container_index import Containers
from dranode.driver.core.pinning.containers import Container
from dranode.driver.core.pinning.pinned import Pinned, having
from dranode.driver.core.pinning.snapshot import HeldSnapshot


class Overlap(msgspec.Struct, frozen=True):
    """A container on CPUs that a claim holds which it has not.

    Attributes:
        intruder: the container.
        runs_on: its CPUs, by the kernel.
        claim: the claim.
        cpus: the CPUs of `runs_on` that the claim holds.
    """

    intruder: Container
    runs_on: CPUSet
    claim: ClaimRef
    cpus: CPUSet

    @property
    def key(self) -> tuple[str, str]:
        """Return what stays the same when kubelet makes the container again."""
        return key_of(self.intruder)

    def __str__(self) -> str:
        return f"{self.intruder} is on CPUs {self.runs_on}, of which claim {self.claim} holds {self.cpus}"


def key_of(container: Container) -> tuple[str, str]:
    """Return what a container has in common with those that kubelet makes in its place."""
    return (container.pod.uid or container.id, container.name)


def start_refusal(starting: Container, overlapping: Collection[Overlap]) -> str:
    """Return why a container cannot start now, and what follows."""
    itself = all(each.intruder.id == starting.id for each in overlapping)
    follows = (
        "kubelet makes it again, on other CPUs" if itself else "that one is moved, and kubelet starts this one again"
    )
    return f"{starting} cannot start yet: {'; '.join(map(str, overlapping))}; {follows}"


def looked_at(containers: Containers, snapshot: HeldSnapshot, starting: Pinned) -> tuple[Container, ...]:
    """Return the containers whose CPUs `overlaps_at_start` needs to know: first the one that starts."""
    if not snapshot.held:
        return ()
    if not _held(starting, snapshot):
        return (starting.container,)
    return (starting.container, *(each.container for each in _others(containers, starting)))


def overlaps_at_start(
    containers: Containers, snapshot: HeldSnapshot, starting: Pinned, runs_on: Mapping[str, CPUSet]
) -> tuple[Overlap, ...]:
    """Return the overlaps that there would be if a container started now.

    Args:
        containers: those that are known.
        snapshot: what is on record.
        starting: the container, which is made and does not run yet.
        runs_on: the CPUs by container id, as the kernel has them; one that is left out overlaps with none.

    Returns:
        Those of the container itself with claims that others are running with, and those of others with its own claims.
    """
    own = runs_on.get(starting.container.id)
    mine = () if own is None else _in_use(containers, snapshot, own, starting.claims)
    overlapping = [Overlap(starting.container, own or CPUSet(), claim, cpus) for claim, cpus in mine]
    held = _held(starting, snapshot)
    for other in _others(containers, starting) if held else ():
        theirs = runs_on.get(other.container.id)
        for claim in having(starting, snapshot):
            cpus = (theirs & claim.held) if theirs is not None else CPUSet()
            if theirs is not None and cpus:
                overlapping.append(Overlap(other.container, theirs, claim.claim, cpus))
    return tuple(overlapping)


def _held(pinned: Pinned, snapshot: HeldSnapshot) -> CPUSet:
    return CPUSet.union(claim.held for claim in having(pinned, snapshot)) & snapshot.online


def _in_use(
    containers: Containers, snapshot: HeldSnapshot, cpus: CPUSet, own: Collection[str]
) -> Iterator[tuple[ClaimRef, CPUSet]]:
    """Yield the claims of others that hold some of these CPUs, and whose containers run."""
    if cpus.isdisjoint(snapshot.held):
        return
    for key, claim in snapshot.claims.items():
        common = cpus & claim.held
        if common and key not in own and any(user.started for user in containers.users(key)):
            yield claim.claim, common


def _others(containers: Containers, starting: Pinned) -> Iterator[Pinned]:
    """Yield the containers that run and have none of its claims, as far as that is certain."""
    for other in containers:
        certain = not (other.unsure or other.unheard)
        if other.container.started and certain and set(starting.claims).isdisjoint(other.claims):
            yield other
