"""The published slices that this driver knows: from lists, from the watch, and from its own writes.

The version with the higher resource version counts (KEP-5504: versions of a resource can be compared as numbers). So a
watch that lags behind a write neither brings back the old slice nor makes the driver create a second one.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from dranode.api.resource import ResourceSlice

# How many deletions to remember; late events about older ones have arrived long ago.
_REMEMBERED: Final = 256


class SliceView:
    """Slices by name. Not thread-safe: the owner guards it by a lock."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._newest = 0
        # UIDs in the order of deletion; Kubernetes never uses a UID twice.
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
        """Apply a list of all slices that the server had at `version`; `asked` is `newest` at the time of the request.

        If the server's storage was restored from a backup, its versions go back. Then everything known is forgotten,
        including deletions.

        Returns:
            Whether the server has gone back.
        """
        reached = _number(version)
        if gone_back := 0 < reached < asked:
            self._slices, self._newest = {}, reached
            self._deleted.clear()
        # The list may be older than a deletion or a write that was answered while it was on its way.
        listed = {slice_.metadata.name: slice_ for slice_ in slices if slice_.metadata.uid not in self._deleted}
        newer = {name: slice_ for name, slice_ in self._slices.items() if _version(slice_) > reached}
        self._slices = listed | newer
        self._newest = max(self._newest, reached)
        return gone_back

    def changed(self, published: ResourceSlice) -> bool:
        """Apply an event that a slice was added or modified; return whether it was not known yet."""
        return self._put(published)

    def gone(self, published: ResourceSlice) -> bool:
        """Apply an event that a slice was deleted; return whether it was not known yet."""
        known = self._slices.get(published.metadata.name)
        self._forget(published)
        return known is not None and known.metadata.uid == published.metadata.uid

    def wrote(self, published: ResourceSlice) -> None:
        """Apply the server's answer to a create or update of ours; the watch may already have delivered a newer one."""
        self._put(published)

    def deleted(self, name: str) -> None:
        """Apply a deletion of ours."""
        known = self._slices.get(name)
        if known is not None:
            self._forget(known)

    def _put(self, published: ResourceSlice) -> bool:
        known = self._slices.get(published.metadata.name)
        if published.metadata.uid in self._deleted or (
            known is not None and _version(known) >= _version(published) > 0
        ):
            return False
        self._slices[published.metadata.name] = published
        self._newest = max(self._newest, _version(published))
        return True

    def _forget(self, published: ResourceSlice) -> None:
        known = self._slices.get(published.metadata.name)
        # A slice of the same name may have been created again since; that one stays.
        if known is not None and known.metadata.uid == published.metadata.uid:
            del self._slices[published.metadata.name]
        self._deleted[published.metadata.uid] = None
        if len(self._deleted) > _REMEMBERED:
            del self._deleted[next(iter(self._deleted))]


def _version(published: ResourceSlice) -> int:
    return _number(published.metadata.resource_version)


def _number(version: str) -> int:
    # 0 for a version that is not a number: then the newest answer counts, in the order of arrival.
    return int(version) if version.isdecimal() else 0
