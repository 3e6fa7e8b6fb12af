"""Names, for each object that has it, what decides in a cluster and is not simulated here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument
from dranode.api.unknown_fields import unknown_fields
from dranode.sim.queues.documents import (
    API_GROUP,
    CONFIG_GROUP,
    ClusterQueueSpec,
    CohortSpec,
    LocalQueueSpec,
    ResourceFlavorSpec,
)
from dranode.sim.queues.gates import not_simulated_gates
from dranode.sim.queues.jobs import JOB, QUEUE_LABEL
from dranode.sim.queues.workload_document import WorkloadSpec

_SPECS: Final[Mapping[str, type[APIDocument]]] = {
    "ClusterQueue": ClusterQueueSpec,
    "Cohort": CohortSpec,
    "LocalQueue": LocalQueueSpec,
    "ResourceFlavor": ResourceFlavorSpec,
    "Workload": WorkloadSpec,
}
_READ: Final = frozenset({*_SPECS, "Configuration", "WorkloadPriorityClass"})
# v1beta1's names of fields that are read.
_OLD_NAMES: Final = frozenset({"spec.cohort", "spec.parent", "spec.priorityClassSource"})
# What of a Configuration decides over admission; the rest is about Kueue's own process.
_CONFIGURED: Final = (
    "admissionFairSharing",
    "manageJobsWithoutQueueName",
    "managedJobsNamespaceSelector",
    "multiKueue",
    "waitForPodsReady",
    "resources.excludeResourcePrefixes",
    "resources.transformations",
)
_MEANS: Final = {
    "spec.admissionChecks": "its workloads are taken for admitted once they hold quota",
    "spec.admissionChecksStrategy": "its workloads are taken for admitted once they hold quota",
    "spec.fairSharing": "preemption and order go by priority alone",
    "spec.topologyName": "pods are placed without regard to racks and blocks",
}


def not_simulated(sources: Iterable[SourceDocument]) -> tuple[str, ...]:
    """One sentence for each field and object that decides in a cluster and not here, with its place."""
    return tuple(f"{source.place}: {what}" for source in sources for what in _of(source))


def _of(source: SourceDocument) -> Iterator[str]:
    group = str(source.document.get("apiVersion", "")).rpartition("/")[0]
    if group in (API_GROUP, CONFIG_GROUP) and source.kind not in _READ:
        yield "objects of this kind are not simulated"
    elif group == CONFIG_GROUP:
        yield from (f"{path} is not simulated" for path in _CONFIGURED if _at(source.document, path) is not None)
        gates = _at(source.document, "featureGates")
        for name in not_simulated_gates(gates if isinstance(gates, Mapping) else {}):
            yield f"featureGates.{name} is not simulated: its default counts"
    elif group == API_GROUP and source.kind in _SPECS:
        yield from _fields(source)
    elif _labels(source).get(QUEUE_LABEL) and (source.document.get("apiVersion"), source.kind) != JOB:
        yield f"it asks for a queue ({QUEUE_LABEL}), but only Jobs and Workloads are admitted here"


def _fields(source: SourceDocument) -> Iterator[str]:
    for field in unknown_fields(_SPECS[source.kind], _at(source.document, "spec") or {}, "spec"):
        path = field.path
        # What pods are made of decides nothing here but what is read of it.
        if path in _OLD_NAMES or ".template." in path or _at(source.document, path) is None:
            continue
        means = _MEANS.get(path)
        yield f"{path} is not simulated" + (f": {means}" if means else "")


def _at(document: Any, path: str) -> Any:
    """The value at a path; a place in a list counts as there."""
    for name in path.split("."):
        if "[" in name:
            return True
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _labels(source: SourceDocument) -> Mapping[str, Any]:
    labels = _at(source.document, "metadata.labels")
    return labels if isinstance(labels, Mapping) else {}
