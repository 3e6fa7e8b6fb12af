"""What is on record where the ledger cannot be read.

A ledger that was not read is no empty one: whoever decides by records has to face that there may be others.
"""

from __future__ import annotations

from dataclasses import dataclass

from dranode.driver.core.claims.record import Record


@dataclass(frozen=True, slots=True)
class Unread:
    """The ledger cannot be read: more may be on record than is known, or something else.

    Attributes:
        reason: why not, and what to do, in one sentence.
        records: what is known all the same: the records of the last time that it could be read, and what the CDI specs
            on the node say.
        blind: something is held, or may be, of which none of these says what.
    """

    reason: str
    records: tuple[Record, ...] = ()
    blind: bool = False
