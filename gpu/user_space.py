"""NVIDIA's user space for a container: from NVIDIA's own CDI spec if there is one, else the driver's files as mounts.

A spec of kind `nvidia.com/gpu` (made by nvidia-ctk) is used if every file that it names still exists and is of the
running driver's version: after a driver update some are gone or newer, and a container with the spec would not start
or find no GPU. Without a spec, the libraries of the running driver's version are mounted where glibc searches by
default, for Debian's and Red Hat's layout, under the names that programs load (`libcuda.so.1`). So neither a hook nor
ldconfig is needed.
"""

import contextlib
import errno
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dranode.api.errors import MachineError
from dranode.cdi.errors import CDIError
from dranode.cdi.spec import ContainerEdits, DeviceNode, Mount, Spec
from dranode.driver.machine.root import Root, all_names, device_if_there, names, read_attribute
from dranode.gpu.config import GPUMode
from dranode.gpu.proc import NvidiaFacts, nvidia_facts, nvidia_version

NVIDIA_KIND: Final = "nvidia.com/gpu"
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


def readable_node(root: Root, path: str) -> str:
    """Return where a device node of the node can be read.

    NVIDIA's module makes no nodes. Those that `nvidia-modprobe` makes in a container, which has loaded the driver, are
    in that container's `/dev` alone (NVIDIA's GPU operator).
    """
    path = path.lstrip("/")
    roots = (f"{host_prefix(root)}{below}" for below in _DRIVER_ROOTS) if "dev/nvidia" in path else ()
    return next((place for place in (path, *(f"{below}{path}" for below in roots)) if root.exists(place)), path)


def host_prefix(root: Root) -> str:
    """Return where the node's file system is: at `/host` in a DaemonSet."""
    return "host/" if root.exists("host/usr") else ""


def user_space(root: Root, address: str, mode: GPUMode) -> ContainerEdits:
    """Return the edits that bring NVIDIA's user space into a container; empty if the node has none.

    Raises:
        MachineError: the folder of the libraries cannot be listed, or a device node that NVIDIA's CDI spec names
            cannot be accessed.
    """
    if mode is GPUMode.VFIO:
        return ContainerEdits()
    prefix = host_prefix(root)
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
        device = device_if_there(root, readable_node(root, node.host_path or node.path))
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
        spec = load_spec(data) if NVIDIA_KIND.encode() in data else None
    except (OSError, CDIError):
        return None
    return spec if spec is not None and spec.kind == NVIDIA_KIND else None


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


def _file(root: Root, below: str, path: str) -> str | None:
    """Return what a path leads to; None if it is a folder, which Docker makes if it has to mount a missing file."""
    real = _followed(root, below, path)
    if real is not None:
        with contextlib.suppress(OSError):
            root.listdir(f"{below}{real}")
            return None
    return real


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
            real = _file(root, driver_root, f"{folder}/{name}") if so and wanted else None
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
            real = _file(root, driver_root, f"{folder}/{name}") if re.fullmatch(pattern, name) else None
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
