"""The published slices as far as this driver knows: what was listed and watched, and its own writes until it sees them.

Whichever is newer counts, by resource version (KEP-5504: versions of one resource compare as whole numbers). So a watch
that lags behind a write neither brings the old slice back nor makes the driver create a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dranode.driver.core.resource import ResourceSlice


class SliceView:
    """Slices by name. Not thread-safe: use it under the lock of whoever owns it."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        # UID -> version at which it was last known to be there, of slices that this driver has deleted.
        self._deleted: dict[str, int] = {}

    @property
    def slices(self) -> Mapping[str, ResourceSlice]:
        """The slices that are published, by name."""
        return self._slices

    def listed(self, slices: Iterable[ResourceSlice], version: str) -> None:
        """All that the server had at `version`."""
        listed = {one.metadata.name: one for one in slices if one.metadata.uid not in self._deleted}
        newer = {name: one for name, one in self._slices.items() if _age(one) > _number(version)}
        self._slices = listed | newer
        self._deleted = {uid: age for uid, age in self._deleted.items() if age >= _number(version)}

    def changed(self, one: ResourceSlice) -> bool:
        """A slice was added or modified; whether that is news."""
        known = self._slices.get(one.metadata.name)
        if one.metadata.uid in self._deleted or (known is not None and _age(known) >= _age(one) > 0):
            return False
        self._slices[one.metadata.name] = one
        return True

    def gone(self, one: ResourceSlice) -> bool:
        """A slice was deleted; whether that is news."""
        known = self._slices.get(one.metadata.name)
        self._deleted.pop(one.metadata.uid, None)
        if known is None or known.metadata.uid != one.metadata.uid:
            return False
        del self._slices[one.metadata.name]
        return True

    def wrote(self, one: ResourceSlice) -> None:
        """This driver created or updated a slice; the server's answer."""
        self._slices[one.metadata.name] = one

    def deleted(self, name: str) -> None:
        """This driver deleted a slice."""
        one = self._slices.pop(name, None)
        if one is not None:
            self._deleted[one.metadata.uid] = _age(one)


def _age(one: ResourceSlice) -> int:
    return _number(one.metadata.resource_version)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
