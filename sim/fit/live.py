"""A cluster as its API server has it now: the same documents as a dump, only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from dranode.driver.core.api.documents import API_GROUP, to_v1
from dranode.driver.core.api.source_document import SourceDocument
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import ApiError

_PAGE: Final = "500"
# What decides where a pod can run: path, kind, and whether a cluster may lack it.
_CORE: Final = (
    ("/api/v1/nodes", "Node", False),
    ("/api/v1/pods", "Pod", False),
    ("/api/v1/namespaces", "Namespace", False),
    ("/api/v1/services", "Service", False),
    ("/api/v1/replicationcontrollers", "ReplicationController", False),
    ("/apis/apps/v1/replicasets", "ReplicaSet", False),
    ("/apis/apps/v1/statefulsets", "StatefulSet", False),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClass", False),
)
_DEVICES: Final = (
    ("resourceslices", "ResourceSlice", False),
    ("deviceclasses", "DeviceClass", False),
    ("resourceclaims", "ResourceClaim", False),
    ("resourceclaimtemplates", "ResourceClaimTemplate", False),
    ("devicetaintrules", "DeviceTaintRule", True),
)


LIVE_KINDS: Final = frozenset(kind for _, kind, _ in (*_CORE, *_DEVICES))


def live_documents(client: Client, origin: str, progress: Callable[[str], None]) -> tuple[SourceDocument, ...]:
    """All objects that decide where a pod can run; `origin` names the cluster in messages.

    Raises:
        ApiError: something cannot be read.
    """
    root = f"/apis/{API_GROUP}/{client.version()}"
    documents = []
    for path, kind, optional in (*_CORE, *((f"{root}/{name}", kind, optional) for name, kind, optional in _DEVICES)):
        progress(f"reading {path.rpartition('/')[2]}")
        try:
            documents += list(_listed(client, path, kind))
        except ApiError as error:
            if not (optional and error.status == HTTPStatus.NOT_FOUND):
                raise
    return tuple(SourceDocument(origin, index, document) for index, document in enumerate(documents))


def _listed(client: Client, path: str, kind: str) -> Iterator[dict[str, Any]]:
    """The objects of one kind, page by page, each with the kind and version that a list leaves out."""
    name = path.rpartition("/")[2]
    token = ""
    while True:
        query = {"limit": _PAGE, **({"continue": token} if token else {})}
        answer = client.send(APIRequest("GET", path, f"list {name}", query))
        for item in answer.get("items") or ():
            yield to_v1({"apiVersion": answer.get("apiVersion", ""), "kind": kind, **item})
        token = answer.get("metadata", {}).get("continue", "")
        if not token:
            return
