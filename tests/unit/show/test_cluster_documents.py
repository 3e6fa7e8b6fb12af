"""A cluster is read from its API server without writing to it."""

import pytest

from dranode.api.manifests import SourceDocument
from dranode.driver.kube.errors import ApiError
from dranode.show.cluster_objects import AT_A_TIME, cluster_documents
from dranode.sim.allocator.features import Features
from dranode.sim.fit.dump import LIVE_KINDS, live_kinds, read_dump
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.report.cluster import PAGE_KINDS, cluster_seen
from tests.fakes.clusters import node_document, pod_document
from tests.fakes.paged_server import PagedServer

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
