"""What is on record as enforcement sees it, kept in step with the ledger's index at the price of what has changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.pinning.pins import Pins
from dranode.driver.core.pinning.snapshot import HeldClaims, HeldSnapshot
from dranode.driver.node.record_store import Holders


@dataclass(slots=True)
class HeldView:
    """One driver's snapshot. `follow` is called under the lock on decisions, `snapshot` may be read at any time.

    Attributes:
        plugin: the driver, who says what a record means for containers.
        holders: the ledger's index.
        snapshot: what was on record when it was last followed; None for a driver that pins no containers.
    """

    plugin: Plugin
    holders: Holders
    snapshot: HeldSnapshot | None = None
    _inventory: Inventory | None = None
    _claims: HeldClaims = field(default_factory=HeldClaims)

    def follow(self, inventory: Inventory | None, unread: Unread | None = None) -> HeldSnapshot | None:
        """Take in what has changed of machine and records; what failed half-way is taken in with the next call.

        While ledger or hardware is unread, the snapshot is of what is known without it, and says so.
        """
        plugin = self.plugin
        if not isinstance(plugin, Pins):
            self.holders.touched = frozenset()
            return None
        if inventory is None:
            kind = plugin.cdi_kind or f"{plugin.driver}/claim"
            self.snapshot = replace(plugin.unread_pool(), claims=self._claims, cdi_kind=kind)
        elif self.snapshot is None or inventory is not self._inventory:
            self.snapshot = replace(plugin.pool(inventory), claims=self._claims)
        self._inventory = inventory
        if unread is not None:
            claims = HeldClaims.of(map(plugin.pinned, unread.records))
            self.snapshot = replace(self.snapshot, claims=claims, unread=unread)
            if inventory is None:
                self.snapshot = _with_known_cpus(self.snapshot)
            return self.snapshot
        self._claims = self._followed(plugin)
        if self._claims is not self.snapshot.claims or self.snapshot.unread is not None:
            self.snapshot = replace(self.snapshot, claims=self._claims, unread=None)
        self.holders.touched = frozenset()
        return self.snapshot

    def _followed(self, pins: Pins) -> HeldClaims:
        touched, told = self.holders.touched, self.holders.told
        if touched is None:
            return HeldClaims.of(map(pins.pinned, told()))
        if not touched:
            return self._claims
        there = {uid: record for uid in touched if (record := self.holders.told_of(uid)) is not None}
        return self._claims.changed(map(pins.pinned, there.values()), touched - there.keys())


def _with_known_cpus(snapshot: HeldSnapshot) -> HeldSnapshot:
    """A machine that does not say which CPUs are online has those that are reserved or that claims were given."""
    if snapshot.online:
        return snapshot
    given = (claim.cpus | claim.held for claim in snapshot.claims.values())
    return replace(snapshot, online=snapshot.reserved | CPUSet.union(given))
