"""Sources of claims and pods: an API server, or a folder instead of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dranode.api.resource import ResourceClaim
from dranode.driver.kube.client import Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.local.store import Store
from dranode.show.cluster_objects import ApiObjects, value_of


class ObjectSource(Protocol):
    """A source of claims and pods."""

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim; None if it does not exist.

        Raises:
            DranodeError: it cannot be read.
        """

    def container_names(self, namespace: str, pod: str) -> Mapping[str, str]:
        """Return the names of a pod's containers by their ids; empty if they cannot be read."""


@dataclass(frozen=True, slots=True)
class FromStore:
    """A folder of YAML files."""

    store: Store

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim; None if it does not exist."""
        return self.store.find(ResourceClaim, namespace, name)

    def container_names(self, namespace: str, pod: str) -> Mapping[str, str]:
        """Return no names, because the store has no pods."""
        del namespace, pod
        return {}


@dataclass(frozen=True, slots=True)
class FromCluster:
    """An API server."""

    client: Client

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim; None if it does not exist."""
        document = self._find("ResourceClaim", namespace, name)
        return None if document is None else value_of(ResourceClaim, "ResourceClaim", document)

    def container_names(self, namespace: str, pod: str) -> Mapping[str, str]:
        """Return the names of a pod's containers by their ids; empty if they cannot be read."""
        try:
            status = (self._find("Pod", namespace, pod) or {}).get("status") or {}
        except ApiError:
            return {}
        statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
        # `containerID` has the form `containerd://<id>`.
        return {
            container["containerID"].rpartition("/")[2]: container["name"]
            for container in statuses
            if container.get("containerID")
        }

    def _find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return ApiObjects(self.client, seconds=5.0).find(kind, namespace, name)
