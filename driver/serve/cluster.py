"""The cluster as a serving driver needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.calls import Preparer
from dranode.driver.core.claims.events import Occurrence
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.record import Record
from dranode.driver.core.slices.publication import PublisherStatus
from dranode.driver.node.node import NodeClaims


class Cluster(Protocol):
    """The cluster of one node's drivers: claims come from it; slices, status and events go to it.

    `dranode.driver.kube.cluster.KubeCluster` speaks to an API server, `dranode.driver.local.cluster.FolderCluster`
    keeps a folder in its place. Any thread may call.
    """

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Each claim as it is now, or the reason why it cannot be had."""

    def departing(self, records: tuple[Record, ...]) -> bool | None:
        """Return whether the pods of one of these claims are gone or going, so that kubelet is about to unprepare it.

        None if that cannot be known.
        """

    def publish(self, driver: str, inventory: Inventory) -> None:
        """Publish the whole inventory that a driver has now.

        Raises:
            DranodeError: it cannot be published.
        """

    def status(self, driver: str) -> PublisherStatus:
        """Return how the driver's slices are."""

    def pause(self, driver: str) -> None:
        """Publish nothing more for the driver until the next `publish`; its slices stay."""

    def notify(self, driver: str, occurrence: Occurrence) -> None:
        """Make known to people what happened to a driver of this node; returns at once."""

    def reporting(self, node: NodeClaims) -> Preparer:
        """The node of one driver, with its answers reported to the cluster."""
