"""Combines what a machine reports about its GPUs: PCI and DRM, KFD, NVIDIA's `/proc`, NVML."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dranode.api.errors import MachineError
from dranode.driver.machine.numa import has_one_node
from dranode.driver.machine.pci import PCI_DEVICES, PCI_DRIVERS, PCIE_ROOT
from dranode.driver.machine.root import Root, link_name, names, number, read_attribute
from dranode.gpu.inventory import AMD, GPU, NVIDIA, GPUInventory, GPUKind, doubtful_uuids, sort_key
from dranode.gpu.kfd import KFD_NODES, KFDNode, by_address, hidden_nodes
from dranode.gpu.nvml import NVMLFacts
from dranode.gpu.proc import NVIDIAS_DRIVER, NvidiaFacts, nvidia_facts, nvidia_gpus, nvidia_version
from dranode.gpu.sysfs import PCI, drm_minors, pci_function

_DRM_CLASS: Final = "sys/class/drm"
_NVIDIA_MAJOR: Final = 195


def scan(root: Root, nvml: Mapping[str, NVMLFacts] | None = None) -> GPUInventory:
    """Read the machine's GPUs.

    Args:
        root: the machine's files.
        nvml: what NVIDIA's library adds, by PCI address.

    Raises:
        MachineError: the PCI functions cannot be listed, or this process cannot open any file.
    """
    pci = PCI(root)
    reasons = {address: pci.left_out(address) for address in pci.addresses}
    left_out = {address: reason for address, reason in reasons.items() if reason}
    gpus: list[GPU] = []
    warnings: list[str] = []
    minors: list[int] = []
    drivers_seen = root.exists(PCI_DRIVERS) or any(pci_function(root, address).driver for address in pci.addresses)
    for address in (address for address, reason in reasons.items() if reason is None):
        gpu = pci.gpu(address)
        if gpu.vendor_id == NVIDIA:
            facts = nvidia_facts(root, address)
            library = (nvml or {}).get(address, NVMLFacts())
            if reason := _withheld(facts, library):
                left_out[address] = f"GPU {address} is left out: {reason}"
                continue
            if facts and facts.minor is not None:
                minors.append(facts.minor)
            if facts and facts.unclear:
                warnings.append(f"the NUMA node and the size of GPU {address}'s memory are not known: {facts.unclear}")
            gpu = _nvidia(root, gpu, facts, library)
        # A capture without any driver does not show to which drivers its GPUs are bound.
        if drivers_seen and (reason := _unserved(root, gpu)):
            gpu = replace(gpu, unserved=reason)
        # A GPU that was removed meanwhile has been read in part only.
        if root.exists(f"{PCI_DEVICES}/{address}"):
            gpus.append(gpu)
    gpus = list(_quotas(root, pci, gpus))
    warnings += _no_functions(root, pci)
    warnings += _unlinked(root, minors)
    if any(gpu.vendor_id == AMD for gpu in gpus):
        gpus = _partitions(root, gpus)
        warnings += tuple(_hidden(root)) or _unknown(root, gpus)
    gpus.sort(key=sort_key)
    warnings += _left_unserved(gpus)
    warnings += _unplaced(root, [gpu for gpu in gpus if not gpu.unserved])
    doubtful = doubtful_uuids(gpus)
    warnings += [
        f"UUID {uuid} is reported by {' and '.join(devices)}: none of them is published with it"
        for uuid, devices in doubtful.items()
    ]
    return GPUInventory(
        tuple(replace(gpu, uuid=None) if gpu.uuid in doubtful else gpu for gpu in gpus),
        (*left_out.values(), *warnings),
        left_out,
    )


def _no_functions(root: Root, pci: PCI) -> Iterable[str]:
    """Yield a sentence if no function is visible on a machine that has PCI."""
    roots = () if pci.addresses else tuple(filter(PCIE_ROOT.fullmatch, names(root, "sys/devices")))
    if roots:
        yield f"no PCI function is visible in /{PCI_DEVICES}, though the machine has the PCI root {roots[0]}"


def _unlinked(root: Root, minors: Iterable[int]) -> Iterable[str]:
    """Yield a sentence if systemd would take NVIDIA's device nodes from containers when it reloads its units.

    A runtime names device nodes to systemd by these links, and leaves out those that have none. udev makes them for
    devices that the kernel knows, and NVIDIA's are not among these.
    """
    # A link may lead into the root of the driver's container, which this process need not see.
    links = {minor: link_name(root, f"dev/char/{_NVIDIA_MAJOR}:{minor}") for minor in minors}
    lacking = [f"{_NVIDIA_MAJOR}:{minor}" for minor, link in links.items() if link is None]
    if lacking and root.exists("dev/char"):
        yield (
            f"/dev/char has no links for NVIDIA's nodes {', '.join(lacking)}, so containers in systemd's cgroups "
            "lose their GPUs at the next `systemctl daemon-reload`; make the links at every boot "
            "(`nvidia-ctk system create-dev-char-symlinks --create-all`)"
        )


def _unplaced(root: Root, gpus: Iterable[GPU]) -> Iterable[str]:
    """Yield a sentence if the machine has several NUMA nodes and does not report which of them GPUs are near."""
    addresses = tuple(dict.fromkeys(gpu.address for gpu in gpus if gpu.numa_node is None))
    if addresses and not has_one_node(root):
        several = f"GPUs {', '.join(addresses)} are" if len(addresses) > 1 else f"GPU {addresses[0]} is"
        yield (
            f"the machine does not report which NUMA node {several} near, so no numaNode is published and claims "
            "that select by it get other devices"
        )


def _withheld(facts: NvidiaFacts | None, library: NVMLFacts) -> str:
    """Return why NVIDIA's driver or library forbids handing out a GPU; empty if they do not."""
    if facts is None:
        return ""
    if facts.unread:
        return f"{facts.unread}, so it is not known whether the GPU is excluded from use or divided into MIG instances"
    # CUDA finds no GPU in this mode unless the container has an instance, which this driver does not offer.
    if facts.instances or library.mig:
        return (
            f"MIG is on, with {facts.instances or 'no'} instances, and instances are not offered; "
            "turn MIG off (`nvidia-smi -mig 0`) to have the GPU handed out whole"
        )
    return "NVIDIA's driver is configured to exclude it (NVreg_ExcludedGpus)" if facts.excluded else ""


