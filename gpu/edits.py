"""The edits of a grant that depend on the running machine: device nodes, group ids, NVIDIA's user space.

They are looked up by PCI address whenever the CDI spec is written. A missing device node is an error, because the
container would start without it and find no GPU.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dranode.api.errors import ClaimError, MachineError
from dranode.cdi.errors import CDIError
from dranode.cdi.spec import ContainerEdits, DeviceNode, Mount, Spec
from dranode.driver.machine.pci import PCI_DEVICES
from dranode.driver.machine.root import Root, all_names, device_if_there, link_name, names, read_attribute
from dranode.gpu.config import GPUMode
from dranode.gpu.grants import Intent
from dranode.gpu.kfd import by_address
from dranode.gpu.proc import NVIDIAS_DRIVER, NvidiaFacts, nvidia_facts, nvidia_version
from dranode.gpu.sysfs import PCI, drm_minors, pci_function

_PERMISSIONS: Final = "rw"

_ADVICE: Final[Mapping[str, str]] = {
    "/dev/nvidia": "run `nvidia-modprobe -c 0 -u` on the node",
    "/dev/kfd": "load amdgpu with KFD, or ask for mode graphics",
    "/dev/vfio": "load vfio-pci on the node",
    "/dev/dri": "load the GPU's kernel driver and mount the node's /dev",
}


class DeviceEdit(msgspec.Struct, frozen=True):
    """A device node that a grant needs, or that it gets if the node exists."""

    path: str
    needed: bool = True


def complete(
    root: Root, intent: Intent, edits: ContainerEdits, group_of: Callable[[str], int | None]
) -> ContainerEdits:
    """Add to the edits of a grant what depends on the running machine.

    Args:
        root: the machine's files.
        intent: the grant's intent.
        edits: the grant's recorded edits, which are variables.
        group_of: returns the group of a node (`/dev/dri/renderD128`), or None if it is unknown.

    Raises:
        ClaimError: the GPU or one of its nodes is missing; the message names it.
        MachineError: it cannot be determined whether an optional node exists, its group, or the GPU's driver.
    """
    nodes = device_nodes(root, intent)
    gids = sorted({gid for gid in (group_of(node.path) for node in nodes) if gid})
    nvidia = intent.vendor == "nvidia" and not _by_other_driver(intent, pci_function(root, intent.address).driver)
    added = user_space(root, intent.address, intent.mode) if nvidia else ContainerEdits()
    paths = {node.path for node in nodes}
    return msgspec.structs.replace(
        edits,
        env=tuple(dict.fromkeys((*added.env, *edits.env))),
        device_nodes=(*nodes, *(node for node in added.device_nodes if node.path not in paths)),
        mounts=added.mounts,
        hooks=added.hooks,
        additional_gids=tuple(gids),
    )


def device_nodes(root: Root, intent: Intent) -> tuple[DeviceNode, ...]:
    """Return the device nodes of a grant with their present type and numbers.

    Raises:
        ClaimError: the GPU or one of its nodes is missing; the message names it.
        MachineError: it cannot be determined whether an optional node exists, or to which driver the GPU is bound.
    """
    address = intent.address
    function = pci_function(root, address)
    if not root.exists(f"{PCI_DEVICES}/{address}"):
        raise ClaimError(f"GPU {address} is gone from the PCI bus; delete the claim so that it is allocated again")
    if function.passthrough != (intent.mode is GPUMode.VFIO):
        raise ClaimError(
            f"GPU {address} is bound to {function.driver or 'no driver'}, which has no nodes for mode {intent.mode}; "
            "bind it to a driver for this mode, or ask for another mode"
        )
    vendor = "" if _by_other_driver(intent, function.driver) else intent.vendor
    nodes = dict.fromkeys(_NODES.get((vendor, intent.mode), _ANY_VENDOR[intent.mode])(root, intent))
    made = (_read(root, intent, node) for node in nodes)
    return tuple(node for node in made if node is not None)


def _by_other_driver(intent: Intent, driver: str | None) -> bool:
    """Return whether another driver (nouveau) serves an NVIDIA GPU, with render nodes like those of other vendors."""
    return intent.vendor == "nvidia" and driver not in (None, NVIDIAS_DRIVER)


def _read(root: Root, intent: Intent, node: DeviceEdit) -> DeviceNode | None:
    path = _place(root, node.path)
    if not node.needed and device_if_there(root, path) is None:
        return None
    try:
        kind, major, minor = root.device_number(path)
    except OSError as error:
        missing = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be used ({error.strerror})"
        advice = next((advice for prefix, advice in _ADVICE.items() if node.path.startswith(prefix)), "")
        raise ClaimError(f"GPU {intent.address} needs device node {node.path}, which {missing}; {advice}") from error
    return DeviceNode(path=node.path, type=kind, major=major, minor=minor, permissions=_PERMISSIONS)


def _place(root: Root, path: str) -> str:
    """Return where a device node of the node can be read.

    NVIDIA's module makes no nodes. Those that `nvidia-modprobe` makes in a container, which has loaded the driver, are
    in that container's `/dev` alone (NVIDIA's GPU operator).
    """
    path = path.lstrip("/")
    roots = (f"{_host(root)}{below}" for below in _DRIVER_ROOTS) if "dev/nvidia" in path else ()
    return next((place for place in (path, *(f"{below}{path}" for below in roots)) if root.exists(place)), path)


def _host(root: Root) -> str:
    """Return where the node's file system is: at `/host` in a DaemonSet."""
    return "host/" if root.exists("host/usr") else ""


