"""The files of a claim, derived from its record: the CDI spec, and the metadata that its containers read."""

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

# How many missing specs are written before the first answer. kubelet's default is 110 pods on a node (maxPods).
_BEFORE_ANSWERS: Final = 128


class ClaimFiles(msgspec.Struct, dict=True):
    """The files of one driver's claims. They are written under the lock on decisions; any thread may look them up.

    Attributes:
        plugin: the driver, which knows the parts of a spec that depend on the live machine.
        book: what is known about every claim.
        specs: the CDI specs.
        metadata: the device metadata (KEP-5304); None if containers get none.
        discovery: what the driver has read of the hardware, for the metadata.
        written: for each claim whose files this process has written or checked, the stamp of its CDI spec at that time.
            The files of all other claims still have to be checked.
        undescribed: called with each claim whose metadata cannot be written, and the reason.
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
        """Check whether CDI specs can be written and listed; the result is `problem`."""
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
        """Return whether there may be metadata for `sweep` to remove.

        Raises:
            DranodeError: the metadata cannot be listed.
        """
        return self.metadata is not None and (self.metadata.has_older() or bool(self._strays(self.metadata)))

    def _strays(self, metadata: DeviceMetadata) -> frozenset[str]:
        return frozenset(uid for uid in metadata.uids() if self.book.entry(uid) is None)

    def sweep(self) -> None:
        """Remove the metadata of unknown claims, and files of earlier versions that no CDI spec mounts any more.

        Raises:
            DranodeError: a file cannot be removed.
        """
        if self.metadata is None:
            return
        # Metadata without a record is left over from a crash between the removal of both.
        for uid in self._strays(self.metadata):
            self.metadata.remove(ClaimRef("", "", uid), ())
        self.metadata.remove_older()

    def write(self, record: Record) -> bool:
        """Write a claim's metadata, and the CDI spec that mounts it; False if the spec did not have to be changed.

        Raises:
            MetadataError: some metadata cannot be written. The spec is written all the same, without these mounts.
            DranodeError: the spec cannot be written, or something that it names is missing.
        """
        # Numbers of device nodes and the like are read now: they may have changed since the claim was prepared.
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
        # For a recovered claim it is not known what its metadata says and where containers expect it. What its spec
        # mounts is kept.
        spec = None if record.fingerprint else self.specs.read(record.uid)
        kept = self.metadata.mounted(spec) if spec is not None else {}
        return Described(kept) if kept else self.metadata.write(record, self.discovery.inventory)

    def _copies(self, record: Record, grants: tuple[Grant, ...]) -> bool:
        """Return whether the CDI spec of a claim with these grants carries a copy of its record."""
        # A spec in the driver's own form (`Recovers`) needs no copy, unless it cannot say everything: which request a
        # device was for, or that the claim's containers get no edits.
        says_all = record.edits or any(grant.edits for grant in grants)
        return not (isinstance(self.plugin, Recovers) and says_all) or len(requests_of(record)) > 1

    def write_and_note(self, record: Record) -> None:
        """Write a claim's files, and note that they are as they should be.

        If metadata cannot be written, that is reported, but the claim does not fail: containers can do without.

        Raises:
            DranodeError: the CDI spec cannot be written, or something that it names is missing.
        """
        # A failure half-way may leave the spec of an older record, so the files count as unchecked until all are
        # written.
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
        """Remove a claim's CDI spec and its metadata; `requests` are its requests, as far as they are known.

        Raises:
            DranodeError: a file cannot be removed.
        """
        self.written.pop(claim.uid, None)
        # The spec goes first: a spec must not mount metadata that is gone, or a container would fail to start.
        self.specs.remove(claim.uid)
        if self.metadata is not None:
            self.metadata.remove(claim, requests)

    def writable(self, record: Record) -> bool:
        """Return whether the claim's record is enough to write its files, and whether they are this driver's."""
        # A lost record says nothing that could be written, and its spec is in use. A leftover spec may be another
        # driver's; it is left unchanged until it is known whose claim it is.
        entry = self.book.entry(record.uid)
        says_something = record.fingerprint or record.edits or record.grants
        return bool(says_something) and (entry is None or entry.on_file)

    def unwritten(self) -> tuple[Record, ...]:
        """Return the records whose files are to be written before the first answer.

        These are the records without a CDI spec, at most as many as a node usually has pods. After a reboot, no claim
        has one, but kubelet prepares each claim again before its containers start, which writes its files; `SpecWatch`
        writes the rest. If the driver's specs depend on the live machine, all other specs are written as well. Files
        that exist are checked later, a few at a time.

        There are none until the hardware has been read, because metadata describes it.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        if self.discovery.known is None:
            return ()
        existing = self.specs.names()
        whole: list[Record] = []
        lacking: list[Record] = []
        for record in filter(self.writable, self.book.records()):
            (whole if self.specs.name(record.uid) in existing else lacking).append(record)
        return (*(whole if self.plugin.completes() else ()), *lacking[:_BEFORE_ANSWERS])

    def mend(self, uids: Iterable[str]) -> dict[str, Refused | None]:
        """Rewrite the files of these claims that are not as they should be.

        Returns:
            The claims whose files were wrong, by UID, each with the refusal if they could not be written. None are
            checked until the hardware has been read.
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
                # Somebody may change the file meanwhile, so only a stamp from before the comparison counts. A file that
                # was just written is compared again next time.
                self._note(record.uid, before if self.specs.stamp(record.uid) == before else None)
            except DranodeError as error:
                mended[record.uid] = Refused(str(error))
            except Exception as error:  # noqa: BLE001 - the caller reports it once
                mended[record.uid] = Refused(
                    f"the CDI spec of claim {record.ref} cannot be written again: internal error in "
                    f"{self.plugin.driver}: {in_words(error)}"
                )
        return mended

    def devices(self, record: Record) -> tuple[PreparedDevice, ...]:
        """Return the devices of a prepared claim, for kubelet's answer."""
        return prepared_devices(self.specs.kind, record, self._mounting(record))

    def _mounting(self, record: Record) -> Collection[str]:
        """Return the claim's CDI devices that mount metadata."""
        # Only those that the spec has: a container with a CDI id that the runtime does not find fails to start.
        if self.metadata is None:
            return ()
        devices = metadata_devices(record).values()
        if record.uid in self.written:
            return devices
        spec = self.specs.read(record.uid)
        return () if spec is None else frozenset(devices) & {device.name for device in spec.devices}

    def path(self, uid: str) -> Path | None:
        """Return the path of a claim's CDI spec; None if there is no such file.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        own = self.specs.path(uid)
        return own if own.name in self.specs.names() else None
