"""Reads the files of NVIDIA's kernel driver in `/proc/driver/nvidia`, without NVML.

`gpus/<address>/information` has lines with a key, a colon and a value; a UUID consists of question marks until the GPU
is first used. `gpus/<address>/numa_status` exists if the GPU's memory is a NUMA node of the system. The folder of a GPU
exists only while the GPU is bound to the driver. `capabilities/gpu<minor>/mig` has a folder `gi<n>` for each of its MIG
instances.
"""

import re
from typing import Final

import msgspec

from dranode.api.errors import MachineError
from dranode.driver.machine.root import Root, all_names, integer, names, read_attribute, why_unread
from dranode.gpu.sysfs import PROC_NVIDIA

NVIDIAS_DRIVER: Final = "nvidia"
"""The kernel driver to which these files belong; nouveau serves NVIDIA's GPUs with render nodes."""

_UUID: Final = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INSTANCE: Final = re.compile("gi[0-9]+")
_VERSION: Final = re.compile(r"^NVRM version:.*?\s(?P<version>[0-9]+\.[0-9]+(?:\.[0-9]+)*)\s", re.MULTILINE)


class NvidiaFacts(msgspec.Struct, frozen=True):
    """One GPU as the kernel driver describes it; None means not reported.

    Attributes:
        model: product name.
        uuid: `GPU-` and a UUID.
        minor: number of `/dev/nvidia<minor>`.
        excluded: whether the administrator excludes the GPU from use (`NVreg_ExcludedGpus`); older drivers do not tell.
        instances: how many MIG instances it is divided into.
        unread: why it is not known whether the GPU may be handed out, if a file about that cannot be read; else empty.
        memory_node: the NUMA node that consists of its memory.
        memory: bytes of that node.
        unclear: why both are unknown although the driver has a file about them; else empty.
    """

    model: str | None = None
    uuid: str | None = None
    minor: int | None = None
    excluded: bool = False
    instances: int = 0
    unread: str = ""
    memory_node: int | None = None
    memory: int | None = None
    unclear: str = ""


def nvidia_gpus(root: Root) -> frozenset[str]:
    """Return the PCI addresses of the GPUs that the driver has."""
    return frozenset(names(root, f"{PROC_NVIDIA}/gpus"))


def nvidia_facts(root: Root, address: str) -> NvidiaFacts | None:
    """Return what the driver reports about the GPU at this PCI address; None if the driver does not have it."""
    folder = f"{PROC_NVIDIA}/gpus/{address}"
    text = read_attribute(root, f"{folder}/information")
    if text is None and (unread := why_unread(root, f"{folder}/information")):
        return NvidiaFacts(unread=unread)
    if text is None and not root.exists(folder):
        return None
    information = _fields(text or "")
    status = f"{folder}/numa_status"
    numa_text = read_attribute(root, status)
    numa = _fields(numa_text or "")
    node, memory = integer(numa.get("Node", ""), 10), integer(numa.get("Size", ""), 16)
    unclear = (
        f"/{status} has no lines Node and Size with numbers" if numa_text is not None and None in (node, memory) else ""
    )
    uuid = information.get("GPU UUID", "")
    minor = integer(information.get("Device Minor", ""), 10)
    try:
        instances = [] if minor is None else all_names(root, f"{PROC_NVIDIA}/capabilities/gpu{minor}/mig")
    except MachineError as error:
        return NvidiaFacts(unread=str(error))
    return NvidiaFacts(
        model=information.get("Model") or None,
        uuid=uuid if _UUID.fullmatch(uuid) else None,
        minor=minor,
        excluded=information.get("GPU Excluded") == "Yes",
        instances=sum(map(bool, map(_INSTANCE.fullmatch, instances))),
        memory_node=node,
        memory=memory,
        unclear=unclear or why_unread(root, status),
    )


def nvidia_version(root: Root) -> str | None:
    """Return the version of NVIDIA's kernel driver as `/proc` shows it (`580.159.04`)."""
    match = _VERSION.search(read_attribute(root, f"{PROC_NVIDIA}/version") or "")
    return None if match is None else match["version"]


def _fields(content: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in content.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}
