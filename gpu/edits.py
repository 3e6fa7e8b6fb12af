"""The edits of a grant that depend on the running machine: device nodes, group ids, NVIDIA's user space (`user_space`).

They are looked up by PCI address whenever the CDI spec is written. A missing device node is an error, because the
container would start without it and find no GPU.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dranode.api.errors import ClaimError, MachineError
from dranode.cdi.spec import ContainerEdits, DeviceNode
from dranode.driver.machine.pci import PCI_DEVICES
from dranode.driver.machine.root import Root, device_if_there, link_name, names
from dranode.gpu.config import GPUMode
from dranode.gpu.grants import Intent
from dranode.gpu.inventory import GPU
from dranode.gpu.kfd import by_address
from dranode.gpu.proc import NVIDIAS_DRIVER, nvidia_facts, nvidia_version
from dranode.gpu.sysfs import PCI, drm_minors, pci_function
from dranode.gpu.user_space import NVIDIA_KIND, host_prefix, readable_node, user_space

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
    gids = sorted({gid for gid in (group_of(f"/{readable_node(root, node.path)}") for node in nodes) if gid})
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
            host, version = host_prefix(root), nvidia_version(root)
            if gpu.driver != NVIDIAS_DRIVER or edits.mounts or edits.env or not root.exists(f"{host}usr/bin"):
                continue
            reason = (
                f"containers find no driver of GPU {gpu.address} unless their image has libcuda.so.{version}: neither "
                f"this library nor a CDI spec of {NVIDIA_KIND} with it is visible below /{host}; mount the node's root "
                "at /host, or restart the node if the driver was updated"
            )
        addresses.setdefault(reason.replace(gpu.address, "{}"), {})[gpu.address] = None
    for reason, (first, *others) in addresses.items():
        also = f" (this also applies to {', '.join(others)})" if others else ""
        yield f"{reason.replace('{}', first)}{also}"


def _by_other_driver(intent: Intent, driver: str | None) -> bool:
    """Return whether another driver (nouveau) serves an NVIDIA GPU, with render nodes like those of other vendors."""
    return intent.vendor == "nvidia" and driver not in (None, NVIDIAS_DRIVER)


def _read(root: Root, intent: Intent, node: DeviceEdit) -> DeviceNode | None:
    path = readable_node(root, node.path)
    if not node.needed and device_if_there(root, path) is None:
        return None
    try:
        kind, major, minor = root.device_number(path)
    except OSError as error:
        missing = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be used ({error.strerror})"
        advice = next((advice for prefix, advice in _ADVICE.items() if node.path.startswith(prefix)), "")
        raise ClaimError(f"GPU {intent.address} needs device node {node.path}, which {missing}; {advice}") from error
    return DeviceNode(path=node.path, type=kind, major=major, minor=minor, permissions=_PERMISSIONS)


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
