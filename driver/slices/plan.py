"""The changes that turn the published ResourceSlices into the desired ones, and how far that has come.

The rules are exactly those of the slice controller in k8s.io/dynamic-resource-allocation, so that either can take over
from the other:

- A slice has the name `<index>-<driver>-<node>-<random>`. The index has at least five hexadecimal digits, because the
  allocator tries slices in the order of their names. A published slice belongs to the desired one of the same index.
- It is obsolete if its generation is not the pool's newest, its name has no such index, there are fewer slices now, or
  another slice already has the index. All slices of a pool that is no longer desired are obsolete.
- One changed slice keeps the generation. Two changed slices, or a new one, need a new generation of the whole pool.
- Deletions come first, then updates, then creations, each on the condition that the slice has not changed meanwhile.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Final, TypeAlias

import msgspec

from dranode.api.documents import API_VERSION, parse_time, same, same_devices
from dranode.api.resource import (
    Device,
    DeviceTaint,
    ObjectMeta,
    OwnerReference,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)

_WIDTH: Final = 5

# What identifies a taint, apart from its time: device, key, value and effect.
_TaintId: TypeAlias = tuple[str, str, str, str]


class DeleteSlice(msgspec.Struct, frozen=True):
    """Delete a slice if it still has this UID and resource version; a slice that is gone already is success."""

    name: str
    uid: str
    resource_version: str


class UpdateSlice(msgspec.Struct, frozen=True):
    """Replace a slice by this one if it still has `metadata.resourceVersion`."""

    slice: ResourceSlice


class CreateSlice(msgspec.Struct, frozen=True):
    """Create this slice; the server completes its name."""

    slice: ResourceSlice


SliceChange: TypeAlias = DeleteSlice | UpdateSlice | CreateSlice


def plan(
    desired: Sequence[ResourceSliceSpec], published: Iterable[ResourceSlice], owner: OwnerReference | None = None
) -> tuple[SliceChange, ...]:
    """Return the changes, in order, that turn the published slices into the desired ones.

    Slices of drivers and nodes that `desired` does not have are never touched, so an empty `desired` changes nothing;
    an empty slice withdraws all devices. `owner` is the Node, and becomes the owner of new slices. A taint that stays
    keeps its time; times that the desired slices set are rounded to seconds.
    """
    pools: dict[tuple[str, str | None, str], list[ResourceSliceSpec]] = defaultdict(list)
    for spec in desired:
        pools[spec.driver, spec.node_name, spec.pool.name].append(spec)
    # Other pools of these nodes are obsolete, but pools of other nodes and drivers belong to somebody else.
    places = {(driver, node) for driver, node, _ in pools}
    existing: dict[tuple[str, str | None, str], list[ResourceSlice]] = defaultdict(list)
    for old in sorted(published, key=lambda old: old.metadata.name):
        if (old.spec.driver, old.spec.node_name) in places:
            existing[old.spec.driver, old.spec.node_name, old.spec.pool.name].append(old)
    changes: list[SliceChange] = [
        _delete(old) for key, slices in existing.items() if key not in pools for old in slices
    ]
    for key, specs in pools.items():
        changes += _plan_pool(specs, existing[key], owner)
    return tuple(changes)


def published_specs(published: Iterable[ResourceSlice], pool: str) -> Mapping[int, ResourceSliceSpec]:
    """Return the published slices of a pool that are not obsolete, by index."""
    # In the order of names, as in `plan`, so that both keep the same one of two slices with one index.
    slices = sorted(
        (slice_ for slice_ in published if slice_.spec.pool.name == pool), key=lambda slice_: slice_.metadata.name
    )
    current = max((slice_.spec.pool.generation for slice_ in slices), default=0)
    matched, _ = _match(slices, current, max((slice_.spec.pool.resource_slice_count for slice_ in slices), default=0))
    return {index: slice_.spec for index, slice_ in matched.items()}


def complete_slice(
    spec: ResourceSliceSpec, index: int, count: int, owner: OwnerReference | None = None
) -> ResourceSlice:
    """Return the object to create for slice number `index` of a pool of `count`."""
    width = _width(count)
    node = f"{spec.node_name}-" if spec.node_name else ""
    metadata = ObjectMeta(
        generate_name=f"{index:0{width}x}-{spec.driver}-{node}", owner_references=(owner,) if owner else ()
    )
    return ResourceSlice(api_version=API_VERSION, kind="ResourceSlice", metadata=metadata, spec=spec)


def _plan_pool(
    specs: Sequence[ResourceSliceSpec], existing: Sequence[ResourceSlice], owner: OwnerReference | None
) -> list[SliceChange]:
    current = max((old.spec.pool.generation for old in existing), default=0)
    matched, obsolete = _match(existing, current, len(specs))
    planned = [_in_pool(spec, current, len(specs)) for spec in specs]
    # Compared within the current generation, so that only what the slices contain makes a difference.
    changed = {index for index, old in matched.items() if not _same_spec(planned[index], old.spec)}
    # The desired generation is that of a first publication, so it only counts if nothing is published yet.
    generation = max(spec.pool.generation for spec in specs)
    # The allocator sees one changed slice at once, but of several it may see some before and some after the change. A
    # new generation makes it ignore the pool until all slices have it.
    if generation <= current:
        generation = current + 1 if len(matched) < len(specs) or len(changed) > 1 else current
    if generation != current:
        changed = set(matched)
        planned = [_in_pool(spec, generation, len(specs)) for spec in specs]
    # From obsolete slices too: a device may have moved to another slice.
    times = _taint_times(existing)
    final = [msgspec.structs.replace(spec, devices=_keep_times(spec.devices, times)) for spec in planned]
    return [
        *(_delete(old) for old in obsolete),
        *(UpdateSlice(msgspec.structs.replace(matched[index], spec=final[index])) for index in sorted(changed)),
        *(
            CreateSlice(complete_slice(spec, index, len(final), owner))
            for index, spec in enumerate(final)
            if index not in matched
        ),
    ]


def _delete(obsolete: ResourceSlice) -> DeleteSlice:
    return DeleteSlice(obsolete.metadata.name, obsolete.metadata.uid, obsolete.metadata.resource_version)


def _width(count: int) -> int:
    return max(_WIDTH, len(f"{count - 1:x}"))


def _match(
    existing: Iterable[ResourceSlice], generation: int, count: int
) -> tuple[dict[int, ResourceSlice], list[ResourceSlice]]:
    """Return the published slices by their index, and the obsolete slices."""
    prefix = re.compile(rf"([0-9a-f]{{{_width(count)}}})-")
    matched: dict[int, ResourceSlice] = {}
    obsolete: list[ResourceSlice] = []
    for published in existing:
        name = prefix.match(published.metadata.name)
        # Without an index in its name a slice counts as one beyond the last, which is obsolete.
        index = int(name[1], 16) if name else count
        if published.spec.pool.generation < generation or index >= count or index in matched:
            obsolete.append(published)
        else:
            matched[index] = published
    return matched, obsolete


def _in_pool(spec: ResourceSliceSpec, generation: int, count: int) -> ResourceSliceSpec:
    pool = ResourcePool(name=spec.pool.name, generation=generation, resource_slice_count=count)
    return msgspec.structs.replace(spec, pool=pool)


def _same_spec(desired: ResourceSliceSpec, published: ResourceSliceSpec) -> bool:
    if not same_devices(desired.devices, published.devices):
        return False
    return same(_without_devices(desired), _without_devices(published))


def _without_devices(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    # A missing `allNodes` means false, and the order of the operations to skip does not matter.
    return msgspec.structs.replace(
        spec,
        devices=(),
        all_nodes=spec.all_nodes or None,
        skip_node_operations=tuple(sorted(spec.skip_node_operations)),
    )


def _taint_times(existing: Iterable[ResourceSlice]) -> Mapping[_TaintId, str]:
    return {
        _taint_id(device, taint): taint.time_added
        for slice_ in existing
        for device in slice_.spec.devices
        for taint in device.taints
        if taint.time_added is not None
    }


def _taint_id(device: Device, taint: DeviceTaint) -> _TaintId:
    return device.name, taint.key, taint.value, taint.effect


def _keep_times(devices: tuple[Device, ...], times: Mapping[_TaintId, str]) -> tuple[Device, ...]:
    return tuple(
        msgspec.structs.replace(device, taints=tuple(_keep_time(device, taint, times) for taint in device.taints))
        if device.taints
        else device
        for device in devices
    )


def _keep_time(device: Device, taint: DeviceTaint, times: Mapping[_TaintId, str]) -> DeviceTaint:
    added = times.get(_taint_id(device, taint)) if taint.time_added is None else _whole_second(taint.time_added)
    return msgspec.structs.replace(taint, time_added=added)


def _whole_second(time: str) -> str:
    # metav1.Time has seconds, so the server would return another time than the one that was sent.
    rounded = (parse_time(time) + timedelta(milliseconds=500)).astimezone(UTC)
    return rounded.strftime("%Y-%m-%dT%H:%M:%SZ")


# The state of a driver's ResourceSlices, for readiness and metrics.


class PublisherStatus(msgspec.Struct, frozen=True):
    """The state of the slices of one driver.

    Attributes:
        published: whether all devices of the driver are published, as far as is known.
        problem: why they are not, or what has gone wrong since; None if nothing has.
        dropped: the feature gates whose fields the server drops.
        created: slices created since start.
        updated: slices updated since start.
        deleted: slices deleted since start.
        repairs: how often the driver has undone changes of others since start.
    """

    published: bool = False
    problem: str | None = None
    dropped: frozenset[str] = frozenset()
    created: int = 0
    updated: int = 0
    deleted: int = 0
    repairs: int = 0

    @property
    def writes(self) -> int:
        """Return the number of successful writes since start."""
        return self.created + self.updated + self.deleted


NOTHING_YET: Final = PublisherStatus(problem="nothing was published yet")
"""The status of a driver that has not published since it started."""
