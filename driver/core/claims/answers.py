"""The answers that a claim of a Prepare or an Unprepare can get, as values.

A plug-in raises (`core.api.errors`); what is handed on, compared and waited for are these.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr

from dranode.driver.core.api.errors import in_words
from dranode.driver.core.api.sentence import one_sentence
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.record import PreparedDevice


class Prepared(msgspec.Struct, frozen=True):
    """The claim is prepared; `devices` has one entry for each of its results, and none if no result is the driver's."""

    devices: tuple[PreparedDevice, ...] = ()


class Refused(msgspec.Struct, frozen=True):
    """A refusal; `reason` is one sentence for a person, with what to do."""

    reason: str

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_sentence(self.reason))

    def __str__(self) -> str:
        return self.reason


def refused_by_error(claim: ClaimRef, driver: str, error: Exception) -> Refused:
    """Return the refusal of a claim at which a driver met an error that it does not expect; the log has the rest."""
    return Refused(f"claim {claim} met an error inside {driver}, which its log tells of: {in_words(error)}")


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
