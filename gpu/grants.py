"""Decides which GPUs a claim gets, and how its containers use them, without I/O.

A recorded `Grant` has an `Intent` as its `state`, and as edits the variables that follow from the claim. Device nodes,
group ids and libraries depend on the running machine: `dranode.gpu.edits` adds them on every Prepare, just before the
CDI spec is written. They are never recorded, because minor numbers change from boot to boot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dranode.api.documents import decode
from dranode.api.errors import ClaimConflictError, ClaimError
from dranode.api.names import named_value
from dranode.api.quantity import Quantity
from dranode.cdi.spec import ContainerEdits
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.gpu.config import GPUMode, Settings, Strategy, Visibility, settings
from dranode.gpu.inventory import GPU, GPUInventory, GPUKind, named_source, overlap, sort_key, source_of

# The variables that a container gets with a GPU. A container may get GPUs of several requests and claims, and if two of
# them set one variable, the last value wins. So a variable that is always set either has the device in its name
# (`DRA_GPU_0000_17_00_0`) or the same value for all GPUs: `NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's runtime hook
# from adding every GPU to an image that asks for `all`. A variable that lists GPUs is set only on request
# (`visibility: vendor`); containers find their GPUs without it.

_MI: Final = 1 << 20


class GPUMemory(msgspec.Struct, frozen=True):
    """A GPU, and how many bytes of its memory may be used; None means no limit."""

    gpu: GPU
    memory: Quantity | None = None


# The variable that lists GPUs. Intel's has no UUIDs, and counts the tiles of a GPU as devices or not, as the program
# wants (ZE_FLAT_DEVICE_HIERARCHY).
_LISTS: Final[Mapping[str, str]] = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}

# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
_NVIDIA: Final[Mapping[GPUMode, tuple[str, ...]]] = {
    GPUMode.COMPUTE: ("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    GPUMode.GRAPHICS: ("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=all"),
    GPUMode.VFIO: ("NVIDIA_VISIBLE_DEVICES=void",),
}


def environment(granted: GPUMemory, peers: Sequence[GPUMemory], settings: Settings, *, admin: bool) -> tuple[str, ...]:
    """Return the `NAME=value` entries for one grant.

    Args:
        granted: the grant's GPU.
        peers: all GPUs of the same request, `granted` among them, in the order of their addresses.
        settings: the merged configurations.
        admin: whether the claim has admin access.
    """
    gpu = granted.gpu
    label = f"DRA_{gpu.name.upper().replace('-', '_')}"
    entries = [f"{label}={gpu.uuid or gpu.address}"]
    if granted.memory is not None:
        entries.append(f"{label}_MEMORY={granted.memory.value}")
    if admin:
        entries.append("DRA_ADMIN_ACCESS=true")
    if gpu.vendor == "nvidia":
        entries.extend(_NVIDIA[settings.mode])
        entries.extend(_pinned_memory(peers))
    if settings.visibility is Visibility.VENDOR and settings.mode is not GPUMode.VFIO:
        entries.extend(_list(gpu.vendor, peers))
    return tuple(entries)


def _list(vendor: str, peers: Sequence[GPUMemory]) -> tuple[str, ...]:
    gpus = [peer.gpu for peer in peers if peer.gpu.vendor == vendor]
    # To ROCm, a divided GPU is as many devices as it has parts.
    divided = any(gpu.partition is None and not (gpu.partition_mode or "SPX").startswith("SPX") for gpu in gpus)
    if vendor not in _LISTS or divided:
        return ()
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    values = uuids if len(uuids) == len(gpus) else [str(position) for position in range(len(gpus))]
    return (f"{_LISTS[vendor]}={','.join(values)}",)


def _pinned_memory(peers: Sequence[GPUMemory]) -> tuple[str, ...]:
    """Return `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M,...` by position in the container; MPS clients obey it.

    By default, CUDA's first device is the fastest one.
    """
    sizes = [peer.memory for peer in peers if peer.gpu.vendor == "nvidia"]
    limits = [f"{position}={int(size.value) // _MI}M" for position, size in enumerate(sizes) if size is not None]
    return (f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={','.join(limits)}", "CUDA_DEVICE_ORDER=PCI_BUS_ID") if limits else ()


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function, and the driver to which it returns from a virtual machine.

    Attributes:
        address: the function.
        driver: its driver; empty if it had none. None in records of earlier versions: the kernel should choose one.
    """

    address: str
    driver: str | None


