"""Decides who may use a claim, by `status.reservedFor`: pods, and PodGroups for all of their pods (KEP-5729).

Source: `IsReservedForPod` and `IsForPod` of `k8s.io/dynamic-resource-allocation/resourceclaim` 1.37, by which kubelet
and kube-scheduler go. A pod says the name of its group alone, so a group's UID is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dranode.api.resource import SCHEDULING, ResourceClaim, ResourceClaimConsumerReference

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
