"""A claim's row in the ledger, and what follows from it: the devices held, the CDI spec, the answer for kubelet.

A claim's spec can carry a copy of its record, from which a ledger that is lost comes back: the variable
`DRANODE_RECORD` of a CDI device `record-<uid>`. Kubelet never gets that device, so no container sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping
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

# With a driver's and a request's name of 63 characters a file's name stays below the kernel's 255.
MAX_UID: Final = 100
COPY: Final = "DRANODE_RECORD="

Sources = Callable[[str, Any], frozenset[str] | None]
"""`Plugin.sources` of a driver."""


class ClaimState(StrEnum):
    """The state of a claim. STARTED: the hardware may or may not be configured (or restored) yet."""

    STARTED = "started"
    COMPLETED = "completed"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim on record: everything that is needed to answer for it without another request.

    Attributes:
        uid: the claim's UID; namespace and name are empty while a recovered record has no known owner.
        state: how far it has come.
        grants: what each allocation result was given, in the order of the results.
        edits: what every container with the claim gets.
        cpus: the CPUs on which its containers run; a cpu-list in JSON.
        held: the CPUs that no other claim gets; a cpu-list in JSON.
        pods: who may use the claim, as reserved at the last Prepare: pods, and PodGroups, whose pods are not known.
        pod_claim_name: how its pod calls the claim, if it was made from a template; empty if not.
        fingerprint: of the allocation that was decided on; empty in a recovered record.
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
        # msgspec leaves out a default by its identity, and rows of the ledger never had empty sets.
        for name in ("cpus", "held"):
            if not getattr(self, name):
                msgspec.structs.force_setattr(self, name, NO_CPUS)

    @property
    def ref(self) -> ClaimRef:
        """The claim's identity."""
        return ClaimRef(self.namespace, self.name, self.uid)

    @property
    def lost(self) -> bool:
        """Return whether nothing is known of the claim but that it may hold something."""
        return not (self.fingerprint or self.grants or self.cpus)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the claim holds: without those of admin access."""
        return tuple(grant.device for grant in self.grants if not grant.admin)

    def holding(self, sources: Sources) -> Holding:
        """Return what the claim holds, with `Plugin.sources` of its driver.

        A result without a share has its device whole, unless amounts or CPUs say how much of it the claim has.
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
        """Return how much the claim holds of devices that several claims share, by device."""
        amounts: dict[str, int] = {}
        for grant in self.grants:
            if grant.amount:
                amounts[grant.device] = amounts.get(grant.device, 0) + grant.amount
        return amounts


class PreparedDevice(msgspec.Struct, frozen=True):
    """One device as kubelet gets it (`dra.v1.Device`): `request` is the main request, `cdi` are qualified CDI names."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]
    share_id: str | None = None


def record_of(
    claim: AllocatedClaim, grant: ClaimGrant, pods: tuple[ResourceClaimConsumerReference, ...], state: ClaimState
) -> Record:
    """The record of a claim that was just decided."""
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
    """The record of a claim of which only the CDI spec is left."""
    return Record(uid=uid, grants=grant.grants, edits=grant.edits, cpus=grant.cpus, held=grant.held)


def fingerprint(claim: AllocatedClaim) -> str:
    """A short hash of what was allocated to the claim; a Prepare with another one asks for something else."""
    # What was decided on and no more: fields that a later version learns to read must not make old claims look changed.
    parts = [
        (
            each.result.request,
            each.result.pool,
            each.result.device,
            bool(each.result.admin_access),
            each.result.share_id,
            sorted((name, amount.text) for name, amount in each.result.consumed_capacity.items()),
            [(config.source, config.parameters) for config in each.configs],
        )
        for each in claim.results
    ]
    return hashlib.blake2b(encode_json(parts), digest_size=8).hexdigest()


def uid_problem(uid: str) -> str | None:
    """Return why nothing on the node can be named after a claim's UID.

    None if it can. Kubernetes' own have 36 characters.
    """
    if len(uid) > MAX_UID:
        return f"has {len(uid)} characters, more than {MAX_UID}, and files are named after it"
    return device_problem(uid)


def claim_device(uid: str) -> str:
    """The name of the CDI device that every container with the claim gets. A letter first keeps CDI 0.3.0 possible."""
    return f"claim-{uid}"


def request_device(uid: str, index: int) -> str:
    """The name of the CDI device of the claim's result number `index`."""
    return f"claim-{uid}-{index}"


