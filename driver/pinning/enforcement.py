"""Decides what each event in a container's life means for its CPUs and its memory.

A container with claims runs on the union of their CPUs; every other container runs on the shared pool. With claims that
hold memory, its memory comes from their NUMA nodes, and it may have their huge pages. Each answer to the runtime also
carries updates of other containers, but only of those whose resources change: a runtime applies updates one after the
other, and kubelet waits. A container's environment alone never decides how it is pinned.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.container_index import ContainerChange, Containers, has_what_it_should, settle
from dranode.driver.pinning.containers import (
    Container,
    ContainerUpdate,
    Effective,
    Pinned,
    Resources,
    expected,
    resources_for,
    some_of,
    stays_on,
)
from dranode.driver.pinning.drift import Drift, drifted, find_drifts
from dranode.driver.pinning.identity import Ask, AskKubelet, AskLedger, AskProcesses, Evidence, identify, mentions
from dranode.driver.pinning.refusals import (
    offline_claims,
    users_in_the_way,
    why_in_use,
    why_memory_elsewhere,
    why_occupied,
    why_without_cpus,
    wrongly_shared_claims,
)
from dranode.driver.pinning.snapshot import PinSnapshot, limits_over

NOTHING_FOUND_OUT = Evidence()
NOTHING_READ: Final[Mapping[str, Effective]] = MappingProxyType({})


class CreationRefused(msgspec.Struct, frozen=True):
    """The operation must fail; kubelet shows the reason on the pod."""

    reason: str


class Allowed(msgspec.Struct, frozen=True):
    """The operation may go on.

    Attributes:
        change: the change of the known containers.
        resources: the resources of the container that is being created.
        updates: the updates of other containers.
        warnings: one sentence for each problem that was found.
        unpinned: the listed containers that had no CPU set.
        drifts: the containers whose CPUs in the kernel differ from those that the runtime reports.
    """

    change: ContainerChange = msgspec.field(default_factory=ContainerChange)
    resources: Resources = msgspec.field(default_factory=Resources)
    updates: tuple[ContainerUpdate, ...] = ()
    warnings: tuple[str, ...] = ()
    unpinned: tuple[Container, ...] = ()
    drifts: tuple[Drift, ...] = ()


def create(
    containers: Containers, snapshot: PinSnapshot, container: Container, evidence: Evidence = NOTHING_FOUND_OUT
) -> Allowed | CreationRefused | Ask:
    """Decide about a container that is about to be created."""
    # The records and kubelet decide which claims it has. Its environment does not: a pod's author can set any variable.
    identity = identify(container, snapshot, evidence)
    if identity.ask is not None:
        return identity.ask
    if identity.refusals:
        return CreationRefused("; ".join(identity.refusals))
    # Not every runtime reports that a container has exited. But kubelet runs only one container of a name in a pod, so
    # an older namesake has ended.
    gone = evidence.gone or frozenset()
    drop = (*containers.namesakes(container), *gone)
    users = [(claim, user) for claim in identity.claims for user in users_in_the_way(container, claim, containers)]
    users = [(claim, user) for claim, user in users if user.id not in drop]
    # These may have ended without a report. Ask about all of them at once: each claim may have been another
    # container's.
    started = tuple(dict.fromkeys(user.id for _, user in users if user.started))
    if started and evidence.gone is None:
        return AskProcesses(started)
    # A refusal is repeated by kubelet: it creates the container again with a back-off, and by then the user may be
    # gone.
    if users:
        return CreationRefused(why_in_use(container, *users[0]))
    if snapshot.unread is not None and any(pinned.unresolved for pinned in containers):
        # An existing container names a claim that neither the last reading of the ledger nor a CDI spec knows, so its
        # CPUs are not known. The new container gets no shared CPUs but the reserved ones.
        snapshot = replace(snapshot, unread=replace(snapshot.unread, blind=True))
    # From here on the claims are certain. Check that what they give fits together before anything is changed.
    resources = resources_for(identity.claims, snapshot, container.hugepages)
    refusal = why_without_cpus(container, identity.claims, snapshot, resources.cpus) if snapshot.pins_cpus else ""
    refusal = refusal or why_memory_elsewhere(container, identity.claims)
    refusal = refusal or why_occupied(containers, snapshot, container, identity.claims, drop)
    if refusal:
        return CreationRefused(refusal)
    # Other containers on its CPUs are moved by this same answer. Before the process starts, `StartGate` asks the kernel
    # whether they were.
    change, updates = settle(containers, snapshot, drop)
    claims = tuple(claim.key for claim in identity.claims)
    pinned = Pinned(
        _slim(container),
        claims,
        unsure=snapshot.unread is not None,
        memory_unsure=snapshot.memory_unread is not None,
        parts=some_of(identity.claims, snapshot),
        hugepages=container.hugepages,
    ).given(resources)
    change = replace(change, put=(*change.put, pinned))
    return Allowed(change, resources, updates, tuple(offline_claims(identity.claims, snapshot)))


def add_existing(snapshot: PinSnapshot, container: Container, evidence: Evidence = NOTHING_FOUND_OUT) -> Allowed | Ask:
    """Add an existing container that is not known yet; its resources are decided afterwards."""
    own = pinned_as_listed(snapshot, container, evidence)
    return Allowed(ContainerChange((own,))) if isinstance(own, Pinned) else own


def update(
    containers: Containers, snapshot: PinSnapshot, container: Container, resources: Resources, quota: int
) -> Allowed:
    """Keep a container's mask when kubelet asks for other resources: its CPU manager, or a resize of the pod."""
    change, updates = settle(containers, snapshot, (container.id,))
    # A container that is not known here was created while no driver was connected.
    own = containers.get(container.id) or pinned_as_listed(snapshot, container)
    if not isinstance(own, Pinned):
        return Allowed(change, updates=updates)
    # What kubelet asks for becomes the container's own configuration, unless claims decide about it.
    own = replace(own, hugepages=limits_over(own.hugepages, resources.hugepages))
    right = expected(own, snapshot)
    # If the answer changes the request, containerd drops the request's swap limit and OOM score. So change only what is
    # necessary.
    cpus = right.cpus or stays_on(own, snapshot)
    kept = Resources(
        cpus if own.resend or (resources.cpus or own.cpus) != cpus else CPUSet(),
        right.mems if own.resend or (resources.mems or own.mems) != right.mems else NO_CPUS,
        lift_quota=right.lift_quota and quota > 0,
        hugepages=tuple(limit for limit in right.hugepages if own.resend or limit not in own.hugepages),
        unified=right.unified,
    )
    if kept:
        updates = (*updates, ContainerUpdate(container.id, kept))
    return Allowed(
        replace(change, put=(*change.put, own.updated(right) if kept else own.given(right))), updates=updates
    )


