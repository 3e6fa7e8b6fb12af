"""Says what there is and how it is: slices to the cluster, device health to kubelet.

Of two instances only the active one has slices; the health streams that kubelet has opened are answered by both. While
nothing can be handed out the devices are withdrawn from the slices, so that no pod is sent here to wait for them. A
taint would keep the devices in sight, but a server without `DRADeviceTaints` drops it in silence. Claims that were
allocated before are no worse off: neither kubelet nor the scheduler looks at the slices for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from msgspec.structs import replace

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.events import Occurrence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import DeviceHealth, Health, Inventory
from dranode.driver.claims.prepare import Reporter
from dranode.driver.kubelet.health import HealthService
from dranode.driver.node.node import NodeClaims
from dranode.driver.slices.desired import tainted
from dranode.driver.slices.plan import PublisherStatus

log = logging.getLogger(__name__)


# The cluster as a serving driver needs it.


class Cluster(Protocol):
    """The cluster of one node's drivers: claims come from it; slices, status and events go to it.

    `dranode.driver.kube.cluster.KubeCluster` speaks to an API server, `dranode.driver.local.cluster.FolderCluster`
    keeps a folder in its place. Any thread may call.
    """

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Each claim as it is now, or the reason why it cannot be had."""

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

    def reporter(self, node: NodeClaims) -> Reporter | None:
        """Return what reports to the cluster what became of the claims of one driver's node; None to report nothing."""


class Announcer:
    """The announcements of one driver. Any thread may call it."""

    def __init__(
        self,
        node: NodeClaims,
        health: HealthService,
        cluster: Cluster,
        *,
        taints: bool = False,
    ) -> None:
        """Prepare to announce what `node` has.

        Args:
            node: whose devices.
            health: reports to kubelet.
            cluster: publishes the slices.
            taints: whether unhealthy devices are tainted.
        """
        self._node = node
        self._driver = node.plugin.driver
        self._health = health
        self._cluster = cluster
        self._taints = taints
        # Hot-plug, health and a change of authority come from different threads.
        self._lock = threading.Lock()
        self._publishes = False
        self._published: Inventory | None = None
        self._withdrawn = False

    def begin(self) -> None:
        """Have the slices from now on, and say what there is and how it is.

        Raises:
            DranodeError: it cannot be published.
        """
        with self._lock:
            self._publishes = True
            self._say(self._look(), always=True)

    def publish(self) -> None:
        """Say again what there is and how it is; only kubelet is notified while another instance has the slices.

        Raises:
            DranodeError: it cannot be published.
        """
        with self._lock:
            self._say(self._look(), always=True)

    def report(self) -> None:
        """Say how it is, and what there is if that follows (a taint that comes or goes).

        Raises:
            DranodeError: it cannot be published.
        """
        with self._lock:
            self._say(self._look(), always=False)

    def pause(self) -> None:
        """Leave the slices to another instance."""
        with self._lock:
            self._publishes, self._published = False, None
            self._cluster.pause(self._driver)

    def status(self) -> PublisherStatus:
        """Return how the slices are."""
        return self._cluster.status(self._driver)

    def _look(self) -> Inventory:
        """The inventory as it is to be published once something can be handed out; its health goes to kubelet.

        While the hardware cannot be read nothing is reported: what was reported to kubelet lapses, and is unknown then.
        """
        discovery = self._node.discovery
        inventory = discovery.known or Inventory(devices=())
        if discovery.unread is not None:
            return inventory
        devices = {device.name: DeviceHealth(device.name, Health.HEALTHY) for device in inventory.devices}
        # A device that is published no more may still be a pod's.
        devices.update((device.device, device) for device in self._node.plugin.health(inventory))
        self._health.report(devices.values())
        if not self._taints:
            return inventory
        return tainted(self._driver, inventory, devices.values())

    def _say(self, inventory: Inventory, *, always: bool) -> None:
        withdrawn = self._node.impediment is not None
        # Hardware that changed is announced by the caller that noticed it, after the claims that it concerns.
        if not self._publishes or not (always or withdrawn != self._withdrawn or self._taints_differ(inventory)):
            return
        if withdrawn != self._withdrawn:
            log.warning("driver=%s devices %s", self._driver, "withdrawn" if withdrawn else "published again")
        visible = replace(inventory, devices=(), counters=()) if withdrawn else inventory
        self._cluster.publish(self._driver, visible)
        self._published, self._withdrawn = inventory, withdrawn

    def _taints_differ(self, inventory: Inventory) -> bool:
        published = (
            {} if self._published is None else {device.name: device.taints for device in self._published.devices}
        )
        return any(published.get(device.name, device.taints) != device.taints for device in inventory.devices)
