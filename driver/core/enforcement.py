"""What every event of a container's life means for CPU sets: decisions from values to values.

A container with claims runs on the union of their CPUs, every other one on the shared pool. Changes for other
containers travel with each answer, and only to those whose mask changed. Nobody is pinned by what their environment
says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dranode.driver.core.claim_identity import Ask, AskKubelet, AskLedger, AskProcesses, Evidence, identify
from dranode.driver.core.containers import Container, ContainerUpdate, Pod, Resources
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.held_claims import HeldClaim, HeldSnapshot
from dranode.driver.core.pinned import Containers, Drift, Pinned, expected, resources_for, settle, with_drift

NOTHING_FOUND_OUT = Evidence()


@dataclass(frozen=True, slots=True)
class Refused:
    """The operation has to fail; the reason is for the people who look at the pod."""

    reason: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """The operation goes on.

    Attributes:
        containers: those that exist afterwards.
        resources: what the container that is being created gets.
        updates: what others get.
        warnings: one sentence each for what is not as it should be.
        unpinned: the containers that had no CPU set when they were found.
    """

    containers: Containers
    resources: Resources = field(default_factory=Resources)
    updates: tuple[ContainerUpdate, ...] = ()
    warnings: tuple[str, ...] = ()
    unpinned: tuple[Container, ...] = ()


def create(
    containers: Containers, snapshot: HeldSnapshot, container: Container, evidence: Evidence = NOTHING_FOUND_OUT
) -> Allowed | Refused | Ask:
    """A container is about to be created."""
    identity = identify(container, snapshot, evidence)
    if identity.ask is not None:
        return identity.ask
    if identity.refusals:
        return Refused("; ".join(identity.refusals))
    others = _without_earlier(containers, container)
    for claim in identity.claims:
        users = _users(container, claim, others)
        started = tuple(user.id for user in users if user.started)
        if started and evidence.gone is None:
            return AskProcesses(started)
        gone = evidence.gone or frozenset()
        living = [user for user in users if user.id not in gone]
        if living:
            return Refused(_conflict(container, claim, living[0]))
        others = {key: pinned for key, pinned in others.items() if key not in gone}
    resources = resources_for(identity.claims, snapshot)
    if not resources.cpus:
        return Refused(_no_cpus(container, identity.claims, snapshot))
    after, updates = settle(others, snapshot)
    pinned = Pinned(_slim(container), tuple(claim.claim.uid for claim in identity.claims)).given(resources)
    return Allowed({**after, container.id: pinned}, resources, updates, tuple(_offline(identity.claims, snapshot)))


def update(
    containers: Containers, snapshot: HeldSnapshot, container: Container, wanted: Resources, quota: int
) -> Allowed:
    """Somebody (kubelet's CPU manager, a resize) wants other resources for a container: it keeps its mask."""
    known = containers if container.id in containers else found(containers, snapshot, (container,))
    others, updates = settle(remove(known, container), snapshot)
    own = known.get(container.id)
    if own is None:
        return Allowed(others, updates=updates)
    right = expected(own, snapshot)
    # A request that is changed loses its swap limit and OOM score in containerd, so only what has to change does.
    kept = Resources(
        right.cpus if (wanted.cpus or own.cpus) != right.cpus else CPUSet(),
        right.mems if (wanted.mems or own.mems) != right.mems else "",
        lift_quota=right.lift_quota and quota > 0,
    )
    if kept:
        updates = (*updates, ContainerUpdate(container.id, kept))
    return Allowed({**others, container.id: own.given(right)}, updates=updates)


def stop(containers: Containers, snapshot: HeldSnapshot, container: Container) -> Allowed:
    """A container has stopped. What its claims hold stays held until they are unprepared."""
    after, updates = settle(remove(containers, container), snapshot)
    return Allowed(after, updates=updates)


def start(containers: Containers, snapshot: HeldSnapshot, container: Container) -> Containers:
    """A container's process runs. One that nobody has seen before is taken in."""
    pinned = containers.get(container.id)
    if pinned is None:
        return found(containers, snapshot, (replace(container, started=True),))
    return {**containers, container.id: replace(pinned, container=replace(pinned.container, started=True))}


def remove(containers: Containers, gone: Container) -> Containers:
    """A container is gone."""
    return {key: pinned for key, pinned in containers.items() if key != gone.id}


def remove_pod(containers: Containers, pod: Pod) -> Containers:
    """A pod sandbox is gone, and its containers with it."""
    return {key: pinned for key, pinned in containers.items() if pinned.container.pod.id != pod.id}


def synchronize(
    snapshot: HeldSnapshot,
    listed: Iterable[Container],
    evidence: Evidence = NOTHING_FOUND_OUT,
    drifts: Iterable[Drift] = (),
) -> Allowed | AskLedger | AskKubelet:
    """Everything that exists now. Claims without a container stay held: containers never decide what is on record.

    Runtimes tell the mask that they once set; `drifts` are those of which the kernel says otherwise.
    """
    listed = tuple(listed)
    warnings: list[str] = []
    pods: list[Pod] = []
    for container in listed:
        identity = identify(container, snapshot, evidence, exists=True)
        match identity.ask:
            case AskLedger():
                return identity.ask
            case AskKubelet():
                pods.extend(identity.ask.pods)
            case None:
                warnings.extend(identity.refusals)
    if pods:
        return AskKubelet(tuple(dict.fromkeys(pods)))
    after, updates = settle(with_drift(found({}, snapshot, listed, evidence), drifts), snapshot)
    unpinned = tuple(_slim(container) for container in listed if not container.cpus)
    return Allowed(after, updates=updates, warnings=tuple(warnings), unpinned=unpinned)


def found(
    containers: Containers, snapshot: HeldSnapshot, listed: Iterable[Container], evidence: Evidence = NOTHING_FOUND_OUT
) -> Containers:
    """The containers with those that exist already but were not created under this driver's eyes.

    Such a container cannot be refused: one that names a claim without having it belongs to the shared pool. One of
    which that is not clear yet is left alone.
    """
    after = dict(containers)
    for container in listed:
        identity = identify(container, snapshot, evidence, exists=True)
        if identity.ask is not None:
            continue
        claims = identity.claims
        mems = container.mems if any(claim.mems for claim in claims) else ""
        uids = tuple(claim.claim.uid for claim in claims)
        after[container.id] = Pinned(_slim(container), uids, container.cpus, mems)
    return after


def _slim(container: Container) -> Container:
    """A container without what is only needed to identify it."""
    return replace(container, env=(), cdi_devices=())


def _without_earlier(containers: Containers, container: Container) -> Containers:
    """The containers without earlier ones of the same pod and name: kubelet runs one at a time.

    Not every runtime tells when a container exits by itself.
    """
    name, pod = container.name, container.pod.uid
    earlier = {
        key
        for key, pinned in containers.items()
        if key == container.id or (pinned.container.name == name and pinned.container.pod.uid == pod and pod)
    }
    return {key: pinned for key, pinned in containers.items() if key not in earlier} if earlier else containers


def _users(container: Container, claim: HeldClaim, others: Containers) -> tuple[Container, ...]:
    """The containers that keep this one from using the claim."""
    if not claim.held:
        return ()
    uid, pod = claim.claim.uid, container.pod.uid
    return tuple(
        pinned.container
        for pinned in others.values()
        if uid in pinned.claims and not (claim.shared_in_pod and pod and pinned.container.pod.uid == pod)
    )


def _conflict(container: Container, claim: HeldClaim, user: Container) -> str:
    remedy = (
        "only containers of one pod may share it"
        if claim.shared_in_pod
        else 'one container may use it at a time unless its CPUConfig says "sharing: pod"'
    )
    return f"claim {claim.claim} is in use by {user}, so {container} cannot have it: {remedy}"


def _no_cpus(container: Container, claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> str:
    names = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
    if names:
        return f"every CPU of {names} is offline, so {container} cannot run: bring them back or recreate the pod"
    return (
        f"claims hold every CPU ({snapshot.held}), so none is left for {container}, which has no claim: "
        "set --reserved-cpus so that such containers always have some"
    )


def _offline(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> Iterator[str]:
    for claim in claims:
        offline = claim.cpus - snapshot.online
        if offline:
            yield f"claim {claim.claim} has CPUs {claim.cpus}, of which {offline} are offline"
