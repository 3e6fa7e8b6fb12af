"""Decides what is on record after the ledger was lost: the claims that its copy, CDI specs and intact rows have.

    what is left                                               is on record again           new claims
    a copy that is complete                                    what it says                 are prepared
    CDI specs of this driver (/var/run: since the last boot)   they, the copy and the rows  are prepared
    the same, but some rows cannot be read                     they and the copy            wait for `forget-lost`
    neither                                                    the copy and the rows        wait for `forget-lost`

The copy is not flushed with each commit, so after a power cut it is complete only if it was closed. A copy or a row
may contain a claim that has ended. That is safe: a claim that is held too long is corrected by Unprepare, but nothing
would correct a claim that is missing.
"""

from collections.abc import Iterable, Mapping

import msgspec

from dranode.driver.claims.record import Record

NOTES_LOST = "the ledger was lost, and all or part of its copy"
LOST = "the ledger was lost, and not all claims that were on record are known"


class Copied(msgspec.Struct, frozen=True):
    """The records of a copy of the ledger.

    Attributes:
        commits: the number of its last commit.
        records: the claims on record after that commit.
        loss: why claims may be missing, as in the ledger; empty if none are missing.
        boot: the id of the boot in which it was begun.
        whole: whether every line is intact.
        closed: whether it was flushed after the last commit.
        notes: the driver's notes, as JSON; empty if there are none.
        notes_lost: why the notes may be incomplete; empty if they are complete.
    """

    commits: int = 0
    records: Mapping[str, Record] = msgspec.field(default_factory=dict)
    loss: str = ""
    boot: str = ""
    whole: bool = True
    closed: bool = False
    notes: str = ""
    notes_lost: str = ""

    def has_all(self, boot: str) -> bool:
        """Return whether the copy has every record; `boot` is the id of this boot, empty if it is not known."""
        # Lines that were not flushed survive a crash of the process, but not a crash of the machine.
        return self.whole and (self.closed or (bool(boot) and self.boot == boot))


def salvaged(
    copied: Copied | None, specs: Mapping[str, Record], rows: Iterable[Record], boot: str, unread: str = ""
) -> Copied:
    """Return the records for a new ledger after the old one was lost.

    Args:
        copied: the copy, if there is one.
        specs: what the CDI specs on the node say, by UID.
        rows: the intact rows in the damaged file.
        boot: the id of this boot.
        unread: why the file may have other rows; empty if it was read.
    """
    copy = copied or Copied(whole=False)
    records = dict(copy.records)
    loss, notes_lost = copy.loss, copy.notes_lost
    if not copy.has_all(boot):
        notes_lost = notes_lost or NOTES_LOST
        for row in rows:
            before = records.get(row.uid)
            # If copy and row differ, the claim holds what either of them says.
            records[row.uid] = row if before is None else msgspec.structs.replace(before, held=before.held | row.held)
        # After a boot, specs are written again one after the other, so claims without a spec may be known only by rows.
        loss = loss or (f"{LOST}: {unread}" if unread else "" if specs else LOST)
        # Containers may run with what a spec says, so it wins over a copy or a row that says something else. A spec
        # that says nothing only adds a claim that is not known otherwise.
        specs = {uid: record for uid, record in specs.items() if not _covers(records.get(uid), record)}
        records |= {uid: record for uid, record in specs.items() if not record.lost}
    records |= {uid: record for uid, record in specs.items() if uid not in records}
    return Copied(copy.commits + 1, records, loss, boot, notes=copy.notes, notes_lost=notes_lost)


def prepared_under(copied: Copied | None, specs: Mapping[str, Record], boot: str) -> str:
    """Return the id of the boot in which the claims were prepared; any other than `boot` has them configured again.

    The copy says in which boot it was begun. If that is this boot, it may have been begun by a process that opened a
    ledger of an earlier boot and died before it noted the new boot. CDI specs are written after that, and /var/run does
    not survive a boot, so a spec means that the claims were prepared in this one.
    """
    if copied is not None and copied.boot and copied.boot != boot:
        return copied.boot
    return boot if specs else ""


def _covers(record: Record | None, spec: Record) -> bool:
    """Return whether a record says everything about its claim that the spec says."""
    if record is None or record.held != spec.held:
        return False
    return not spec.grants or record.devices == spec.devices
