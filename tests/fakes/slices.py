"""ResourceSlices as an API server has them: a store with names, UIDs and versions, and reasons to refuse a slice."""

from collections.abc import Iterable
from itertools import count

import msgspec

from dranode.api.resource import ObjectMeta, ResourceSlice, ResourceSliceSpec
from dranode.api.slice_validation import slice_errors
from dranode.driver.slices.plan import CreateSlice, DeleteSlice, SliceChange, UpdateSlice, plan


class ConflictError(Exception):
    """Somebody else has changed the object meanwhile."""


class SliceShelf:
    """ResourceSlices by name. `put` stores one unchanged, as another publisher would have left it."""

    def __init__(self) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self._numbers = count(1)

    def put(self, name: str, spec: ResourceSliceSpec) -> ResourceSlice:
        number = str(next(self._numbers))
        metadata = msgspec.structs.replace(
            ResourceSlice(spec=spec).metadata, name=name, uid=f"uid-{number}", resource_version=number
        )
        self.slices[name] = ResourceSlice(metadata=metadata, spec=spec)
        return self.slices[name]

    def apply(self, changes: Iterable[SliceChange]) -> None:
        for change in changes:
            match change:
                case DeleteSlice(name, uid, version):
                    found = self.slices[name].metadata
                    if (found.uid, found.resource_version) != (uid, version):
                        raise ConflictError(name)
                    del self.slices[name]
                case UpdateSlice(wanted):
                    name = wanted.metadata.name
                    if self.slices[name].metadata != wanted.metadata:
                        raise ConflictError(name)
                    metadata = msgspec.structs.replace(wanted.metadata, resource_version=str(next(self._numbers)))
                    self.slices[name] = msgspec.structs.replace(wanted, metadata=metadata)
                case CreateSlice(wanted):
                    # The real server adds five random characters; a counter is enough, and never repeats either.
                    self.put(f"{wanted.metadata.generate_name}r{next(self._numbers):04d}", wanted.spec)

    def publish(self, desired: Iterable[ResourceSliceSpec]) -> tuple[SliceChange, ...]:
        """Plan and apply; returns the changes."""
        changes = plan(tuple(desired), self.slices.values())
        self.apply(changes)
        return changes

    def specs(self) -> list[ResourceSliceSpec]:
        return [self.slices[name].spec for name in sorted(self.slices)]


def slice_problems(spec: ResourceSliceSpec) -> list[str]:
    """Why the API server would refuse the slice, regardless of the driver's own limits."""
    slice_ = ResourceSlice(metadata=ObjectMeta(name="slice"), spec=spec)
    return [f"{error.path}: {error.message}" for error in slice_errors(slice_)]
