from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import ApiError
from dranode.sim.report.cluster import cluster_seen
from dranode.sim.report.server import server_documents


class Shelf:
    """Stands in for a client: lists of names by resource, two objects a page; refuses what is not there."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names
        self.queries: list[tuple[str, dict[str, str]]] = []

    def send(self, request: APIRequest) -> Any:
        resource = request.path.rpartition("/")[2]
        self.queries.append((resource, dict(request.query)))
        if resource not in self.names:
            raise ApiError(f"the API server does not let this driver {request.what}", status=403)
        start = int(request.query.get("continue", "0"))
        names = self.names[resource]
        more = str(start + 2) if start + 2 < len(names) else ""
        items = [{"metadata": {"name": name}} for name in names[start : start + 2]]
        version = "v1" if request.path.startswith("/api/") else "resource.k8s.io/v1"
        return {"apiVersion": version, "metadata": {"continue": more}, "items": items or None}

    def resource(self, request: Callable[[str, str], APIRequest]) -> Any:
        return self.send(request("/apis/resource.k8s.io/v1", "v1"))


def test_lists_come_page_by_page() -> None:
    shelf = Shelf(nodes=["a", "b", "c", "d", "e"], pods=[])
    read = server_documents(cast("Client", shelf))
    assert [(each.kind, each.name) for each in read.documents] == [("Node", name) for name in "abcde"]
    assert len([query for resource, query in shelf.queries if resource == "nodes"]) == 3
    assert read.kinds == {"Node", "Pod"}
    assert len(read.refused) == 4


def test_what_the_server_refuses_is_said_in_the_picture_and_the_rest_is_read() -> None:
    read = server_documents(cast("Client", Shelf(nodes=["a"], pods=[])))
    notes = cluster_seen(read.documents, read.kinds, read.refused).notes
    assert "not read: the API server does not let this driver list resourceclaims" in notes
    assert not any(note.startswith("no Pod is among") for note in notes)  # all were read, and there is none


def test_a_server_that_lets_nothing_be_read_is_an_error() -> None:
    with pytest.raises(ApiError, match="list resourceslices"):
        server_documents(cast("Client", Shelf()))


def test_of_events_only_warnings_about_pods_are_asked_for() -> None:
    shelf = Shelf(events=[])
    server_documents(cast("Client", shelf))
    (query,) = (query for resource, query in shelf.queries if resource == "events")
    assert query["fieldSelector"] == "type=Warning,involvedObject.kind=Pod"