def spec_file(kind: str, uid: str) -> str:
    """The file of the claim's CDI spec, as the CDI library names transient specs: `vendor-class_claim-<uid>.json`."""
    return spec_file_name(kind, claim_device(uid))


def claim_spec(kind: str, record: Record, mounts: Mapping[str, Mount], original: Record | None = None) -> Spec:
    """The claim's CDI spec, in the lowest CDI version that can say it.

    Args:
        kind: vendor and class of its devices.
        record: the record, its grants completed.
        mounts: the mounts of its devices beyond their edits, by the device's name.
        original: the record as it is in the ledger, where the spec is to carry a copy.
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
    # What the claim was given and whose it is. The rest is asked again: who may use it, and what is allocated to it.
    given = msgspec.structs.replace(record, state=ClaimState.COMPLETED, pods=(), pod_claim_name="", fingerprint="")
    edits = ContainerEdits(env=(f"{COPY}{encode_json(given).decode()}",))
    return CDIDevice(name=_copy_device(record.uid), container_edits=edits)


def _copy_device(uid: str) -> str:
    return f"record-{uid}"


def copied(uid: str, spec: Spec) -> Record | None:
    """The copy of the claim's record that a spec carries; None if it carries none that can be believed."""
    device = next((each for each in spec.devices if each.name == _copy_device(uid)), None)
    text = next((entry for entry in device.container_edits.env if entry.startswith(COPY)), None) if device else None
    if text is None:
        return None
    try:
        record = decode_json(Record, text.removeprefix(COPY))
    except DocumentError:
        return None
    return record if record.uid == uid and not record.fingerprint else None


def prepared_devices(kind: str, record: Record, mounting: Container[str]) -> tuple[PreparedDevice, ...]:
    """The answer for kubelet: for every result the claim's CDI device, if it has one, and its own, if it has one.

    Args:
        kind: vendor and class of the claim's CDI devices.
        record: the claim's record.
        mounting: the names of its CDI devices that mount something beyond their edits.
    """

    def given(name: str, edits: ContainerEdits | None) -> tuple[str, ...]:
        return (qualified_name(kind, name),) if edits or name in mounting else ()

    shared = given(claim_device(record.uid), record.edits)
    return tuple(
        PreparedDevice(
            request=main_request(grant.request),
            pool=grant.pool,
            device=grant.device,
            cdi=shared + given(request_device(record.uid, index), grant.edits),
            share_id=grant.share_id,
        )
        for index, grant in enumerate(record.grants)
    )


def holdings(records: Iterable[Record], sources: Sources) -> tuple[Holding, ...]:
    """Return what all the records hold, with `Plugin.sources` of their driver."""
    return tuple(record.holding(sources) for record in records)


def _sources(sources: Sources, grant: Grant) -> frozenset[str] | None:
    try:
        return sources(grant.device, grant.state)
    except Exception:  # noqa: BLE001 - a state that another version wrote: what it is made of is not known
        return None


# Says why a driver prepares no new claims although its ledger can be read: the devices of some claims are not known.
#
# Whatever was handed out might be held by one of them, so every new claim waits until they are unprepared, their CDI
# specs can be read again, or an administrator says that they are gone (`dranode forget-lost`).

LOST_RECORD: Final = "its record is lost and no CDI spec says what it holds"


def missing_claims(doubt: str, driver: str) -> str:
    """The sentence on a ledger that may lack claims; `doubt` says why it may."""
    return (
        f"nothing new is handed out on this node: {doubt}; delete the pods whose claims `dranode claims` does not "
        f"list, or drain the node, then run `{_command(driver)}`"
    )


