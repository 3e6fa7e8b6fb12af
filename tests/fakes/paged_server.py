"""An API server as a client's wire: it answers lists page by page, and refuses what a test says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dranode.driver.kube.client import Client
from dranode.driver.kube.http1 import Outgoing
from dranode.driver.kube.server import UnreachableError
from dranode.show.cluster_objects import ApiObjects

_LACKING = b'{"kind": "Status", "message": "the server could not find the requested resource"}'


@dataclass
class WireAnswer:
    status: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class PagedServer:
    """Answers lists with two objects a page.

    Attributes:
        objects: names or whole objects by resource; a resource without an entry is not found.
        version: the version of resource.k8s.io that it serves.
        rules: the version of its DeviceTaintRules; empty if it serves none.
        groups: the version of its PodGroups.
        refused: the resources that may not be listed.
        silent: whether it answers nothing at all.
        forgets: resources whose continue token expires, as it does when a list is read too slowly.
        seen: paths with their queries, in order.
    """

    objects: Mapping[str, list[Any]]
    version: str = "v1"
    rules: str = "v1"
    groups: str = "v1beta1"
    refused: set[str] = field(default_factory=set)
    silent: bool = False
    forgets: set[str] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)

    def client(self) -> ApiObjects:
        return ApiObjects(Client(self))

    def send(self, outgoing: Outgoing) -> WireAnswer:
        assert outgoing.method == "GET"
        url = urlsplit(outgoing.path)
        self.seen.append(outgoing.path)
        if self.silent:
            raise UnreachableError("the API server did not answer in time")
        if url.path == "/apis/resource.k8s.io":
            return WireAnswer(200, json.dumps({"versions": [{"version": self.version}]}).encode())
        root, _, name = url.path.rpartition("/")
        served = self.rules if name == "devicetaintrules" else self.version
        if root.startswith("/apis/resource.k8s.io/") and not root.endswith(f"/{served}"):
            return WireAnswer(404, _LACKING)
        if name == "podgroups" and not root.endswith(f"/{self.groups}"):
            return WireAnswer(404, _LACKING)
        if name in self.refused:
            return WireAnswer(403, b'{"kind": "Status", "message": "User u cannot list it"}')
        if name not in self.objects:
            return WireAnswer(404, _LACKING)
        return self._page(name, root.removeprefix("/apis/").removeprefix("/api/"), parse_qs(url.query))

    def _page(self, name: str, version: str, query: Mapping[str, list[str]]) -> WireAnswer:
        items = [{"metadata": {"name": each}} if isinstance(each, str) else each for each in self.objects[name]]
        start = int(query.get("continue", ["0"])[0])
        if start and name in self.forgets:
            return WireAnswer(410, b'{"kind": "Status", "reason": "Expired", "message": "too old"}')
        end = start + 2 if "limit" in query else len(items)
        metadata = {"continue": str(end)} if end < len(items) else {}
        body = {"apiVersion": version, "metadata": metadata, "items": items[start:end] or None}
        return WireAnswer(200, json.dumps(body).encode())
