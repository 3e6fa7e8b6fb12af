"""The edits of a grant that depend on the running machine: device nodes, group ids, NVIDIA's user space.

They are looked up by PCI address whenever the CDI spec is written. A missing device node is an error, because the
container would start without it and find no GPU.
"""

import errno
import re
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
from dranode.gpu.inventory import GPU
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
    gids = sorted({gid for gid in (group_of(f"/{_place(root, node.path)}") for node in nodes) if gid})
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
    made = tuple(node for node in (_read(root, intent, node) for node in nodes) if node is not None)
    # Settings of programs name render nodes by PCI address, and oneCCL finds Intel's GPUs in this folder alone. A link
    # that udev has not updated may lead to another GPU.
    links = (f"/dev/dri/by-path/pci-{address}-{kind}" for kind in ("card", "render"))
    named = (_read(root, intent, DeviceEdit(link, needed=False)) for link in links)
    numbers = {(node.major, node.minor) for node in made}
    return (*made, *(node for node in named if node is not None and (node.major, node.minor) in numbers))


def foreseeable_problems(root: Root, gpus: Iterable[GPU]) -> Iterable[str]:
    """Yield a sentence for each reason why claims of published GPUs will be refused, or be of no use."""
    addresses: dict[str, dict[str, None]] = {}
    # A captured machine may lack its device nodes, and has no programs.
    for gpu in gpus if root.exists("dev") else ():
        mode = GPUMode.VFIO if gpu.functions[0].passthrough else GPUMode.COMPUTE
        intent = Intent(address=gpu.address, vendor=gpu.vendor, mode=mode, partition=gpu.partition)
        try:
            edits = complete(root, intent, ContainerEdits(), lambda _path: None)
        except (ClaimError, MachineError) as error:
            reason = f"claims in mode {mode} will be refused: {error}"
        else:
            host, version = _host(root), nvidia_version(root)
            if gpu.driver != NVIDIAS_DRIVER or edits.mounts or edits.env or not root.exists(f"{host}usr/bin"):
                continue
            reason = (
                f"containers find no driver of GPU {gpu.address} unless their image has libcuda.so.{version}: neither "
                f"this library nor a CDI spec of {_KIND} with it is visible below /{host}; mount the node's root at "
                "/host, or restart the node if the driver was updated"
            )
        addresses.setdefault(reason.replace(gpu.address, "{}"), {})[gpu.address] = None
    for reason, (first, *others) in addresses.items():
        also = f" (this also applies to {', '.join(others)})" if others else ""
        yield f"{reason.replace('{}', first)}{also}"


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


# NVIDIA's user space for a container: from NVIDIA's own CDI spec if there is one, else the driver's files as mounts.
#
# A spec of kind `nvidia.com/gpu` (made by nvidia-ctk) is used if every file that it names still exists and is of the
# running driver's version: after a driver update some are gone or newer, and a container with the spec would not start
# or find no GPU. Without a spec, the libraries of the running driver's version are mounted where glibc searches by
# default, for Debian's and Red Hat's layout, under the names that programs load (`libcuda.so.1`). So neither a hook nor
# ldconfig is needed.


_KIND: Final = "nvidia.com/gpu"
# Runtimes prefer the devices of /var/run/cdi, which does not survive a reboot.
_SPEC_FOLDERS: Final = ("var/run/cdi", "run/cdi", "etc/cdi")
_SPEC_ENDINGS: Final = (".yaml", ".json")

_OPTIONS: Final = ("ro", "nosuid", "nodev", "bind")