def unknown_claim(uid: str, reason: str, driver: str) -> str:
    """The sentence on one claim that may hold anything."""
    return (
        f"nothing new is handed out while the claim with UID {uid} may hold anything: {reason}; "
        "delete the pods that use that claim, so that it is unprepared, or, if there is no such claim, run "
        f"`{_command(driver)}`"
    )


def ledger_problems(doubt: str, records: Iterable[Record], driver: str) -> tuple[str, ...]:
    """Return what a ledger itself says, a sentence each: claims may be missing, or nothing is known of some records."""
    lost = (unknown_claim(record.uid, LOST_RECORD, driver) for record in records if record.lost)
    return (*((missing_claims(doubt, driver),) if doubt else ()), *lost)


def _command(driver: str) -> str:
    return f"dranode forget-lost --drivers {driver}"


# Says what is known while ledger or hardware cannot be read.
#
# A ledger that was not read is no empty one, and hardware that was not read has not lost its devices: code that decides
# by them has to face that there may be more, or something else.


class Unread(msgspec.Struct, frozen=True):
    """The ledger cannot be read, so that more may be on record than is known; or the hardware cannot.

    Attributes:
        reason: why not, and what to do, in one sentence.
        records: what is known of claims all the same: the records as they are or, without the ledger, of the last time
            that it could be read, and what the CDI specs on the node say.
        blind: something is held, or may be, of which none of these says what.
    """

    reason: str
    records: tuple[Record, ...] = ()
    blind: bool = False


# Decides which claims are on record again after the ledger was lost, and whether these may be all.
#
#     what is left                                             is on record again           new claims
#     a copy that is whole and up to date                      what it says                 as ever
#     CDI specs of ours (they lie in memory: since the boot)   they, the copy and the rows  as ever
#     the same, and rows that cannot be read                   they and the copy            none, until somebody says so
#     neither                                                  the copy and the rows        none, until somebody says so
#
# The copy is not flushed with each commit, so after a power cut it is up to date only if it was closed. A copy or
# a row may tell of a claim that has ended: Unprepare puts right what is held too long, nothing what is held too little.

NOTES_LOST = "the ledger was lost, and all or part of its copy"
LOST = "the ledger was lost, and not all claims that were on record are known"


class Copied(msgspec.Struct, frozen=True):
    """The records of a copy of the ledger.

    Attributes:
        commits: the number of the last commit that it has.
        records: the claims on record after that one.
        doubt: why claims may be missing, as the ledger has it; empty if none is.
        boot: the boot under which it was begun.
        whole: whether every line of it is as it was written.
        closed: whether it was flushed after the last commit.
        notes: the driver's notes, as JSON; empty if it has none.
        notes_lost: why the notes may lack what the driver has noted; empty if they do not.
    """

    commits: int = 0
    records: Mapping[str, Record] = msgspec.field(default_factory=dict)
    doubt: str = ""
    boot: str = ""
    whole: bool = True
    closed: bool = False
    notes: str = ""
    notes_lost: str = ""

    def complete(self, boot: str) -> bool:
        """Return whether nothing that was on record is missing in it, under this boot; an unknown one may be any."""
        return self.whole and (self.closed or (bool(boot) and self.boot == boot))


def salvaged(
    copied: Copied | None, specs: Mapping[str, Record], rows: Iterable[Record], boot: str, unread: str = ""
) -> Copied:
    """Return what is to be on record again.

    Args:
        copied: the copy, if there is one.
        specs: what the CDI specs on the node say, by UID.
        rows: what was found in the damaged file.
        boot: the boot now.
        unread: why that file may have other rows; empty if it was read.
    """
    copy = copied or Copied(whole=False)
    records = dict(copy.records)
    doubt, notes_lost = copy.doubt, copy.notes_lost
    if not copy.complete(boot):
        notes_lost = notes_lost or NOTES_LOST
        for row in rows:
            before = records.get(row.uid)
            records[row.uid] = row if before is None else _both(before, row)
        # Specs are written again one after another after a boot: of the others only rows would tell.
        doubt = doubt or (f"{LOST}: {unread}" if unread else "" if specs else LOST)
        specs = {uid: found for uid, found in specs.items() if not _covers(records.get(uid), found)}
        records |= {uid: found for uid, found in specs.items() if not found.lost}
    records |= {uid: found for uid, found in specs.items() if uid not in records}
    return Copied(copy.commits + 1, records, doubt, boot, notes=copy.notes, notes_lost=notes_lost)


