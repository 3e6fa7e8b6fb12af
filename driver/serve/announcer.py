"""Publishes a driver's devices: slices to the cluster, and device health to kubelet.

If there are two instances, only the active one publishes slices; both report health to kubelet. While no claim can be
prepared, the devices are withdrawn from the slices, so that no pod is scheduled to this node to wait for them. A taint
would keep the devices visible, but a server without `DRADeviceTaints` silently drops it. Claims that are already
allocated are not affected: neither kubelet nor the scheduler needs the slices for them.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from dranode.api.errors import DranodeError, MachineError
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


class Cluster(Protocol):
    """What a node's drivers need from a cluster: they read claims, and write slices, status and Events.

    `dranode.driver.kube.cluster.KubeCluster` uses an API server, `dranode.driver.local.cluster.FolderCluster` a folder.
    Any thread may call.
    """

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Return each claim as it is now, or the error if it cannot be fetched."""

    def publish(self, driver: str, inventory: Inventory) -> None:
        """Publish a driver's whole inventory.

        Raises:
            DranodeError: it cannot be published.
        """

    def status(self, driver: str) -> PublisherStatus:
        """Return the state of the driver's slices."""

    def pause(self, driver: str) -> None:
        """Stop publishing for the driver until the next `publish`; its slices stay."""

    def notify(self, driver: str, occurrence: Occurrence) -> None:
        """Report to people what happened to a driver of this node; returns at once."""

    def reporter(self, node: NodeClaims) -> Reporter | None:
        """Return the reporter of one driver's claims; None to report nothing."""


class Announcer:
    """Publishes one driver's slices and health. Any thread may call it."""

    def __init__(self, node: NodeClaims, health: HealthService, cluster: Cluster, *, taints: bool = False) -> None:
        """Set the announcer up; nothing is published yet.

        Args:
            node: the node whose devices are published.
            health: reports health to kubelet.
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
        """Publish slices from now on, beginning with the present ones, and report health.

        Raises:
            DranodeError: the slices cannot be published.
        """
        with self._lock:
            self._publishes = True
            # Even without a change, because another instance may have published something else.
            self._publish(self._report_health(), always=True)

    def publish(self) -> None:
        """Publish the present slices and report health; only health while another instance publishes the slices.

        Raises:
            DranodeError: the slices cannot be published.
        """
        with self._lock:
            self._publish(self._report_health(), always=True)

    def report(self) -> None:
        """Report health, and publish the slices if they change because of it (a taint, or a withdrawal).

        Raises:
            DranodeError: the slices cannot be published.
        """
        with self._lock:
            self._publish(self._report_health(), always=False)

    def pause(self) -> None:
        """Leave the slices to another instance."""
        with self._lock:
            self._publishes, self._published = False, None
            self._cluster.pause(self._driver)

    def status(self) -> PublisherStatus:
        """Return the state of the slices."""
        return self._cluster.status(self._driver)

    def _report_health(self) -> Inventory:
        """Report health to kubelet; returns the inventory to publish, with taints.

        While the hardware cannot be read, no health is reported, so that it soon becomes unknown to kubelet.
        """
        discovery = self._node.discovery
        inventory = discovery.known or Inventory(devices=())
        if discovery.unread is not None:
            return inventory
        devices = {device.name: DeviceHealth(device.name, Health.HEALTHY) for device in inventory.devices}
        try:
            # A device that is not published any more may still be in use by a pod.
            devices.update((device.device, device) for device in self._node.plugin.health(inventory))
        except (MachineError, OSError) as error:
            # A register that cannot be read must not end the process, which may run other drivers too.
            devices = {name: DeviceHealth(name, Health.UNKNOWN, str(error)) for name in devices}
        before = {device.device: device.health for device in self._health.devices}
        self._health.report(devices.values())
        self._log_changes(before, devices.values())
        if not self._taints:
            return inventory
        return tainted(self._driver, inventory, devices.values())

    def _log_changes(self, before: Mapping[str, Health], devices: Iterable[DeviceHealth]) -> None:
        """Log devices whose health has changed, those that changed alike in one line."""
        changed: dict[tuple[Health, str], list[str]] = {}
        for device in devices:
            if device.health is not before.get(device.device, Health.HEALTHY):
                changed.setdefault((device.health, device.message), []).append(device.device)
        for (health, message), names in changed.items():
            level = logging.INFO if health is Health.HEALTHY else logging.WARNING
            reason = f": {message}" if message else ""
            log.log(
                level, "driver=%s devices=%s health=%s%s", self._driver, ",".join(names), health.name.lower(), reason
            )

    def _publish(self, inventory: Inventory, *, always: bool) -> None:
        withdrawn = self._node.impediment is not None
        # Changed hardware is published by the caller that noticed the change, after it has checked the claims.
        if not self._publishes or not (always or withdrawn != self._withdrawn or self._taints_differ(inventory)):
            return
        if withdrawn != self._withdrawn:
            log.warning("driver=%s devices %s", self._driver, "withdrawn" if withdrawn else "published again")
        visible = replace(inventory, devices=(), counters=()) if withdrawn else inventory
        self._cluster.publish(self._driver, visible)
        # With the withdrawn devices too, because their taints are compared at the next report.
        self._published, self._withdrawn = inventory, withdrawn

    def _taints_differ(self, inventory: Inventory) -> bool:
        published = (
            {} if self._published is None else {device.name: device.taints for device in self._published.devices}
        )
        # A device that is not published yet does not count: the caller that has found it publishes it, with its taints.
        return any(published.get(device.name, device.taints) != device.taints for device in inventory.devices)
