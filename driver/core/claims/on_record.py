"""Says what is known while ledger or hardware cannot be read.

A ledger that was not read is no empty one, and hardware that was not read has not lost its devices: code that decides
by them has to face that there may be more, or something else.
"""

from __future__ import annotations

import msgspec

from dranode.driver.core.claims.record import Record


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
