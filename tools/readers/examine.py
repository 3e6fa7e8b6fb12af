"""Reads all facts about a node for `dranode doctor`, each part separately, so that one failure does not hide others."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DranodeError, MachineError, UsageError
from dranode.driver.claims.hooks import HardwareProblem, Reports
from dranode.driver.claims.options import DriverOption
from dranode.driver.claims.plugin import Plugin
from dranode.driver.machine.root import Root
from dranode.driver.pinning.snapshot import Pins
from dranode.driver.plugins import declared, load_plugins
from dranode.driver.slices.publishable import publishable
from dranode.tools.diagnosis.facts import ClusterFacts, Facts, Kubelet, NodeFacts, RuntimeFacts, ServeOptions
from dranode.tools.diagnosis.runtime import nri_answers
from dranode.tools.readers.cluster import Sender, read_cluster
from dranode.tools.readers.host import HostError, NodeHost, UnparsedError
from dranode.tools.readers.kubelet import kubelet_of_states, read_configz, read_kubelet, unread_state
from dranode.tools.readers.node import read_node
from dranode.tools.readers.runtime import read_runtime
from dranode.tools.readers.system import StatVfs, read_system

# The framework's own flag that needs a feature gate, as some drivers' options do.
_TAINTS: Final = ("device_taints", "--device-taints", "DRADeviceTaints")


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Paths of configuration on the node.

    Attributes:
        kubelet: kubelet's file; empty to search for it.
        containerd: containerd's file; empty to search for it.
        crio: CRI-O's folder.
    """

    kubelet: str
    containerd: str
    crio: str


def judged_options(
    drivers: Sequence[str], root: Root, node: str, options: Mapping[str, Any]
) -> tuple[ServeOptions, tuple[Plugin, ...]]:
    """Return the options of `serve` that the node has to fit, and the drivers that would start with them.

    Raises:
        UsageError: a driver is not installed, or an option has an invalid value.
    """
    loaded = load_plugins(drivers, root, options)
    plugins: list[Plugin] = []
    refusals: list[str] = []
    unread: list[str] = []
    declarations = [declaration for name in drivers for declaration in declared().of(name)]
    reserving = [declaration for declaration in declarations if declaration.option.reserves]
    sharing: set[str] = set()
    problems: list[HardwareProblem] = []
    oddities: list[str] = []
    holding_pages: list[str] = []
    for name, plugin in zip(dict.fromkeys(drivers), loaded, strict=True):
        try:
            inventory = plugin.discover()
        except (MachineError, OSError) as error:
            unread.append(f"{plugin.driver} prepares no claims: {error}")
            continue
        except DranodeError as error:
            refusals.append(f"{plugin.driver} does not start: {error}")
            continue
        plugins.append(plugin)
        reported = tuple(plugin.problems(inventory)) if isinstance(plugin, Reports) else ()
        problems += reported
        named = {problem.what for problem in reported}
        # The same warnings that the serving driver logs when it reads the hardware and when it publishes.
        warnings = (warning for warning in publishable(inventory).warnings if warning not in named)
        oddities += (f"{plugin.driver}: {warning}" for warning in warnings)
        if isinstance(plugin, Pins) and plugin.pool(inventory).page_sizes:
            holding_pages.append(plugin.driver)
        if any(device.allow_multiple_allocations for device in inventory.devices):
            sharing.add(name)
    pinning = [plugin for plugin in loaded if isinstance(plugin, Pins)]
    return ServeOptions(
        node=node,
        drivers=tuple(plugin.driver for plugin in loaded),
        pinning=tuple(plugin.driver for plugin in pinning),
        pinning_cpus=tuple(plugin.driver for plugin in pinning if plugin.unread_pool().pins_cpus),
        shares=bool(sharing),
        unshared=tuple(
            f"{declaration.flag} {declaration.option.unshared}"
            for declaration in declarations
            if declaration.driver in sharing and declaration.option.unshared
        ),
        gated=_gated(declarations, options),
        reserved=CPUSet(cpu for declaration in reserving for cpu in _cpus(declaration, options)),
        reserving=" and ".join(declaration.flag for declaration in reserving),
        kubelet_root=str(options["kubelet_root"]),
        cdi_dir=str(options["cdi_dir"]),
        nri_socket="" if options["nri_socket"] == "none" else str(options["nri_socket"]),
        refusals=tuple(refusals),
        unread=tuple(unread),
        problems=tuple(problems),
        oddities=tuple(oddities),
        holding_pages=tuple(holding_pages),
        cdi_kinds=tuple(plugin.claim_kind for plugin in loaded),
    ), tuple(plugins)


