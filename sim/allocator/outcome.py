"""The outcomes of an attempt to allocate a claim."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from dranode.api.errors import DranodeError
from dranode.api.resource import AllocationResult, ResourceClaim

Scope: TypeAlias = Literal["node", "fatal"]


class Reason(Enum):
    """The reason why a claim was not allocated, in stable words."""

    DOES_NOT_FIT = "does-not-fit"
    CLASS_NOT_FOUND = "class-not-found"
    CEL_COMPILE = "cel-compile"
    CEL_RUNTIME = "cel-runtime"
    FEATURE_OFF = "feature-off"
    INCOMPLETE_CLAIM = "incomplete-claim"
    TOO_MANY_DEVICES = "too-many-devices"
    POOL_INCOMPLETE = "pool-incomplete"
    POOL_INVALID = "pool-invalid"
    CONSTRAINT_ON_ALL = "constraint-on-all"
    CAPACITY_OVERFLOW = "capacity-overflow"
    SEARCH_TOO_LONG = "search-too-long"
    SCHEDULER_PANICS = "scheduler-panics"


class AllocationError(DranodeError):
    """The attempt ends here, which is more than that the claim does not fit.

    Attributes:
        message: why, in one sentence; of the scope `node`, kube-scheduler's words.
        reason: the same in stable words.
        scope: `node` lets the scheduler try other nodes, `fatal` ends the attempt for the pod.
        detail: what kube-scheduler does not say.
    """

    def __init__(self, message: str, reason: Reason, scope: Scope = "fatal", detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.message = message
        self.reason = reason
        self.scope: Scope = scope
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Outcome:
    """The allocation of one claim.

    Attributes:
        claim: the claim.
        node: the node on which it was allocated, or was tried.
        allocation: `status.allocation`, if it was allocated.
        error: one sentence, if it was not.
        reason: the same in stable words.
        scope: `node` or `fatal` for errors; None if the claim simply does not fit.
        notes: one sentence each on what is odd about the answer, though kube-scheduler gives it.
    """

    claim: ResourceClaim
    node: str | None = None
    allocation: AllocationResult | None = None
    error: str | None = None
    reason: Reason | None = None
    scope: Scope | None = None
    notes: tuple[str, ...] = ()
