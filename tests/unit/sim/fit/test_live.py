"""A cluster read from its API server, without writing to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dranode.driver.core.api.source_document import SourceDocument
from dranode.driver.kube.client import Client
from dranode.driver.kube.connection import Outgoing
from dranode.driver.kube.errors import ApiError
from dranode.sim.allocator.features import Features
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.live import LIVE_KINDS, live_documents
from dranode.sim.fit.questions import ClusterQuestions
from tests.fakes.clusters import node_document, pod_document


@dataclass
class Answer:
    status: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class PagedServer:
    """Answers lists page by page, two objects each; what is not there is not found."""

    objects: dict[str, list[str]]
    seen: list[str] = field(default_factory=list)

    def send(self, outgoing: Outgoing) -> Answer:
        assert outgoing.method == "GET"
        url = urlsplit(outgoing.path)
        self.seen.append(outgoing.path)
        if url.path == "/apis/resource.k8s.io":
            return Answer(200, json.dumps({"versions": [{"version": "v1"}]}).encode())
        name = url.path.rpartition("/")[2]
        if name not in self.objects:
            return Answer(404, b'{"kind": "Status", "message": "the server could not find the requested resource"}')
        start = int(parse_qs(url.query).get("continue", ["0"])[0])
        names = self.objects[name]
        metadata = {"continue": str(start + 2)} if start + 2 < len(names) else {}
        items: list[dict[str, Any]] = [{"metadata": {"name": each}} for each in names[start : start + 2]]
        return Answer(200, json.dumps({"apiVersion": "v1", "metadata": metadata, "items": items}).encode())


EVERYTHING = (
    *("nodes", "pods", "namespaces", "services", "replicationcontrollers", "replicasets", "statefulsets"),
    *("priorityclasses", "resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates"),
    "devicetaintrules",
)


def test_all_pages_of_all_kinds_are_read() -> None:
    server = PagedServer({name: [] for name in EVERYTHING} | {"nodes": ["a", "b", "c"], "deviceclasses": ["d"]})
    documents = live_documents(Client(server), "the cluster", lambda _: None)
    assert [(each.kind, each.name) for each in documents] == [
        ("Node", "a"),
        ("Node", "b"),
        ("Node", "c"),
        ("DeviceClass", "d"),
    ]
    assert documents[0].place == "the cluster, document 1 (Node a)"


def test_a_cluster_may_lack_taint_rules_and_nothing_else() -> None:
    server = PagedServer({name: [] for name in EVERYTHING if name != "devicetaintrules"})
    assert live_documents(Client(server), "c", lambda _: None) == ()
    del server.objects["pods"]
    with pytest.raises(ApiError, match="list pods"):
        live_documents(Client(server), "c", lambda _: None)


def test_a_kind_of_which_a_cluster_has_no_object_was_seen_all_the_same() -> None:
    server = PagedServer({name: [] for name in EVERYTHING} | {"nodes": ["a", "b"]})
    documents = live_documents(Client(server), "c", lambda _: None)
    pod = SourceDocument("p.yaml", 0, pod_document("p"))
    roomy = [SourceDocument("n.yaml", number, node_document(f"n{number}")) for number in range(2)]
    for kinds, notes in ((LIVE_KINDS, 0), ((), 1)):
        dump = read_dump([*documents, *roomy, pod], kinds)
        questions = ClusterQuestions.of(dump, Features(), lambda: "share")
        (answer,) = questions.answers(questions.selected(()))
        assert len(answer.notes) == notes
