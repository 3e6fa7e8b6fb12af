"""Objects of an API server by kind, page by page, in every version that exists."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dranode.api.errors import UsageError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, Node, ResourceSlice
from dranode.driver.kube.client import Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.http1 import Outgoing
from dranode.driver.kube.server import UnreachableError
from dranode.show.cluster_objects import AT_A_TIME, ApiObjects, cluster_documents
from dranode.sim.allocator.features import Features
from dranode.sim.fit.dump import LIVE_KINDS, live_kinds, read_dump
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.report.cluster import PAGE_KINDS, cluster_seen
from tests.fakes.clusters import node_document, pod_document


def slice_document(name: str, **device: Any) -> dict[str, Any]:
    spec = {"driver": "d", "nodeName": "n", "pool": {"name": "n"}, "devices": [{"name": "gpu-0", **device}]}
    return {"metadata": {"name": name}, "spec": spec}


def test_all_pages_can_be_read_as_values_or_as_documents() -> None:
    server = PagedServer({"nodes": ["a", "b", "c", "d", "e"]})
    assert [node.metadata.name for node in server.client().values(Node, "Node")] == list("abcde")
    documents = server.client().documents("Node")
    assert [document["metadata"]["name"] for document in documents] == list("abcde")
    assert {(document["kind"], document["apiVersion"]) for document in documents} == {("Node", "v1")}
    assert len(server.seen) == 6
    assert all("limit=500" in path for path in server.seen)


def test_a_list_whose_token_expired_is_read_again_in_one_answer() -> None:
    server = PagedServer({"nodes": ["a", "b", "c"]}, forgets={"nodes"})
    assert [node.metadata.name for node in server.client().values(Node, "Node")] == ["a", "b", "c"]
    assert "limit" not in server.seen[-1]


@pytest.mark.parametrize("tokens", [["2", "2"], ["2", "4", "2"]])
def test_a_list_that_repeats_a_page_is_an_error(tokens: list[str]) -> None:
    class Repeating(PagedServer):
        def _page(self, name: str, version: str, query: Any) -> Any:
            answer = super()._page(name, version, query)
            metadata = {"continue": tokens[(len(self.seen) - 1) % len(tokens)]}
            answer.data = json.dumps({"apiVersion": "v1", "metadata": metadata, "items": []}).encode()
            return answer

    with pytest.raises(ApiError, match="list of Nodes does not end"):
        Repeating({"nodes": []}).client().values(Node, "Node")


def test_only_a_part_after_an_expired_token_is_an_error() -> None:
    class Partial(PagedServer):
        def _page(self, name: str, version: str, query: Any) -> Any:
            return super()._page(name, version, query if "limit" in query else {"limit": ["2"]})

    with pytest.raises(ApiError, match="only a part"):
        Partial({"nodes": ["a", "b", "c"]}, forgets={"nodes"}).client().values(Node, "Node")


@pytest.mark.parametrize("name", ["..", "a/b", "a?watch=true", "a b"])
def test_a_name_that_would_lead_to_another_object_is_refused(name: str) -> None:
    server = PagedServer({"nodes": []})
    for namespace, pod in ((name, "a"), ("default", name)):
        with pytest.raises(UsageError, match="is no name in Kubernetes"):
            server.client().find("Pod", namespace, pod)
    assert not server.seen


def test_an_empty_list_may_be_null_but_not_missing() -> None:
    assert PagedServer({"nodes": []}).client().values(Node, "Node") == ()

    class Without(PagedServer):
        def _page(self, name: str, version: str, query: Any) -> Any:
            answer = super()._page(name, version, query)
            answer.data = b'{"apiVersion": "v1"}'
            return answer

    for read in (
        lambda: Without({"nodes": []}).client().values(Node, "Node"),
        lambda: Without({"nodes": []}).client().documents("Node"),
    ):
        with pytest.raises(ApiError, match="the answer for Nodes is not in the form"):
            read()


def test_beta_objects_are_converted_to_v1() -> None:
    item = slice_document("s")
    item["spec"]["devices"] = [{"name": "gpu-0", "basic": {"attributes": {"numaNode": {"int": 1}}}}]
    server = PagedServer({"resourceslices": [item]}, version="v1beta1")
    (value,) = server.client().values(ResourceSlice, "ResourceSlice")
    assert value.spec.devices[0].attributes["numaNode"].int_ == 1
    (document,) = server.client().documents("ResourceSlice")
    assert document["apiVersion"] == "resource.k8s.io/v1"
    assert document["spec"]["devices"][0]["attributes"]


def test_null_means_empty_and_undecodable_fields_are_named() -> None:
    (value,) = (
        PagedServer({"resourceslices": [slice_document("s", taints=None)]})
        .client()
        .values(ResourceSlice, "ResourceSlice")
    )
    assert value.spec.devices[0].taints == ()
    with pytest.raises(ApiError, match=r"the ResourceSlice b cannot be read: spec\.devices\[0\]\.taints"):
        PagedServer({"resourceslices": [slice_document("a"), slice_document("b", taints=7)]}).client().values(
            ResourceSlice, "ResourceSlice"
        )


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_taint_rules_are_found_in_any_version(version: str) -> None:
    server = PagedServer({"devicetaintrules": ["broken", "old", "hot"]}, rules=version)
    rules = server.client().documents("DeviceTaintRule")
    assert [rule["metadata"]["name"] for rule in rules] == ["broken", "old", "hot"]
    assert {rule["apiVersion"] for rule in rules} == {"resource.k8s.io/v1"}


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2"])
def test_pod_groups_are_found_in_any_version(version: str) -> None:
    server = PagedServer({"podgroups": ["ring"]}, groups=version)
    (group,) = server.client().documents("PodGroup")
    assert group == {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": {"name": "ring"},
    }
    assert PagedServer({}).client().documents("PodGroup") == []


def test_missing_taint_rules_are_an_empty_list_and_refused_ones_an_error() -> None:
    assert PagedServer({}).client().documents("DeviceTaintRule") == []
    with pytest.raises(ApiError, match="does not let this account list devicetaintrules"):
        PagedServer({}, refused={"devicetaintrules"}).client().documents("DeviceTaintRule")


def test_a_kind_that_the_server_lacks_is_an_error() -> None:
    with pytest.raises(ApiError, match="list deviceclasses"):
        PagedServer({}).client().values(DeviceClass, "DeviceClass")
    with pytest.raises(ApiError, match="get nodes"):
        PagedServer({}).client().find("Node", "", "a")


# --- A cluster is read from its API server without writing to it ---


EVERYTHING = (
    *("nodes", "pods", "events", "namespaces", "services", "replicationcontrollers", "replicasets", "statefulsets"),
    *("priorityclasses", "resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates"),
    *("daemonsets", "devicetaintrules"),
)
LIVE = {kind: dict[str, str]() for kind in LIVE_KINDS}


def test_all_pages_of_all_kinds_are_read() -> None:
    server = PagedServer({name: [] for name in EVERYTHING} | {"nodes": ["a", "b", "c"], "deviceclasses": ["d"]})
    read = cluster_documents(server.client(), LIVE, "the cluster")
    assert [(each.kind, each.name) for each in read.documents] == [
        ("Node", "a"),
        ("Node", "b"),
        ("Node", "c"),
        ("DeviceClass", "d"),
    ]
    assert read.documents[0].place == "the cluster, document 1 (Node a)"
    assert read.kinds == set(LIVE_KINDS)


def test_pod_groups_are_read_if_they_can_have_claims() -> None:
    assert live_kinds(Features()) == LIVE_KINDS
    assert live_kinds(Features(workload_resource_claims=True, generic_workload=True)) == (*LIVE_KINDS, "PodGroup")


def test_a_kind_that_may_not_be_listed_is_not_taken_for_empty() -> None:
    server = PagedServer({name: [] for name in EVERYTHING}, refused={"pods", "events"})
    read = cluster_documents(server.client(), PAGE_KINDS, "the cluster")
    assert set(read.refused) == {"Pod", "Event"}
    assert read.kinds == PAGE_KINDS.keys() - read.refused.keys()


def test_an_account_that_may_read_nothing_is_an_error() -> None:
    with pytest.raises(ApiError, match="does not let this account list resourceslices"):
        cluster_documents(PagedServer({}, refused=set(EVERYTHING)).client(), PAGE_KINDS, "c")


def test_a_silent_server_is_not_asked_for_one_kind_after_another() -> None:
    server = PagedServer({}, silent=True)
    with pytest.raises(ApiError, match="did not answer in time"):
        cluster_documents(server.client(), PAGE_KINDS, "c")
    assert len(server.seen) <= AT_A_TIME


def test_the_page_says_what_was_refused_and_shows_the_rest() -> None:
    server = PagedServer({name: [] for name in EVERYTHING} | {"nodes": ["a"]}, refused={"resourceclaims"})
    read = cluster_documents(server.client(), PAGE_KINDS, "c")
    seen = cluster_seen(read.documents, read.kinds, [str(error) for error in read.refused.values()])
    assert any("does not let this account list resourceclaims" in note for note in seen.notes)
    assert not any(note.startswith("no Pod is among") for note in seen.notes)  # Pods were listed: there are none
    assert not seen.claims_known


def test_only_events_that_warn_about_pods_are_read() -> None:
    server = PagedServer({"events": []})
    cluster_documents(server.client(), {"Event": PAGE_KINDS["Event"]}, "c")
    assert "fieldSelector=type%3DWarning%2CinvolvedObject.kind%3DPod" in server.seen[0]


def test_a_kind_without_any_object_still_counts_as_read() -> None:
    server = PagedServer({name: [] for name in EVERYTHING} | {"nodes": ["a", "b"]})
    read = cluster_documents(server.client(), LIVE, "c")
    pod = SourceDocument("p.yaml", 0, pod_document("p"))
    roomy = [SourceDocument("n.yaml", number, node_document(f"n{number}")) for number in range(2)]
    for kinds, notes in ((read.kinds, 0), (frozenset[str](), 1)):
        dump = read_dump([*read.documents, *roomy, pod], kinds)
        questions = ClusterQuestions.of(dump, Features(), lambda: "share")
        (answer,) = questions.answers(questions.selected(()))
        assert len(answer.notes) == notes


# --- An API server as a client's wire: it answers lists page by page, and refuses what a test says ---


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
