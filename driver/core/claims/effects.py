"""The effects of a decision, as values, in order. `dranode.driver.node.interpreter` carries them out.

A crash may fall between any two of them; what is on record then says how to go on (see `core.claims.prepare`).
"""

from __future__ import annotations

import msgspec

from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.record import Record


class Commit(msgspec.Struct, frozen=True):
    """One durable commit: these records are written, these claims are forgotten.

    Attributes:
        put: the records.
        drop: the UIDs of the claims.
        notes: the driver's notes from now on (`core.claims.tuning`), as JSON; None if they stay as they are.
    """

    put: tuple[Record, ...] = ()
    drop: tuple[str, ...] = ()
    notes: str | None = None

    def __bool__(self) -> bool:
        """Return whether anything is written."""
        return bool(self.put or self.drop) or self.notes is not None


class Configure(msgspec.Struct, frozen=True):
    """Bring the hardware into the state that the claim needs."""

    record: Record


class Restore(msgspec.Struct, frozen=True):
    """Bring the hardware back from the state that the claim needed."""

    record: Record


class WriteFiles(msgspec.Struct, frozen=True):
    """Write the claim's CDI spec and its device metadata (KEP-5304), or see that they are there as they should be."""

    record: Record


class RemoveFiles(msgspec.Struct, frozen=True):
    """Remove the claim's CDI spec and its device metadata; `requests` are the names of its requests that are known."""

    claim: ClaimRef
    requests: tuple[str, ...] = ()


Effect = Commit | Configure | Restore | WriteFiles | RemoveFiles


class Decision(msgspec.Struct, frozen=True):
    """The decision on the claims of one call.

    Attributes:
        commit: what goes on record first; for a Prepare in the transaction in which it was decided.
        effects: what is carried out after that, in order.
    """

    commit: Commit = Commit()
    effects: tuple[Effect, ...] = ()
