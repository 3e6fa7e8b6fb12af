"""Keeps the snapshot for enforcement up to date with the records; only claims that changed are read again."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import Unread
from dranode.driver.node.discovery import Discovery
from dranode.driver.node.record_store import RecordStore
from dranode.driver.pinning.snapshot import PinnedClaims, Pins, PinSnapshot

Watcher = Callable[[PinSnapshot | None], None]


class PinView(msgspec.Struct):
    """One driver's snapshot. `notify` is called under the lock on decisions; any thread may read `snapshot`.

    Attributes:
        plugin: the driver, which says what a record means for containers.
        store: the records.
        discovery: what the driver has read of the hardware.
        snapshot: the records at the last update, as enforcement sees them; None for a driver that pins no containers.
        watcher: called with each new snapshot; it has to return quickly.
        put_off: whether updates wait, so that many records do not delay the first answers after a start.
    """

    plugin: Plugin
    store: RecordStore
    discovery: Discovery
    snapshot: PinSnapshot | None = None
    watcher: Watcher | None = None
    put_off: bool = False
    _inventory: Inventory | None = None
    _claims: PinnedClaims = msgspec.field(default_factory=PinnedClaims)

    def notify(self, unread: str | None) -> None:
        """Update the snapshot and call the watcher; `unread` says why the ledger cannot be read, None if it can.

        A process that only undoes claims, such as `dranode drain`, never reads hardware and has no snapshot.
        """
        # Before the first reading of the hardware, a snapshot would look like that of a machine without CPUs.
        if self.put_off or not self.discovery.tried:
            return
        snapshot = self.update(self.discovery.known, self._unread(unread))
        if self.watcher is not None:
            self.watcher(snapshot)

    def _unread(self, reason: str | None) -> Unread | None:
        if reason is not None:
            return self.store.unread(reason)
        if self.discovery.unread is not None:
            return Unread(self.discovery.unread, self.store.book.known())
        return None

    def update(self, inventory: Inventory | None, unread: Unread | None = None) -> PinSnapshot | None:
        """Update the snapshot after a change of hardware or records. After a failure the next call catches up.

        While ledger or hardware cannot be read, the snapshot has what is known without them, and says so.
        """
        plugin = self.plugin
        if not isinstance(plugin, Pins):
            self.store.book.touched = frozenset()
            return None
        if inventory is None:
            self.snapshot = replace(plugin.unread_pool(), claims=self._claims, cdi_kind=plugin.claim_kind)
        elif self.snapshot is None or inventory is not self._inventory:
            self.snapshot = replace(plugin.pool(inventory), claims=self._claims)
        self._inventory = inventory
        # `_claims` is kept for later. Until the records can be read, the snapshot has everything that may be held.
        if unread is not None:
            claims = PinnedClaims.of(map(plugin.pinned, unread.records))
            self.snapshot = replace(self.snapshot, claims=claims, unread=unread)
            if inventory is None:
                self.snapshot = _with_known_cpus(self.snapshot)
            return self.snapshot
        self._claims = self._changed_claims(plugin)
        if self._claims is not self.snapshot.claims or self.snapshot.unread is not None:
            self.snapshot = replace(self.snapshot, claims=self._claims, unread=None)
        self.store.book.touched = frozenset()
        return self.snapshot

    def _changed_claims(self, pins: Pins) -> PinnedClaims:
        # Only changed claims are read, because a node may have hundreds of claims and this runs in every Prepare.
        touched = self.store.book.touched
        if touched is None:
            return PinnedClaims.of(map(pins.pinned, self.store.book.known()))
        if not touched:
            return self._claims
        known = self.store.book.known_of(touched)
        return self._claims.changed(map(pins.pinned, known.values()), touched - known.keys())


def _with_known_cpus(snapshot: PinSnapshot) -> PinSnapshot:
    """If it is not known which CPUs are online, assume those that are reserved and those that claims were given."""
    if snapshot.online or not snapshot.pins_cpus:
        return snapshot
    given = (claim.cpus | claim.held for claim in snapshot.claims.values())
    return replace(snapshot, online=snapshot.reserved | CPUSet.union(given))
