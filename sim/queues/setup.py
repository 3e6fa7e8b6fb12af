"""From documents to what admission works with, and which parts of them are not simulated here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, ResourceSlice
from dranode.api.unknown_fields import unknown_fields
from dranode.sim.queues.checks import check_use
from dranode.sim.queues.configuration import (
    cluster_queue_names,
    devices_of,
    priorities_of,
    queues_of,
    selectors_of,
    stopped_in,
)
from dranode.sim.queues.documents import (
    API_GROUP,
    CONFIG_GROUP,
    ClusterQueueDocument,
    ClusterQueueSpec,
    CohortSpec,
    LocalQueueSpec,
    ResourceFlavorSpec,
    WorkloadDocument,
    WorkloadSpec,
)
from dranode.sim.queues.quota import Usage, unused_quota
from dranode.sim.queues.sources import JOB, QUEUE_LABEL, SourceValue, find, of_kind
from dranode.sim.queues.values import Admitted, Queues, Workload, not_simulated_gates
from dranode.sim.queues.workloads import WorkloadContext, admitted_of, ages, namespaces_of, workload_of

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
    "spec.admissionChecks": "its workloads count as admitted once they hold quota",
    "spec.admissionChecksStrategy": "its workloads count as admitted once they hold quota",
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
            yield f"featureGates.{name} is not simulated: its default applies"
    elif group == API_GROUP and source.kind in _SPECS:
        yield from _fields(source)
    elif _labels(source).get(QUEUE_LABEL) and (source.document.get("apiVersion"), source.kind) != JOB:
        yield f"it has the label {QUEUE_LABEL}, but only Jobs and Workloads are admitted here"


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


_DEFAULT: Final = ("WorkloadPriorityClass", "default")


@dataclass(frozen=True, slots=True)
class Setup:
    """The start of a simulation.

    Attributes:
        pending: workloads that wait.
        admitted: workloads that hold quota.
        usage: how much that is.
        documents: by key, what each workload was read from.
        notes: what the documents say and the simulation leaves out, one sentence each.
    """

    queues: Queues
    pending: tuple[Workload, ...]
    admitted: tuple[Admitted, ...]
    usage: Usage
    documents: Mapping[str, WorkloadDocument]
    notes: tuple[str, ...] = ()


def load(sources: Iterable[SourceDocument], published: Iterable[ResourceSlice] | None = None) -> Setup:
    """Read queues and workloads among some documents, as `dranode.driver.machine.yaml_files` reads them.

    Workloads that have finished or are not active are left out. `published` is what the cluster publishes; without it
    no workload is refused because too few devices match.

    Raises:
        DocumentError: a document does not fit, or does not fit the others; says file, object and path.
    """
    sources = tuple(sources)
    values = find(sources)
    queues = queues_of(values)
    around = WorkloadContext(
        queues,
        devices_of(values, published),
        cluster_queue_names(values, queues),
        stopped_in(values),
        selectors_of(values),
        namespaces_of(sources),
        priorities_of(values),
    )
    documents = tuple(_with_class(item, around) for item in of_kind(values, WorkloadDocument))
    pending: list[Workload] = []
    admitted: list[Admitted] = []
    usage = unused_quota(queues)
    for item, created in zip(documents, ages(documents), strict=True):
        if item.value.status.since("Finished") is not None or not item.value.spec.active:
            continue
        workload = item.apply(workload_of, item.value, item.key, created, around)
        if item.value.status.admission is None:
            pending.append(workload)
            continue
        holder = item.apply(admitted_of, item.value, item.value.status.admission, workload, queues)
        admitted.append(holder)
        usage = usage.charge(workload.queue, holder.usage)
    for queue in of_kind(values, ClusterQueueDocument):
        queue.apply(check_use, usage, queue.name, queue.value.spec.resource_groups)
    read = {item.key: item.value for item in documents}
    return Setup(queues, tuple(pending), tuple(admitted), usage, read, not_simulated(sources))


def _with_class(item: SourceValue[WorkloadDocument], around: WorkloadContext) -> SourceValue[WorkloadDocument]:
    """A Job without a WorkloadPriorityClass has the one called `default`, if there is one."""
    spec = item.value.spec
    named = spec.priority_class_ref.get("kind") == _DEFAULT[0]
    if not item.prefix or named or not around.queues.gates.workload_priority_class_defaulting:
        return item
    if _DEFAULT not in around.priorities:
        return item
    spec = msgspec.structs.replace(spec, priority_class_ref=dict(zip(("kind", "name"), _DEFAULT, strict=True)))
    return replace(item, value=msgspec.structs.replace(item.value, spec=spec))
