"""Claims, slices, status and events over one connection to the API server."""

from __future__ import annotations

import threading
from typing import Final

from dranode.driver.core.claims.calls import PreparingNode
from dranode.driver.core.claims.events import ClaimImpaired, ClaimRestored, Occurrence
from dranode.driver.kube.claims import KubeClaims
from dranode.driver.kube.client import Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.events import KubeEvents
from dranode.driver.kube.publisher import KubePublisher
from dranode.driver.kube.reports import ReportingNode
from dranode.driver.kube.source import Credentials
from dranode.driver.kube.status import ClaimStatus
from dranode.driver.process.threads import Fatal

# How long the last words about claims may take when the driver stops.
_LAST_WORDS: Final = 1.0


class KubeEdges:
    """Everything that the drivers of a node need of the API server."""

    def __init__(self, source: Credentials, node_name: str, *, claim_status: bool, fatal: Fatal) -> None:
        """Prepare to connect; see `dranode.driver.kube.cluster.KubeCluster`."""
        self._connection = Connection(source)
        self._client = Client(self._connection)
        self._node_name = node_name
        self._claim_status = claim_status
        self._fatal = fatal
        self._lock = threading.Lock()
        self._events: dict[str, KubeEvents] = {}
        self._statuses: dict[str, ClaimStatus] = {}
        self.claims = KubeClaims(self._client)
        self.publisher = KubePublisher(self._client, node_name, fatal)

    def reporting(self, node: PreparingNode) -> ReportingNode:
        """The node of one driver, with its answers reported to the cluster."""
        driver = node.plugin.driver
        return ReportingNode(node, self._events_of(driver), self._status_of(driver))

    def tell(self, driver: str, occurrence: Occurrence) -> None:
        """Tell people of something that happened to a driver of this node; returns at once."""
        self._events_of(driver).tell(occurrence)
        status = self._status_of(driver)
        if status is not None and isinstance(occurrence, (ClaimImpaired, ClaimRestored)) and occurrence.states:
            # It has just changed, so what the status said before and since when does not matter.
            status.say(occurrence.claim, occurrence.states, ())

    def _status_of(self, driver: str) -> ClaimStatus | None:
        with self._lock:
            if self._claim_status and driver not in self._statuses:
                self._statuses[driver] = ClaimStatus(self._client, driver, self._fatal)
            return self._statuses.get(driver)

    def _events_of(self, driver: str) -> KubeEvents:
        with self._lock:
            if driver not in self._events:
                self._events[driver] = KubeEvents(self._client, driver, self._node_name, self._fatal)
            return self._events[driver]

    def close(self) -> None:
        """Say the last words and disconnect; slices stay."""
        with self._lock:
            talking: list[ClaimStatus | KubeEvents] = [*self._statuses.values(), *self._events.values()]
        for each in talking:
            each.close(_LAST_WORDS)
        self.publisher.close()
        self.claims.close()
        self._connection.close()