def _nvidia(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    facts = nvidia_facts(root, intent.address)
    if facts is None or facts.minor is None:
        raise ClaimError(
            f"GPU {intent.address} has no minor number in /proc/driver/nvidia, so its device node is not known; "
            "load NVIDIA's kernel driver, or wait for the end of a reset"
        )
    yield DeviceEdit(f"/dev/nvidia{facts.minor}")
    yield DeviceEdit("/dev/nvidiactl")
    yield DeviceEdit("/dev/nvidia-uvm")
    yield DeviceEdit("/dev/nvidia-uvm-tools", needed=False)


def _nvidia_graphics(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    yield from _nvidia(root, intent)
    yield DeviceEdit("/dev/nvidia-modeset", needed=False)
    minors = drm_minors(root, f"{PCI_DEVICES}/{intent.address}")
    yield from (DeviceEdit(_drm_path(kind, minor), needed=False) for kind, minor in sorted(minors.items()))


def _amd(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    yield DeviceEdit("/dev/kfd")
    yield from _amd_render(root, intent)


def _amd_graphics(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    yield DeviceEdit("/dev/kfd", needed=False)
    renders = tuple(_amd_render(root, intent))
    yield from renders
    cards = _partition_cards(root)
    for node in renders:
        card = cards.get(node.path)
        yield DeviceEdit(card) if card is not None else _drm_node(root, intent, "card")


def _amd_render(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    """Return the render nodes of one partition, or of the GPU and all its partitions."""
    pci = PCI(root)
    slot = [address for address in pci.addresses if address[:-2] == intent.address[:-2]]
    gpus = [address for address in slot if pci.left_out(address) is None]
    nodes = by_address(root, gpus).get(intent.address, {})
    if intent.partition is None:
        yield _drm_node(root, intent, "renderD")
        yield from (DeviceEdit(_drm_path("renderD", node.render)) for node in nodes.values() if node.render is not None)
        return
    if intent.partition not in nodes:
        raise ClaimError(
            f"GPU {intent.address} no longer has partition {intent.partition}, only {len(nodes)} partitions; "
            "delete the claim so that it is allocated again"
        )
    render = nodes[intent.partition].render
    if render is None:
        raise ClaimError(f"partition {intent.partition} of GPU {intent.address} has no render node; reload amdgpu")
    yield DeviceEdit(_drm_path("renderD", render))


def _partition_cards(root: Root) -> dict[str, str]:
    """Return the card node for the render node of each partition (platform devices `amdgpu_xcp_<n>`)."""
    cards: dict[str, str] = {}
    for name in names(root, "sys/devices/platform"):
        if name.startswith("amdgpu_xcp"):
            minors = drm_minors(root, f"sys/devices/platform/{name}")
            if {"card", "renderD"} <= minors.keys():
                cards[_drm_path("renderD", minors["renderD"])] = _drm_path("card", minors["card"])
    return cards


def _render(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    yield _drm_node(root, intent, "renderD")


def _graphics(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    yield _drm_node(root, intent, "renderD")
    yield _drm_node(root, intent, "card")


def _vfio(root: Root, intent: Intent) -> Iterable[DeviceEdit]:
    group = link_name(root, f"{PCI_DEVICES}/{intent.address}/iommu_group")
    if group is None:
        raise ClaimError(f"GPU {intent.address} is in no IOMMU group; turn on the IOMMU for mode vfio")
    yield DeviceEdit("/dev/vfio/vfio")
    yield DeviceEdit(f"/dev/vfio/{group}")


def _drm_node(root: Root, intent: Intent, kind: str) -> DeviceEdit:
    minor = drm_minors(root, f"{PCI_DEVICES}/{intent.address}").get(kind)
    if minor is None:
        raise ClaimError(
            f"GPU {intent.address} has no device node /dev/dri/{kind}*; load the GPU's kernel driver, or wait for it"
        )
    return DeviceEdit(_drm_path(kind, minor))


def _drm_path(kind: str, minor: int) -> str:
    return f"/dev/dri/{kind}{minor}"


_NODES: Final[Mapping[tuple[str, GPUMode], Callable[[Root, Intent], Iterable[DeviceEdit]]]] = {
    ("nvidia", GPUMode.COMPUTE): _nvidia,
    ("nvidia", GPUMode.GRAPHICS): _nvidia_graphics,
    ("amd", GPUMode.COMPUTE): _amd,
    ("amd", GPUMode.GRAPHICS): _amd_graphics,
}
_ANY_VENDOR: Final[Mapping[GPUMode, Callable[[Root, Intent], Iterable[DeviceEdit]]]] = {
    GPUMode.COMPUTE: _render,
    GPUMode.GRAPHICS: _graphics,
    GPUMode.VFIO: _vfio,
}


# NVIDIA's user space for a container: from NVIDIA's own CDI spec if there is one, else the libraries as mounts.
#
# A spec of kind `nvidia.com/gpu` (made by nvidia-ctk) is used if every file that it names still exists: after a driver
# update some are gone, and a container with the spec would not start. Without a spec, the libraries of the running
# driver's version are mounted where glibc searches by default, for Debian's and Red Hat's layout, under the names that
# programs load (`libcuda.so.1`). So neither a hook nor ldconfig is needed.


_KIND: Final = "nvidia.com/gpu"
_SPEC_FOLDERS: Final = ("etc/cdi", "var/run/cdi", "run/cdi")
_SPEC_ENDINGS: Final = (".yaml", ".json")

_OPTIONS: Final = ("ro", "nosuid", "nodev", "bind")

# The dynamic loader of a host identifies the multiarch folder of its architecture.
_LOADERS: Final = {
    "lib64/ld-linux-x86-64.so.2": "x86_64-linux-gnu",
    "lib/ld-linux-aarch64.so.1": "aarch64-linux-gnu",
}
_MOST_LINKS: Final = 40
_DRIVER_ROOTS: Final = ("", "run/nvidia/driver/")
_LIBRARY_FOLDERS: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    # Debian's own packages, beside which /etc/alternatives has links without the full version.
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib",
    "home/kubernetes/bin/nvidia/lib64",
    # Talos before 1.13, which came without a CDI spec.
    "usr/local/glibc/usr/lib",
    "usr/local/glibc/lib",
    # Flatcar, Container-Optimized OS without GKE, NixOS.
    "opt/nvidia/current/usr/lib64",
    "var/lib/nvidia/lib64",
    "run/opengl-driver/lib",
)
# In these folders beside the driver's libraries, other programs look for plug-ins: GBM and VDPAU.
_PLUGIN_FOLDERS: Final = ("gbm", "vdpau")
# These libraries have the version of their interface instead of the driver's.
_UNVERSIONED: Final = frozenset(
    {
        "libnvidia-api",
        "libnvidia-egl-gbm",
        "libnvidia-egl-wayland",
        "libnvidia-egl-wayland2",
        "libnvidia-egl-xcb",
        "libnvidia-egl-xlib",
        "libnvidia-nvvm70",
    }
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
        "libnvidia-nvvm70",
        "libnvidia-opencl",
        "libnvidia-opticalflow",
        "libnvidia-ptxjitcompiler",
    }
)
# The libraries of a mode; None is all that are the driver's.
_STEMS: Final[Mapping[GPUMode, frozenset[str] | None]] = {
    GPUMode.COMPUTE: _COMPUTE,
    GPUMode.GRAPHICS: None,
    GPUMode.VFIO: frozenset(),
}
_TOOL_FOLDERS: Final = (
    "usr/bin",
    "usr/local/bin",
    "usr/libexec/nvidia/tesla/bin",
    "home/kubernetes/bin/nvidia/bin",
    "opt/bin",
    "var/lib/nvidia/bin",
)
_TOOLS: Final = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_COMPUTE_FILES: Final = ("etc/OpenCL/vendors/nvidia.icd",)
_FILES: Final[Mapping[GPUMode, tuple[str, ...]]] = {
    GPUMode.COMPUTE: _COMPUTE_FILES,
    GPUMode.GRAPHICS: (
        *_COMPUTE_FILES,
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
        "usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
        "usr/share/nvidia/nvoptix.bin",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        # Fedora's packages have the architecture in the name.
        "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
        "usr/share/vulkan/icd.d/nvidia_icd.aarch64.json",
        "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
        "etc/vulkan/icd.d/nvidia_icd.json",
        "etc/vulkan/implicit_layer.d/nvidia_layers.json",
    ),
    GPUMode.VFIO: (),
}


def user_space(root: Root, address: str, mode: GPUMode) -> ContainerEdits:
    """Return the edits that bring NVIDIA's user space into a container; empty if the node has none.

    Raises:
        MachineError: the folder of the libraries cannot be listed, or a device node that NVIDIA's CDI spec names
            cannot be accessed.
    """
    if mode is GPUMode.VFIO:
        return ContainerEdits()
    prefix = _host(root)
    facts = nvidia_facts(root, address) or NvidiaFacts()
    edits = _vendor_edits(root, prefix, facts)
    if edits:
        return edits
    mounts = tuple(_mounts(root, prefix, mode))
    # Without a hook, the linker's cache in the container does not know the libraries. Triton (torch.compile) asks it.
    return ContainerEdits(env=("TRITON_LIBCUDA_PATH=/usr/lib64",) if mounts else (), mounts=mounts)


def _vendor_edits(root: Root, prefix: str, facts: NvidiaFacts) -> ContainerEdits | None:
    """Return the edits for every container in NVIDIA's CDI spec, with those of this GPU."""
    for spec in _vendor_specs(root, prefix):
        # Only by UUID: NVIDIA's index is the order on the bus, which is not known here.
        own = [device.container_edits for device in spec.devices if device.name == facts.uuid]
        parts = (spec.container_edits, *own)
        mounts = tuple(dict.fromkeys(mount for part in parts for mount in part.mounts))
        hooks = tuple(dict.fromkeys(hook for part in parts for hook in part.hooks))
        files = (*(mount.host_path for mount in mounts), *(hook.path for hook in hooks))
        if all(_followed(root, prefix, path) is not None for path in files):
            return ContainerEdits(
                env=tuple(entry for part in parts for entry in part.env),
                device_nodes=tuple(_numbered(root, spec.container_edits.device_nodes)),
                hooks=hooks,
                mounts=mounts,
            )
    return None


def _numbered(root: Root, nodes: Iterable[DeviceNode]) -> Iterable[DeviceNode]:
    """Yield the nodes that exist, with their present numbers."""
    for node in nodes:
        device = device_if_there(root, _place(root, node.host_path or node.path))
        if device is not None:
            kind, major, minor = device
            yield msgspec.structs.replace(node, type=kind, major=major, minor=minor)


def _vendor_specs(root: Root, prefix: str) -> Iterable[Spec]:
    for folder in filter(None, (_followed(root, prefix, folder) for folder in _SPEC_FOLDERS)):
        for name in names(root, f"{prefix}{folder}"):
            path = _followed(root, prefix, f"{folder}/{name}") if name.endswith(_SPEC_ENDINGS) else None
            spec = None if path is None else _vendor_spec(root, f"{prefix}{path}")
            if spec is not None:
                yield spec


def _vendor_spec(root: Root, path: str) -> Spec | None:
    """Return the spec at a path if it is NVIDIA's. An unreadable or invalid file is skipped, as runtimes do."""
    from dranode.cdi.document import load_spec  # noqa: PLC0415 - loads YAML, which only nodes with a spec need

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
        for folder in (*_LIBRARY_FOLDERS, *_configured(root, driver_root)):
            if _followed(root, driver_root, f"{folder}/libcuda.so.{version}") is None:
                continue
            shown = f"/{driver_root.removeprefix(prefix)}"
            for name, real in sorted(_libraries(root, driver_root, folder, version, _STEMS[mode]).items()):
                for target in _targets(root, prefix, folder):
                    yield Mount(host_path=f"{shown}{real}", container_path=f"{target}/{name}", options=_OPTIONS)
            for real, path in _files(root, driver_root, mode):
                yield Mount(host_path=f"{shown}{real}", container_path=f"/{path}", options=_OPTIONS)
            return


def _followed(root: Root, below: str, path: str) -> str | None:
    """Return what a path below a folder leads to, if the folder is the root (`host/`); None if it leads nowhere.

    Raises:
        MachineError: a part of the path cannot be accessed.
    """
    done, left, links = "", path.split("/"), 0
    while left:
        name = left.pop(0)
        if name == "..":
            done = done.rpartition("/")[0]
        elif name not in ("", "."):
            here = f"{done}/{name}".lstrip("/")
            target = _target(root, f"{below}{here}")
            links += bool(target)
            if target is None or links > _MOST_LINKS:
                return None
            if target:
                left = [*target.split("/"), *left]
            done = here if not target else "" if target.startswith("/") else done
    return done


def _target(root: Root, path: str) -> str | None:
    """Return the target of a link, empty for any other file; None if there is no file."""
    try:
        return root.readlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return ""
        raise MachineError(f"/{path} cannot be read: {error.strerror}") from error


def _files(root: Root, driver_root: str, mode: GPUMode) -> Iterable[tuple[str, str]]:
    """Yield the driver's tools and other files: where they are, and where containers have them."""
    for tool in _TOOLS:
        places = (f"{folder}/{tool}" for folder in _TOOL_FOLDERS)
        real = next(filter(None, (_followed(root, driver_root, place) for place in places)), None)
        if real is not None:
            yield real, f"usr/bin/{tool}"
    reals = ((_followed(root, driver_root, path), path) for path in _FILES[mode])
    yield from ((real, path) for real, path in reals if real is not None)


def _configured(root: Root, driver_root: str) -> Iterable[str]:
    """Yield the folders that the node's dynamic linker also searches (ldconfig(8)): Bottlerocket, AKS."""
    folder = f"{driver_root}etc/ld.so.conf.d"
    for name in names(root, folder):
        lines = (read_attribute(root, f"{folder}/{name}") or "").splitlines()
        yield from (line.strip(" \t/") for line in lines if line.startswith("/"))


def _libraries(root: Root, driver_root: str, folder: str, version: str, stems: frozenset[str] | None) -> dict[str, str]:
    """Return the names of this version's libraries in a folder, each with the file to which it leads."""
    libraries: dict[str, str] = {}
    folder = _followed(root, driver_root, folder) or folder
    source = f"{driver_root}{folder}"
    plugins = (f"{below}/{name}" for below in _PLUGIN_FOLDERS for name in names(root, f"{source}/{below}"))
    for name in (*all_names(root, source), *plugins):
        stem, so, _ = name.partition(".so")
        if not so or (stems is not None and stem not in stems):
            continue
        real = _followed(root, driver_root, f"{folder}/{name}")
        if real is not None and (real.endswith(f".so.{version}") or stem in _UNVERSIONED):
            libraries[name] = real
    return libraries


def _targets(root: Root, prefix: str, folder: str) -> tuple[str, ...]:
    triplet = next((triplet for loader, triplet in _LOADERS.items() if _followed(root, prefix, loader)), None)
    if triplet is None:
        triplet = "aarch64-linux-gnu" if "aarch64" in folder else "x86_64-linux-gnu"
    return (f"/usr/lib/{triplet}", "/usr/lib64")
