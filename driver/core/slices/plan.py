"""The changes that bring the API server's ResourceSlices to the ones wanted.

The rules are those of the slice controller in k8s.io/dynamic-resource-allocation, kept to the letter so that either can
take over from the other:

- A slice is called `<index>-<driver>-<node>-<random>`, the index in at least five hexadecimal digits, because the
  allocator tries slices by name. A published slice belongs to the wanted one of its index.
- It is obsolete if its generation is not the pool's newest, its name has no such index, there are fewer slices now, or
  another one has the index already. Slices of a pool that is not wanted any more are obsolete.
- One changed slice keeps the generation; two, or a new one, make a new generation of the whole pool.
- Deletions come first, then updates, then creations, each with the precondition that nobody else was there meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Final, TypeAlias

import msgspec

from dranode.driver.core.api.documents import API_VERSION
from dranode.driver.core.api.resource import (
    Device,
    DeviceTaint,
    ObjectMeta,
    OwnerReference,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dranode.driver.core.api.semantic import parse_time, same, same_devices

_WIDTH: Final = 5

# Device, key, value and effect of a taint: the same taint, whenever it was added.
_TaintId: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    """Delete a slice, if it is still the one with this UID and resource version; that it is gone is success."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    """Replace a slice by this one, if it still has `metadata.resourceVersion`."""

    slice: ResourceSlice


@dataclass(frozen=True, slots=True)
class CreateSlice:
    """Create this slice; the server completes its name."""

    slice: ResourceSlice


SliceChange: TypeAlias = DeleteSlice | UpdateSlice | CreateSlice


def plan(
    desired: Sequence[ResourceSliceSpec], published: Iterable[ResourceSlice], owner: OwnerReference | None = None
) -> tuple[SliceChange, ...]:
    """What to do, in this order, so that the published slices become the desired ones; nothing if they are already.

    Slices of another driver or node than those of `desired` are never touched, so nothing desired changes nothing: what
    withdraws devices is an empty slice. `owner` is the Node, and goes into new slices. Times of taints that stay are
    kept, and rounded to seconds where the desired slices set them.
    """
    wanted: dict[tuple[str, str | None, str], list[ResourceSliceSpec]] = defaultdict(list)
    for spec in desired:
        wanted[spec.driver, spec.node_name, spec.pool.name].append(spec)
    places = {(driver, node) for driver, node, _ in wanted}
    existing: dict[tuple[str, str | None, str], list[ResourceSlice]] = defaultdict(list)
    for one in sorted(published, key=lambda one: one.metadata.name):
        if (one.spec.driver, one.spec.node_name) in places:
            existing[one.spec.driver, one.spec.node_name, one.spec.pool.name].append(one)
    changes: list[SliceChange] = [_delete(one) for key, ours in existing.items() if key not in wanted for one in ours]
    for key, specs in wanted.items():
        changes += _plan_pool(specs, existing[key], owner)
    return tuple(changes)


def complete_slice(
    spec: ResourceSliceSpec, index: int, count: int, owner: OwnerReference | None = None
) -> ResourceSlice:
    """The object to create for slice number `index` of a pool of `count`."""
    width = _width(count)
    node = f"{spec.node_name}-" if spec.node_name else ""
    metadata = ObjectMeta(
        generate_name=f"{index:0{width}x}-{spec.driver}-{node}", owner_references=(owner,) if owner else ()
    )
    return ResourceSlice(api_version=API_VERSION, kind="ResourceSlice", metadata=metadata, spec=spec)


def _plan_pool(
    specs: Sequence[ResourceSliceSpec], existing: Sequence[ResourceSlice], owner: OwnerReference | None
) -> list[SliceChange]:
    current = max((one.spec.pool.generation for one in existing), default=0)
    matched, obsolete = _match(existing, current, len(specs))
    wanted = [_in_pool(spec, current, len(specs)) for spec in specs]
    changed = {index for index, one in matched.items() if not _same_spec(wanted[index], one.spec)}
    generation = max(spec.pool.generation for spec in specs)
    if generation <= current:
        generation = current + 1 if len(matched) < len(specs) or len(changed) > 1 else current
    if generation != current:
        changed = set(matched)
        wanted = [_in_pool(spec, generation, len(specs)) for spec in specs]
    times = _taint_times(existing)
    final = [msgspec.structs.replace(spec, devices=_keep_times(spec.devices, times)) for spec in wanted]
    return [
        *(_delete(one) for one in obsolete),
        *(UpdateSlice(msgspec.structs.replace(matched[index], spec=final[index])) for index in sorted(changed)),
        *(
            CreateSlice(complete_slice(spec, index, len(final), owner))
            for index, spec in enumerate(final)
            if index not in matched
        ),
    ]


def _delete(one: ResourceSlice) -> DeleteSlice:
    return DeleteSlice(one.metadata.name, one.metadata.uid, one.metadata.resource_version)


def _width(count: int) -> int:
    return max(_WIDTH, len(f"{count - 1:x}"))


def _match(
    existing: Iterable[ResourceSlice], generation: int, count: int
) -> tuple[dict[int, ResourceSlice], list[ResourceSlice]]:
    """The published slices by the index that they are for, and those that are for none."""
    prefix = re.compile(rf"([0-9a-f]{{{_width(count)}}})-")
    matched: dict[int, ResourceSlice] = {}
    obsolete: list[ResourceSlice] = []
    for one in existing:
        name = prefix.match(one.metadata.name)
        index = int(name[1], 16) if name else count
        if one.spec.pool.generation < generation or index >= count or index in matched:
            obsolete.append(one)
        else:
            matched[index] = one
    return matched, obsolete


def _in_pool(spec: ResourceSliceSpec, generation: int, count: int) -> ResourceSliceSpec:
    pool = ResourcePool(name=spec.pool.name, generation=generation, resource_slice_count=count)
    return msgspec.structs.replace(spec, pool=pool)


def _same_spec(wanted: ResourceSliceSpec, found: ResourceSliceSpec) -> bool:
    return same_devices(wanted.devices, found.devices) and same(_without_devices(wanted), _without_devices(found))


def _without_devices(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    # `allNodes: false` says what no `allNodes` says, and the operations to skip are a set.
    return msgspec.structs.replace(
        spec,
        devices=(),
        all_nodes=spec.all_nodes or None,
        skip_node_operations=tuple(sorted(spec.skip_node_operations)),
    )


def _taint_times(existing: Iterable[ResourceSlice]) -> Mapping[_TaintId, str]:
    return {
        _taint_id(device, taint): taint.time_added
        for one in existing
        for device in one.spec.devices
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
    rounded = (parse_time(time) + timedelta(milliseconds=500)).astimezone(UTC)
    return rounded.strftime("%Y-%m-%dT%H:%M:%SZ")
