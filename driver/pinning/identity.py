"""Decides which claims a container has. It believes nothing that a pod's author can write.

CDI injects a variable with the claim's UID in its name, and newer runtimes tell the CDI devices that kubelet asked for.
Both only point at a claim on record; the claim's CPUs come from the record. The pod has to be one that the claim was
reserved for, or kubelet's pod-resources API has to list the claim's CDI device for it. Where the answer is not known
yet, the result is a question, and the same decision is made again with the answer.

Which requests of a claim a container has is known by their CDI devices, of which kubelet passes it those of the
requests that it names, or else by the variables that these inject. It may have all of its pod's claims, so more than
kubelet gave it is nothing that it could not have asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot

_REMOVE: Final = "remove the variable or the CDI device that names it"


class KubeletPodClaims(msgspec.Struct, frozen=True):
    """The answer of kubelet's pod-resources API about one pod.

    Attributes:
        devices: by container name, the CDI devices of its claims.
    """

    devices: Mapping[str, tuple[str, ...]]


class Evidence(msgspec.Struct, frozen=True):
    """The facts that were found for a decision beyond the snapshot.

    Attributes:
        reread: the ledger has been read again, so that a claim that is not in the snapshot does not exist,
            and has no other CPUs.
        pods: kubelet's answers by pod UID, None where it gave none in time or does not list the pod; other pods were
            not asked about.
        gone: of the containers asked about, those whose processes are gone; None if not looked at.
    """

    reread: bool = False
    pods: Mapping[str, KubeletPodClaims | None] = msgspec.field(default_factory=dict)
    gone: frozenset[str] | None = None


class AskLedger(msgspec.Struct, frozen=True):
    """Read the ledger again: a claim is named that is not in the snapshot."""


class AskKubelet(msgspec.Struct, frozen=True):
    """Ask kubelet's pod-resources API about these pods."""

    pods: tuple[PodSandbox, ...]


class AskProcesses(msgspec.Struct, frozen=True):
    """Check whether these containers, which were all started, still have processes."""

    containers: tuple[str, ...]


Ask = AskLedger | AskKubelet | AskProcesses


class Identity(msgspec.Struct, frozen=True):
    """The claims of a container, as far as they are known.

    Attributes:
        claims: the claims that it has.
        refusals: one sentence for every claim that it names without having it.
        ask: a question that must be answered before the rest is certain; None if there is none.
        unheard: a claim is among the refused ones only because kubelet did not answer for the pod.
        denied: a claim is among the refused ones because kubelet has not given it to the pod, as far as it says.
    """

    claims: tuple[PinnedClaim, ...] = ()
    refusals: tuple[str, ...] = ()
    ask: AskLedger | AskKubelet | None = None
    unheard: bool = False
    denied: bool = False


def identify(container: Container, snapshot: PinSnapshot, evidence: Evidence, *, exists: bool = False) -> Identity:
    """Identify the claims of a container; `exists` says that it was created before.

    A container that exists and runs on nothing but held CPUs, those of the claim that are online among them, is
    believed without a question: only a driver puts one there.
    """
    claims: list[PinnedClaim] = []
    refusals: list[str] = []
    unheard = denied = False
    named = mentions(container, snapshot)
    for key, value in named.items():
        claim = snapshot.claims.get(key)
        if claim is None:
            if not evidence.reread:
                return Identity(ask=AskLedger())
            refusals.append(_unknown(container, key, snapshot))
            continue
        if value is not None and not _says(value, claim.cpus or claim.nodes):
            # Another instance may have prepared the claim again since this one checked.
            if not evidence.reread:
                return Identity(ask=AskLedger())
            refusals.append(_other_value(container, claim, value, snapshot))
            continue
        claim = claim.of_parts(snapshot.parts_of(key, container.cdi_devices, container.env))
        online = claim.cpus & snapshot.online
        if exists and online and online <= container.cpus <= snapshot.held:
            claims.append(claim)
            continue
        verdict = _may_use(container, claim, snapshot, evidence)
        if isinstance(verdict, AskKubelet):
            return Identity(ask=verdict)
        if verdict:
            refusals.append(verdict)
            answered = not container.pod.uid or evidence.pods[container.pod.uid] is not None
            unheard, denied = unheard or not answered, denied or (answered and bool(container.pod.uid))
        else:
            claims.append(claim)
    if named or container.pod.uid not in snapshot.by_pod:
        return Identity(tuple(claims), tuple(refusals), unheard=unheard, denied=denied)
    return _unnamed(container, snapshot, evidence, exists=exists)


