"""Decides which Kubernetes Events are sent, and how many. No I/O.

An Event reports something that a person has to act on or should know. It is attached to the pods and the claim that it
concerns, or to the node if neither is known. The same Event is not sent again within ten minutes, and the number of
different ones is limited, because each one is an object that the API server has to store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, assert_never

import msgspec

from dranode.api.documents import API_VERSION
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.driver.claims.answers import NOT_ENFORCED
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.status import DeviceState
from dranode.driver.claims.users import PodSandbox, pods_among

# The API server rejects an Event whose `note` has more bytes (`NoteLengthLimit` in Kubernetes' validation of events).
MAX_NOTE: Final = 1024

# After this time, the same Event is sent again.
_AGAIN_SECONDS: Final = 600.0
# So many different Events are sent at once, and then one in this many seconds.
_BURST: Final = 20.0
_REFILL_SECONDS: Final = 6.0


class Regarding(msgspec.Struct, frozen=True):
    """The object that an event is about; a Node has no namespace."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Event(msgspec.Struct, frozen=True):
    """An Event of type Warning.

    Attributes:
        regarding: the object that it is about.
        reason: one word; `kubectl events` and alerts filter by it.
        action: what the driver was doing; the API server requires it.
        note: the message, one sentence.
    """

    regarding: Regarding
    reason: str
    action: str
    note: str


class PrepareFailed(msgspec.Struct, frozen=True):
    """A claim could not be prepared.

    Attributes:
        pods: the consumers that it is reserved for; only the pods among them get an Event.
    """

    claim: ClaimRef
    pods: tuple[ResourceClaimConsumerReference, ...]
    error: str


class ContainerOccurrence(msgspec.Struct, frozen=True):
    """What happened to a container: its pod, its claims, and a sentence."""

    pod: PodSandbox
    claims: tuple[ClaimRef, ...]
    sentence: str


class DriftRepaired(ContainerOccurrence, frozen=True):
    """A container ran on other CPUs than it should, and was moved back."""


class Unpinned(ContainerOccurrence, frozen=True):
    """A container was created while no instance pinned containers, and ran where it should not."""


class QuotaStillCaps(ContainerOccurrence, frozen=True):
    """A claim lifts the quota of its container, but the quota of the pod's own cgroup still limits it."""


class HugePagesStillCapped(ContainerOccurrence, frozen=True):
    """A container has huge pages by its claims, but its pod's cgroup allows fewer."""


class RecordQuarantined(msgspec.Struct, frozen=True):
    """The record of a claim is damaged; its name is not known."""

    uid: str
    reason: str


class ClaimImpaired(msgspec.Struct, frozen=True):
    """A claim has less than it was given, because it lost hardware.

    Attributes:
        pods: the consumers that it is reserved for; only the pods among them get an Event.
        states: the states of its devices for its status.
    """

    claim: ClaimRef
    pods: tuple[ResourceClaimConsumerReference, ...]
    reason: str
    sentence: str
    states: tuple[DeviceState, ...] = ()


class ClaimRestored(msgspec.Struct, frozen=True):
    """A claim has all that it was given again. There is no Event; the claim's status says so."""

    claim: ClaimRef
    states: tuple[DeviceState, ...] = ()


class EnforcementLost(msgspec.Struct, frozen=True):
    """Containers are not restricted to what their claims of a driver have."""

    sentence: str


class MetadataMissing(msgspec.Struct, frozen=True):
    """A claim was prepared, but its containers will not find their device metadata."""

    claim: ClaimRef
    sentence: str


class OrphanUnprepared(msgspec.Struct, frozen=True):
    """A claim that no longer exists was unprepared without a call of kubelet."""

    claim: ClaimRef
    sentence: str


Occurrence: TypeAlias = (
    PrepareFailed
    | DriftRepaired
    | Unpinned
    | QuotaStillCaps
    | HugePagesStillCapped
    | RecordQuarantined
    | ClaimImpaired
    | ClaimRestored
    | MetadataMissing
    | OrphanUnprepared
    | EnforcementLost
)


# Passes an occurrence on, for example as an Event; it never blocks.
Notify = Callable[[Occurrence], None]


def notify_none(occurrence: Occurrence) -> None:
    """Do nothing: the log has the occurrence already."""
    del occurrence