_MOST_LINKS: Final = 40
_DRIVER_ROOTS: Final = ("", "run/nvidia/driver/")
# Where distributions install the driver, and the folders below.
_INSTALLED: Final = (
    "",
    "usr/local/",  # Talos
    "usr/local/glibc/",  # Talos before 1.13
    "usr/local/nvidia/",  # Azure
    "opt/",  # Gentoo
    "opt/nvidia/",  # GKE with Ubuntu
    "opt/nvidia/current/",  # Flatcar
    "var/lib/nvidia/",  # Container-Optimized OS
    "home/kubernetes/bin/nvidia/",  # GKE
    "run/opengl-driver/",  # NixOS
    "usr/libexec/nvidia/tesla/",  # Bottlerocket
)
_LIBRARIES: Final = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib")
_BINARIES: Final = ("usr/bin", "usr/sbin", "bin", "sbin")
_FIRMWARE: Final = ("usr/lib/firmware", "lib/firmware", "firmware")
_SHARED: Final = ("etc", "usr/share", "share", "")
# In these folders beside the driver's libraries, other programs look for plug-ins: GBM and VDPAU.
_PLUGIN_FOLDERS: Final = ("gbm", "vdpau")
# The folders of the X server's modules beside the libraries, and where X servers look for which of them.
_X_FOLDERS: Final = ("nvidia", "nvidia/xorg", "nvidia/current", "xorg/modules/drivers", "xorg/modules/extensions")
_X_MODULES: Final = {"drivers": r"nvidia_drv\.so", "extensions": r"libglxserver_nvidia\.so.*"}
_X_TARGETS: Final = ("usr/lib/xorg/modules", "usr/lib64/xorg/modules")
# Libraries refer to each other by these paths on distributions that keep each package in a folder of its own.
_STORES: Final = ("nix/store/", "gnu/store/")
# These libraries have the version of their interface instead of the driver's.
_UNVERSIONED: Final = ("libnvidia-api", "libnvidia-egl-", "libnvidia-nvvm70")
_COMPUTE: Final = re.compile(
    r"libcuda(?:debugger)?|libnvcuvid|libnvidia-(?:allocator|cfg|compiler|encode|fatbinaryloader|gpucomp|ml|nscq"
    r"|nvvm(?:70)?|opencl|opticalflow|pkcs11(?:-openssl3)?|ptxjitcompiler|sandboxutils|tileiras)"
)
# How the names of other libraries of the driver begin. `libGLX_indirect` is not among them, because it is a link to
# Mesa's library in many images, and a mount would replace that library.
_GRAPHICS: Final = ("libcuda", "libnv", "libEGL_nvidia", "libGLESv", "libGLX_nvidia", "libvdpau_nvidia")
# The numbers in the names that programs load, where it is not 1.
_SONAMES: Final = {"libEGL_nvidia": 0, "libGLX_nvidia": 0, "libGLESv2_nvidia": 2, "libnvidia-nvvm": 4}
_LOADED: Final = re.compile(rf"{_COMPUTE.pattern}|lib(?:EGL|GLX|GLES[a-zA-Z0-9_]+)_nvidia|libnvoptix")
_LIBCUDA: Final = re.compile(r"/libcuda\.so\.(?P<version>[0-9]+\.[0-9.]+)")
_TOOLS: Final = r"nvidia-(?:smi|debugdump|persistenced|cuda-mps-(?:control|server)|imex(?:-ctl)?|xconfig)"
# Folders of files by which loaders and servers find the driver, and where containers have them.
_OPENCL: Final = "OpenCL/vendors"
_NAMED: Final = r".*nvidia.*|nvoptix\.bin"
_SETTINGS: Final[Mapping[str, str]] = {
    _OPENCL: "etc",
    "X11/xorg.conf.d": "usr/share",
    "egl/egl_external_platform.d": "usr/share",
    "glvnd/egl_vendor.d": "usr/share",
    "nvidia": "usr/share",
    "vulkan/icd.d": "usr/share",
    "vulkan/implicit_layer.d": "usr/share",
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
    version = nvidia_version(root)
    edits = _vendor_edits(root, prefix, facts, version)
    if edits:
        return edits
    mounts = () if version is None else tuple(_mounts(root, prefix, version, mode))
    # Without a hook, the linker's cache in the container does not know the libraries. Triton (torch.compile) asks it.
    return ContainerEdits(env=("TRITON_LIBCUDA_PATH=/usr/lib64",) if mounts else (), mounts=mounts)


def _vendor_edits(root: Root, prefix: str, facts: NvidiaFacts, version: str | None) -> ContainerEdits | None:
    """Return the edits for every container in NVIDIA's CDI spec, with those of this GPU."""
    for spec in _vendor_specs(root, prefix):
        # Only by UUID: NVIDIA's index is the order on the bus, which is not known here.
        own = [device.container_edits for device in spec.devices if device.name == facts.uuid]
        parts = (spec.container_edits, *own)
        mounts = tuple(dict.fromkeys(mount for part in parts for mount in part.mounts))
        hooks = tuple(dict.fromkeys(hook for part in parts for hook in part.hooks))
        files = (*(mount.host_path for mount in mounts), *(hook.path for hook in hooks))
        versions = {match["version"] for match in map(_LIBCUDA.search, files) if match}
        if versions <= {version} and all(_followed(root, prefix, path) is not None for path in files):
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
        data = root.read_bytes(path)
        # A folder may have a spec for every claim of the node, and decoding YAML takes long.
        spec = load_spec(data) if _KIND.encode() in data else None
    except (OSError, CDIError):
        return None
    return spec if spec is not None and spec.kind == _KIND else None


def _mounts(root: Root, prefix: str, version: str, mode: GPUMode) -> Iterable[Mount]:
    for driver_root in (f"{prefix}{below}" for below in _DRIVER_ROOTS):
        folders = _library_folders(root, driver_root)
        libraries = _libraries(root, driver_root, folders, version, mode)
        if not any(name.endswith(f".so.{version}") for name in libraries):
            continue
        shown = f"/{driver_root.removeprefix(prefix)}"
        targets = _targets(root, prefix, folders)
        for name, real in sorted(libraries.items()):
            store = (f"/{real.rpartition('/')[0]}",) if real.startswith(_STORES) else ()
            for target in (*targets, *store):
                yield Mount(host_path=f"{shown}{real}", container_path=f"{target}/{name}", options=_OPTIONS)
        for path, real in _files(root, driver_root, folders, version, mode).items():
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
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        if error.errno == errno.EINVAL:
            return ""
        raise MachineError(f"/{path} cannot be read: {error.strerror}") from error


def _existing(root: Root, driver_root: str, folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that exist, with their links followed, each once."""
    found = (_followed(root, driver_root, folder) for folder in folders)
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))


def _folders(root: Root, driver_root: str, *below: str) -> tuple[str, ...]:
    """Return such folders of the driver's installations."""
    return _existing(root, driver_root, (f"{installed}{folder}" for installed in _INSTALLED for folder in below))


def _library_folders(root: Root, driver_root: str) -> tuple[str, ...]:
    """Return the folders that may have libraries of the driver, also those of Debian's versions beside each other."""
    folders = (*_folders(root, driver_root, *_LIBRARIES), *_configured(root, driver_root))
    versions = (
        f"{folder}/nvidia/{name}" for folder in folders for name in names(root, f"{driver_root}{folder}/nvidia")
    )
    return _existing(root, driver_root, (*folders, *versions))


def _configured(root: Root, driver_root: str) -> Iterable[str]:
    """Yield the folders that the node's dynamic linker also searches (ldconfig(8)): Bottlerocket, AKS."""
    folder = f"{driver_root}etc/ld.so.conf.d"
    for path in (f"{driver_root}etc/ld.so.conf", *(f"{folder}/{name}" for name in names(root, folder))):
        lines = (read_attribute(root, path) or "").splitlines()
        yield from (line.strip(" \t/") for line in lines if line.startswith("/"))


def _libraries(root: Root, driver_root: str, folders: Iterable[str], version: str, mode: GPUMode) -> dict[str, str]:
    """Return the names of this version's libraries, each with the file to which it leads; the first folder counts."""
    libraries: dict[str, str] = {}
    # Some packages give a library only the name that programs load (negativo17's libGLX_nvidia.so.0).
    renamed: dict[str, str] = {}
    for folder in folders:
        source = f"{driver_root}{folder}"
        plugins = (f"{below}/{name}" for below in _PLUGIN_FOLDERS for name in names(root, f"{source}/{below}"))
        for name in (*all_names(root, source), *plugins):
            stem, so, _ = name.partition(".so")
            wanted = (
                _COMPUTE.fullmatch(stem) if mode is GPUMode.COMPUTE else "/nvidia" in stem or stem.startswith(_GRAPHICS)
            )
            real = _followed(root, driver_root, f"{folder}/{name}") if so and wanted else None
            if real is None:
                continue
            if real.endswith(f".so.{version}") or stem.startswith(_UNVERSIONED):
                libraries.setdefault(name, real)
            elif _LOADED.fullmatch(stem) and real == f"{folder}/{stem}.so.{_SONAMES.get(stem, 1)}":
                renamed.setdefault(name, real)
    # ldconfig makes the links that programs load; a node may lack them, and a container never runs it.
    for name, real in tuple(libraries.items()):
        stem, _, number = name.partition(".so.")
        if number == version and _LOADED.fullmatch(stem):
            libraries.setdefault(f"{stem}.so", real)
            libraries.setdefault(f"{stem}.so.{_SONAMES.get(stem, 1)}", real)
    return {**renamed, **libraries}


def _files(root: Root, driver_root: str, folders: Iterable[str], version: str, mode: GPUMode) -> dict[str, str]:
    """Return the driver's tools and other files by where containers have them; the first place counts."""
    files: dict[str, str] = {}
    for folder, target, pattern in _file_folders(root, driver_root, folders, version, mode):
        for name in names(root, f"{driver_root}{folder}"):
            real = _followed(root, driver_root, f"{folder}/{name}") if re.fullmatch(pattern, name) else None
            if real is not None:
                files.setdefault(f"{target}/{name}", real)
    return files


def _file_folders(
    root: Root, driver_root: str, folders: Iterable[str], version: str, mode: GPUMode
) -> Iterable[tuple[str, str, str]]:
    """Yield the folders with other files of the driver, where containers have them, and a pattern of their names."""
    for folder in _folders(root, driver_root, *_BINARIES):
        yield folder, "usr/bin", _TOOLS
    # Some kernels look for a GPU's firmware in the root of the program that opens the GPU first.
    for folder in _folders(root, driver_root, *(f"{below}/nvidia/{version}" for below in _FIRMWARE)):
        yield folder, f"lib/firmware/nvidia/{version}", r"gsp.*\.bin"
    for below, target in _SETTINGS.items():
        if mode is GPUMode.GRAPHICS or below == _OPENCL:
            for folder in _folders(root, driver_root, *(f"{shared}/{below}" for shared in _SHARED)):
                yield folder, f"{target}/{below}", _NAMED
    for kind, pattern in _X_MODULES.items() if mode is GPUMode.GRAPHICS else ():
        for folder in (f"{folder}/{below}" for folder in folders for below in _X_FOLDERS):
            yield from ((folder, f"{target}/{kind}", pattern) for target in _X_TARGETS)


def _targets(root: Root, prefix: str, folders: Iterable[str]) -> tuple[str, ...]:
    # The dynamic loader of a host identifies the multiarch folder of its architecture.
    x86 = _followed(root, prefix, "lib64/ld-linux-x86-64.so.2") is not None
    arm = _followed(root, prefix, "lib/ld-linux-aarch64.so.1") is not None or any("aarch64" in path for path in folders)
    return (f"/usr/lib/{'aarch64' if arm and not x86 else 'x86_64'}-linux-gnu", "/usr/lib64")
