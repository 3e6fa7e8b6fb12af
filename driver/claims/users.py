"""Which pods may use a claim, and which containers use it.

A claim's `status.reservedFor` says which pods may: pods, and PodGroups for all of their pods (KEP-5729). kubelet's
pod-resources API says which containers do: it names the claims and the CDI devices of each container.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dranode.api.resource import SCHEDULING, ResourceClaim, ResourceClaimConsumerReference
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.metadata import older_kind
from dranode.driver.claims.record import Record, claim_device


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim of a container, according to kubelet.

    Attributes:
        namespace: the namespace of pod and claim.
        pod: the pod's name.
        container: the container's name.
        claim: the claim's name.
        cdi: the CDI ids that the container gets for it.
        devices: the devices that were allocated to it.
    """

    namespace: str
    pod: str
    container: str
    claim: str
    cdi: frozenset[str]
    devices: frozenset[str] = frozenset()


class UsedClaim(msgspec.Struct, frozen=True):
    """A claim that kubelet has given to containers.

    Attributes:
        ref: its identity; the UID is the one that its CDI devices carry.
        pods: the names of the pods, in its namespace.
        devices: the devices that were allocated to it.
    """

    ref: ClaimRef
    pods: tuple[str, ...]
    devices: frozenset[str]


def used_claims(uses: Iterable[ClaimUse], claims: Iterable[ClaimRef]) -> Mapping[str, UsedClaim]:
    """Return which claims of a driver kubelet has given to containers, by UID; `uses` are those of the same driver.

    A claim is recognized by a CDI device with its UID, also by that of its metadata. A claim without CDI devices has
    only its name, which another claim may have had before, so the name counts only if there is no CDI device.
    """
    by_uid = {ref.uid: ref for ref in claims}
    by_name = {(ref.namespace, ref.name): ref for ref in by_uid.values() if ref.name}
    used: dict[str, UsedClaim] = {}
    for use in uses:
        uids = {uid for device in use.cdi for uid in _uids(device, by_uid)}
        same_name = by_name.get((use.namespace, use.claim))
        # With CDI devices, but none of a known UID, the container has another claim of that name.
        if not use.cdi and same_name is not None:
            uids.add(same_name.uid)
        for uid in uids:
            # Several containers and pods may share a claim.
            before = used.get(uid)
            pods = dict.fromkeys((*before.pods, use.pod) if before else (use.pod,))
            devices = use.devices | (before.devices if before else frozenset())
            used[uid] = UsedClaim(ClaimRef(use.namespace, use.claim, uid), tuple(pods), devices)
    return used


def with_users(record: Record, pods: Iterable[str]) -> Record:
    """Add pods by the names that kubelet reports, without UIDs, to a record.

    A pod that shares a claim and starts after its Prepare is not on record, because kubelet does not prepare it again.
    """
    known = {pod.name for pod in pods_among(record.pods)}
    more = (
        ResourceClaimConsumerReference(resource="pods", name=name, uid="")
        for name in dict.fromkeys(pods)
        if name not in known
    )
    return msgspec.structs.replace(record, pods=(*record.pods, *more))


def _uids(device: str, known: Mapping[str, object]) -> Iterable[str]:
    """Return the known claim of a device `<kind>=claim-<uid>[-<index>]` or `<driver>/metadata=<uid>_<request>`."""
    kind, _, name = device.partition("=")
    if kind.endswith(older_kind("")):
        uids = (name.rpartition("_")[0], "")
    else:
        uid = name.removeprefix(claim_device("")) if name.startswith(claim_device("")) else ""
        whole, _, index = uid.rpartition("-")
        # A UID may itself end with a hyphen and a number, so both readings are tried, and `known` decides.
        uids = (uid, whole if index.isdecimal() else "")
    return (uid for uid in uids if uid in known)


# The rules of `status.reservedFor` are those of `IsReservedForPod` and `IsForPod` in
# `k8s.io/dynamic-resource-allocation/resourceclaim` (1.37), which kubelet and kube-scheduler use. A pod's spec has only
# the name of its group, so the UID of a group is not compared.

MOST_CONSUMERS: Final = 256
"""The most entries of `status.reservedFor`; a PodGroup is one entry, however many pods it has."""


def pods_among(consumers: Iterable[ResourceClaimConsumerReference]) -> tuple[ResourceClaimConsumerReference, ...]:
    """Return the pods among the consumers; those of a PodGroup are unknown, because only the group is listed."""
    return tuple(consumer for consumer in consumers if consumer.is_pod)


def groups_among(consumers: Iterable[ResourceClaimConsumerReference]) -> frozenset[str]:
    """Return the names of the PodGroups among the consumers."""
    return frozenset(consumer.name for consumer in consumers if consumer.is_pod_group)


def names_every_pod(consumers: Iterable[ResourceClaimConsumerReference]) -> bool:
    """Return whether all consumers are pods with UIDs; False without any, because the users are not known then."""
    consumers = tuple(consumers)
    return bool(consumers) and all(consumer.is_pod and consumer.uid for consumer in consumers)


def is_reserved_for(claim: ResourceClaim, pod: str, group: str) -> bool:
    """Return whether the pod with this UID, of the PodGroup with this name (empty for none), may use the claim."""
    consumers = claim.status.reserved_for
    return any(consumer.uid == pod for consumer in consumers) or group in groups_among(consumers)


def owning_group(claim: ResourceClaim) -> str:
    """Return the name of the PodGroup for which the claim was created from a template; empty if there is none."""
    controller = next((owner for owner in claim.metadata.owner_references if owner.controller), None)
    if controller is None or controller.kind != "PodGroup":
        return ""
    # Any version of the API group names the same object.
    return controller.name if controller.api_version.startswith(f"{SCHEDULING}/") else ""


class PodSandbox(msgspec.Struct, frozen=True):
    """A pod sandbox.

    Attributes:
        id: the runtime's id of the sandbox.
        uid: the Kubernetes pod UID; empty if the runtime did not describe the sandbox.
        namespace: the pod's namespace; empty in the same case.
        name: the pod's name; empty in the same case.
    """

    id: str
    uid: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"of sandbox {self.id}"