def mentions(container: Container, snapshot: PinSnapshot) -> dict[str, str | None]:
    """Return the claims that the container names, by key, with the last value of the variable, or None without one."""
    mentioned: dict[str, str | None] = dict.fromkeys(snapshot.claims_of_devices(container.cdi_devices))
    for names in snapshot.claim_names:
        mentioned.update(names.in_env(container.env))
    return mentioned


def _unknown(container: Container, key: str, snapshot: PinSnapshot) -> str:
    unread = snapshot.unread_of(key) if snapshot.names else None
    why = (
        f"which is not prepared on this node: {_REMOVE}, or recreate the pod if it has the claim"
        if unread is None
        else f"which is not known: {unread.reason}"
    )
    return f'{container} names claim "{key.rpartition("/")[2]}", {why}'


def _other_value(container: Container, claim: PinnedClaim, value: str, snapshot: PinSnapshot) -> str:
    variable = next(names.variable for names in snapshot.claim_names if names.driver == claim.driver)
    given = f"CPUs {claim.cpus}" if claim.cpus else f"NUMA nodes {claim.nodes}"
    return (
        f'{container} has {variable}{claim.claim.uid}="{value}", but claim {claim.claim} was given {given}: '
        "remove the variable from the pod"
    )


def _says(value: str, cpus: CPUSet) -> bool:
    try:
        return CPUSet.parse(value) == cpus
    except ValueError:
        return False


def _may_use(container: Container, claim: PinnedClaim, snapshot: PinSnapshot, evidence: Evidence) -> str | AskKubelet:
    """Return an empty text if the container's pod may use the claim, else the reason why not, or a question."""
    pod = container.pod
    if pod.uid and pod.uid in claim.pods:
        return ""
    answer = _answer(pod, evidence)
    if isinstance(answer, AskKubelet):
        return answer
    if answer is None:
        return (
            f"{container} has claim {claim.claim}, but pod {pod} is not on record for it and kubelet's pod-resources "
            "API did not answer for it, or does not list it: check that its socket is mounted and that kubelet works"
        )
    if claim.key in snapshot.claims_of_devices(device for each in answer.devices.values() for device in each):
        return ""
    return f"{container} names claim {claim.claim}, which kubelet has not given to pod {pod}: {_REMOVE}"


def _unnamed(container: Container, snapshot: PinSnapshot, evidence: Evidence, *, exists: bool) -> Identity:
    """Identify a container without a claim in a pod with claims: perhaps the runtime injects no CDI devices."""
    answer = _answer(container.pod, evidence)
    if isinstance(answer, AskKubelet):
        return Identity(ask=answer)
    if answer is None:
        if exists:
            return Identity()
        text = (
            f"{container} may have a claim, but kubelet's pod-resources API did not answer for its pod, or does "
            "not list it: check that its socket is mounted and that kubelet works"
        )
        return Identity(refusals=(text,))
    return Identity(refusals=tuple(_not_injected(container, snapshot, answer)))


def _not_injected(container: Container, snapshot: PinSnapshot, answer: KubeletPodClaims) -> Iterator[str]:
    for key in dict.fromkeys(snapshot.claims_of_devices(answer.devices.get(container.name, ()))):
        if key in snapshot.claims:
            yield (
                f"kubelet gave claim {snapshot.claims[key].claim} to {container}, but the container runtime did not "
                "inject its CDI device: enable CDI in the runtime's configuration"
            )


def _answer(pod: PodSandbox, evidence: Evidence) -> KubeletPodClaims | AskKubelet | None:
    if not pod.uid:
        return KubeletPodClaims({})
    if pod.uid not in evidence.pods:
        return AskKubelet((pod,))
    return evidence.pods[pod.uid]
