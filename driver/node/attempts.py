"""A Prepare is attempted again for claims that wait for others, or that had to be undone first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.admission import twins
from dranode.driver.core.claims.answers import Answer, Changed, ClaimOutcome, Conflict, Prepared, Refused
from dranode.driver.core.claims.held import ClaimRef

PendingClaims = Mapping[ClaimRef, ResourceClaim]


def answer_all(
    claims: Mapping[ClaimRef, ResourceClaim | DranodeError],
    attempt: Callable[[PendingClaims], Mapping[str, ClaimOutcome]],
    undo: Callable[[ClaimRef], Refused | None],
    wait: Callable[[frozenset[str]], bool],
) -> dict[str, Answer]:
    """Return the answers to a Prepare, by UID.

    Args:
        claims: those of the call; an error for each that the API server does not have.
        attempt: makes one attempt at some of them; outcomes by UID.
        undo: undoes a claim that is prepared for another allocation; why not, or None if it is undone.
        wait: waits until a claim was undone, for claims that those with these UIDs are in the way of; False if the time
            for that is over.
    """
    answers: dict[str, Answer] = {
        ref.uid: Refused(str(claim)) for ref, claim in claims.items() if isinstance(claim, DranodeError)
    }
    answers |= twins(claims)
    pending = {
        ref: claim for ref, claim in claims.items() if isinstance(claim, ResourceClaim) and ref.uid not in answers
    }
    while pending:
        try:
            outcomes = attempt(pending)
        except DranodeError as error:
            return answers | dict.fromkeys((ref.uid for ref in pending), Refused(str(error)))
        settled = {ref: _settled(outcomes[ref.uid], undo) for ref in pending}
        answers |= {ref.uid: answer for ref, answer in settled.items() if answer is not None}
        conflicts = {ref: answer for ref, answer in settled.items() if isinstance(answer, Conflict)}
        again = {ref for ref, answer in settled.items() if answer is None}
        if conflicts and wait(frozenset().union(*(conflict.holders for conflict in conflicts.values()))):
            again |= conflicts.keys()
        pending = {ref: claim for ref, claim in pending.items() if ref in again}
    return answers


def _settled(outcome: ClaimOutcome, undo: Callable[[ClaimRef], Refused | None]) -> Answer | None:
    """The answer that an attempt came to; None if nothing is in the way of another attempt any more."""
    match outcome:
        case Changed(claim):
            return undo(claim)
        case Prepared() | Refused() | Conflict():
            return outcome
        case _:
            assert_never(outcome)