class Intent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The intent of a grant: `Grant.state` as a value.

    Attributes:
        address: the GPU's PCI address.
        vendor: `nvidia`, `amd`, `intel` or a PCI vendor.
        mode: the use of the GPU, which decides its device nodes.
        partition: the number of the partition; None for the whole GPU.
        division: how the partition's GPU is divided (`GPU.division`); missing in records of earlier versions.
        parent: the physical function of a virtual one; missing in records of earlier versions.
        homes: the functions that `vfio` takes from their drivers.
    """

    address: str
    vendor: str
    mode: GPUMode = GPUMode.COMPUTE
    partition: int | None = None
    division: str = ""
    parent: str | None = None
    homes: tuple[Home, ...] = ()

    @classmethod
    def of(cls, grant: Grant) -> Intent | None:
        """Return the intent of a recorded grant; None if the grant was recovered without one."""
        return None if grant.state is None else decode(cls, grant.state)


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an `Intent` that identify the GPU; another version may have further fields."""

    address: str
    partition: int | None = None
    division: str = ""
    parent: str | None = None


class _Asked(msgspec.Struct, frozen=True):
    """One allocation result with its GPU and the merged settings of its configurations."""

    allocated: AllocatedResult
    gpu: GPU
    settings: Settings

    @property
    def request(self) -> str:
        return self.allocated.result.request

    @property
    def where(self) -> str:
        return f'request "{self.request}" with device "{self.gpu.name}"'

    @property
    def memory(self) -> Quantity | None:
        """Return the grant's memory limit in bytes, if any: the configured limit, else the share's part."""
        return self.settings.memory_limit or consumed(self.allocated, "memory")


def grant_gpus(
    claim: AllocatedClaim, held: Held, inventory: GPUInventory, drivers: Mapping[str, str | None]
) -> ClaimGrant:
    """Decide what the claim gets; the framework has checked that its devices are in the inventory.

    Args:
        claim: the claim.
        held: what other claims hold.
        inventory: the machine's GPUs. It may have been read while an earlier claim had one of them on `vfio-pci`.
        drivers: the present driver of each function of the claim's GPUs, by address.

    Raises:
        ClaimConflictError: another claim holds a device with parts of the same GPU.
        ClaimError: the GPU cannot do what the configurations ask for.
    """
    asks = [
        _Asked(allocated, inventory.by_name[allocated.result.device], settings(allocated.configs))
        for allocated in claim.results
    ]
    for asked in asks:
        _check_sharing(claim.ref, asked)
        _check_mode(claim.ref, asked, inventory)
        if not asked.allocated.result.admin_access:
            _check_family(claim.ref, asked, held, inventory)
            _check_group(claim.ref, asked, held, inventory)
    _check_parts(claim.ref, asks, inventory)
    _check_visibility(claim.ref, asks)
    return ClaimGrant(grants=tuple(_grant(asked, asks, drivers) for asked in asks))


def consumed(allocated: AllocatedResult, capacity: str) -> Quantity | None:
    """Return how much of a capacity the share got, by the capacity's name with or without the driver's domain."""
    return named_value(allocated.result.consumed_capacity, capacity, allocated.result.driver)


def _grant(asked: _Asked, asks: Sequence[_Asked], drivers: Mapping[str, str | None]) -> Grant:
    result = asked.allocated.result
    admin = bool(result.admin_access)
    takes = asked.settings.mode is GPUMode.VFIO and not admin
    intent = Intent(
        address=asked.gpu.address,
        vendor=asked.gpu.vendor,
        mode=asked.settings.mode,
        partition=asked.gpu.partition,
        division=asked.gpu.division,
        parent=asked.gpu.parent if asked.gpu.kind is GPUKind.VF else None,
        homes=tuple(Home(address=each.address, driver=drivers[each.address] or "") for each in asked.gpu.functions)
        if takes
        else (),
    )
    peers = _peers(asked, asks)
    env = environment(peers[asked.gpu.name], tuple(peers.values()), asked.settings, admin=admin)
    return Grant.of(result, edits=ContainerEdits(env=env), state=msgspec.to_builtins(intent))


def _peers(asked: _Asked, asks: Sequence[_Asked]) -> Mapping[str, GPUMemory]:
    """Return the GPUs of a request by name, in the order of their addresses, with the memory of all shares of each."""
    peers: dict[str, GPUMemory] = {}
    for peer in sorted(asks, key=lambda peer: sort_key(peer.gpu)):
        if peer.request == asked.request:
            before, size = peers.get(peer.gpu.name), peer.memory
            if before is not None and before.memory is not None and size is not None:
                size = Quantity(int(before.memory.value + size.value))
            peers[peer.gpu.name] = GPUMemory(peer.gpu, size)
    return peers


def _check_sharing(claim: ClaimRef, asked: _Asked) -> None:
    share = asked.allocated.result.share_id is not None
    if share and asked.settings.strategy is Strategy.EXCLUSIVE:
        raise ClaimError(
            f"{asked.where} of claim {claim} asks for an exclusive GPU, but the node offers shares of its GPUs; "
            "ask for a node with --gpu-sharing exclusive, or leave out sharing.strategy"
        )
    limit = asked.settings.memory_limit
    if limit is None:
        return
    if asked.gpu.vendor != "nvidia":
        raise ClaimError(
            f"{asked.where} of claim {claim} has sharing.memoryLimit {limit}, but {asked.gpu.vendor} GPUs have no "
            "variable to limit it; leave it out"
        )
    ceiling = consumed(asked.allocated, "memory") or (
        Quantity(asked.gpu.memory) if asked.gpu.memory is not None else None
    )
    if ceiling is not None and limit > ceiling:
        raise ClaimError(
            f"{asked.where} of claim {claim} has sharing.memoryLimit {limit}, more than the {ceiling} that it was "
            "allocated; lower the limit or request more memory"
        )


