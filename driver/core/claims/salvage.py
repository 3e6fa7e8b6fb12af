"""Decides which claims are on record again after the ledger was lost, and whether these may be all.

    what is left                                             is on record again           new claims
    a copy that is whole and up to date                      what it says                 as ever
    CDI specs of ours (they lie in memory: since the boot)   they, the copy and the rows  as ever
    the same, and rows that cannot be read                   they and the copy            none, until somebody says so
    neither                                                  the copy and the rows        none, until somebody says so

The copy is not flushed with each commit, so after a power cut it is up to date only if it was closed. A copy or
a row may tell of a claim that has ended: Unprepare puts right what is held too long, nothing what is held too little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dranode.driver.core.claims.record import Record

NOTES_LOST = "the ledger was lost, and its copy with it or in part"
LOST = "the ledger was lost, and nothing tells of all claims that were on record"


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
