"""The variables that a container gets with a GPU.

A container may get GPUs of several requests and claims, and if two of them set one variable, the last value wins. A
variable that is always set therefore has the device in its name (`DRA_GPU_0000_17_00_0`), or the same value for all
GPUs: `NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's runtime hook from adding every GPU to an image that asks for `all`.
A variable that lists GPUs is set only on request (`visibility: vendor`); containers find their GPUs without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dranode.driver.core.api.quantity import Quantity
from dranode.gpu.config import GPUMode, Settings, Visibility
from dranode.gpu.inventory import GPU

_MI: Final = 1 << 20


class GPUMemory(msgspec.Struct, frozen=True):
    """A GPU, and how many bytes of its memory may be used; None is no limit."""

    gpu: GPU
    memory: Quantity | None = None


# The variable that names GPUs, and whether it takes UUIDs (else positions among the GPUs that the container has).
_LISTS: Final[Mapping[str, tuple[str, bool]]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", True),
    "amd": ("ROCR_VISIBLE_DEVICES", True),
    "intel": ("ZE_AFFINITY_MASK", False),
}

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
        peers: all GPUs of the same request, `granted` among them.
        settings: the merged configurations.
        admin: whether the claim has admin access, beside the GPU's holder.
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
    if vendor not in _LISTS:
        return ()
    name, takes_uuids = _LISTS[vendor]
    gpus = [peer.gpu for peer in peers if peer.gpu.vendor == vendor]
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    values = uuids if takes_uuids and len(uuids) == len(gpus) else [str(position) for position in range(len(gpus))]
    return (f"{name}={','.join(values)}",)


def _pinned_memory(peers: Sequence[GPUMemory]) -> tuple[str, ...]:
    """`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M,...` by position in the container; clients of MPS keep it."""
    ours = [peer for peer in peers if peer.gpu.vendor == "nvidia"]
    limits = [
        f"{position}={int(peer.memory.value) // _MI}M" for position, peer in enumerate(ours) if peer.memory is not None
    ]
    return (f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={','.join(limits)}",) if limits else ()
