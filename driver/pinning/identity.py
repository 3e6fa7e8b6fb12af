"""Decides which claims a container has. Nothing that a pod's author can write is proof.

CDI injects a variable with the claim's UID in its name, and newer runtimes report the CDI devices that kubelet asked
for. A pod's author can write both, so they only point to a claim on record. The CPUs come from the record, and the pod
has to be one that the claim is reserved for, or kubelet's pod-resources API has to list the claim's CDI device for the
pod. If this is not known yet, the result is a question, and the decision is made again with the answer.

A container may name single requests of a claim. kubelet passes it the CDI devices of these requests only, and they, or
the variables that they inject, say which allocation results it has. An author may add a variable of another request of
the same claim; that is harmless, because the container could have asked for that request.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.users import PodSandbox
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
    """The answers to questions that were asked for a decision.

    Attributes:
        reread: whether the ledger has been read again, so that the snapshot has every claim with its current CPUs.
        pods: kubelet's answers by pod UID; None if it did not answer in time or does not list the pod. A pod that is
            missing here was not asked about.
        gone: those of the containers asked about whose processes have ended; None if that was not checked.
    """

    reread: bool = False
    pods: Mapping[str, KubeletPodClaims | None] = msgspec.field(default_factory=dict)
    gone: frozenset[str] | None = None


class AskLedger(msgspec.Struct, frozen=True):
    """Read the ledger again: the container names a claim that is not in the snapshot."""


class AskKubelet(msgspec.Struct, frozen=True):
    """Ask kubelet's pod-resources API about these pods."""

    pods: tuple[PodSandbox, ...]


class AskProcesses(msgspec.Struct, frozen=True):
    """Check whether these containers, which have all been started, still have processes."""

    containers: tuple[str, ...]


Ask = AskLedger | AskKubelet | AskProcesses


class Identity(msgspec.Struct, frozen=True):
    """The claims of a container, as far as they are known.

    Attributes:
        claims: the claims that it has.
        refusals: one sentence for each claim that it names but does not have.
        ask: a question that has to be answered first; None if there is none.
        unanswered: whether a claim was refused only because kubelet did not answer for the pod.
        denied: whether a claim was refused because kubelet says that the pod does not have it.
    """

    claims: tuple[PinnedClaim, ...] = ()
    refusals: tuple[str, ...] = ()
    ask: AskLedger | AskKubelet | None = None
    unanswered: bool = False
    denied: bool = False


def identify(container: Container, snapshot: PinSnapshot, evidence: Evidence, *, exists: bool = False) -> Identity:
    """Identify the claims of a container.

    Args:
        container: the container.
        snapshot: the claims on record.
        evidence: the answers to earlier questions.
        exists: whether the container was created before. If it runs only on held CPUs, among them all online CPUs of
            the claim, then it has the claim and no question is needed: only a driver puts a container there.
    """
    claims: list[PinnedClaim] = []
    refusals: list[str] = []
    unanswered = denied = False
    named = mentions(container, snapshot)
    for key, value in named.items():
        claim = snapshot.claims.get(key)
        if claim is None:
            # kubelet prepares claims before it creates containers, so a claim that another instance prepared is in the
            # ledger by now. If it is not there either, it does not exist.
            if not evidence.reread:
                return Identity(ask=AskLedger())
            refusals.append(_unknown(container, key, snapshot))
            continue
        if value is not None and not _matches(value, claim.cpus or claim.nodes):
            # Another instance may have prepared the claim again, with other CPUs, since this one read the ledger.
            if not evidence.reread:
                return Identity(ask=AskLedger())
            refusals.append(_other_value(container, claim, value, snapshot))
            continue
        # A container that names one request of the claim gets only the CPUs of that request.
        claim = claim.of_parts(snapshot.parts_of(key, container.cdi_devices, container.env))
        online = claim.cpus & snapshot.online
        # After a restart of the driver, this spares a question to kubelet for each running container with a claim.
        if exists and online and online <= container.cpus <= snapshot.held:
            claims.append(claim)
            continue
        verdict = _may_use(container, claim, snapshot, evidence)
        if isinstance(verdict, AskKubelet):
            return Identity(ask=verdict)
        if verdict:
            refusals.append(verdict)
            # An existing container is not refused, but identified again later. It matters then whether kubelet denied
            # the claim or only did not answer.
            answered = not container.pod.uid or evidence.pods[container.pod.uid] is not None
            unanswered, denied = unanswered or not answered, denied or (answered and bool(container.pod.uid))
        else:
            claims.append(claim)
    # A pod without any claim of this driver, as most are, causes no question.
    if named or container.pod.uid not in snapshot.by_pod:
        return Identity(tuple(claims), tuple(refusals), unanswered=unanswered, denied=denied)
    return _unnamed(container, snapshot, evidence, exists=exists)


def mentions(container: Container, snapshot: PinSnapshot) -> dict[str, str | None]:
    """Return the keys of the claims that a container names, with the value of the variable; None for a CDI device."""
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


def _matches(value: str, cpus: CPUSet) -> bool:
    try:
        return CPUSet.parse(value) == cpus
    except ValueError:
        return False


def _may_use(container: Container, claim: PinnedClaim, snapshot: PinSnapshot, evidence: Evidence) -> str | AskKubelet:
    """Return why the container's pod may not use the claim, empty if it may, or a question."""
    pod = container.pod
    # `status.reservedFor` at the time of Prepare. A pod that shares the claim and came later is not in it, because
    # kubelet does not prepare a claim again that it has prepared already.
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
    # Any container of the pod counts: kubelet grants a claim to a pod, and its containers may share it.
    if claim.key in snapshot.claims_of_devices(device for devices in answer.devices.values() for device in devices):
        return ""
    return f"{container} names claim {claim.claim}, which kubelet has not given to pod {pod}: {_REMOVE}"


def _unnamed(container: Container, snapshot: PinSnapshot, evidence: Evidence, *, exists: bool) -> Identity:
    """Identify a container that names no claim although its pod has some.

    That is normal for a container without claims. But perhaps the runtime does not inject CDI devices.
    """
    answer = _answer(container.pod, evidence)
    if isinstance(answer, AskKubelet):
        return Identity(ask=answer)
    if answer is None:
        # It runs already. Without an answer it is taken for a container of the shared pool, as most containers of such
        # pods are (sidecars).
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
        claim = snapshot.claims.get(key)
        # A claim that holds nothing (admin access) injects no variable, so none is missing. Its CDI device is not seen
        # either beside a runtime that does not report these over NRI (containerd 1.7 and 2.0).
        if claim is not None and claim.exclusive:
            yield (
                f"kubelet gave claim {claim.claim} to {container}, but the container runtime did not "
                "inject its CDI device: enable CDI in the runtime's configuration"
            )


def _answer(pod: PodSandbox, evidence: Evidence) -> KubeletPodClaims | AskKubelet | None:
    # A sandbox without a pod UID is not kubelet's, so kubelet has given it nothing.
    if not pod.uid:
        return KubeletPodClaims({})
    if pod.uid not in evidence.pods:
        return AskKubelet((pod,))
    return evidence.pods[pod.uid]
