"""A claim's record, and what follows from it: the devices held, the CDI spec, the answer to kubelet.

The claim's CDI spec can carry a copy of the record, so that a lost ledger can be rebuilt: the variable `DRANODE_RECORD`
of a CDI device `record-<uid>`. kubelet never gets the name of that device, so no container sees the variable.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.documents import decode_json, encode_json
from dranode.api.errors import DocumentError
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cdi.names import device_problem, qualified_name, spec_file_name
from dranode.cdi.spec import CDIDevice, ContainerEdits, Mount, Spec
from dranode.cdi.version import with_minimum_version
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant, main_request
from dranode.driver.claims.held import ClaimRef, HeldDevice, Holding

# With the names of a driver and a request of 63 characters each, file names stay below the kernel's limit of 255.
MAX_UID: Final = 100
COPY: Final = "DRANODE_RECORD="

Sources = Callable[[str, Any], frozenset[str] | None]
"""`Plugin.sources` of a driver."""


class ClaimState(StrEnum):
    """The state of a claim."""

    # Its hardware is being configured or restored, and may be in any state.
    STARTED = "started"
    COMPLETED = "completed"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of one claim: everything that is needed to answer a repeated Prepare, and to undo the claim.

    Attributes:
        uid: the claim's UID. Namespace and name are empty if the record was recovered and its claim is not known yet.
        state: whether its hardware is configured.
        grants: what each allocation result was given, in the order of the results.
        edits: the CDI edits that every container with the claim gets.
        cpus: the CPUs on which its containers run; a cpu-list in JSON.
        held: the CPUs that no other claim gets; a cpu-list in JSON.
        pods: who may use the claim, as of the last Prepare (`status.reservedFor`): pods, and PodGroups.
        pod_claim_name: the name of the claim in its pod, if it was created from a template; otherwise empty.
        fingerprint: a hash of the allocation that was decided on; empty in a recovered record.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    state: ClaimState = ClaimState.COMPLETED
    grants: tuple[Grant, ...] = ()
    edits: ContainerEdits | None = None
    cpus: CPUSet = NO_CPUS
    held: CPUSet = NO_CPUS
    pods: tuple[ResourceClaimConsumerReference, ...] = ()
    pod_claim_name: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        # msgspec omits a field only if it is the default object itself. Rows of the ledger never have empty sets.
        for name in ("cpus", "held"):
            if not getattr(self, name):
                msgspec.structs.force_setattr(self, name, NO_CPUS)

    @property
    def ref(self) -> ClaimRef:
        """Return the claim's namespace, name and UID."""
        return ClaimRef(self.namespace, self.name, self.uid)

    @property
    def lost(self) -> bool:
        """Return whether it is not known what the claim holds."""
        return not (self.fingerprint or self.grants or self.cpus)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that the claim holds; with admin access it holds none."""
        return tuple(grant.device for grant in self.grants if not grant.admin)

    def holding(self, sources: Sources) -> Holding:
        """Return what the claim holds; `sources` is `Plugin.sources` of its driver.

        A result without a share ID holds its device whole, unless an amount or CPUs say how much of it the claim has.
        """
        return Holding(
            self.ref,
            tuple(
                HeldDevice(
                    grant.device,
                    _sources(sources, grant),
                    grant.amount,
                    whole=grant.share_id is None and not grant.amount and not self.held,
                )
                for grant in self.grants
                if not grant.admin
            ),
            self.held,
        )

    @property
    def amounts(self) -> dict[str, int]:
        """Return how much the claim holds of each device that several claims share."""
        amounts: dict[str, int] = {}
        for grant in self.grants:
            if grant.amount:
                amounts[grant.device] = amounts.get(grant.device, 0) + grant.amount
        return amounts


class PreparedDevice(msgspec.Struct, frozen=True):
    """One device in the answer to kubelet (`dra.v1.Device`).

    Attributes:
        request: the main request, without the subrequest of a prioritized list.
        pool: the device's pool.
        device: its name.
        cdi: qualified CDI names.
        share_id: the share, if several claims share the device.
    """

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]
    share_id: str | None = None


def record_of(
    claim: AllocatedClaim, grant: ClaimGrant, pods: tuple[ResourceClaimConsumerReference, ...], state: ClaimState
) -> Record:
    """Return the record of a claim that was just decided."""
    return Record(
        uid=claim.ref.uid,
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        state=state,
        grants=grant.grants,
        edits=grant.edits,
        cpus=grant.cpus,
        held=grant.held,
        pods=pods,
        fingerprint=fingerprint(claim),
    )


def recovered(uid: str, grant: ClaimGrant) -> Record:
    """Return the record of a claim that is known only by its CDI spec."""
    return Record(uid=uid, grants=grant.grants, edits=grant.edits, cpus=grant.cpus, held=grant.held)


def fingerprint(claim: AllocatedClaim) -> str:
    """Return a short hash of the claim's allocation; a Prepare with another hash asks for something else."""
    # Only the fields that decisions depend on: a field that a later version reads must not make old claims look
    # changed.
    parts = [
        (
            allocated.result.request,
            allocated.result.pool,
            allocated.result.device,
            bool(allocated.result.admin_access),
            allocated.result.share_id,
            sorted((name, amount.text) for name, amount in allocated.result.consumed_capacity.items()),
            [(config.source, config.parameters) for config in allocated.configs],
        )
        for allocated in claim.results
    ]
    return hashlib.blake2b(encode_json(parts), digest_size=8).hexdigest()


