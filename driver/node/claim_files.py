"""The files that follow from a record: the claim's CDI spec and what its containers read of their devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from dranode.api.errors import DranodeError, in_words
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.metadata import metadata_devices, requests_of
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import PreparedDevice, Record, prepared_devices
from dranode.driver.node.discovery import Discovery
from dranode.driver.node.metadata_files import Described, DeviceMetadata, MetadataError
from dranode.driver.node.record_store import RecordBook
from dranode.driver.node.specs import Specs, Stamp

log = logging.getLogger(__name__)

# kubelet runs 110 pods on a node if it is not told otherwise; the files of a claim take about a millisecond.
_BEFORE_ANSWERS: Final = 128


class ClaimFiles(msgspec.Struct, dict=True):
    """The files of one driver's claims. They are written under the lock on decisions, and may be looked up at any time.

    Attributes:
        plugin: the driver, which knows what of a spec depends on the live machine.
        book: what is known of every claim.
        specs: the CDI specs.
        metadata: the device metadata (KEP-5304); None if workloads get none.
        discovery: what the driver has read of the hardware, for the metadata.
        written: the CDI specs of claims of which this process has written or seen all files, as they were then; a claim
            without is to be looked into.
        undescribed: called with each claim whose metadata cannot be written, and why.
        problem: why CDI specs cannot be written or listed; None if they can, as far as is known.
    """

    plugin: Plugin
    book: RecordBook
    specs: Specs
    discovery: Discovery
    metadata: DeviceMetadata | None = None
    written: dict[str, Stamp] = msgspec.field(default_factory=dict)
    undescribed: Callable[[ClaimRef, str], None] = lambda _claim, _reason: None
    problem: str | None = None

    def check(self) -> None:
        """See whether CDI specs can be used; `problem` says if not."""
        problem = None
        try:
            self.specs.check()
        except DranodeError as error:
            problem = str(error)
        if problem != self.problem:
            if problem is None:
                log.warning("driver=%s: CDI specs can be written again", self.plugin.driver)
            else:
                log.error("driver=%s: %s", self.plugin.driver, problem)
        self.problem = problem

    def has_strays(self) -> bool:
        """Return whether there may be metadata that nobody needs (`sweep`).

        Raises:
            DranodeError: that cannot be seen.
        """
        return self.metadata is not None and (self.metadata.has_older() or bool(self._strays(self.metadata)))

    def _strays(self, metadata: DeviceMetadata) -> frozenset[str]:
        return frozenset(uid for uid in metadata.uids() if self.book.entry(uid) is None)

    def sweep(self) -> None:
        """Remove the metadata of claims of which nothing is known, and what of earlier versions' no spec mounts.

        Raises:
            DranodeError: something cannot be removed.
        """
        if self.metadata is None:
            return
        for uid in self._strays(self.metadata):
            self.metadata.remove(ClaimRef("", "", uid), ())
        self.metadata.remove_older()

    def write(self, record: Record) -> bool:
        """Write a claim's metadata, if workloads get any, and the CDI spec that mounts what is there of it.

        The spec is completed by what only the live machine knows. False if it says the same already.

        Raises:
            MetadataError: some metadata cannot be written; the spec is there all the same.
            DranodeError: the spec cannot be written, or something that it names is not there.
        """
        grants = self.plugin.complete(record.ref, record.grants)
        described = self._describe(record)
        original = record if self._copies(record, grants) else None
        changed = self.specs.write(msgspec.structs.replace(record, grants=grants), described.mounts, original)
        if described.problem:
            raise MetadataError(described.problem)
        return changed

    def _describe(self, record: Record) -> Described:
        if self.metadata is None:
            return Described()
        # Of a recovered claim not all is known that its metadata says and where its containers look for it.
        spec = None if record.fingerprint else self.specs.read(record.uid)
        kept = self.metadata.mounted(spec) if spec is not None else {}
        return Described(kept) if kept else self.metadata.write(record, self.discovery.inventory)

    def _copies(self, record: Record, grants: tuple[Grant, ...]) -> bool:
        """Return whether the CDI spec of a claim with these grants carries a copy of its record."""
        # A driver's own form says nothing of several requests, whose CDI devices kubelet goes on asking for, nor of a
        # claim whose containers get no edits.
        says_all = record.edits or any(grant.edits for grant in grants)
        return not (isinstance(self.plugin, Recovers) and says_all) or len(requests_of(record)) > 1

    def write_and_note(self, record: Record) -> None:
        """Write a claim's files, and note that they say what they should.

        Metadata that cannot be written is reported, and is no failure of the claim, which can do without.

        Raises:
            DranodeError: the CDI spec cannot be written, or something that it names is not there.
        """
        # Until all are written they are to be looked into: what fails may leave the spec of another record.
        self.written.pop(record.uid, None)
        try:
            self.write(record)
        except MetadataError as error:
            log.warning("claim=%s uid=%s driver=%s: %s", record.ref, record.uid, self.plugin.driver, error)
            self.undescribed(record.ref, str(error))
        else:
            self._note(record.uid, self.specs.stamp(record.uid))

    def _note(self, uid: str, stamp: Stamp | None) -> None:
        if stamp is not None:
            self.written[uid] = stamp
        else:
            self.written.pop(uid, None)

    def remove(self, claim: ClaimRef, requests: tuple[str, ...]) -> None:
        """Remove a claim's CDI spec and its metadata; `requests` are those that are known of it.

        Raises:
            DranodeError: something cannot be removed.
        """
        self.written.pop(claim.uid, None)
        self.specs.remove(claim.uid)
        if self.metadata is not None:
            self.metadata.remove(claim, requests)

    def writable(self, record: Record) -> bool:
        """Return whether the claim's files can be made from its record and are this driver's to write."""
        # Of a lost record nothing is known that could be written, and a spec that lies there is in use. What another
        # driver wrote is left alone until it is clear whose claim it is.
        entry = self.book.entry(record.uid)
        says_something = record.fingerprint or record.edits or record.grants
        return bool(says_something) and (entry is None or entry.on_file)

    def unwritten(self) -> tuple[Record, ...]:
        """The records whose files are to be written before the first answer.

        Those of a driver whose specs depend on the live machine, and the first that lack a spec. After a reboot every
        claim does, and kubelet asks for each again before a container starts, which writes its files. So no call waits
        for more of them than a node usually has; the others follow in between (`SpecWatch`).

        None while the hardware was never read, of which workloads read in their metadata. Whether files that are there
        say what they should is looked into later too, a few at a time.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        if self.discovery.known is None:
            return ()
        there = self.specs.names()
        whole: list[Record] = []
        lacking: list[Record] = []
        for record in filter(self.writable, self.book.records()):
            (whole if self.specs.name(record.uid) in there else lacking).append(record)
        return (*(whole if self.plugin.completes() else ()), *lacking[:_BEFORE_ANSWERS])

    def mend(self, uids: Iterable[str]) -> dict[str, Refused | None]:
        """Write again the files of these claims that are not as they should be; those claims, with what went wrong.

        No claim while the hardware was never read.
        """
        mended: dict[str, Refused | None] = {}
        if self.discovery.known is None:
            return mended
        for record in filter(None, map(self.book.record, uids)):
            if not self.writable(record):
                continue
            try:
                before = self.specs.stamp(record.uid)
                if self.write(record):
                    mended[record.uid] = None
                # Somebody may alter a file again meanwhile: only what was there before it was compared is noted. A file
                # that was written is compared once more at the next look.
                self._note(record.uid, before if self.specs.stamp(record.uid) == before else None)
            except DranodeError as error:
                mended[record.uid] = Refused(str(error))
            except Exception as error:  # noqa: BLE001 - the caller reports it, once and not at every look
                mended[record.uid] = Refused(
                    f"the CDI spec of claim {record.ref} cannot be written again, because {self.plugin.driver} met "
                    f"an error inside it: {in_words(error)}"
                )
        return mended

    def devices(self, record: Record) -> tuple[PreparedDevice, ...]:
        """The devices of a claim that is prepared, for kubelet."""
        return prepared_devices(self.specs.kind, record, self._mounting(record))

    def _mounting(self, record: Record) -> Collection[str]:
        """The claim's CDI devices that mount metadata; none that the spec lacks, which a runtime would not find."""
        if self.metadata is None:
            return ()
        devices = metadata_devices(record).values()
        if record.uid in self.written:
            return devices
        spec = self.specs.read(record.uid)
        return () if spec is None else frozenset(devices) & {device.name for device in spec.devices}

    def path(self, uid: str) -> Path | None:
        """The CDI spec of a claim; None if it is not there.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        own = self.specs.path(uid)
        return own if own.name in self.specs.names() else None
