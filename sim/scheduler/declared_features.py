"""Finds the features of kubelet that a pod needs and that a node declares (KEP-5328).

Source: `k8s.io/component-helpers/nodedeclaredfeatures`, 1.36.4 and 1.37.1; those for updates of pods do not matter.
"""

from __future__ import annotations

from typing import Final

from dranode.sim.scheduler.documents import SchedulingPod

FEATURES_MISSING: Final = "node(s) didn't match Pod's required features"
_RESTART_ALL: Final = "RestartAllContainers"
_BIND_OPTIONS_SINCE: Final = 37


def required_features(pod: SchedulingPod, minor: int) -> frozenset[str]:
    """The names that a node has to declare."""
    needed = set()
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers)
    if any(rule.action == _RESTART_ALL for container in containers for rule in container.restart_policy_rules):
        needed.add("RestartAllContainersOnContainerExits")
    if spec.host_network and spec.host_users is False:
        needed.add("UserNamespacesHostNetworkSupport")
    mounts = [mount for container in containers for mount in container.volume_mounts]
    if minor >= _BIND_OPTIONS_SINCE and any(mount.get("bindMountOptions") for mount in mounts):
        needed.add("VolumeBindMountOptions")
    return frozenset(needed)