def uid_problem(uid: str) -> str | None:
    """Return why files and CDI devices cannot be named after a UID; None if they can. Kubernetes' UIDs always can."""
    if len(uid) > MAX_UID:
        return f"has {len(uid)} characters, more than {MAX_UID}, and files are named after it"
    return device_problem(uid)


def claim_device(uid: str) -> str:
    """Return the CDI device of the whole claim. It begins with a letter, because CDI 0.3.0 requires that."""
    return f"claim-{uid}"


def request_device(uid: str, index: int) -> str:
    """Return the CDI device of one allocation result of the claim."""
    return f"claim-{uid}-{index}"


def spec_file(kind: str, uid: str) -> str:
    """Return the file of the claim's CDI spec, named as the CDI library names transient specs."""
    return spec_file_name(kind, claim_device(uid))


def claim_spec(kind: str, record: Record, mounts: Mapping[str, Mount], original: Record | None = None) -> Spec:
    """Return the claim's CDI spec, in the lowest CDI version that has all that it uses.

    Args:
        kind: vendor and class of its devices.
        record: the record, with completed grants.
        mounts: mounts besides the edits of the record, by the name of the CDI device.
        original: the record as it is in the ledger, if the spec is to carry a copy of it.
    """
    edits = {claim_device(record.uid): record.edits}
    for index, grant in enumerate(record.grants):
        edits[request_device(record.uid, index)] = grant.edits
    devices = [
        CDIDevice(name=name, container_edits=_with_mount(own, mounts.get(name)))
        for name, own in edits.items()
        if own or name in mounts
    ]
    if original is not None:
        devices.append(_copy(original))
    return with_minimum_version(Spec(cdi_version="", kind=kind, devices=tuple(devices)))


def _with_mount(own: ContainerEdits | None, mount: Mount | None) -> ContainerEdits:
    edits = own or ContainerEdits()
    return edits if mount is None else msgspec.structs.replace(edits, mounts=(*edits.mounts, mount))


def _copy(record: Record) -> CDIDevice:
    # The copy says what the claim holds and which claim it is. Its pods and its allocation are read from the API server
    # again, because they may have changed until then.
    given = msgspec.structs.replace(record, state=ClaimState.COMPLETED, pods=(), pod_claim_name="", fingerprint="")
    edits = ContainerEdits(env=(f"{COPY}{encode_json(given).decode()}",))
    return CDIDevice(name=_copy_device(record.uid), container_edits=edits)


def _copy_device(uid: str) -> str:
    return f"record-{uid}"


