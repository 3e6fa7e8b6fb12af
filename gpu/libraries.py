"""NVIDIA's user space for a container: from NVIDIA's own CDI spec where there is one, else the libraries by mount.

A spec of kind `nvidia.com/gpu` (nvidia-ctk makes it) is taken if every file that it names is still there: after a
driver update some are gone, and a container with it would not start. Without one, the libraries of the running driver's
version are mounted to where glibc looks without configuration, on Debian's and on Red Hat's layout, under the names
that programs load (`libcuda.so.1`); no hook and no ldconfig run is needed.

In a DaemonSet the node's file system is expected at `/host`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.spec import ContainerEdits, DeviceNode, Mount, Spec
from dranode.driver.machine.root import Root, all_names, device_if_there, names
from dranode.gpu.config import GPUMode
from dranode.gpu.proc import NvidiaFacts, nvidia_facts, nvidia_version

_KIND: Final = "nvidia.com/gpu"
_SPEC_FOLDERS: Final = ("etc/cdi", "var/run/cdi", "run/cdi")
_SPEC_ENDINGS: Final = (".yaml", ".json")

_OPTIONS: Final = ("ro", "nosuid", "nodev", "bind")

# The dynamic loader of a host identifies the multiarch folder of its architecture.
_LOADERS: Final = {
    "lib64/ld-linux-x86-64.so.2": "x86_64-linux-gnu",
    "lib/ld-linux-aarch64.so.1": "aarch64-linux-gnu",
}
_DRIVER_ROOTS: Final = ("", "run/nvidia/driver/")
_LIBRARY_FOLDERS: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "home/kubernetes/bin/nvidia/lib64",
)
_COMPUTE: Final = frozenset(
    {
        "libcuda",
        "libcudadebugger",
        "libnvcuvid",
        "libnvidia-allocator",
        "libnvidia-cfg",
        "libnvidia-encode",
        "libnvidia-gpucomp",
        "libnvidia-ml",
        "libnvidia-nvvm",
        "libnvidia-opencl",
        "libnvidia-opticalflow",
        "libnvidia-ptxjitcompiler",
    }
)
_GRAPHICS: Final = _COMPUTE | {
    "libEGL_nvidia",
    "libGLESv1_CM_nvidia",
    "libGLESv2_nvidia",
    "libGLX_nvidia",
    "libnvidia-eglcore",
    "libnvidia-fbc",
    "libnvidia-glcore",
    "libnvidia-glsi",
    "libnvidia-glvkspirv",
    "libnvidia-rtcore",
    "libnvidia-tls",
    "libnvoptix",
}
_STEMS: Final[Mapping[GPUMode, frozenset[str]]] = {
    GPUMode.COMPUTE: _COMPUTE,
    GPUMode.GRAPHICS: _GRAPHICS,
    GPUMode.VFIO: frozenset(),
}
_FILES: Final[Mapping[GPUMode, tuple[str, ...]]] = {
    GPUMode.COMPUTE: ("usr/bin/nvidia-smi",),
    GPUMode.GRAPHICS: (
        "usr/bin/nvidia-smi",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "etc/vulkan/icd.d/nvidia_icd.json",
    ),
    GPUMode.VFIO: (),
}


def user_space(root: Root, address: str, mode: GPUMode) -> ContainerEdits:
    """The edits that bring NVIDIA's user space into a container; empty if none is found: the image then brings it.

    Raises:
        MachineError: the folder of the libraries cannot be listed, or a device node that NVIDIA's CDI spec names
            cannot be looked at.
    """
    if mode is GPUMode.VFIO:
        return ContainerEdits()
    prefix = "host/" if root.exists("host/usr") else ""
    facts = nvidia_facts(root, address) or NvidiaFacts()
    return _vendor_edits(root, prefix, facts) or ContainerEdits(mounts=tuple(_mounts(root, prefix, mode)))


def _vendor_edits(root: Root, prefix: str, facts: NvidiaFacts) -> ContainerEdits | None:
    """The common edits of NVIDIA's CDI spec, with those of this GPU."""
    for spec in _vendor_specs(root, prefix):
        # By UUID alone: NVIDIA's index is the order on the bus, which nothing here knows for certain.
        own = [device.container_edits for device in spec.devices if device.name == facts.uuid]
        parts = (spec.container_edits, *own)
        mounts = tuple(dict.fromkeys(mount for part in parts for mount in part.mounts))
        hooks = tuple(dict.fromkeys(hook for part in parts for hook in part.hooks))
        files = (*(mount.host_path for mount in mounts), *(hook.path for hook in hooks))
        if all(root.exists(f"{prefix}{path.lstrip('/')}") for path in files):
            return ContainerEdits(
                env=tuple(entry for part in parts for entry in part.env),
                device_nodes=tuple(_numbered(root, spec.container_edits.device_nodes)),
                hooks=hooks,
                mounts=mounts,
            )
    return None


