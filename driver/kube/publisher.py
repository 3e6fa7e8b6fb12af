"""Publishes the ResourceSlices of this node's drivers in the cluster, and keeps them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.slices.desired import publishable
from dranode.driver.core.slices.publication import NOTHING_YET, PublisherStatus
from dranode.driver.core.slices.wanted import DesiredSlices
from dranode.driver.kube.client import Client
from dranode.driver.kube.slice_loop import SliceLoop
from dranode.driver.process.threads import Fatal

log = logging.getLogger(__name__)


class KubePublisher:
    """The slices of every driver that publishes through it."""

    def __init__(self, client: Client, node_name: str, fatal: Fatal) -> None:
        """Publish through `client` for the node of that name."""
        self._client = client
        self._node_name = node_name
        self._fatal = fatal
        self._loops: dict[str, SliceLoop] = {}

    def publish(self, driver: str, inventory: Inventory) -> None:
        """This is the whole inventory now; returns at once.

        Raises:
            UsageError: the driver's or the node's name is not one for the API.
        """
        wanted = DesiredSlices(driver, self._node_name, inventory)
        wanted.specs()
        for problem in publishable(inventory).warnings[len(inventory.warnings) :]:
            log.warning("slices driver=%s: %s", driver, problem)
        loop = self._loops.get(driver)
        if loop is None:
            loop = self._loops[driver] = SliceLoop(self._client, wanted, self._fatal)
            loop.start()
        else:
            loop.want(inventory)

    def status(self, driver: str) -> PublisherStatus:
        """How the driver's slices are."""
        loop = self._loops.get(driver)
        return NOTHING_YET if loop is None else loop.status

    def statuses(self) -> Mapping[str, PublisherStatus]:
        """The same for every driver that has published."""
        return {driver: loop.status for driver, loop in self._loops.items()}

    def rest(self, driver: str) -> None:
        """Publish nothing more for the driver until the next `publish`; its slices stay. Another instance has them."""
        loop = self._loops.pop(driver, None)
        if loop is not None:
            loop.stop()

    def close(self) -> None:
        """Publish nothing more; slices stay."""
        self._client.timing.stopped.set()
        for loop in self._loops.values():
            loop.stop()
