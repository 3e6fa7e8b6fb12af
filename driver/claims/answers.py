"""The answers that a claim of a Prepare or an Unprepare can get, as values.

A plug-in raises (`core.api.errors`); what is handed on, compared and waited for are these.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import force_setattr

from dranode.api.errors import in_words, one_sentence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import PreparedDevice, Record


class Prepared(msgspec.Struct, frozen=True):
    """The claim is prepared.

    Attributes:
        devices: an entry for each of its results; none if no result is the driver's.
        new: whether it was not on record before.
    """

    devices: tuple[PreparedDevice, ...] = ()
    new: bool = False


class Refused(msgspec.Struct, frozen=True):
    """A refusal; `reason` is one sentence for a person, with what to do."""

    reason: str

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_sentence(self.reason))

    def __str__(self) -> str:
        return self.reason


def refused_by_error(claim: ClaimRef, driver: str, error: Exception) -> Refused:
    """Return the refusal of a claim at which a driver met an error that it does not expect; the log has the rest."""
    return Refused(f"claim {claim} failed: internal error in {driver}, see its log: {in_words(error)}")


class Conflict(msgspec.Struct, frozen=True):
    """Other claims hold what the claim needs; it can be prepared once they are unprepared.

    Attributes:
        reason: one sentence for a person.
        holders: the UIDs of those claims, as far as they are known.
    """

    reason: str
    holders: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_sentence(self.reason))

    def __str__(self) -> str:
        return self.reason


class Changed(msgspec.Struct, frozen=True):
    """The claim is prepared for another allocation than it has now, which has to be undone first."""

    claim: ClaimRef


Answer = Prepared | Refused | Conflict
"""The answer to a Prepare."""

ClaimOutcome = Answer | Changed
"""What one attempt at a Prepare came to; `Changed` is settled before there is an answer."""


# The effects of a decision, as values, in order. `dranode.driver.node.interpreter` carries them out.  A crash may
# fall between any two of them; what is on record then says how to go on (see `core.claims.prepare`).


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


# Why containers are not held to the claims of a driver that pins, and which claims that concerns.

NOT_ENFORCED: Final = "NotEnforced"
"""The reason of a condition or an Event."""


class NotEnforced(msgspec.Struct, frozen=True):
    """Why containers are not held to claims.

    Attributes:
        message: the reason, in one sentence.
        chosen: whether the driver's options want it so; else no claim is prepared meanwhile.
    """

    message: str
    chosen: bool = False


BY_OPTION: Final = NotEnforced(
    "its containers are not held to it, because the driver runs with --nri-socket none: they run on all CPUs and take "
    "memory from anywhere, unless somebody else pins them",
    chosen=True,
)


def no_runtime(socket: str, seconds: float) -> NotEnforced:
    """Return that no container runtime has been connected at a socket for so long."""
    return NotEnforced(
        f"claims are not enforced: no container runtime has been connected over NRI at {socket} for {seconds:.0f} s, "
        "so containers would run on CPUs of other claims; switch NRI on in the runtime (dranode doctor on the node "
        "says how), or run the driver with --nri-socket none to do without"
    )


def needs_enforcing(record: Record) -> bool:
    """Return whether containers with a claim on record are to be held to something: not with admin access alone."""
    return bool(record.held) or any(not grant.admin for grant in record.grants)