def _gated(declarations: Iterable[DriverOption], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags that are on and need a feature gate, with this gate; without it a server drops their fields."""
    name, flag, gate = _TAINTS
    gates = {
        declaration.flag: declaration.option.gate
        for declaration in declarations
        if declaration.option.gate and _value(declaration, options)
    }
    return gates | ({flag: gate} if options.get(name) else {})


def _cpus(declaration: DriverOption, options: Mapping[str, Any]) -> CPUSet:
    try:
        return CPUSet.parse(str(_value(declaration, options)))
    except ValueError as error:
        raise UsageError(f"{declaration.flag}: {error}") from error


def _value(declaration: DriverOption, options: Mapping[str, Any]) -> Any:
    return options.get(declaration.parameter, declaration.option.default)


def examine(
    host: NodeHost,
    options: ServeOptions,
    plugins: Sequence[Plugin],
    files: NodeFiles,
    *,
    pod_resources: str = "",
    api: Sender | None = None,
    account: str = "",
    skew: int | None = None,
    variables: tuple[str, ...] = (),
    statvfs: StatVfs = os.statvfs,
) -> Facts:
    """Read all facts.

    Args:
        host: the node.
        options: the options of `serve`.
        plugins: the drivers that would start with them.
        files: the paths of configuration files.
        pod_resources: kubelet's pod-resources socket; empty for the one under kubelet's root.
        api: the API server; None if there is none to ask.
        account: see `read_cluster`.
        skew: how far the API server's clock is ahead, in seconds; None if unknown.
        variables: a sentence for each `DRANODE_` variable that is not an option.
        statvfs: `os.statvfs`, or a test's substitute.
    """
    notes = _Notes()
    unseen = notes.unseen
    cluster: ClusterFacts | None = None
    runtime_version = ""
    if api is None:
        unseen.append("the API server: this is not a pod, and no --kubeconfig is given")
    else:
        cluster, runtime_version, unknown = read_cluster(api, options, plugins, account)
        unseen += unknown
        cluster = replace(cluster, skew=skew)
    socket = pod_resources or f"{options.kubelet_root.rstrip('/')}/pod-resources/kubelet.sock"
    node, unread = read_node(host, options, plugins, socket)
    return Facts(
        options,
        kubelet=_kubelet(host, options, files, api, notes),
        runtime=_runtime(host, runtime_version, files, node, notes),
        node=node,
        cluster=cluster,
        system=read_system(host, options, unseen, variables, statvfs),
        invalid_kubelet=notes.kubelet,
        invalid_runtime=notes.runtime,
        unseen=(*unread, *unseen),
    )


@dataclass(slots=True)
class _Notes:
    """What could not be read: configuration that cannot be parsed, and sentences on everything else."""

    kubelet: str = ""
    runtime: str = ""
    unseen: list[str] = field(default_factory=list)


def _kubelet(
    host: NodeHost, options: ServeOptions, files: NodeFiles, api: Sender | None, notes: _Notes
) -> Kubelet | None:
    try:
        kubelet = read_kubelet(host, options.kubelet_root, files.kubelet)
    except UnparsedError as error:
        notes.kubelet = str(error)
        return None
    except HostError as error:
        reason = str(error)
    except (AttributeError, TypeError, ValueError) as error:
        notes.unseen.append(f"kubelet's configuration: it has a value of the wrong type: {error}")
        return None
    else:
        notes.unseen += unread_state(host, kubelet.root)
        return kubelet
    if api is not None:
        try:
            return read_configz(api, options.node, options.kubelet_root)
        except (DranodeError, AttributeError, TypeError, ValueError):
            pass
    notes.unseen += (reason, *unread_state(host, options.kubelet_root))
    return kubelet_of_states(host, options.kubelet_root)


def _runtime(host: NodeHost, version: str, files: NodeFiles, node: NodeFacts, notes: _Notes) -> RuntimeFacts | None:
    # An answer from the socket proves that NRI is on, even if the configuration cannot be read.
    proof = "; NRI is on, because its socket answers" if nri_answers(node) else ""
    try:
        runtime, unknown = read_runtime(host, version, files.containerd, files.crio)
    except UnparsedError as error:
        notes.runtime = str(error)
        return None
    except HostError as error:
        notes.unseen.append(f"{error}{proof}")
        return None
    notes.unseen += [f"{sentence}{proof}" if not runtime.config else sentence for sentence in unknown]
    return runtime
