"""Reads who uses which claims from kubelet's pod-resources API, which names a container's claims and CDI devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dranode.api.resource import ResourceClaimConsumerReference
from dranode.driver.claims.consumers import pods_among
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

    A claim is recognised by a CDI device that carries its UID, if only that of its metadata. One that gives its
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
