"""The pods that come with every node: those of DaemonSets, and static pods.

A document of a DaemonSet says what runs on a node that does not exist yet. Without it, a node that is copied has the
pods of the original, whose node affinity Kubernetes has replaced by the name of their node.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from dranode.api.documents import decode
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import only
from dranode.sim.cluster.controllers import with_pods
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.manifests import key_of
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.scheduler.amounts import with_defaults
from dranode.sim.scheduler.documents import (
    PodAffinities,
    PodNodeAffinity,
    SchedulingContainer,
    SchedulingNode,
    SchedulingPod,
)

_MIRROR: Final = "kubernetes.io/config.mirror"


def comes_with_node(pod: SchedulingPod) -> bool:
    """Return whether the pod is static or of a DaemonSet, so that it would come back to its node at once."""
    return _daemon_set(pod) is not None or _MIRROR in pod.metadata.annotations


def unknown_daemon_sets(dump: ClusterDump, pods: Iterable[SchedulingPod]) -> set[ClaimKey]:
    """Return the DaemonSets of the pods that are not among the documents."""
    return {key for key in map(_daemon_set, pods) if key is not None} - set(map(key_of, dump.daemon_sets))


def copied_pods(dump: ClusterDump, node: str) -> tuple[SchedulingPod, ...]:
    """Return the pods that a copy of a node has too and no document of a DaemonSet describes."""
    pods = (pod for pod in dump.pods if pod.spec.node_name == node and comes_with_node(pod))
    return tuple(pod for pod in pods if _daemon_set(pod) is None or unknown_daemon_sets(dump, [pod]))


def daemons(
    dump: ClusterDump, features: Features, node: SchedulingNode, copied: Iterable[SchedulingPod]
) -> Iterator[PodDemand]:
    """Yield the pods that wait for a new node: those of all DaemonSets that match it, and the `copied` ones.

    The claims of copied pods are left out.

    Raises:
        DocumentError: a selector of a pod is invalid.
    """
    name = node.metadata.name
    made = with_pods(dump.daemon_sets, lambda: [node], tolerant=True).documents
    pods = [decode(SchedulingPod, source.document) for source in made if source.kind == "Pod"]
    running = {_daemon_set(pod): pod for pod in dump.pods}
    pods = [with_defaults(_admitted(pod, running.get(_daemon_set(pod))), {}) for pod in pods]
    here = PodAffinities(node_affinity=PodNodeAffinity(required_during_scheduling_ignored_during_execution=only(name)))
    pods += [replace(pod, spec=replace(pod.spec, node_name="", affinity=here, resource_claims=())) for pod in copied]
    for pod in pods:
        metadata = replace(pod.metadata, name=f"{pod.metadata.name}-{name}")
        yield demand_of(replace(pod, metadata=metadata), dump, features)


def _admitted(pod: SchedulingPod, running: SchedulingPod | None) -> SchedulingPod:
    """Return the pod with the amounts that another pod of its DaemonSet has, which admission (a LimitRange) may add."""
    if running is None:
        return pod
    spec, known = pod.spec, (*running.spec.init_containers, *running.spec.containers)
    given = {container.name: container.resources for container in known}

    def admitted(containers: tuple[SchedulingContainer, ...]) -> tuple[SchedulingContainer, ...]:
        pairs = [(container, given.get(container.name, container.resources)) for container in containers]
        return tuple(
            replace(
                container,
                resources=replace(
                    container.resources,
                    requests={**more.requests, **container.resources.requests},
                    limits={**more.limits, **container.resources.limits},
                ),
            )
            for container, more in pairs
        )

    admitted_spec = replace(spec, init_containers=admitted(spec.init_containers), containers=admitted(spec.containers))
    return replace(pod, spec=admitted_spec)


def _daemon_set(pod: SchedulingPod) -> ClaimKey | None:
    owners = (owner for owner in pod.metadata.owner_references if owner.kind == "DaemonSet" and owner.controller)
    return next((ClaimKey(pod.metadata.namespace or "", owner.name) for owner in owners), None)