def _numbered(root: Root, nodes: Iterable[DeviceNode]) -> Iterable[DeviceNode]:
    """The spec's common nodes that exist, with the numbers that they have now."""
    for node in nodes:
        found = device_if_there(root, (node.host_path or node.path).lstrip("/"))
        if found is not None:
            kind, major, minor = found
            yield msgspec.structs.replace(node, type=kind, major=major, minor=minor)


def _vendor_specs(root: Root, prefix: str) -> Iterable[Spec]:
    for folder in _SPEC_FOLDERS:
        for name in names(root, f"{prefix}{folder}"):
            if not name.endswith(_SPEC_ENDINGS):
                continue
            spec = _vendor_spec(root, f"{prefix}{folder}/{name}")
            if spec is not None:
                yield spec


def _vendor_spec(root: Root, path: str) -> Spec | None:
    """The spec at a path if it is NVIDIA's; a file that does not read or decode is passed over, as runtimes do."""
    from dranode.cdi.document import load_spec  # noqa: PLC0415 - YAML, for nodes that have a spec

    try:
        spec = load_spec(root.read_bytes(path))
    except (OSError, CDIError):
        return None
    return spec if spec.kind == _KIND else None


def _mounts(root: Root, prefix: str, mode: GPUMode) -> Iterable[Mount]:
    version = nvidia_version(root)
    if version is None:
        return
    for driver_root in (f"{prefix}{below}" for below in _DRIVER_ROOTS):
        for folder in _LIBRARY_FOLDERS:
            place = f"{driver_root}{folder}"
            if not root.exists(f"{place}/libcuda.so.{version}"):
                continue
            for name, real in sorted(_libraries(root, place, version, _STEMS[mode]).items()):
                host_path = f"/{real.removeprefix(prefix)}"
                for target in _targets(root, prefix, folder):
                    yield Mount(host_path=host_path, container_path=f"{target}/{name}", options=_OPTIONS)
            for path in (path for path in _FILES[mode] if root.exists(f"{driver_root}{path}")):
                host_path = f"/{driver_root.removeprefix(prefix)}{path}"
                yield Mount(host_path=host_path, container_path=f"/{path}", options=_OPTIONS)
            return


def _libraries(root: Root, place: str, version: str, stems: frozenset[str]) -> dict[str, str]:
    """The names of this version's libraries in a folder, each with the file that it leads to."""
    libraries: dict[str, str] = {}
    for name in all_names(root, place):
        stem, so, _ = name.partition(".so.")
        if not so or stem not in stems:
            continue
        try:
            real = root.resolve(f"{place}/{name}")
        except OSError:
            continue
        if real.endswith(f".so.{version}"):
            libraries[name] = real
    return libraries


def _targets(root: Root, prefix: str, folder: str) -> tuple[str, ...]:
    triplet = next((triplet for loader, triplet in _LOADERS.items() if root.exists(f"{prefix}{loader}")), None)
    if triplet is None:
        triplet = "aarch64-linux-gnu" if "aarch64" in folder else "x86_64-linux-gnu"
    return (f"/usr/lib/{triplet}", "/usr/lib64")
