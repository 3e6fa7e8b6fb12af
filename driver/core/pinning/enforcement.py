"""What every event of a container's life means for CPU sets: decisions from values to values.

A container with claims runs on the union of their CPUs, every other one on the shared pool. Changes for other
containers travel with each answer, and only to those whose mask changed. Nobody is pinned by what their environment
says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.identity import Ask, AskKubelet, AskLedger, AskProcesses, Evidence, identify, mentions
from dranode.driver.core.pinning.pinned import (
    ContainerChange,
    Containers,
    Drift,
    Pinned,
    drift,
    drifted,
    expected,
    having,
    resources_for,
    settle,
    some_of,
)
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot

NOTHING_FOUND_OUT = Evidence()
NOTHING_READ: Final[Mapping[str, CPUSet]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refused:
    """The operation has to fail; the reason is for the people who look at the pod."""

    reason: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """The operation goes on.

    Attributes:
        change: what becomes of the containers that are known.
        resources: what the container that is being created gets.
        updates: what others get.
        warnings: one sentence each for what is not as it should be.
        unpinned: the containers that had no CPU set when they were found.
        drifts: those that the kernel runs elsewhere than the runtime says.
    """

    change: ContainerChange = field(default_factory=ContainerChange)
    resources: Resources = field(default_factory=Resources)
    updates: tuple[ContainerUpdate, ...] = ()
    warnings: tuple[str, ...] = ()
    unpinned: tuple[Container, ...] = ()
    drifts: tuple[Drift, ...] = ()


def create(
    containers: Containers, snapshot: HeldSnapshot, container: Container, evidence: Evidence = NOTHING_FOUND_OUT
) -> Allowed | Refused | Ask:
    """A container is about to be created."""
    identity = identify(container, snapshot, evidence)
    if identity.ask is not None:
        return identity.ask
    if identity.refusals:
        return Refused("; ".join(identity.refusals))
    # Not every runtime tells when a container exits by itself, but kubelet runs one of a name at a time.
    gone = evidence.gone or frozenset()
    drop = (*containers.namesakes(container), *gone)
    users = [(claim, user) for claim in identity.claims for user in _users(container, claim, containers)]
    users = [(claim, user) for claim, user in users if user.id not in drop]
    # All at once: each of several claims may have been left by another container.
    started = tuple(dict.fromkeys(user.id for _, user in users if user.started))
    if started and evidence.gone is None:
        return AskProcesses(started)
    if users:
        return Refused(_conflict(container, *users[0]))
    if snapshot.unread is not None and any(each.untold for each in containers):
        # Whatever that container's claim holds, neither the ledger's last word nor a CDI spec says it.
        snapshot = replace(snapshot, unread=replace(snapshot.unread, blind=True))
    resources = resources_for(identity.claims, snapshot)
    if not resources.cpus:
        return Refused(_no_cpus(container, identity.claims, snapshot))
    change, updates = settle(containers, snapshot, drop)
    claims = tuple(claim.claim.uid for claim in identity.claims)
    parts = some_of(identity.claims, snapshot)
    pinned = Pinned(_slim(container), claims, unsure=snapshot.unread is not None, parts=parts).given(resources)
    change = replace(change, put=(*change.put, pinned))
    return Allowed(change, resources, updates, tuple(_offline(identity.claims, snapshot)))


def update(
    containers: Containers, snapshot: HeldSnapshot, container: Container, wanted: Resources, quota: int
) -> Allowed:
    """Somebody (kubelet's CPU manager, a resize) wants other resources for a container: it keeps its mask."""
    change, updates = settle(containers, snapshot, (container.id,))
    own = containers.get(container.id) or found(snapshot, container)
    if own is None:
        return Allowed(change, updates=updates)
    right = expected(own, snapshot)
    # A request that is changed loses its swap limit and OOM score in containerd, so only what has to change does.
    kept = Resources(
        right.cpus if (wanted.cpus or own.cpus) != right.cpus else CPUSet(),
        right.mems if (wanted.mems or own.mems) != right.mems else "",
        lift_quota=right.lift_quota and quota > 0,
    )
    if kept:
        updates = (*updates, ContainerUpdate(container.id, kept))
    return Allowed(
        replace(change, put=(*change.put, own.updated(right) if kept else own.given(right))), updates=updates
    )


def stop(containers: Containers, snapshot: HeldSnapshot, container: Container) -> Allowed:
    """A container has stopped. What its claims hold stays held until they are unprepared."""
    change, updates = settle(containers, snapshot, (container.id,))
    return Allowed(change, updates=updates)


def start(containers: Containers, snapshot: HeldSnapshot, container: Container) -> ContainerChange:
    """A container's process runs. One that nobody has seen before is taken in."""
    pinned = containers.get(container.id)
    if pinned is not None:
        return ContainerChange((pinned.started(),), settled=None if pinned.provisional else containers.settled)
    pinned = found(snapshot, replace(container, started=True))
    return ContainerChange((pinned,) if pinned else (), settled=None if pinned else containers.settled)


def remove(containers: Containers, gone: Container) -> ContainerChange:
    """A container is gone."""
    return ContainerChange(drop=(gone.id,), settled=containers.settled)


def remove_pod(containers: Containers, pod: PodSandbox) -> ContainerChange:
    """A pod sandbox is gone, and its containers with it."""
    return ContainerChange(drop=containers.of_sandbox(pod.id), settled=containers.settled)


def synchronize(
    snapshot: HeldSnapshot,
    listed: Iterable[Container],
    evidence: Evidence = NOTHING_FOUND_OUT,
    drifts: Iterable[Drift] = (),
    effective: Mapping[str, CPUSet] = NOTHING_READ,
) -> Allowed | AskLedger | AskKubelet:
    """Everything that exists now; what was known before is forgotten.

    Claims without a container stay held: containers never decide what is on record. Runtimes tell the mask that they
    once set, or meant to when they were killed: `effective` is what the kernel says now, by container, and `drifts` are
    those of which it said otherwise before.
    """
    listed = tuple(listed)
    warnings: list[str] = []
    pods: list[PodSandbox] = []
    for container in listed:
        identity = identify(container, snapshot, evidence, exists=True)
        match identity.ask:
            case AskLedger():
                return identity.ask
            case AskKubelet():
                pods.extend(identity.ask.pods)
            case None if snapshot.unread is None:
                warnings.extend(identity.refusals)
            case None:
                # The claims that containers have may be on record all the same.
                pass
    if pods:
        return AskKubelet(tuple(dict.fromkeys(pods)))
    known = Containers(pinned for container in listed if (pinned := found(snapshot, container, evidence)))
    # What the runtime has to be told another mask for in any case is late and not adrift.
    settled = Containers(each for each in known if each.cpus == expected(each, snapshot).cpus)
    adrift = drift(settled, snapshot, effective)
    known.carry_out(drifted(known, (*(each for each in drifts if each.container.id not in effective), *adrift)))
    change, updates = settle(known, snapshot)
    known.carry_out(change)
    warnings.extend(_shared_unduly(known, snapshot))
    # Those that nobody's mask is changed for are not pinned now.
    unpinned = tuple(each.container for each in known if not (each.container.cpus or each.unsure))
    put = ContainerChange(tuple(known), settled=snapshot)
    return Allowed(put, updates=updates, warnings=tuple(warnings), unpinned=unpinned, drifts=adrift)


def found(snapshot: HeldSnapshot, container: Container, evidence: Evidence = NOTHING_FOUND_OUT) -> Pinned | None:
    """A container that exists but was not created under this driver's eyes; None if it is not clear whose it is.

    It cannot be refused: if it names a claim without having it, it belongs to the shared pool. Where kubelet did not
    answer whether it has it, it is to be looked at again (`heard`).
    """
    identity = identify(container, snapshot, evidence, exists=True)
    if identity.ask is not None:
        return None
    mems = container.mems if any(claim.mems for claim in identity.claims) else ""
    claims = tuple(claim.claim.uid for claim in identity.claims)
    unsure = snapshot.unread is not None
    untold = unsure and any(uid not in snapshot.claims for uid in mentions(container, snapshot))
    parts = some_of(identity.claims, snapshot)
    kept = container if identity.unheard else _slim(container)
    pinned = Pinned(kept, claims, container.cpus, mems, unsure=unsure, untold=untold, parts=parts)
    return replace(pinned, unheard=identity.unheard)


def heard(containers: Containers, snapshot: HeldSnapshot, evidence: Evidence = NOTHING_FOUND_OUT) -> Allowed | Ask:
    """Another look at the containers about which kubelet did not answer, with the masks that they have by now."""
    put: list[Pinned] = []
    pods: list[PodSandbox] = []
    for pinned in containers.unheard:
        container = replace(pinned.container, cpus=pinned.cpus)
        match identify(container, snapshot, evidence, exists=True).ask:
            case AskLedger() as ask:
                return ask
            case AskKubelet() as ask:
                pods.extend(ask.pods)
            case None:
                again = found(snapshot, container, evidence)
                put += [replace(again, provisional=pinned.provisional)] if again else []
    return AskKubelet(tuple(dict.fromkeys(pods))) if pods else Allowed(ContainerChange(tuple(put)))


def _slim(container: Container) -> Container:
    """A container without what is only needed to identify it."""
    return replace(container, env=(), cdi_devices=())


def _users(container: Container, claim: HeldClaim, containers: Containers) -> tuple[Container, ...]:
    """The containers that keep this one from using the claim."""
    if not claim.held:
        return ()
    users = containers.users_of(claim)
    pod = container.pod.uid
    return tuple(user for user in users if user.pod.uid != pod or not pod) if claim.shared_in_pod else users


def _shared_unduly(containers: Containers, snapshot: HeldSnapshot) -> Iterator[str]:
    """The claims that several running containers have against their rules: nobody was there to refuse the second."""
    for claim in snapshot.claims.values():
        for user in containers.users(claim.claim.uid):
            pinned = containers.get(user.id)
            mine = (each for each in having(pinned, snapshot) if each.claim == claim.claim) if pinned else ()
            others = [other for each in mine for other in _users(user, each, containers) if other.id != user.id]
            if others:
                yield f"claim {claim.claim} is in use by {user} and {others[0]}, although it may not be shared so"
                break


def _conflict(container: Container, claim: HeldClaim, user: Container) -> str:
    if container.pod.uid != user.pod.uid:
        remedy = "only containers of one pod may share it; give each pod a claim of its own (a ResourceClaimTemplate)"
    else:
        remedy = 'one container may use it at a time unless its configuration says "sharing: pod"'
    return f"claim {claim.claim} is in use by {user}, so {container} cannot have it: {remedy}"


def _no_cpus(container: Container, claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> str:
    names = ", ".join(str(claim.claim) for claim in claims if claim.cpus)
    if snapshot.unread is not None and not names:
        return (
            f"nobody can say which CPUs are free for {container}, which has no claim: {snapshot.unread.reason}; "
            "reserve CPUs, so that such containers always have some"
        )
    if names:
        return f"every CPU of {names} is offline, so {container} cannot run: bring them back or recreate the pod"
    return (
        f"claims hold every CPU ({snapshot.held}), so none is left for {container}, which has no claim: "
        "reserve CPUs, so that such containers always have some"
    )


def _offline(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> Iterator[str]:
    for claim in claims:
        offline = claim.cpus - snapshot.online
        if offline:
            yield f"claim {claim.claim} has CPUs {claim.cpus}, of which {offline} are offline"
