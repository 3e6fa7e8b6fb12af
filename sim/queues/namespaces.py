"""Decides which namespaces a ClusterQueue takes workloads from: its `namespaceSelector` against their labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dranode.api.documents import decode
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, ObjectMeta
from dranode.sim.allocator.nodeselector import requirement_holds
from dranode.sim.scheduler.labels import LabelSelector

_NAME_LABEL: Final = "kubernetes.io/metadata.name"


class _Namespace(APIDocument, frozen=True, kw_only=True):
    metadata: ObjectMeta


def namespaces_of(sources: Iterable[SourceDocument]) -> Mapping[str, Mapping[str, str]]:
    """The labels of the Namespaces among the documents, by name.

    Raises:
        DocumentError: a Namespace does not decode.
    """
    found = (decode(_Namespace, source.document).metadata for source in sources if source.kind == "Namespace")
    return {metadata.name: metadata.labels for metadata in found}


def refusal(
    queue: str, selector: LabelSelector | None, namespace: str, namespaces: Mapping[str, Mapping[str, str]]
) -> str:
    """Return why the queue takes no workloads from the namespace, in one sentence; empty if it does.

    Args:
        queue: the ClusterQueue's name.
        selector: its `spec.namespaceSelector`; None selects no namespace, an empty selector all.
        namespace: the workload's namespace, which has the label `kubernetes.io/metadata.name` in any case.
        namespaces: the labels of the known namespaces, by name.
    """
    if selector is None:
        return f"ClusterQueue {queue} has no namespaceSelector, so it takes no workloads; {{}} takes all"
    labels = {**namespaces.get(namespace, {}), _NAME_LABEL: namespace}
    if selector.match_labels.items() <= labels.items() and all(
        requirement_holds(each, labels) for each in selector.match_expressions
    ):
        return ""
    unknown = "" if namespace in namespaces else ", of whose labels no document tells"
    return f"the namespaceSelector of ClusterQueue {queue} does not match the namespace {namespace}{unknown}"