def stop(containers: Containers, snapshot: PinSnapshot, container: Container) -> Allowed:
    """Decide after a container has stopped. Its claims hold their CPUs until they are unprepared."""
    change, updates = settle(containers, snapshot, (container.id,))
    return Allowed(change, updates=updates)


def start(containers: Containers, snapshot: PinSnapshot, container: Container) -> ContainerChange:
    """Return the change after a container's process has started; an unknown container is added."""
    pinned = containers.get(container.id)
    # If the container is certain to have its resources, its start changes nothing for the others.
    if pinned is not None:
        return ContainerChange((pinned.after_start(),), settled=None if pinned.provisional else containers.settled)
    match pinned_as_listed(snapshot, replace(container, started=True)):
        case Pinned() as new:
            return ContainerChange((new,))
        case _:
            return ContainerChange(settled=containers.settled)


def remove(containers: Containers, gone: Container) -> ContainerChange:
    """Return the change after a container was removed."""
    return ContainerChange(drop=(gone.id,), settled=containers.settled)


def remove_pod(containers: Containers, pod: PodSandbox) -> ContainerChange:
    """Return the change after a pod sandbox was removed with its containers."""
    return ContainerChange(drop=containers.of_sandbox(pod.id), settled=containers.settled)


def synchronize(
    snapshot: PinSnapshot,
    listed: Iterable[Container],
    evidence: Evidence = NOTHING_FOUND_OUT,
    drifts: Iterable[Drift] = (),
    effective: Mapping[str, Effective] = NOTHING_READ,
) -> Allowed | AskLedger | AskKubelet:
    """Decide about all existing containers; what was known before is forgotten.

    Claims without a container still hold their CPUs: containers never decide about records.

    Args:
        snapshot: the claims on record and the machine.
        listed: all containers, as the runtime describes them. It reports the mask that it has set, or was about to set
            when it was killed, so the kernel's files are read too.
        evidence: the answers to earlier questions.
        drifts: the containers that were known to run on the wrong CPUs before.
        effective: the limits of containers in the kernel, by container id, as far as they could be read.
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
                # While the ledger cannot be read, a claim that seems unknown may have a record, so nothing is reported.
                pass
    # kubelet is asked about all pods at once, because the runtime waits only 2 s for the answer to Synchronize.
    if pods:
        return AskKubelet(tuple(dict.fromkeys(pods)))
    identified = (pinned_as_listed(snapshot, container, evidence) for container in listed)
    known = Containers(pinned for pinned in identified if isinstance(pinned, Pinned))
    # A container that waits for another mask anyway has not drifted; its update is only late.
    up_to_date = Containers(pinned for pinned in known if has_what_it_should(pinned, expected(pinned, snapshot)))
    adrift = find_drifts(up_to_date, snapshot, effective)
    # A drift that was known before and cannot be checked now is assumed to continue.
    unread_drifts = (before for before in drifts if before.container.id not in effective)
    known.apply(drifted(known, (*unread_drifts, *adrift)))
    change, updates = settle(known, snapshot)
    known.apply(change)
    warnings.extend(wrongly_shared_claims(known, snapshot))
    # A container without a CPU set was created while no driver answered the runtime.
    unpinned = tuple(
        pinned.container for pinned in known if not (pinned.container.cpus or pinned.unsure) and snapshot.pins_cpus
    )
    # Everything was compared with this snapshot just now, so later changes need to compare only what they concern.
    put = ContainerChange(tuple(known), settled=snapshot)
    return Allowed(put, updates=updates, warnings=tuple(warnings), unpinned=unpinned, drifts=adrift)


def pinned_as_listed(
    snapshot: PinSnapshot, container: Container, evidence: Evidence = NOTHING_FOUND_OUT
) -> Pinned | AskLedger | AskKubelet:
    """Identify an existing container whose creation this driver did not see, or return the question that this needs.

    The container can no longer be refused. If it names a claim that it does not have, it belongs to the shared pool.
    If kubelet did not answer whether its pod has the claim, the container is identified again later (`identify_again`).
    """
    identity = identify(container, snapshot, evidence, exists=True)
    if identity.ask is not None:
        return identity.ask
    unsure = snapshot.unread is not None
    return Pinned(
        container if identity.unanswered or identity.denied else _slim(container),
        tuple(claim.key for claim in identity.claims),
        container.cpus,
        # Memory nodes count as given by this driver only if a claim asks for some; else kubelet or the runtime set
        # them.
        container.mems if any(claim.mems or claim.nodes for claim in identity.claims) else NO_CPUS,
        hugepages=container.hugepages,
        parts=some_of(identity.claims, snapshot),
        unsure=unsure,
        memory_unsure=snapshot.memory_unread is not None,
        unresolved=unsure and any(key not in snapshot.claims for key in mentions(container, snapshot)),
        unanswered=identity.unanswered,
        denied=identity.denied,
    )


def identify_again(
    containers: Containers, snapshot: PinSnapshot, evidence: Evidence = NOTHING_FOUND_OUT
) -> Allowed | Ask:
    """Identify the containers again for which kubelet did not answer or denied that their pod has the claim."""
    # kubelet may have been starting: its pod-resources API lists a pod only some time after a restart.
    put: list[Pinned] = []
    pods: list[PodSandbox] = []
    for pinned in (*containers.unanswered, *containers.denied):
        # The container is described as it is now, not as it was created: this driver may have changed it since.
        container = replace(pinned.container, cpus=pinned.cpus, hugepages=pinned.hugepages)
        match pinned_as_listed(snapshot, container, evidence):
            case AskLedger() as ask:
                return ask
            case AskKubelet() as ask:
                pods.extend(ask.pods)
            case Pinned() as again:
                put.append(replace(again, provisional=pinned.provisional, resend=pinned.resend))
    return AskKubelet(tuple(dict.fromkeys(pods))) if pods else Allowed(ContainerChange(tuple(put)))


def _slim(container: Container) -> Container:
    """Return a container without the fields that are needed only to identify it; environments take much memory."""
    return replace(container, env=(), cdi_devices=())
