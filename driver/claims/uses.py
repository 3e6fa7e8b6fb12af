"""Who may use a claim, and which containers do.

A claim's `status.reservedFor` says who may: pods, and PodGroups for all of their pods (KEP-5729). kubelet's
pod-resources API says who does: it names the claims and the CDI devices of each container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dranode.api.resource import SCHEDULING, ResourceClaim, ResourceClaimConsumerReference
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.metadata import older_kind
from dranode.driver.claims.record import Record, claim_device


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim of a container, as kubelet has it.

    Attributes:
        namespace: of pod and claim.
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
    """Return which of `claims`, all of one driver, kubelet has given to containers, by UID; `uses` are of that driver.

    A claim is recognized by a CDI device that carries its UID, if only that of its metadata. One that gives its
    containers none has its name alone, and another claim may have had that name before, so a name counts only where
    there is no CDI device.
    """
    by_uid = {ref.uid: ref for ref in claims}
    by_name = {(ref.namespace, ref.name): ref for ref in by_uid.values() if ref.name}
    found: dict[str, UsedClaim] = {}
    for use in uses:
        uids = {uid for device in use.cdi for uid in _uids(device, by_uid)}
        named = by_name.get((use.namespace, use.claim))
        if not use.cdi and named is not None:
            uids.add(named.uid)
        for uid in uids:
            before = found.get(uid)
            pods = dict.fromkeys((*before.pods, use.pod) if before else (use.pod,))
            devices = use.devices | (before.devices if before else frozenset())
            found[uid] = UsedClaim(ClaimRef(use.namespace, use.claim, uid), tuple(pods), devices)
    return found


def with_users(record: Record, pods: Iterable[str]) -> Record:
    """Return a record with pods of these names too, by the word of kubelet, which does not say their UIDs.

    A pod that comes to a claim after its Prepare is not on record, since kubelet asks once for a claim that it has.
    """
    known = {pod.name for pod in pods_among(record.pods)}
    more = (
        ResourceClaimConsumerReference(resource="pods", name=name, uid="")
        for name in dict.fromkeys(pods)
        if name not in known
    )
    return msgspec.structs.replace(record, pods=(*record.pods, *more))


def _uids(device: str, known: Mapping[str, object]) -> Iterable[str]:
    """The known claim whose device `<kind>=claim-<uid>[-<index>]` or `<driver>/metadata=<uid>_<request>` is, if any."""
    kind, _, name = device.partition("=")
    if kind.endswith(older_kind("")):
        uids = (name.rpartition("_")[0], "")
    else:
        uid = name.removeprefix(claim_device("")) if name.startswith(claim_device("")) else ""
        whole, _, index = uid.rpartition("-")
        uids = (uid, whole if index.isdecimal() else "")
    return (uid for uid in uids if uid in known)


# The rules of `status.reservedFor` are `IsReservedForPod` and `IsForPod` of
# `k8s.io/dynamic-resource-allocation/resourceclaim` (1.37), which kubelet and kube-scheduler use. A pod says only the
# name of its group, so the UID of a group is not compared.

MOST_CONSUMERS: Final = 256
"""The most entries of `status.reservedFor`; a PodGroup is one, however many pods it has."""


def pods_among(consumers: Iterable[ResourceClaimConsumerReference]) -> tuple[ResourceClaimConsumerReference, ...]:
    """Return the pods; a PodGroup's are not among them, since the claim does not name them."""
    return tuple(consumer for consumer in consumers if consumer.is_pod)


def groups_among(consumers: Iterable[ResourceClaimConsumerReference]) -> frozenset[str]:
    """Return the names of the PodGroups."""
    return frozenset(consumer.name for consumer in consumers if consumer.is_pod_group)


def names_every_pod(consumers: Iterable[ResourceClaimConsumerReference]) -> bool:
    """Return whether these are pods, each with its UID; without any it is not known who uses the claim."""
    consumers = tuple(consumers)
    return bool(consumers) and all(consumer.is_pod and consumer.uid for consumer in consumers)


def is_reserved_for(claim: ResourceClaim, pod: str, group: str) -> bool:
    """Return whether the pod with this UID, of the PodGroup with this name (empty for none), may use the claim."""
    consumers = claim.status.reserved_for
    return any(consumer.uid == pod for consumer in consumers) or group in groups_among(consumers)


def owning_group(claim: ResourceClaim) -> str:
    """Return the name of the PodGroup that the claim was made for from a template; empty for none."""
    controller = next((owner for owner in claim.metadata.owner_references if owner.controller), None)
    if controller is None or controller.kind != "PodGroup":
        return ""
    # A later version of the group of APIs means the same object.
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
