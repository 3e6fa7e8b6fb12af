"""ResourceSlices as an API server has them: a shelf with names, UIDs and versions, and why it would refuse a slice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec

from dranode.api.resource import ResourceSlice, ResourceSliceSpec
from dranode.driver.slices.limits import (
    MAX_COUNTER_SETS,
    MAX_DEVICES,
    MAX_LARGE_DEVICES,
    counter_set_problems,
    frame_problems,
    is_large,
    sanitize,
)
from dranode.driver.slices.plan import CreateSlice, DeleteSlice, SliceChange, UpdateSlice, plan


class ConflictError(Exception):
    """Somebody else was there meanwhile."""


class SliceShelf:
    """ResourceSlices by name. `put` files one as it stands, as another publisher would have left it."""

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
                    # The real server adds five random characters; a number will do, and never repeats either.
                    self.put(f"{wanted.metadata.generate_name}r{next(self._numbers):04d}", wanted.spec)

    def publish(self, desired: Iterable[ResourceSliceSpec]) -> tuple[SliceChange, ...]:
        """Plan and apply; the changes that were made."""
        changes = plan(tuple(desired), self.slices.values())
        self.apply(changes)
        return changes

    def specs(self) -> list[ResourceSliceSpec]:
        return [self.slices[name].spec for name in sorted(self.slices)]


def slice_problems(spec: ResourceSliceSpec) -> tuple[str, ...]:
    """Return a sentence for each reason why the API server would refuse the slice; none if it would accept it."""
    problems = [*frame_problems(spec)]
    names = [device.name for device in spec.devices]
    problems += [f'device "{name}" stands twice in the slice' for name in sorted({*names}) if names.count(name) > 1]
    most = MAX_LARGE_DEVICES if any(map(is_large, spec.devices)) else MAX_DEVICES
    if len(names) > most:
        problems.append(f"{len(names)} devices in one slice are more than {most}")
    if spec.shared_counters and spec.devices:
        problems.append("devices and sharedCounters cannot share a slice")
    if len(spec.shared_counters) > MAX_COUNTER_SETS:
        problems.append(f"{len(spec.shared_counters)} counter sets in one slice are more than {MAX_COUNTER_SETS}")
    for counters in spec.shared_counters:
        problems += counter_set_problems(counters)
    for device in spec.devices:
        problems += sanitize(device)[1]
    return tuple(problems)
