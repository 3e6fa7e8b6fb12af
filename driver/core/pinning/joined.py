"""The snapshots of several drivers as one, by which one NRI plug-in enforces what all of them gave."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from dranode.driver.core.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.core.claims.record import Unread
from dranode.driver.core.pinning.claim_names import claim_key
from dranode.driver.core.pinning.snapshot import HeldClaims, HeldSnapshot


class JoinedSnapshots(msgspec.Struct):
    """The last snapshot of each driver, and all of them as one; a change costs what has changed.

    Two drivers may have given something to one claim, so each claim's key begins with its driver.
    """

    _latest: dict[str, HeldSnapshot] = msgspec.field(default_factory=dict)
    _claims: HeldClaims = msgspec.field(default_factory=HeldClaims)

    def put(self, driver: str, snapshot: HeldSnapshot) -> HeldSnapshot:
        """Take in a driver's snapshot in place of its last one, and return all of them as one."""
        before = self._latest.get(driver, HeldSnapshot())
        self._latest[driver] = snapshot
        new = snapshot.index.by_key
        changed = before.index.differing(snapshot.index)
        if changed:
            put = [replace(new[key], driver=driver) for key in changed if key in new]
            drop = [claim_key(driver, key) for key in changed if key not in new]
            self._claims = self._claims.changed(put, drop)
        return self._joined()

    def _joined(self) -> HeldSnapshot:
        with_cpus = {driver: each for driver, each in self._latest.items() if each.pins_cpus}
        others = [each for each in self._latest.values() if not each.pins_cpus]
        every = tuple(self._latest.values())
        return HeldSnapshot(
            claims=self._claims,
            online=CPUSet.union(each.online for each in with_cpus.values()),
            reserved=CPUSet.union(each.reserved for each in with_cpus.values()),
            mems=next((each.mems for each in every if each.mems), NO_CPUS),
            unread=_first(with_cpus.values() if with_cpus else every),
            memory_unread=_first(others) if with_cpus else None,
            pins_cpus=bool(with_cpus),
            page_sizes=tuple(sorted({size for each in every for size in each.page_sizes})),
            exclusive_pages=any(each.exclusive_pages for each in every),
            unified_pages=any(each.unified_pages for each in every),
            names=tuple(
                replace(names, driver=driver, pins_cpus=each.pins_cpus or not with_cpus)
                for driver, each in self._latest.items()
                for names in each.claim_names
            ),
        )


def _first(snapshots: Iterable[HeldSnapshot]) -> Unread | None:
    return next((each.unread for each in snapshots if each.unread is not None), None)
