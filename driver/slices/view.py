"""The published slices that this driver knows of: those it listed and watched, and its own writes.

The newer one counts, by resource version (KEP-5504: versions of one resource compare as whole numbers). A watch that
lags behind a write therefore neither brings back the old slice nor makes the driver create a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dranode.api.resource import ResourceSlice

# The number of deletions to remember; late events about older ones have long arrived.
_REMEMBERED: Final = 256


class SliceView:
    """Slices by name. Not thread-safe: the owner guards it by a lock."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._newest = 0
        # UIDs in the order of deletion; Kubernetes never uses one again.
        self._deleted: dict[str, None] = {}

    @property
    def slices(self) -> Mapping[str, ResourceSlice]:
        """Return the published slices by name."""
        return self._slices

    @property
    def newest(self) -> int:
        """Return the newest known resource version; a list that is requested now is at least as new."""
        return self._newest

    def listed(self, slices: Iterable[ResourceSlice], version: str, asked: int) -> bool:
        """Apply a list: all slices that the server had at `version`; `asked` is `newest` of before it was asked for.

        A server whose storage was restored from a backup goes back to older versions: then what was known counts no
        more, deletions included.

        Returns:
            Whether the server has gone back.
        """
        reached = _number(version)
        if gone_back := 0 < reached < asked:
            self._slices, self._newest = {}, reached
            self._deleted.clear()
        listed = {slice_.metadata.name: slice_ for slice_ in slices if slice_.metadata.uid not in self._deleted}
        newer = {name: one for name, one in self._slices.items() if _age(one) > reached}
        self._slices = listed | newer
        self._newest = max(self._newest, reached)
        return gone_back

    def changed(self, published: ResourceSlice) -> bool:
        """Apply an event that a slice was added or modified; return whether that is news."""
        return self._put(published)

    def gone(self, published: ResourceSlice) -> bool:
        """Apply an event that a slice was deleted; return whether that is news."""
        known = self._slices.get(published.metadata.name)
        self._forget(published)
        return known is not None and known.metadata.uid == published.metadata.uid

    def wrote(self, published: ResourceSlice) -> None:
        """Apply the server's answer to an own create or update; the watch may have delivered a newer state already."""
        self._put(published)

    def deleted(self, name: str) -> None:
        """Apply an own deletion."""
        one = self._slices.get(name)
        if one is not None:
            self._forget(one)

    def _put(self, published: ResourceSlice) -> bool:
        known = self._slices.get(published.metadata.name)
        if published.metadata.uid in self._deleted or (known is not None and _age(known) >= _age(published) > 0):
            return False
        self._slices[published.metadata.name] = published
        self._newest = max(self._newest, _age(published))
        return True

    def _forget(self, published: ResourceSlice) -> None:
        known = self._slices.get(published.metadata.name)
        if known is not None and known.metadata.uid == published.metadata.uid:
            del self._slices[published.metadata.name]
        self._deleted[published.metadata.uid] = None
        if len(self._deleted) > _REMEMBERED:
            del self._deleted[next(iter(self._deleted))]


def _age(published: ResourceSlice) -> int:
    return _number(published.metadata.resource_version)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