def record_in_spec(uid: str, spec: Spec) -> Record | None:
    """Return the copy of the claim's record in a spec; None if there is none, or if it is not this claim's."""
    device = next((device for device in spec.devices if device.name == _copy_device(uid)), None)
    text = next((entry for entry in device.container_edits.env if entry.startswith(COPY)), None) if device else None
    if text is None:
        return None
    try:
        record = decode_json(Record, text.removeprefix(COPY))
    except DocumentError:
        return None
    # `_copy` leaves the fingerprint out. With one, the record would count as decided, and the claim's allocation would
    # not be read again.
    return record if record.uid == uid and not record.fingerprint else None


def prepared_devices(kind: str, record: Record, mounting: Container[str]) -> tuple[PreparedDevice, ...]:
    """Return the devices for kubelet: each result has the claim's CDI device and its own one, if these exist.

    Args:
        kind: vendor and class of the claim's CDI devices.
        record: the claim's record.
        mounting: the names of its CDI devices that have a mount besides their edits.
    """

    def cdi(name: str, edits: ContainerEdits | None) -> tuple[str, ...]:
        # The spec has no device without edits, and a runtime refuses a container with an unknown device.
        return (qualified_name(kind, name),) if edits or name in mounting else ()

    shared = cdi(claim_device(record.uid), record.edits)
    return tuple(
        PreparedDevice(
            request=main_request(grant.request),
            pool=grant.pool,
            device=grant.device,
            cdi=shared + cdi(request_device(record.uid, index), grant.edits),
            share_id=grant.share_id,
        )
        for index, grant in enumerate(record.grants)
    )


def holdings(records: Iterable[Record], sources: Sources) -> tuple[Holding, ...]:
    """Return what the records hold; `sources` is `Plugin.sources` of their driver."""
    return tuple(record.holding(sources) for record in records)


def _sources(sources: Sources, grant: Grant) -> frozenset[str] | None:
    try:
        return sources(grant.device, grant.state)
    except Exception:  # noqa: BLE001 - another version may have written a state that this one cannot read
        return None


# If it is not known what some claims hold, no new claim is prepared: any device may be held. That ends when these
# claims are unprepared, when their CDI specs can be read again, or when an administrator says that they are gone
# (`dranode forget-lost`).

LOST_RECORD: Final = "its record is lost and no CDI spec says what it holds"


def missing_claims(loss: str, driver: str) -> str:
    """Return the error for a ledger that may lack claims; `loss` says why it may."""
    return (
        f"no new claims are prepared on this node: {loss}; delete the pods whose claims `dranode claims` does not "
        f"list, or drain the node, then run `{_command(driver)}`"
    )


def unknown_claim(uid: str, reason: str, driver: str) -> str:
    """Return the error for one claim that may hold any device."""
    return (
        f"no new claims are prepared while the claim with UID {uid} may hold anything: {reason}; "
        "delete the pods that use that claim, so that it is unprepared, or, if there is no such claim, run "
        f"`{_command(driver)}`"
    )


def ledger_problems(loss: str, records: Iterable[Record], driver: str) -> tuple[str, ...]:
    """Return the reasons in a ledger why no new claims are prepared, a sentence each."""
    lost = (unknown_claim(record.uid, LOST_RECORD, driver) for record in records if record.lost)
    return (*((missing_claims(loss, driver),) if loss else ()), *lost)


def _command(driver: str) -> str:
    return f"dranode forget-lost --drivers {driver}"


class Unread(msgspec.Struct, frozen=True):
    """The ledger or the hardware cannot be read.

    A ledger that was not read is not an empty ledger, and hardware that was not read has not lost its devices. So there
    may be other claims, or other devices, than are known.

    Attributes:
        reason: why it cannot be read, and what to do, in one sentence.
        records: what is known about claims: the records as of the last reading, and what CDI specs on the node say.
        blind: whether something may be held although none of these records says so.
    """

    reason: str
    records: tuple[Record, ...] = ()
    blind: bool = False
