"""The published slices as far as this driver knows: what was listed and watched, and its own writes until it sees them.

Whichever is newer counts, by resource version (KEP-5504: versions of one resource compare as whole numbers). So a watch
that lags behind a write neither brings the old slice back nor makes the driver create a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dranode.driver.core.api.resource import ResourceSlice

# So many deletions are remembered; what is still on its way of older ones has long arrived.
_REMEMBERED: Final = 256


class SliceView:
    """Slices by name. Not thread-safe: use it under the lock of whoever owns it."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        # UIDs in the order of their deletion; they do not come again.
        self._deleted: dict[str, None] = {}

    @property
    def slices(self) -> Mapping[str, ResourceSlice]:
        """The slices that are published, by name."""
        return self._slices

    def listed(self, slices: Iterable[ResourceSlice], version: str) -> None:
        """All that the server had at `version`."""
        listed = {one.metadata.name: one for one in slices if one.metadata.uid not in self._deleted}
        newer = {name: one for name, one in self._slices.items() if _age(one) > _number(version)}
        self._slices = listed | newer

    def changed(self, one: ResourceSlice) -> bool:
        """A slice was added or modified; whether that is news."""
        return self._put(one)

    def gone(self, one: ResourceSlice) -> bool:
        """A slice was deleted; whether that is news."""
        known = self._slices.get(one.metadata.name)
        self._forget(one)
        return known is not None and known.metadata.uid == one.metadata.uid

    def wrote(self, one: ResourceSlice) -> None:
        """This driver created or updated a slice; the server's answer, which the watch may have overtaken."""
        self._put(one)

    def deleted(self, name: str) -> None:
        """This driver deleted a slice."""
        one = self._slices.get(name)
        if one is not None:
            self._forget(one)

    def _put(self, one: ResourceSlice) -> bool:
        known = self._slices.get(one.metadata.name)
        if one.metadata.uid in self._deleted or (known is not None and _age(known) >= _age(one) > 0):
            return False
        self._slices[one.metadata.name] = one
        return True

    def _forget(self, one: ResourceSlice) -> None:
        known = self._slices.get(one.metadata.name)
        if known is not None and known.metadata.uid == one.metadata.uid:
            del self._slices[one.metadata.name]
        self._deleted[one.metadata.uid] = None
        if len(self._deleted) > _REMEMBERED:
            del self._deleted[next(iter(self._deleted))]


def _age(one: ResourceSlice) -> int:
    return _number(one.metadata.resource_version)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