def _unserved(root: Root, gpu: GPU) -> str:
    """Return why no kernel driver serves a GPU, so that every Prepare would be refused; empty if one does."""
    driver = gpu.driver
    if driver is None:
        return "no driver is bound to it"
    if gpu.functions[0].passthrough:
        return ""
    if driver == NVIDIAS_DRIVER:
        known = nvidia_gpus(root)
        return "" if not known or gpu.address in known else f"driver {driver} is bound to it and does not offer it"
    # Without the DRM class nothing is known about render nodes: a captured or made-up machine may lack it.
    if not root.exists(_DRM_CLASS) or "renderD" in drm_minors(root, f"{PCI_DEVICES}/{gpu.address}"):
        return ""
    return f"driver {driver} is bound to it and gives it no render node"


def _left_unserved(gpus: Iterable[GPU]) -> Iterable[str]:
    """Yield a sentence for each reason why no driver serves some GPUs."""
    addresses: dict[str, dict[str, None]] = {}
    for gpu in gpus:
        if gpu.unserved:
            addresses.setdefault(gpu.unserved, {})[gpu.address] = None
    for reason, gpus_left_out in addresses.items():
        subject = f"GPU{'s' if len(gpus_left_out) > 1 else ''} {', '.join(gpus_left_out)}"
        yield (
            f"{subject} {'are' if len(gpus_left_out) > 1 else 'is'} left out: {reason}; "
            "load the driver that serves it and see the kernel's log, or bind it to vfio-pci for virtual machines"
        )


def _nvidia(root: Root, gpu: GPU, facts: NvidiaFacts | None, nvml: NVMLFacts) -> GPU:
    """Return the GPU with the values that NVIDIA's driver and library report."""
    if facts is None:
        return replace(gpu, memory=nvml.memory, compute_capability=nvml.compute_capability)
    return replace(
        gpu,
        model=facts.model or nvml.model or gpu.model,
        uuid=facts.uuid or nvml.uuid,
        driver_version=gpu.driver_version or nvidia_version(root),
        memory_node=facts.memory_node,
        memory=nvml.memory or facts.memory,
        compute_capability=nvml.compute_capability,
    )