def _check_mode(claim: ClaimRef, asked: _Asked, inventory: GPUInventory) -> None:
    if asked.settings.mode is not GPUMode.VFIO:
        return
    obstacle = None
    if asked.allocated.result.share_id is not None:
        obstacle = "is a share, and a virtual machine needs a whole GPU"
    elif asked.gpu.kind is GPUKind.PARTITION:
        obstacle = "is a partition, and a virtual machine needs a whole PCI function"
    elif any(part.kind is GPUKind.VF for part in inventory.children.get(asked.gpu.name, ())):
        obstacle = "has virtual functions, which would vanish with its driver"
    if obstacle is not None:
        raise ClaimError(f"{asked.where} of claim {claim} has mode vfio but {obstacle}; choose another mode or device")


def gpu_sources(device: str, state: Any) -> frozenset[str] | None:
    """Return what a granted GPU is made of, from the state of the grant or, if it has none, from the device name.

    Raises:
        DocumentError: the state is not this driver's.
    """
    if state is None:
        source = named_source(device)
        return None if source is None else frozenset((source,))
    place = decode(_Place, state)
    return frozenset((source_of(place.address, place.parent, place.partition, place.division),))


def _check_family(claim: ClaimRef, asked: _Asked, held: Held, inventory: GPUInventory) -> None:
    """Refuse a GPU if another claim holds it, a part of it or its whole, even if the GPU is divided differently by now.

    Several claims may have shares of one device. A holder keeps the share or the whole that it was given.
    """
    gpu, share = asked.gpu, asked.allocated.result.share_id is not None
    for source in sorted(held.sources):
        present = inventory.by_source.get(source)
        same = present is not None and present.name == gpu.name
        if not overlap(source if present is None else present.source, gpu.source):
            continue
        holders = held.holders((source,), whole=share and same)
        if holders:
            raise ClaimConflictError(
                f'claim {claim} was allocated device "{gpu.name}", but claim {" and ".join(map(str, holders))} '
                f'holds "{_device_of(held, holders[0], source)}" of the same GPU; it can be prepared once that claim '
                "is unprepared"
            )


def _check_group(claim: ClaimRef, asked: _Asked, held: Held, inventory: GPUInventory) -> None:
    """Refuse a GPU for a virtual machine if another claim holds a GPU in the same IOMMU group.

    A group has one device node, with which either claim could use all functions of the group.
    """
    gpu = asked.gpu
    if asked.settings.mode is not GPUMode.VFIO or gpu.iommu_group is None:
        return
    for other in inventory.gpus:
        if other.iommu_group != gpu.iommu_group or other.address == gpu.address:
            continue
        holders = held.holders(source for source in held.sources if overlap(source, other.source))
        if holders:
            raise ClaimConflictError(
                f'claim {claim} was allocated device "{gpu.name}" in mode vfio, but claim '
                f'{" and ".join(map(str, holders))} holds "{other.name}" of the same IOMMU group '
                f"({gpu.iommu_group}), which only one virtual machine can have; it can be prepared once that claim is "
                "unprepared, or use another slot"
            )


def _device_of(held: Held, claim: ClaimRef, source: str) -> str:
    return next(device.name for device in held.holdings[claim.uid].devices if device.of((source,)))


def _check_parts(claim: ClaimRef, asks: Sequence[_Asked], inventory: GPUInventory) -> None:
    own = {asked.gpu.name for asked in asks if not asked.allocated.result.admin_access}
    for name in sorted(own):
        related = sorted(inventory.family(name) & own)
        if related:
            raise ClaimError(
                f'claim {claim} was allocated "{name}" and "{related[0]}", which overlap on the same GPU; '
                "delete the claim so that it is allocated again"
            )


def _check_visibility(claim: ClaimRef, asks: Sequence[_Asked]) -> None:
    """Refuse `visibility: vendor` for two requests: the last request's variable would replace the first one's."""
    for vendor in sorted({asked.gpu.vendor for asked in asks if asked.settings.visibility is Visibility.VENDOR}):
        requests = sorted({asked.request for asked in asks if asked.gpu.vendor == vendor})
        if len(requests) > 1:
            raise ClaimError(
                f"claim {claim} has visibility vendor and {vendor} GPUs in requests {' and '.join(requests)}, but a "
                "container's variable can list the GPUs of one request only; use one request or visibility none"
            )
