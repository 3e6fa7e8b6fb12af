"""Hardware that changes while the driver runs: read again, told on, and what it means for claims said aloud."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from dranode.driver.core.errors import DranodeError
from dranode.driver.core.events import ClaimImpaired, ClaimRestored
from dranode.driver.core.plugin import Impairment, Stop
from dranode.driver.core.status import prepared_states
from dranode.driver.lifecycle.tell import Tell, nobody
from dranode.driver.node import Node

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Hardware:
    """Follows the hardware of one node.

    Attributes:
        node: whose hardware.
        publish: says to the cluster and to kubelet what there is and how it is.
        report: says to kubelet how it is.
        tell: whom to tell of claims that lose something.
        impaired: the claims that have less than they were given, by UID; replaced whole, so it may be read anywhere.
        changes: how often the hardware was found changed since start.
    """

    node: Node
    publish: Callable[[], None]
    report: Callable[[], None]
    tell: Tell = nobody
    impaired: dict[str, Impairment] = field(default_factory=dict)
    changes: int = 0
    _unpublished: bool = False
    _trouble: str = ""

    def follow(self, stop: Stop) -> None:
        """Look whenever the driver says that it is time, until `stop` is set."""
        self.look()
        for _ in self.node.plugin.watch(stop):
            if stop.is_set():
                return
            self.look()

    def look(self) -> None:
        """Look once. What goes wrong is logged and tried again at the next look."""
        try:
            if self.node.rescan():
                self.changes += 1
                self._unpublished = True
                log.info("driver=%s the hardware has changed", self.node.plugin.driver)
            # Claims first: a slice that shrinks is no news to the pod that runs there.
            self._mind_claims()
            if self._unpublished:
                self.publish()
                self._unpublished = False
            else:
                self.report()
        except DranodeError as error:
            if str(error) != self._trouble:
                log.error("driver=%s: %s", self.node.plugin.driver, error)  # noqa: TRY400 - the sentence says it all
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _mind_claims(self) -> None:
        plugin, inventory = self.node.plugin, self.node.inventory
        records = {record.uid: record for record in self.node.records()}
        found = plugin.impairments(inventory, records.values())
        before, self.impaired = self.impaired, {each.claim.uid: each for each in found}
        for uid, each in self.impaired.items():
            if before.get(uid) != each:
                log.warning("claim=%s uid=%s driver=%s: %s", each.claim, uid, plugin.driver, each.message)
                record = records[uid]
                states = prepared_states(plugin, record, inventory)
                self.tell(ClaimImpaired(record.ref, record.pods, each.reason, each.message, states))
        for uid in (before.keys() - self.impaired.keys()) & records.keys():
            record = records[uid]
            log.info("claim=%s uid=%s driver=%s has again all that it was given", record.ref, uid, plugin.driver)
            self.tell(ClaimRestored(record.ref, prepared_states(plugin, record, inventory)))