def prepared_under(copied: Copied | None, specs: Mapping[str, Record], boot: str) -> str:
    """Return the boot id under which the claims were prepared: `boot` unless they have to be prepared again.

    The copy says under which boot it was begun. If that is this one, it may have been begun by a process that opened a
    ledger of an earlier boot and died before that was noted there. CDI specs lie in memory: they are written later.
    """
    if copied is not None and copied.boot and copied.boot != boot:
        return copied.boot
    return boot if specs else ""


def _both(first: Record, second: Record) -> Record:
    return msgspec.structs.replace(first, held=first.held | second.held)


def _covers(record: Record | None, spec: Record) -> bool:
    """Return whether a record says of its claim what the spec says, and more."""
    if record is None or record.held != spec.held:
        return False
    return not spec.grants or record.devices == spec.devices


# The CPUs on which a container should run, according to what its claims were given. Enforcement,
# `dranode claims --verify` and `dranode explain` all ask here, so their answers cannot differ.


class GivenCPUs(msgspec.Struct, frozen=True):
    """The CPUs that a claim was given.

    Attributes:
        whole: those of a container that has all of the claim.
        parts: those of each allocation result, by its number; empty if the claim does not tell its results apart.
    """

    whole: CPUSet
    parts: Mapping[int, CPUSet]

    def of_parts(self, indexes: Collection[int]) -> CPUSet:
        """Return the CPUs of a container that is known to have these allocation results."""
        mine = parts_of_container(indexes, self.parts)
        return self.whole if len(mine) == len(self.parts) else CPUSet.union(self.parts[index] for index in mine)


def cpus_of_requests(record: Record) -> dict[str, CPUSet]:
    """Return the CPUs of each request of a claim on record; empty if that does not tell its requests apart."""
    requests: dict[str, CPUSet] = {}
    for index, cpus in given_cpus(record).parts.items():
        request = record.grants[index].request
        requests[request] = requests.get(request, CPUSet()) | cpus
    return requests


def given_cpus(record: Record) -> GivenCPUs:
    """Return the CPUs of a claim on record; its results count as parts only if each has CPUs of its own."""
    parts = {index: grant.cpus for index, grant in enumerate(record.grants) if grant.cpus is not None}
    return GivenCPUs(record.cpus, parts if len(parts) == len(record.grants) else {})


def with_pool(record: Record, indexes: Collection[int]) -> bool:
    """Return whether a container with these results of a claim, or all of it, runs on the shared pool besides."""
    mine = parts_of_container(indexes, given_cpus(record).parts) or range(len(record.grants))
    return any(record.grants[index].with_pool for index in mine)


def parts_of_container(indexes: Collection[int], parts: Iterable[int]) -> tuple[int, ...]:
    """Return the parts of a claim that a container has; all parts if it is not known to have any."""
    every = tuple(parts)
    return tuple(index for index in every if index in indexes) or every


def expected_cpus(claims: Iterable[CPUSet], online: CPUSet) -> CPUSet | None:
    """Return the CPUs on which a container should run that has these CPUs of its claims.

    Offline CPUs are left out, because some kernels refuse them. The answer is None if its claims have no CPUs for it,
    as with admin access, or if none of them is online: the container belongs to the shared pool. The kernel lets what
    has lost every CPU run wherever its parent may, which is on CPUs of other claims (cgroups(7), cpuset).
    """
    return (CPUSet.union(claims) & online) or None
