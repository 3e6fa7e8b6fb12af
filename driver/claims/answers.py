"""The answers to a Prepare or an Unprepare, and the effects of a decision, as values.

A driver's `grant` raises errors (`dranode.api.errors`). The node turns them into these values, because one call of
kubelet has an answer for each of its claims, and one claim that fails must not fail the others.
"""

from typing import Final

import msgspec
from msgspec.structs import force_setattr

from dranode.api.errors import in_words, one_sentence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import PreparedDevice, Record


class Prepared(msgspec.Struct, frozen=True):
    """The claim is prepared.

    Attributes:
        devices: an entry for each of its allocation results; none if no result is this driver's.
        new: whether the claim was not on record before.
    """

    devices: tuple[PreparedDevice, ...] = ()
    new: bool = False


class _WithReason(msgspec.Struct, frozen=True):
    reason: str

    def __post_init__(self) -> None:
        # kubelet shows it in an Event and in its log, where line breaks are hard to read.
        force_setattr(self, "reason", one_sentence(self.reason))

    def __str__(self) -> str:
        return self.reason


class Refused(_WithReason, frozen=True):
    """The claim is refused; `reason` is one sentence for a person, with what to do."""


class Conflict(_WithReason, frozen=True):
    """Other claims hold what the claim needs; it can be prepared once they are unprepared. `reason` is a sentence."""


def refused_by_error(claim: ClaimRef, driver: str, error: Exception) -> Refused:
    """Return the refusal of a claim after an unexpected error in a driver; the log has the traceback."""
    return Refused(f"claim {claim} failed: internal error in {driver}, see its log: {in_words(error)}")


class Changed(msgspec.Struct, frozen=True):
    """The claim is prepared, by this record, for another allocation than it has now; that has to be undone first."""

    record: Record


Answer = Prepared | Refused | Conflict
"""The answer to a Prepare."""

ClaimOutcome = Answer | Changed
"""The result of one attempt at a Prepare; `Changed` is resolved before kubelet gets an answer."""


# The effects of a decision, which `driver/node/interpreter.py` carries out in order. A crash may happen between any two
# of them; the records then say how to go on (see `driver/claims/prepare.py`).


class Commit(msgspec.Struct, frozen=True):
    """One durable commit.

    Attributes:
        put: the records to write.
        drop: the UIDs of the claims whose records are deleted.
        notes: the driver's new notes (`Tunes`), as JSON; None if they are not changed.
    """

    put: tuple[Record, ...] = ()
    drop: tuple[str, ...] = ()
    notes: str | None = None

    def __bool__(self) -> bool:
        """Return whether anything is written."""
        # An empty commit is skipped, because every commit is flushed to the disk.
        return bool(self.put or self.drop) or self.notes is not None


class Configure(msgspec.Struct, frozen=True):
    """Configure the hardware as the claim needs it."""

    record: Record


class Restore(msgspec.Struct, frozen=True):
    """Undo what `Configure` did to the hardware."""

    record: Record


class WriteFiles(msgspec.Struct, frozen=True):
    """Write the claim's CDI spec and its device metadata (KEP-5304), unless they are as they should be."""

    record: Record


class RemoveFiles(msgspec.Struct, frozen=True):
    """Remove the claim's CDI spec and its device metadata; `requests` are its requests, as far as they are known."""

    claim: ClaimRef
    requests: tuple[str, ...] = ()


Effect = Commit | Configure | Restore | WriteFiles | RemoveFiles


class Decision(msgspec.Struct, frozen=True):
    """The decision on the claims of one call.

    Attributes:
        commit: what is committed first; a Prepare commits it in the transaction in which it was decided.
        effects: what is carried out afterwards, in order.
    """

    commit: Commit = Commit()
    effects: tuple[Effect, ...] = ()


NOT_ENFORCED: Final = "NotEnforced"
"""The reason of a condition or an Event."""


class NotEnforced(msgspec.Struct, frozen=True):
    """Why containers are not restricted to the CPUs and memory of their claims.

    Attributes:
        message: the reason, in one sentence.
        chosen: whether the driver's options say so; otherwise no claims are prepared until containers are pinned again.
    """

    message: str
    chosen: bool = False


BY_OPTION: Final = NotEnforced(
    "its containers are not held to it, because the driver runs with --nri-socket none: they run on all CPUs and take "
    "memory from anywhere, unless somebody else pins them",
    chosen=True,
)


def no_runtime(socket: str, seconds: float) -> NotEnforced:
    """Return the reason that no container runtime has connected at a socket for that many seconds."""
    return NotEnforced(
        f"claims are not enforced: no container runtime has been connected over NRI at {socket} for {seconds:.0f} s, "
        "so containers would run on CPUs of other claims; switch NRI on in the runtime (dranode doctor on the node "
        "says how), or run the driver with --nri-socket none to do without"
    )


def needs_enforcing(record: Record) -> bool:
    """Return whether containers of a claim have to be pinned; not if it has nothing but admin access."""
    # A record that was recovered from a CDI spec may have no grants, only the CPUs that it holds.
    return bool(record.held) or any(not grant.admin for grant in record.grants)
