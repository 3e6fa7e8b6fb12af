"""Clusters in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dranode.api.errors import ClaimError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.events import Occurrence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.plan import NOTHING_YET, PublisherStatus
from tests.fakes.drivers import reference

if TYPE_CHECKING:
    from dranode.driver.node.node import NodeClaims


class MemoryCluster:
    """A cluster with these claims. It keeps what it receives and publishes at once.

    Attributes:
        claims: the claims that exist.
        published: every inventory that was published.
        drivers: the drivers that published them.
        paused: the drivers whose slices were left to another instance, in order.
        occurrences: the notifications that were sent.
    """

    def __init__(self, *claims: ResourceClaim) -> None:
        self.claims = {reference(claim): claim for claim in claims}
        self.published: list[Inventory] = []
        self.drivers: set[str] = set()
        self.paused: list[str] = []
        self.occurrences: list[Occurrence] = []

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        return {ref: self.claims.get(ref, ClaimError(f"claim {ref} does not exist")) for ref in refs}

    def publish(self, driver: str, inventory: Inventory) -> None:
        self.published.append(inventory)
        self.drivers.add(driver)

    def status(self, driver: str) -> PublisherStatus:
        return PublisherStatus(published=True) if driver in self.drivers else NOTHING_YET

    def pause(self, driver: str) -> None:
        self.paused.append(driver)

    def notify(self, driver: str, occurrence: Occurrence) -> None:
        del driver
        self.occurrences.append(occurrence)

    def reporter(self, node: NodeClaims) -> None:
        del node
