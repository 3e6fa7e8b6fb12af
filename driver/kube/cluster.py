"""The cluster behind an API server: reads claims; writes slices, status and Events. All use one `Connection`."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored, Occurrence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory
from dranode.driver.kube.claims import KubeClaims
from dranode.driver.kube.client import Client, Timing
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.reports import ClaimReporter, ClaimStatus, KubeEvents, RecordedNode
from dranode.driver.kube.server import Credentials
from dranode.driver.kube.slice_loop import SliceLoop
from dranode.driver.process.threads import Fatal
from dranode.driver.slices.plan import NOTHING_YET, PublisherStatus
from dranode.driver.slices.publishable import publishable
from dranode.driver.slices.storable import DesiredSlices

log = logging.getLogger(__name__)

# How long the last events and the last status may take when the driver stops.
_FLUSH_SECONDS: Final = 1.0


class KubeCluster:
    """The API server as the drivers of one node need it. Any thread may call."""

    def __init__(
        self,
        source: Credentials,
        node_name: str,
        *,
        claim_status: bool,
        fatal: Fatal,
        timing: Timing | None = None,
    ) -> None:
        """Set everything up; the first request connects.

        Args:
            source: where the credentials are.
            node_name: the node.
            claim_status: whether `status.devices` of claims is written.
            fatal: ends the process with a sentence.
            timing: clock, random numbers and waiting times.
        """
        self._connection = Connection(source, retries=True)
        self._client = Client(self._connection, timing=timing, retries=True)
        self._node_name = node_name
        self._claim_status = claim_status
        self._fatal = fatal
        self._claims = KubeClaims(self._client)
        self._lock = threading.Lock()
        self._loops: dict[str, SliceLoop] = {}
        self._events: dict[str, KubeEvents] = {}
        self._statuses: dict[str, ClaimStatus] = {}

    def connect(self) -> None:
        """Connect in a thread, so that the first Prepare need not wait for it; hardware and ledger are read meanwhile.

        An error is not reported here: the first request that needs the connection reports it.
        """
        threading.Thread(target=self._connect, name="kube-connect", daemon=True).start()

    def _connect(self) -> None:
        try:
            self._client.version(patient=False)
        except DranodeError as error:
            log.debug("the API server is not reached yet: %s", error)

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Return each claim as it is now, or the error of fetching it."""
        return self._claims.get(refs)

    def publish(self, driver: str, inventory: Inventory) -> None:
        """Publish a driver's whole inventory. The slices are written by another thread.

        Raises:
            UsageError: the API does not allow the driver's or the node's name.
        """
        wanted = DesiredSlices(driver, self._node_name, inventory)
        # Made here once, so that a name that the API would refuse ends the start with a sentence.
        wanted.specs()
        for problem in publishable(inventory).warnings[len(inventory.warnings) :]:
            log.warning("driver=%s slices: %s", driver, problem)
        loop = self._loops.get(driver)
        if loop is None:
            loop = self._loops[driver] = SliceLoop(self._client, wanted, self._fatal)
            loop.start()
        else:
            loop.want(inventory)

    def status(self, driver: str) -> PublisherStatus:
        """Return the state of the driver's slices."""
        loop = self._loops.get(driver)
        return NOTHING_YET if loop is None else loop.status

    def pause(self, driver: str) -> None:
        """Publish nothing more for the driver until the next `publish`; its slices stay."""
        # Dropped from the table first, so that `status` does not report a loop that is being stopped.
        loop = self._loops.pop(driver, None)
        if loop is not None:
            loop.stop()

    def notify(self, driver: str, occurrence: Occurrence) -> None:
        """Write the events and the status that follow from what happened to a driver of this node; returns at once."""
        self._events_of(driver).notify(occurrence)
        status = self._status_of(driver)
        if status is not None and isinstance(occurrence, (ClaimImpaired, ClaimRestored)) and occurrence.states:
            # The state has just changed, so the times in the present status do not matter.
            status.report(occurrence.claim, lambda: occurrence.states, ())

    def reporter(self, node: RecordedNode) -> ClaimReporter:
        """Return the reporter of one driver's claims."""
        driver = node.plugin.driver
        return ClaimReporter(node, self._events_of(driver), self._status_of(driver))

    def close(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Write the waiting Events and statuses, each for no longer than `seconds`, and disconnect; slices stay."""
        with self._lock:
            outboxes: list[ClaimStatus | KubeEvents] = [*self._statuses.values(), *self._events.values()]
        for outbox in outboxes:
            outbox.close(seconds)
        # First the last reports, then the end of all waiting: a retry would otherwise delay the stop.
        self._client.timing.stopped.set()
        for loop in tuple(self._loops.values()):
            loop.stop()
        self._claims.close()
        self._connection.close()

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
