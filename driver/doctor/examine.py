"""Everything that can be known of a node for `dranode doctor`, each part on its own: what fails leaves the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import DranodeError, UsageError
from dranode.driver.core.claims.options import DriverOption
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.diagnosis.facts import ClusterFacts, Facts, Kubelet, NodeFacts, RuntimeFacts, ServeOptions
from dranode.driver.core.diagnosis.runtime import nri_answers
from dranode.driver.core.pinning.pins import Pins
from dranode.driver.doctor.cluster import Sender, read_cluster
from dranode.driver.doctor.host import HostError, NodeHost
from dranode.driver.doctor.kubelet import read_kubelet
from dranode.driver.doctor.node import read_node
from dranode.driver.doctor.runtime import read_runtime
from dranode.driver.machine.root import Root
from dranode.driver.plugins import declared, load_plugins

# The framework's own flag that is like a driver's option with a gate.
_TAINTS: Final = ("device_taints", "--device-taints", "DRADeviceTaints")


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Where configuration lies on the node.

    Attributes:
        kubelet: kubelet's file; empty to look for it.
        containerd: containerd's file; empty to look for it.
        crio: CRI-O's folder.
    """

    kubelet: str
    containerd: str
    crio: str


def wanted_by(
    drivers: Sequence[str], root: Root, node: str, options: Mapping[str, Any]
) -> tuple[ServeOptions, tuple[Plugin, ...]]:
    """What the driver is told to do by the options of `serve`, and the drivers that would start.

    Raises:
        UsageError: no driver of a name is installed, or an option has a value that cannot be meant.
    """
    loaded = load_plugins(drivers, root, options)
    plugins: list[Plugin] = []
    refusals: list[str] = []
    own = [each for name in drivers for each in declared().of(name)]
    reserving = [each for each in own if each.option.reserves]
    sharing: set[str] = set()
    for name, plugin in zip(dict.fromkeys(drivers), loaded, strict=True):
        try:
            inventory = plugin.discover()
        except DranodeError as error:
            refusals.append(f"{plugin.driver} does not start: {error}")
            continue
        plugins.append(plugin)
        if any(device.allow_multiple_allocations for device in inventory.devices):
            sharing.add(name)
    return ServeOptions(
        node=node,
        drivers=tuple(plugin.driver for plugin in loaded),
        # A driver that pins says on what.
        pinning=tuple(plugin.driver for plugin in loaded if isinstance(plugin, Pins)),
        shares=bool(sharing),
        unshared=tuple(_set(each) for each in own if each.driver in sharing and each.option.unshared),
        gated=_gated(own, options),
        reserved=CPUSet(cpu for each in reserving for cpu in _cpus(each, options)),
        reserving=" and ".join(each.flags[0] for each in reserving),
        kubelet_root=str(options["kubelet_root"]),
        cdi_dir=str(options["cdi_dir"]),
        nri_socket="" if options["nri_socket"] == "none" else str(options["nri_socket"]),
        refusals=tuple(refusals),
    ), tuple(plugins)


def _gated(own: Iterable[DriverOption], options: Mapping[str, Any]) -> dict[str, str]:
    """The flags that are on and whose fields a server may drop, with the feature gate that each needs."""
    name, flag, gate = _TAINTS
    needed = {each.flags[0]: each.option.gate for each in own if each.option.gate and _value(each, options)}
    return needed | ({flag: gate} if options.get(name) else {})


def _cpus(each: DriverOption, options: Mapping[str, Any]) -> CPUSet:
    try:
        return CPUSet.parse(str(_value(each, options)))
    except ValueError as error:
        raise UsageError(f"{each.flags[0]}: {error}") from error


def _value(each: DriverOption, options: Mapping[str, Any]) -> Any:
    return options.get(each.parameter, each.option.default)


def _set(each: DriverOption) -> str:
    return f"{each.flags[0]} {each.option.unshared}"


def examine(
    host: NodeHost,
    wanted: ServeOptions,
    plugins: Sequence[Plugin],
    files: NodeFiles,
    *,
    pod_resources: str = "",
    api: Sender | None = None,
    account: str = "",
) -> Facts:
    """Look at everything; `api` is None where there is no API server to ask."""
    unseen: list[str] = []
    cluster: ClusterFacts | None = None
    told = ""
    if api is None:
        unseen.append("the API server: this is no pod and there is no --kubeconfig")
    else:
        cluster, told, not_told = read_cluster(api, wanted, plugins, account)
        unseen += not_told
    socket = pod_resources or f"{wanted.kubelet_root.rstrip('/')}/pod-resources/kubelet.sock"
    node, unread = read_node(host, wanted, plugins, socket)
    return Facts(
        wanted,
        kubelet=_kubelet(host, wanted, files, unseen),
        runtime=_runtime(host, told, files, node, unseen),
        node=node,
        cluster=cluster,
        unseen=(*unread, *unseen),
    )


def _kubelet(host: NodeHost, wanted: ServeOptions, files: NodeFiles, unseen: list[str]) -> Kubelet | None:
    try:
        return read_kubelet(host, wanted.kubelet_root, files.kubelet)
    except HostError as error:
        unseen.append(str(error))
    except (AttributeError, TypeError, ValueError) as error:
        unseen.append(f"kubelet's configuration: it has a value of a wrong type: {error}")
    return None


def _runtime(host: NodeHost, told: str, files: NodeFiles, node: NodeFacts, unseen: list[str]) -> RuntimeFacts | None:
    # A driver that is connected and a doctor that dials know it better than a file that one of them may not see.
    proof = "; NRI is on, for its socket answers" if nri_answers(node) else ""
    try:
        runtime, not_told = read_runtime(host, told, files.containerd, files.crio)
    except HostError as error:
        unseen.append(f"{error}{proof}")
        return None
    unseen += [f"{sentence}{proof}" if not runtime.config else sentence for sentence in not_told]
    return runtime