def events_of(occurrence: Occurrence, node_name: str) -> tuple[Event, ...]:
    """Return the Events that report an occurrence."""
    match occurrence:
        case PrepareFailed(claim, pods, error):
            events = _events(_users(claim, pods), "PrepareFailed", "Prepare", error)
        case DriftRepaired(pod, claims, sentence):
            events = _events(_places(pod, claims), "CPUSetDrift", "Repair", sentence)
        case (
            Unpinned(pod, claims, sentence)
            | QuotaStillCaps(pod, claims, sentence)
            | HugePagesStillCapped(pod, claims, sentence)
        ):
            action = "Synchronize" if isinstance(occurrence, Unpinned) else "Verify"
            events = _events(_places(pod, claims), type(occurrence).__name__, action, sentence)
        case RecordQuarantined(uid, reason):
            # As in kubelet's Events about a node, the UID is the node's name.
            node = Regarding("v1", "Node", "", node_name, node_name)
            note = (
                f"the record of the claim with UID {uid} is damaged and quarantined: {reason}; "
                "delete the pods that use that claim, so that it is unprepared and allocated again"
            )
            events = _events([node], "RecordQuarantined", "ReadLedger", note)
        case ClaimImpaired(claim, pods, reason, sentence):
            events = _events(_users(claim, pods), reason, "WatchHardware", sentence)
        case ClaimRestored():
            events = ()
        case MetadataMissing(claim, sentence):
            events = _events(_users(claim, ()), "MetadataMissing", "Prepare", sentence)
        case OrphanUnprepared(claim, sentence):
            # The claim was deleted, so people would not see an Event about it.
            node = Regarding("v1", "Node", "", node_name, node_name)
            events = _events([node], "OrphanUnprepared", "Unprepare", sentence)
        case EnforcementLost(sentence):
            node = Regarding("v1", "Node", "", node_name, node_name)
            events = _events([node], NOT_ENFORCED, "Enforce", sentence)
        case _:
            assert_never(occurrence)
    return events


def _users(claim: ClaimRef, pods: tuple[ResourceClaimConsumerReference, ...]) -> list[Regarding]:
    # An Event needs a name and a namespace, which a recovered record may lack.
    objects = [_claim(claim)] if claim.name else []
    return objects + [Regarding("v1", "Pod", claim.namespace, pod.name, pod.uid) for pod in pods_among(pods)]


def _places(pod: PodSandbox, claims: tuple[ClaimRef, ...]) -> list[Regarding]:
    objects = [Regarding("v1", "Pod", pod.namespace, pod.name, pod.uid)] if pod.name else []
    # If the runtime did not describe the sandbox, only the claims get the Event.
    return objects + [_claim(claim) for claim in claims if claim.name]


def _claim(claim: ClaimRef) -> Regarding:
    return Regarding(API_VERSION, "ResourceClaim", claim.namespace, claim.name, claim.uid)


def _events(objects: list[Regarding], reason: str, action: str, note: str) -> tuple[Event, ...]:
    # Cut by bytes, where a character ends. Half of a surrogate pair, which is not valid in UTF-8, becomes `?`.
    note = note.encode(errors="replace")[:MAX_NOTE].decode(errors="ignore")
    return tuple(Event(regarding, reason, action, note) for regarding in objects)


class Allowance(msgspec.Struct, frozen=True):
    """How many Events may still be sent, and which were sent recently.

    Attributes:
        remaining: how many may be sent at once.
        at: the time at which that was so, in seconds.
        sent: the Events of the last ten minutes, with their times.
    """

    remaining: float = _BURST
    at: float = 0.0
    sent: Mapping[Event, float] = msgspec.field(default_factory=dict)

    def admit(self, event: Event, now: float) -> Allowance | None:
        """Return the allowance after an Event; None if the Event must not be sent."""
        # The allowance limits this to about 120 Events: 20 at once, and 100 more in ten minutes.
        sent = {earlier: when for earlier, when in self.sent.items() if now - when < _AGAIN_SECONDS}
        remaining = min(_BURST, self.remaining + (now - self.at) / _REFILL_SECONDS)
        # A refused Event changes nothing. In particular it does not postpone the time at which it may be sent again.
        if event in sent or remaining < 1:
            return None
        return Allowance(remaining - 1, now, {**sent, event: now})
