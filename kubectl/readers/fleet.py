"""Reads what an API server says of the driver on every node: pods, slices, versions, kubelet's own configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.diagnosis.facts import ClusterFacts, Facts, Kubelet, RuntimeFacts, ServeOptions
from dranode.driver.core.diagnosis.live_objects import LiveNode, LivePod
from dranode.driver.kube.client import Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.objects import ApiObjects
from dranode.driver.machine.forms import open_machine
from dranode.driver.plugins import load_plugins
from dranode.kubectl.readers.cluster import kubelet_version, published_slice, server_versions
from dranode.kubectl.readers.cluster_lists import ClusterLists
from dranode.kubectl.readers.examine import read_configz
from dranode.kubectl.readers.runtime import runtime_version

_NAMESPACE: Final = "dranode"
_LABEL: Final = "app.kubernetes.io/name=dranode"
# A made-up machine, for only the drivers' names are asked.
_NO_MACHINE: Final = "cores=1"


def read_fleet(client: Client, drivers: Sequence[str], options: Mapping[str, Any]) -> Iterator[Facts]:
    """Yield the facts of every node, by name, as far as the API server has them.

    Raises:
        ApiError: the server does not answer, or does not let nodes or slices be listed.
    """
    names = tuple(plugin.driver for plugin in load_plugins(drivers, open_machine(_NO_MACHINE), options))
    objects = ApiObjects(client)
    lists = ClusterLists(objects)
    slices = lists.slices()
    pods, unseen = _driver_pods(objects)
    versions = server_versions(client)
    for node in sorted(lists.nodes(), key=lambda one: one.metadata.name):
        name = node.metadata.name
        judged = ServeOptions(node=name, drivers=names, kubelet_root=str(options["kubelet_root"]))
        kubelet, unread = _kubelet(client, name, judged.kubelet_root)
        cluster = ClusterFacts(
            versions=versions,
            node=True,
            kubelet=kubelet_version(node.status.node_info.kubelet_version),
            slices=tuple(
                published_slice(one) for one in slices if one.spec.node_name == name and one.spec.driver in names
            ),
            driver_pod=_not_serving(name, pods),
        )
        yield Facts(
            judged,
            kubelet=kubelet,
            runtime=_runtime(node),
            cluster=replace(cluster, slices=None) if not _runs_drivers(node, pods) else cluster,
            unseen=(*unseen, *unread),
        )


def _driver_pods(objects: ApiObjects) -> tuple[dict[str, LivePod] | None, tuple[str, ...]]:
    from dranode.kubectl.readers.pods import PodReader

    reader = PodReader(objects)
    pods = reader.pods_with(_NAMESPACE, _LABEL)
    return (None if pods is None else {pod.spec.node_name: pod for pod in pods}), tuple(reader.unasked)


def _runs_drivers(node: LiveNode, pods: Mapping[str, LivePod] | None) -> bool:
    """Return whether the driver is to run on a node: a DaemonSet leaves out nodes whose taints it does not tolerate."""
    excluded = any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.spec.taints)
    return not excluded or pods is None or node.metadata.name in pods


def _not_serving(name: str, pods: Mapping[str, LivePod] | None) -> str | None:
    """Return why the driver's pod on a node does not serve; None if that is not known."""
    if pods is None or name not in pods:
        return None
    ready = pods[name].status.condition("Ready")
    if ready is None or ready.status == "True":
        return ""
    containers = [one.name for one in pods[name].status.container_statuses if one.restart_count]
    restarts = f", and its container {', '.join(containers)} was restarted" if containers else ""
    return f"the driver's pod {pods[name].metadata.name} is not ready: {ready.message or ready.reason}{restarts}"


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
