"""Sources of claims and pods: an API server, or a folder instead of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.local.store import Store


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
        what = f"get resourceclaims in namespace {namespace}"

        def request(root: str, version: str) -> APIRequest:
            del version
            return APIRequest("GET", f"{root}/namespaces/{namespace}/resourceclaims/{name}", what)

        try:
            return decode(ResourceClaim, self.client.resource(request, seconds=5.0))
        except ApiError as error:
            # Any other 404 does not mean that the claim is missing.
            if error.status == HTTPStatus.NOT_FOUND and error.of_object:
                return None
            raise

    def container_names(self, namespace: str, pod: str) -> Mapping[str, str]:
        """Return the names of a pod's containers by their ids; empty if they cannot be read."""
        request = APIRequest("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}", "get pods")
        try:
            status: Mapping[str, Any] = self.client.send(request, seconds=5.0).get("status") or {}
        except ApiError:
            return {}
        statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
        # `containerID` has the form `containerd://<id>`.
        return {
            container["containerID"].rpartition("/")[2]: container["name"]
            for container in statuses
            if container.get("containerID")
        }
