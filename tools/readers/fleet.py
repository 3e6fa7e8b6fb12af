"""Reads the driver's state on every node from an API server: pods, slices, versions, kubelet's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceSlice
from dranode.driver.kube.client import Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.plugins import load_plugins
from dranode.show.cluster_objects import ApiObjects
from dranode.sim.machines.forms import open_machine
from dranode.tools.diagnosis.facts import ClusterFacts, Facts, Kubelet, RuntimeFacts, ServeOptions
from dranode.tools.diagnosis.live_objects import LiveDaemonSet, LiveNode, LivePod
from dranode.tools.diagnosis.scheduler import daemon_excluded_by
from dranode.tools.readers.cluster import extended_resources, kubelet_version, published_slice, server_versions
from dranode.tools.readers.kubelet import read_configz
from dranode.tools.readers.runtime import runtime_version

_NAME: Final = "dranode"
_LABEL: Final = "app.kubernetes.io/name"
_PART_OF: Final = "app.kubernetes.io/part-of"
_ENDED: Final = ("Succeeded", "Failed")
# A made-up machine, because only the drivers' names are needed.
_NO_MACHINE: Final = "cores=1"


def read_fleet(client: Client, drivers: Sequence[str], options: Mapping[str, Any]) -> Iterator[Facts]:
    """Yield the facts about every node, by name, as far as the API server has them.

    Raises:
        ApiError: the server does not answer, or does not allow nodes or slices to be listed.
    """
    names = tuple(plugin.driver for plugin in load_plugins(drivers, open_machine(_NO_MACHINE), options))
    objects = ApiObjects(client)
    slices = objects.values(ResourceSlice, "ResourceSlice")
    running = _DriverPods.read(objects)
    versions = server_versions(client)
    for node in sorted(objects.values(LiveNode, "Node"), key=lambda node: node.metadata.name):
        name = node.metadata.name
        judged = ServeOptions(node=name, drivers=names, kubelet_root=str(options["kubelet_root"]))
        kubelet, unread = _kubelet(client, name, judged.kubelet_root)
        published = tuple(
            published_slice(slice_)
            for slice_ in slices
            if slice_.spec.node_name == name and slice_.spec.driver in names
        )
        cluster = ClusterFacts(
            versions=versions,
            node=True,
            kubelet=kubelet_version(node.status.node_info.kubelet_version),
            extended=extended_resources(node.status.allocatable),
            slices=published if running.is_due(node) else None,
            driver_pod=running.trouble(node),
            pods_unseen=running.pods_unseen,
            left_out=running.left_out(node),
            daemonsets=running.daemonsets_on(name),
        )
        yield Facts(judged, kubelet=kubelet, runtime=_runtime(node), cluster=cluster, unseen=(*running.unseen, *unread))


@dataclass(frozen=True, slots=True)
class _DriverPods:
    """Where the driver should run, and where it runs.

    Attributes:
        daemonsets: the driver's DaemonSets; None if they could not be listed.
        pods: its pods by node, each with the DaemonSet that created it, empty if unknown; None if not listed.
        pods_unseen: why pods could not be listed; empty if they could.
        unseen: why DaemonSets could not be listed.
    """

    daemonsets: tuple[LiveDaemonSet, ...] | None
    pods: Mapping[str, tuple[tuple[str, LivePod], ...]] | None
    pods_unseen: str = ""
    unseen: tuple[str, ...] = ()

    @classmethod
    def read(cls, objects: ApiObjects) -> _DriverPods:
        daemonsets: tuple[LiveDaemonSet, ...] | None = None
        unseen: tuple[str, ...] = ()
        try:
            daemonsets = tuple(filter(_is_ours, objects.values(LiveDaemonSet, "DaemonSet")))
        except ApiError as error:
            unseen = (f"on which nodes the driver should run: {error}",)
        # Pods of a driver that is installed under another name do not have the label of deploy/.
        selectors = {
            (daemonset.metadata.namespace, _selector(daemonset.spec.selector.match_labels)): daemonset.name
            for daemonset in daemonsets or ()
            if daemonset.spec.selector.match_labels
        }
        pods: dict[str, dict[str, tuple[str, LivePod]]] = {}
        try:
            for (namespace, selector), owner in (selectors or {("", _selector({_LABEL: _NAME})): ""}).items():
                for pod in objects.values(LivePod, "Pod", namespace, labelSelector=selector):
                    if pod.status.phase not in _ENDED and _made_by(pod, owner):
                        on_node = pods.setdefault(pod.spec.node_name, {})
                        on_node.setdefault(f"{pod.metadata.namespace}/{pod.metadata.name}", (owner, pod))
        except ApiError as error:
            return cls(daemonsets, None, str(error), unseen)
        return cls(daemonsets, {node: tuple(on_node.values()) for node, on_node in pods.items()}, "", unseen)

    def is_due(self, node: LiveNode) -> bool:
        """Return whether the driver should run on a node, as far as that is known."""
        if self.pods is not None and node.metadata.name in self.pods:
            return True
        if self.daemonsets:
            return not self.left_out(node)
        # By default a DaemonSet leaves out nodes whose taints it does not tolerate.
        return not any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.spec.taints)

    def left_out(self, node: LiveNode) -> str:
        """Return why every DaemonSet leaves a node out; empty if one selects it, or if it has a pod anyway."""
        if not self.daemonsets or (self.pods is not None and node.metadata.name in self.pods):
            return ""
        reasons = {
            daemonset.name: daemon_excluded_by(node, daemonset.spec.template.spec) for daemonset in self.daemonsets
        }
        if not all(reasons.values()):
            return ""
        return "; ".join(f"DaemonSet {name}: {why}" for name, why in reasons.items())

    def trouble(self, node: LiveNode) -> str | None:
        """Return why no pod of the driver serves on a node; empty if one does, None if that is not known."""
        if self.pods is None:
            return None
        pods = [pod for _, pod in self.pods.get(node.metadata.name, ())]
        if pods:
            troubles = [_not_serving(pod) for pod in pods]
            return "" if "" in troubles else troubles[0]
        if not self.is_due(node):
            return None
        if self.daemonsets:
            selecting = [
                daemonset.name
                for daemonset in self.daemonsets
                if not daemon_excluded_by(node, daemonset.spec.template.spec)
            ]
            return f"no pod of the driver runs there, although the DaemonSet {' and '.join(selecting)} selects it"
        return "no pod of the driver runs there" + ("" if self.daemonsets is None else ", and no DaemonSet runs it")

    def daemonsets_on(self, node: str) -> tuple[str, ...]:
        """Return the DaemonSets that have a pod on a node."""
        return tuple(sorted({owner for owner, _ in (self.pods or {}).get(node, ()) if owner}))


def _is_ours(daemonset: LiveDaemonSet) -> bool:
    """Return whether a DaemonSet runs the driver: it has the labels of deploy/ or the chart, or the driver's image."""
    template = daemonset.spec.template
    if template.metadata.labels.get(_LABEL) == _NAME:
        return True
    if daemonset.metadata.labels.get(_PART_OF) == _NAME:
        return True
    images = (
        container.image.partition("@")[0].rpartition("/")[2].partition(":")[0] for container in template.spec.containers
    )
    return _NAME in images


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _made_by(pod: LivePod, daemonset: str) -> bool:
    """Return whether a pod with a DaemonSet's labels belongs to it; two DaemonSets may select the same labels."""
    owners = [owner.name for owner in pod.metadata.owner_references if owner.kind == "DaemonSet"]
    return not owners or not daemonset or daemonset.partition("/")[2] in owners


def _not_serving(pod: LivePod) -> str:
    """Return why a pod of the driver does not serve; empty if it does, or if it has no Ready condition yet."""
    ready = pod.status.condition("Ready")
    if ready is None or ready.status == "True":
        return ""
    containers = [status.name for status in pod.status.container_statuses if status.restart_count]
    restarts = f", and its container {', '.join(containers)} was restarted" if containers else ""
    return f"the driver's pod {pod.metadata.name} is not ready: {ready.message or ready.reason}{restarts}"


def _kubelet(client: Client, node: str, root: str) -> tuple[Kubelet | None, tuple[str, ...]]:
    try:
        return read_configz(client, node, root), ()
    except (ApiError, DranodeError, TypeError, ValueError) as error:
        return None, (f"kubelet's configuration: {error}",)


def _runtime(node: LiveNode) -> RuntimeFacts | None:
    name, _, version = node.status.node_info.container_runtime_version.partition("://")
    if not name:
        return None
    return RuntimeFacts("CRI-O" if name == "cri-o" else name, "", runtime_version(version), nri=None, cdi=None)
