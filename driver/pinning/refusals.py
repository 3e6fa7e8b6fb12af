"""The reasons why a container must not be created or started, and problems of claims that are only reported."""

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
    # With `sharing: pod`, containers of the same pod may use the claim together. A sandbox without a pod UID was not
    # made by kubelet, so it shares with nobody.
    users = containers.users_of(claim)
    pod = container.pod.uid
    return tuple(user for user in users if user.pod.uid != pod or not pod) if claim.shared_in_pod else users


def wrongly_shared_claims(containers: Containers, snapshot: PinSnapshot) -> Iterator[str]:
    """Yield a sentence for each claim that several containers use although it cannot be shared.

    That happens if the second container was created while no driver was connected to refuse it.
    """
    for claim in snapshot.claims.values():
        for user in containers.users(claim.key):
            pinned = containers.get(user.id)
            parts = (part for part in having(pinned, snapshot) if part.key == claim.key) if pinned else ()
            others = [
                other for part in parts for other in users_in_the_way(user, part, containers) if other.id != user.id
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
    """Return why the CPUs of the claims are still in use by another container; empty if they are free.

    While the ledger cannot be read, no mask is changed, so a container that was not moved in time stays on these CPUs.
    So does a container that was added meanwhile, until the runtime reports it again.
    """
    # Usually this does no harm: the answer to the same request moves the containers of the shared pool off these CPUs.
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
                f"{other.container} still runs on CPUs {runs_on}, and {names} holds some of them, but "
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
    """Return why a container has no CPU to run on, of its claims or of the shared pool; empty if it has one."""
    names = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
    # `cpus` may be the shared pool although the container has claims, namely if all of their CPUs are offline. The
    # container was promised CPUs of its own, so it must not be started there.
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
    """Return why the memory nodes of a container's claims contradict each other; empty if they do not."""
    # A container has one `cpuset.mems`, which cannot satisfy two claims that ask for different nodes.
    near = nodes_near_cpus(claims)
    elsewhere = bound_nodes(claims) - near
    if not near or not elsewhere:
        return ""
    memory = ", ".join(str(claim.claim) for claim in claims if claim.nodes & elsewhere)
    local = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
    return (
        f"claim {memory} gives {container} memory on NUMA nodes {elsewhere}, but claim {local} asks for memory that is "
        f"local to its CPUs, on NUMA nodes {near}: align the claims with matchAttribute "
        "resource.kubernetes.io/numaNode, or remove memory: local"
    )


def offline_claims(claims: Iterable[PinnedClaim], snapshot: PinSnapshot) -> Iterator[str]:
    """Yield a sentence for each claim with offline CPUs."""
    for claim in claims:
        offline = claim.cpus - snapshot.online
        if offline:
            yield f"claim {claim.claim} has CPUs {claim.cpus}, but {offline} are offline or not for pods"


# Before a container starts: would two containers use the same CPUs of a claim? The runtime applies the updates of an
# answer before it goes on, but it does not report those that failed: `runc update` returned an error, kubelet had
# cancelled its call, or the other container was just being created and had read its configuration before. An update
# that was sent therefore proves nothing, and the kernel's files decide where containers run.


class Overlap(msgspec.Struct, frozen=True):
    """A container that runs on CPUs of a claim that it does not have.

    Attributes:
        intruder: the container.
        runs_on: its CPUs, according to the kernel.
        claim: the claim.
        cpus: the CPUs of `runs_on` that the claim holds.
    """

    intruder: Container
    runs_on: CPUSet
    claim: ClaimRef
    cpus: CPUSet

    @property
    def key(self) -> tuple[str, str]:
        """Return a key that stays the same when kubelet creates the container again."""
        return key_of(self.intruder)

    def __str__(self) -> str:
        return f"{self.intruder} is on CPUs {self.runs_on}, but claim {self.claim} holds {self.cpus}"


def key_of(container: Container) -> tuple[str, str]:
    """Return a key of a container that stays the same when kubelet creates the container again."""
    return (container.pod.uid or container.id, container.name)


def start_refusal(starting: Container, overlapping: Collection[Overlap]) -> str:
    """Return why a container cannot start now, and what will happen."""
    itself = all(overlap.intruder.id == starting.id for overlap in overlapping)
    follows = (
        "kubelet will create it again, on other CPUs"
        if itself
        else "the other one is moved, and kubelet will start this one again"
    )
    return f"{starting} cannot start yet: {'; '.join(map(str, overlapping))}; {follows}"


def compared_at_start(containers: Containers, snapshot: PinSnapshot, starting: Pinned) -> tuple[Container, ...]:
    """Return the containers whose CPUs `overlaps_at_start` needs to know, the one that starts first."""
    if not snapshot.held:
        return ()
    if not _held(starting, snapshot):
        return (starting.container,)
    return (starting.container, *(other.container for other in _others(containers, starting)))


def overlaps_at_start(
    containers: Containers, snapshot: PinSnapshot, starting: Pinned, runs_on: Mapping[str, CPUSet]
) -> tuple[Overlap, ...]:
    """Return the overlaps that there would be if a container started now.

    Args:
        containers: the known containers.
        snapshot: the claims on record and the machine.
        starting: the container, which was created and does not run yet.
        runs_on: the CPUs of containers in the kernel, by container id. A container that is missing has no overlap.

    Returns:
        The overlaps of the container with claims of running containers, and those of other containers with its claims.
    """
    # Both directions count: this container may be on CPUs of other claims, and others may still be on the CPUs of its
    # claims.
    own = runs_on.get(starting.container.id)
    disturbed = () if own is None else _in_use(containers, snapshot, own, starting.claims)
    overlapping = [Overlap(starting.container, own or CPUSet(), claim, cpus) for claim, cpus in disturbed]
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
    """Yield the claims of others that hold some of these CPUs and have a running container."""
    if cpus.isdisjoint(snapshot.held):
        return
    # A claim without a running container is not disturbed yet. Its own container is checked when it starts.
    for key, claim in snapshot.claims.items():
        common = cpus & claim.held
        if common and key not in own and any(user.started for user in containers.users(key)):
            yield claim.claim, common


def _others(containers: Containers, starting: Pinned) -> Iterator[Pinned]:
    """Yield the running containers that have none of its claims, if their claims are certain."""
    for other in containers:
        # A container whose claims are not certain may own these CPUs itself.
        certain = not (other.unsure or other.unanswered)
        if other.container.started and certain and set(starting.claims).isdisjoint(other.claims):
            yield other
