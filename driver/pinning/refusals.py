"""Says why a container may not have what its claims give it, or not yet, and what of that is odd."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.pinning.container_index import Containers
from dranode.driver.pinning.containers import Container, Pinned, bound_nodes, having, nodes_near_cpus
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot


def users_in_the_way(container: Container, claim: PinnedClaim, containers: Containers) -> tuple[Container, ...]:
    """Return the containers that keep this one from using the claim."""
    if not claim.exclusive:
        return ()
    users = containers.users_of(claim)
    pod = container.pod.uid
    return tuple(user for user in users if user.pod.uid != pod or not pod) if claim.shared_in_pod else users


def claims_shared_unduly(containers: Containers, snapshot: PinSnapshot) -> Iterator[str]:
    """Yield a sentence for each claim that containers have against its rules: no driver could refuse the second."""
    for claim in snapshot.claims.values():
        for user in containers.users(claim.key):
            pinned = containers.get(user.id)
            mine = (each for each in having(pinned, snapshot) if each.key == claim.key) if pinned else ()
            others = [
                other for each in mine for other in users_in_the_way(user, each, containers) if other.id != user.id
            ]
            if others:
                yield f"claim {claim.claim} is in use by {user} and {others[0]}, although it cannot be shared that way"
                break


def why_in_use(container: Container, claim: PinnedClaim, user: Container) -> str:
    """Return why a container cannot have a claim that another one uses."""
    if container.pod.uid != user.pod.uid:
        remedy = "only containers of one pod may share it; give each pod a claim of its own (a ResourceClaimTemplate)"
    else:
        remedy = 'one container may use it at a time unless its configuration says "sharing: pod"'
    return f"claim {claim.claim} is in use by {user}, so {container} cannot have it: {remedy}"


def why_occupied(
    containers: Containers,
    snapshot: PinSnapshot,
    container: Container,
    claims: Collection[PinnedClaim],
    drop: Collection[str],
) -> str:
    """Return why the CPUs of the claims are not the container's yet; empty if they are.

    While the ledger cannot be read no mask is changed, so a container that was not moved in time stays on them; and so
    does one that was added meanwhile, until the runtime reports it again.
    """
    held = CPUSet.union(claim.held for claim in claims) & snapshot.online
    if not held or (snapshot.unread is None and not containers.unsure):
        return ""
    keys = {claim.key for claim in claims}
    for other in containers:
        if snapshot.unread is None and not other.unsure:
            continue
        # A container without a CPU set runs on every CPU.
        runs_on = other.cpus or snapshot.online
        if other.container.id not in drop and keys.isdisjoint(other.claims) and not runs_on.isdisjoint(held):
            names = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
            return (
                f"{other.container} still runs on CPUs {runs_on}, of which {names} holds some, and "
                f"{_why_unmoved(snapshot, container)}"
            )
    return ""


def _why_unmoved(snapshot: PinSnapshot, container: Container) -> str:
    if snapshot.unread is not None:
        return (
            f"no container is moved now: {snapshot.unread.reason}; {container} can start once the ledger can be read "
            "again"
        )
    return (
        "it was reported while the ledger or the hardware could not be read, so its claims are not known yet; "
        f"{container} can start once the runtime has listed its containers again, in a moment"
    )


def why_without_cpus(container: Container, claims: Collection[PinnedClaim], snapshot: PinSnapshot, cpus: CPUSet) -> str:
    """Return why a container has no CPU to start on, of its claims or of the shared pool; empty if it has."""
    names = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
    if cpus and (not names or any(claim.cpus & snapshot.online for claim in claims)):
        return ""
    if snapshot.unread is not None and not names:
        return (
            f"it is not known which CPUs are free for {container}, which has no claim: {snapshot.unread.reason}; "
            "reserve CPUs, so that such containers always have some"
        )
    if names:
        return (
            f"every CPU of {names} is offline or not for pods, so {container} cannot run: bring them back or recreate "
            "the pod"
        )
    return (
        f"claims hold every CPU ({snapshot.held}), so none is left for {container}, which has no claim: "
        "reserve CPUs, so that such containers always have some"
    )


def why_memory_elsewhere(container: Container, claims: tuple[PinnedClaim, ...]) -> str:
    """Return why a container cannot have memory of these nodes; empty if it can."""
    near = nodes_near_cpus(claims)
    elsewhere = bound_nodes(claims) - near
    if not near or not elsewhere:
        return ""
    memory = ", ".join(str(claim.claim) for claim in claims if claim.nodes & elsewhere)
    local = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
    return (
        f"{container} has memory on NUMA nodes {elsewhere} by claim {memory}, but claim {local} asks for memory that "
        f"is local to its CPUs, on NUMA nodes {near}: align the claims by matchAttribute "
        "resource.kubernetes.io/numaNode, or leave out memory: local"
    )


def offline_claims(claims: Iterable[PinnedClaim], snapshot: PinSnapshot) -> Iterator[str]:
    """Yield a sentence for each claim that has CPUs which are offline."""
    for claim in claims:
        offline = claim.cpus - snapshot.online
        if offline:
            yield f"claim {claim.claim} has CPUs {claim.cpus}, of which {offline} are offline or not for pods"


# Finds, when a container is about to start, which CPUs of a claim another container would use besides.  A runtime
# carries out what an answer asks for other containers before it goes on, and says nothing of what it could not do:
# `runc update` failed, kubelet had hung up, the container was still being made and read its configuration before. So
# the kernel is asked where containers are, and what was sent to them counts for nothing.


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


def looked_at(containers: Containers, snapshot: PinSnapshot, starting: Pinned) -> tuple[Container, ...]:
    """Return the containers whose CPUs `overlaps_at_start` needs to know: first the one that starts."""
    if not snapshot.held:
        return ()
    if not _held(starting, snapshot):
        return (starting.container,)
    return (starting.container, *(each.container for each in _others(containers, starting)))


def overlaps_at_start(
    containers: Containers, snapshot: PinSnapshot, starting: Pinned, runs_on: Mapping[str, CPUSet]
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


def _held(pinned: Pinned, snapshot: PinSnapshot) -> CPUSet:
    return CPUSet.union(claim.held for claim in having(pinned, snapshot)) & snapshot.online


def _in_use(
    containers: Containers, snapshot: PinSnapshot, cpus: CPUSet, own: Collection[str]
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
