"""A cluster's documents from its API server, read and never written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dranode.driver.core.api.documents import API_VERSION, to_v1
from dranode.driver.core.api.source_document import SourceDocument
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import ApiError

_PAGE: Final = 500
_CORE: Final = "v1"


@dataclass(frozen=True, slots=True)
class _Listed:
    kind: str
    resource: str
    core: bool = False
    selector: str = ""


_KINDS: Final = (
    _Listed("ResourceSlice", "resourceslices"),
    _Listed("DeviceClass", "deviceclasses"),
    _Listed("ResourceClaim", "resourceclaims"),
    _Listed("Node", "nodes", core=True),
    _Listed("Pod", "pods", core=True),
    _Listed("Event", "events", core=True, selector="type=Warning,involvedObject.kind=Pod"),
)


@dataclass(frozen=True, slots=True)
class ServerDocuments:
    """What an API server let be read.

    Attributes:
        documents: the objects.
        kinds: the kinds of which all objects were read, perhaps none.
        refused: one sentence for each other kind.
    """

    documents: tuple[SourceDocument, ...]
    kinds: frozenset[str]
    refused: tuple[str, ...]


def server_documents(client: Client) -> ServerDocuments:
    """Return the objects that a picture needs.

    Raises:
        ApiError: no kind could be read.
    """
    documents: list[SourceDocument] = []
    kinds: set[str] = set()
    refused: list[ApiError] = []
    for listed in _KINDS:
        try:
            items = list(_items(client, listed))
        except ApiError as error:
            refused.append(error)
            continue
        kinds.add(listed.kind)
        documents += (SourceDocument("the API server", index, item) for index, item in enumerate(items))
    if len(refused) == len(_KINDS):
        raise refused[0]
    return ServerDocuments(tuple(documents), frozenset(kinds), tuple(f"not read: {error}" for error in refused))


def _items(client: Client, listed: _Listed) -> Iterator[dict[str, Any]]:
    more = ""
    while True:
        query = {"limit": str(_PAGE), **({"continue": more} if more else {})}
        if listed.selector:
            query["fieldSelector"] = listed.selector
        answer = _page(client, listed, query)
        items = answer.get("items") if isinstance(answer, dict) else None
        if items is None and not (isinstance(answer, dict) and "items" in answer):
            raise ApiError(f"the answer to list {listed.resource} is no list; see that the address is an API server's")
        version = str(answer.get("apiVersion") or API_VERSION)
        for item in items or ():
            yield to_v1({**item, "apiVersion": version, "kind": listed.kind})
        more = str((answer.get("metadata") or {}).get("continue") or "")
        if not more:
            return


def _page(client: Client, listed: _Listed, query: dict[str, str]) -> Any:
    what = f"list {listed.resource}"
    if listed.core:
        return client.send(APIRequest("GET", f"/api/{_CORE}/{listed.resource}", what, query))
    return client.resource(lambda root, _version: APIRequest("GET", f"{root}/{listed.resource}", what, query))
