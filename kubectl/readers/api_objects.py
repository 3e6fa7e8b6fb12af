"""Objects of an API server as plain documents, those of `resource.k8s.io` in the form of v1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from dranode.driver.core.api.documents import API_GROUP, to_v1
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import ApiError

_SECONDS: Final = 10.0
_RESOURCES: Final = {
    "Pod": "pods",
    "Node": "nodes",
    "Event": "events",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceSlice": "resourceslices",
    "DeviceClass": "deviceclasses",
    "DeviceTaintRule": "devicetaintrules",
}
_CORE: Final = frozenset(("Pod", "Node", "Event"))


@dataclass(frozen=True, slots=True)
class ApiObjects:
    """The objects of an API server."""

    client: Client

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object; None if the server says that there is none.

        Raises:
            ApiError: the server does not say; `status` is 403 if that is for want of rights.
        """
        try:
            answer = self._send(kind, namespace, f"/{name}", "get", {})
        except ApiError as error:
            # Any other 404 is about the API, not about the object.
            if error.status == HTTPStatus.NOT_FOUND and error.of_object:
                return None
            raise
        if not isinstance(answer, dict) or not isinstance(answer.get("metadata"), dict):
            raise _unclear(kind)
        return answer

    def all(self, kind: str, namespace: str = "", **query: str) -> Iterator[dict[str, Any]]:
        """Yield all objects of a kind; of all namespaces for an empty one.

        Raises:
            ApiError: as `find` does.
        """
        answer = self._send(kind, namespace, "", "list", query)
        items = answer.get("items", ()) if isinstance(answer, dict) else None
        if items is None and isinstance(answer, dict) and "items" in answer:
            items = ()  # Go writes an empty list as null
        if not isinstance(items, (list, tuple)):
            raise _unclear(kind)
        version = str(answer.get("apiVersion", ""))
        for item in items:
            yield item if kind in _CORE else _v1(kind, {**item, "apiVersion": version, "kind": kind})

    def server_version(self) -> str:
        """Return the server's version (`v1.37.1`).

        Raises:
            ApiError: it does not say.
        """
        answer = self.client.send(APIRequest("GET", "/version", "get /version"), seconds=_SECONDS)
        return str(answer.get("gitVersion", "")) if isinstance(answer, dict) else ""

    def _send(self, kind: str, namespace: str, name: str, verb: str, query: dict[str, str]) -> Any:
        resource = _RESOURCES[kind]
        place = f"/namespaces/{namespace}" if namespace else ""
        what = f"{verb} {resource}{f' in namespace {namespace}' if namespace else ''}"

        def request(root: str, version: str) -> APIRequest:
            del version
            return APIRequest("GET", f"{root}{place}/{resource}{name}", what, query)

        if kind in _CORE:
            return self.client.send(request("/api/v1", "v1"), seconds=_SECONDS)
        return self.client.resource(request, seconds=_SECONDS)


def _v1(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    try:
        return to_v1(document)
    except DocumentError as error:
        raise ApiError(
            f"a {kind} of the API server cannot be read: {error}; see that {API_GROUP} is Kubernetes'"
        ) from error


def _unclear(kind: str) -> ApiError:
    return ApiError(
        f"the answer for {_RESOURCES[kind]} has another form than an API server's; see that the address is one's"
    )