def _quotas(root: Root, pci: PCI, gpus: Sequence[GPU]) -> Iterable[GPU]:
    """Return the GPUs, with the memory that xe reserves for virtual functions (`vram_quota`)."""
    quotas: dict[str, int | None] = {}
    for parent in {gpu.parent for gpu in gpus if gpu.parent is not None}:
        folder = f"{PCI_DEVICES}/{parent}"
        if not root.exists(f"{folder}/sriov_admin"):
            continue
        for address, index in pci.virtual_functions(parent).items():
            # The kernel numbers virtual functions from 1 here, and from 0 in virtfn<n>.
            quotas[address] = number(root, f"{folder}/sriov_admin/vf{index + 1}/profile/vram_quota")
    return (replace(gpu, memory=quotas.get(gpu.address) or gpu.memory) for gpu in gpus)


def _partitions(root: Root, gpus: Sequence[GPU]) -> list[GPU]:
    """Return the GPUs with their compute partitions, which KFD shows as nodes with a partition number above 0."""
    nodes = by_address(root, (gpu.address for gpu in gpus))
    partitions: list[GPU] = []
    for gpu in gpus:
        gpu_nodes = nodes.get(gpu.address, {})
        mode = _mode(root, gpu.address)
        # amdgpu's own file names only what the firmware set aside for an APU, not the memory that it shares with CPUs.
        memory = max(gpu.memory or 0, _sum(gpu_nodes.values()) or 0) or None
        partitions.append(replace(gpu, partition_mode=mode, memory=memory))
        # An undivided GPU has one node, with number 0.
        if any(gpu_nodes):
            whole = replace(gpu, partition_mode=mode, parts=len(gpu_nodes))
            partitions.extend(_partition(whole, index, node) for index, node in gpu_nodes.items())
    return partitions


def _hidden(root: Root) -> Iterable[str]:
    """Yield a sentence if KFD hides nodes, because a partitioned GPU looks whole then."""
    try:
        nodes = hidden_nodes(root)
    except MachineError as error:
        yield f"{error}, so it is not known whether AMD GPUs are partitioned"
        return
    if nodes:
        rest = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        yield (
            f"KFD node {nodes[0]}{rest} cannot be read, so it is not known whether AMD GPUs are partitioned; "
            "let this process use their render nodes (in a DaemonSet, privileged: true)"
        )


def _unknown(root: Root, gpus: Iterable[GPU]) -> Iterable[str]:
    """Yield a sentence if KFD, all of whose nodes can be read, lacks GPUs (as on a machine without PCIe atomics)."""
    whole = [gpu.address for gpu in gpus if gpu.driver == "amdgpu" and gpu.partition is None]
    known = by_address(root, whole)
    lacking = [address for address in whole if address not in known]
    if lacking and names(root, KFD_NODES):
        yield (
            f"KFD does not know GPU{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}, so ROCm finds no GPU in "
            "claims of mode compute; see the kernel's log for the reason, or ask for mode graphics"
        )


def _partition(gpu: GPU, index: int, node: KFDNode) -> GPU:
    return replace(
        gpu,
        kind=GPUKind.PARTITION,
        uuid=None,
        parent=gpu.address,
        partition=index,
        memory=node.memory,
    )


def _mode(root: Root, address: str) -> str | None:
    """Return a mode such as `CPX_NPS4`; None if there are no such files (Radeon, older Instinct) or during a reset."""
    folder = f"{PCI_DEVICES}/{address}"
    compute = read_attribute(root, f"{folder}/current_compute_partition") or ""
    memory = read_attribute(root, f"{folder}/current_memory_partition") or ""
    return "_".join(part for part in (compute, memory) if part and part != "UNKNOWN") or None


def _sum(nodes: Iterable[KFDNode]) -> int | None:
    sizes = [node.memory for node in nodes]
    return sum(size or 0 for size in sizes) or None if None not in sizes else None
