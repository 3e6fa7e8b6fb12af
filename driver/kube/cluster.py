"""The cluster as a driver's edges, loaded when it is first needed: a driver listens before it connects."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.calls import Answer, Preparer, PreparingNode
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.slices.publication import NOTHING_YET, PublisherStatus
from dranode.driver.kube.source import Credentials
from dranode.driver.process.threads import Fatal

if TYPE_CHECKING:
    from dranode.driver.core.claims.events import Occurrence
    from dranode.driver.kube.edges import KubeEdges


class KubeCluster:
    """Where claims come from and slices, status and events go. Any thread may call."""

    def __init__(self, source: Credentials, node_name: str, *, claim_status: bool, fatal: Fatal) -> None:
        """Name the cluster; nothing is loaded or sent yet.

        Args:
            source: where the credentials are.
            node_name: the node.
            claim_status: whether `status.devices` of claims is written.
            fatal: ends the process with a sentence.

        Raises:
            UsageError: there are no credentials.
        """
        source.check()
        self._source = source
        self._node_name = node_name
        self._claim_status = claim_status
        self._fatal = fatal
        self._lock = threading.Lock()
        self._edges: KubeEdges | None = None

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Each claim as it is now, or the reason why it cannot be had."""
        return self.edges().claims.get(refs)

    def publish(self, driver: str, inventory: Inventory) -> None:
        """This is the whole inventory of a driver now; returns at once.

        Raises:
            UsageError: the driver's or the node's name is not one for the API.
        """
        self.edges().publisher.publish(driver, inventory)

    def status(self, driver: str) -> PublisherStatus:
        """How the driver's slices are."""
        edges = self._edges
        return NOTHING_YET if edges is None else edges.publisher.status(driver)

    def rest(self, driver: str) -> None:
        """Publish nothing more for the driver until the next `publish`; its slices stay."""
        edges = self._edges
        if edges is not None:
            edges.publisher.rest(driver)

    def tell(self, driver: str, occurrence: Occurrence) -> None:
        """Tell people of something that happened to a driver of this node; returns at once."""
        self.edges().tell(driver, occurrence)

    def reporting(self, node: PreparingNode) -> Preparer:
        """The node of one driver, with its answers reported to the cluster."""
        return _Reporting(self, node)

    def edges(self) -> KubeEdges:
        """What does all that, loaded now if it was not before."""
        with self._lock:
            if self._edges is None:
                from dranode.driver.kube.edges import KubeEdges  # noqa: PLC0415 - listen first, load this then

                self._edges = KubeEdges(
                    self._source, self._node_name, claim_status=self._claim_status, fatal=self._fatal
                )
            return self._edges

    def close(self) -> None:
        """Say the last words and disconnect; slices stay."""
        with self._lock:
            edges, self._edges = self._edges, None
        if edges is not None:
            edges.close()


@dataclass(slots=True)
class _Reporting:
    """A reporting node that is loaded by its first call."""

    cluster: KubeCluster
    node: PreparingNode
    _loaded: Preparer | None = field(default=None)

    def prepare(self, asked: Mapping[ClaimRef, ResourceClaim | DranodeError]) -> Mapping[str, Answer]:
        return self._load().prepare(asked)

    def unprepare(self, refs: tuple[ClaimRef, ...]) -> Mapping[str, DranodeError | None]:
        return self._load().unprepare(refs)

    def _load(self) -> Preparer:
        if self._loaded is None:
            self._loaded = self.cluster.edges().reporting(self.node)
        return self._loaded
