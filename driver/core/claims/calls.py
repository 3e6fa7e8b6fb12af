"""The interfaces that kubelet's calls need: claims as they are now, and a node that prepares and unprepares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.answers import Answer, Refused
from dranode.driver.core.claims.enforcing import NotEnforced
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import Record

# Whether the caller still waits for the answer. What it has given up must not be carried out behind its back: kubelet
# may have asked for the opposite since, and been answered.
Awaited = Callable[[], bool]


def always() -> bool:
    """Say that somebody waits: whoever calls a function and not a service does."""
    return True


# Whether kubelet is about to unprepare one of these claims that are on record, because its pods are gone or going; None
# if nobody can say. One is enough: claims that share a device by amounts need not all go.
Departing: TypeAlias = Callable[["tuple[Record, ...]"], bool | None]


class Claims(Protocol):
    """The source of claims: the API server, or a folder."""

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Each claim as it is now, or the reason why it cannot be had."""


class Preparer(Protocol):
    """The node that decides and acts: `dranode.driver.node.node.NodeClaims`, or a witness in front of it."""

    def prepare(
        self, asked: Mapping[ClaimRef, ResourceClaim | DranodeError], awaited: Awaited = always
    ) -> Mapping[str, Answer]:
        """Prepare claims; an answer for each, by UID."""

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Refused | None]:
        """Unprepare claims; for each, by UID, None or why it is not unprepared."""


class PreparingNode(Preparer, Protocol):
    """A preparer of one driver that also knows what it has and what is on record."""

    plugin: Plugin
    not_enforced: Callable[[], NotEnforced | None]

    @property
    def inventory(self) -> Inventory:
        """The hardware as it was last read.

        Raises:
            UnreadError: it was never read.
        """

    def record(self, uid: str) -> Record | None:
        """Return what is on record of a claim at the last look at the ledger; never waits."""
