"""Reads queues and workloads from documents, and notes the parts of them that are not simulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.quantity import Quantity
from dranode.api.resource import APIDocument, DeviceClass, ResourceClaimTemplate, ResourceSlice
from dranode.api.unknown_fields import unknown_fields
from dranode.sim.cluster.manifests import decoded
from dranode.sim.cluster.workload import DEFAULT_CLASSES, default_class
from dranode.sim.queues.checks import check_ancestors, check_groups, check_policies, overused
from dranode.sim.queues.counts import Devices
from dranode.sim.queues.documents import (
    API_GROUP,
    CONFIG_GROUP,
    ClusterQueueDocument,
    ClusterQueueSpec,
    CohortDocument,
    CohortSpec,
    ConfigurationDocument,
    LocalQueueDocument,
    LocalQueueSpec,
    PriorityClassDocument,
    ResourceFlavorDocument,
    ResourceFlavorSpec,
    ResourceGroupSpec,
    WorkloadDocument,
    WorkloadSpec,
)
from dranode.sim.queues.quota import Usage, unused_quota
from dranode.sim.queues.sources import JOB, QUEUE_LABEL, SourceValue, find, of_kind
from dranode.sim.queues.values import (
    Admitted,
    ClusterQueue,
    Cohort,
    FlavorResource,
    QueueGates,
    Queues,
    Quota,
    ResourceFlavor,
    ResourceGroup,
    Workload,
    amount,
    not_simulated_gates,
)
from dranode.sim.queues.workloads import WorkloadContext, admitted_of, ages, workload_of
from dranode.sim.scheduler.terms import LabeledObject

_DEFAULT: Final = ("WorkloadPriorityClass", "default")


@dataclass(frozen=True, slots=True)
class Setup:
    """The start of a simulation.

    Attributes:
        pending: waiting workloads.
        admitted: workloads that hold quota.
        usage: the quota that they use.
        documents: the document of each workload, by key.
        notes: one sentence for each part of the documents that is not simulated, and for each exceeded quota.
    """

    queues: Queues
    pending: tuple[Workload, ...]
    admitted: tuple[Admitted, ...]
    usage: Usage
    documents: Mapping[str, WorkloadDocument]
    notes: tuple[str, ...] = ()


def load(sources: Iterable[SourceDocument], published: Iterable[ResourceSlice] | None = None) -> Setup:
    """Read the queues and workloads among documents.

    Finished and inactive workloads are left out. `published` are the ResourceSlices of the cluster; without them, no
    workload is refused because too few devices match.

    Raises:
        DocumentError: a document is invalid, or contradicts others; names file, object and path.
    """
    sources = tuple(sources)
    values = find(sources)
    queues = queues_of(values)
    policies = {item.name: item.value.spec.stop_policy for item in of_kind(values, ClusterQueueDocument)}
    policies |= {item.key: item.value.spec.stop_policy for item in of_kind(values, LocalQueueDocument)}
    around = WorkloadContext(
        queues,
        devices_of(values, published),
        {item.key: item.value.spec.cluster_queue for item in of_kind(values, LocalQueueDocument)},
        {name: policy for name, policy in policies.items() if policy != _RUNNING},
        {item.name: item.value.spec.namespace_selector for item in of_kind(values, ClusterQueueDocument)},
        {item.metadata.name: item.metadata.labels for _, item in decoded(sources, LabeledObject, "Namespace")},
        {
            (item.value.kind, item.name): item.value.value
            for item in values
            if isinstance(item.value, PriorityClassDocument)
        },
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
    notes = tuple(
        f"{queue.source.place}: {sentence}"
        for queue in of_kind(values, ClusterQueueDocument)
        for sentence in overused(usage, queue.name, queue.value.spec.resource_groups)
    )
    by_key = {item.key: item.value for item in documents}
    return Setup(queues, tuple(pending), tuple(admitted), usage, by_key, (*not_simulated(sources), *notes))


def _with_class(item: SourceValue[WorkloadDocument], around: WorkloadContext) -> SourceValue[WorkloadDocument]:
    """Give a Job without a WorkloadPriorityClass the class `default`, if it exists."""
    spec = item.value.spec
    has_class = spec.priority_class_ref.get("kind") == _DEFAULT[0]
    if not item.prefix or has_class or not around.queues.gates.workload_priority_class_defaulting:
        return item
    if _DEFAULT not in around.priorities:
        return item
    spec = msgspec.structs.replace(spec, priority_class_ref=dict(zip(("kind", "name"), _DEFAULT, strict=True)))
    return replace(item, value=msgspec.structs.replace(item.value, spec=spec))


_STRICT: Final = {"": False, "BestEffortFIFO": False, "StrictFIFO": True}
_IGNORES: Final = {"BlockUndeclared": False, "IgnoreUndeclared": True}
_RUNNING: Final = "None"


def queues_of(documents: Iterable[SourceValue[Any]]) -> Queues:
    """Return queues, cohorts and flavors.

    Raises:
        DocumentError: an undefined name, a limit without effect, a negative number, or a cycle of cohorts.
    """
    documents = tuple(documents)
    configuration, gates = ConfigurationDocument(), QueueGates()
    for source in of_kind(documents, ConfigurationDocument):
        configuration = source.value
        source.apply(_check_configuration, configuration)
        gates = source.apply(QueueGates.of, configuration.feature_gates)
    flavors = {item.name: _flavor(item) for item in of_kind(documents, ResourceFlavorDocument)}
    cohorts = {item.name: item.apply(_cohort, item.value, flavors) for item in of_kind(documents, CohortDocument)}
    for item in of_kind(documents, CohortDocument):
        item.apply(check_ancestors, item.name, cohorts)
    strategy = configuration.resources.quota_check_strategy
    ignores = _choice(_IGNORES, strategy, "resources.quotaCheckStrategy")
    return Queues(
        {
            item.name: item.apply(_cluster_queue, item.value, flavors)
            for item in of_kind(documents, ClusterQueueDocument)
        },
        cohorts,
        flavors,
        ignore_undeclared=ignores and gates.quota_check_strategy,
        gates=gates,
    )


def devices_of(documents: Iterable[SourceValue[Any]], published: Iterable[ResourceSlice] | None) -> Devices:
    """Return the rules that turn devices into quota; `published` are the ResourceSlices of the cluster, if known.

    Raises:
        DocumentError: a mapping counts something else than devices, or a class has two names.
    """
    documents = tuple(documents)
    mapped: dict[str, str] = {}
    for item in of_kind(documents, ConfigurationDocument):
        mapped |= item.apply(_mapped, item.value)
    classes = {name: default_class(name) for name in DEFAULT_CLASSES}
    classes |= {item.name: item.value for item in of_kind(documents, DeviceClass)}
    return Devices(
        mapped,
        {item.key: item.value.spec.spec for item in of_kind(documents, ResourceClaimTemplate)},
        tuple(classes.values()),
        None if published is None else tuple(published),
    )


def _check_configuration(configuration: ConfigurationDocument) -> None:
    shares = configuration.fair_sharing
    if shares is not None and not (isinstance(shares, Mapping) and shares.get("enable") is False):
        raise DocumentError(
            "preemption by fair shares is not simulated; remove it to simulate preemption by priority",
            "fairSharing",
        )


def _mapped(configuration: ConfigurationDocument) -> dict[str, str]:
    """Return the resource name under which the devices of each DeviceClass count."""
    named = {"resources.": configuration.resources.device_class_mappings, "": configuration.device_class_mappings}
    mapped: dict[str, str] = {}
    for place, mappings in named.items():
        for number, mapping in enumerate(mappings):
            if mapping.sources:
                raise DocumentError(
                    f'counts "{mapping.name}" by sources, but only whole devices can be simulated; remove sources',
                    f"{place}deviceClassMappings[{number}].sources",
                )
            for name in mapping.device_class_names:
                if mapped.setdefault(name, mapping.name) != mapping.name:
                    raise DocumentError(
                        f'DeviceClass "{name}" already counts as "{mapped[name]}"; remove it from one of the two',
                        f"{place}deviceClassMappings[{number}].deviceClassNames",
                    )
    return mapped


def _flavor(item: SourceValue[ResourceFlavorDocument]) -> ResourceFlavor:
    spec = item.value.spec
    return ResourceFlavor(item.name, spec.node_labels, spec.node_taints, spec.tolerations)


def _cohort(document: CohortDocument, flavors: Mapping[str, ResourceFlavor]) -> Cohort:
    spec = document.spec
    check_groups(spec.resource_groups, flavors, lends=bool(spec.parent_name), cohort=True)
    return Cohort(document.metadata.name, spec.parent_name, _quotas(spec.resource_groups))


def _cluster_queue(document: ClusterQueueDocument, flavors: Mapping[str, ResourceFlavor]) -> ClusterQueue:
    spec = document.spec
    check_groups(spec.resource_groups, flavors, lends=bool(spec.cohort_name), cohort=False)
    check_policies(spec)
    groups = tuple(
        ResourceGroup(group.covered_resources, tuple(flavor.name for flavor in group.flavors))
        for group in spec.resource_groups
    )
    return ClusterQueue(
        document.metadata.name,
        spec.cohort_name,
        groups,
        _quotas(spec.resource_groups),
        spec.flavor_fungibility,
        spec.preemption,
        _choice(_STRICT, spec.queueing_strategy, "spec.queueingStrategy"),
    )


def _quotas(groups: tuple[ResourceGroupSpec, ...]) -> dict[FlavorResource, Quota]:
    return {
        FlavorResource(flavor.name, quota.name): Quota(
            amount(quota.name, quota.nominal_quota),
            _limit(quota.name, quota.borrowing_limit),
            _limit(quota.name, quota.lending_limit),
        )
        for group in groups
        for flavor in group.flavors
        for quota in flavor.resources
    }


def _limit(resource: str, quantity: Quantity | None) -> int | None:
    return None if quantity is None else amount(resource, quantity)


def _choice(table: Mapping[str, bool], word: str, path: str) -> bool:
    if word not in table:
        raise DocumentError(f'"{word}" is not one of {", ".join(name for name in table if name)}', path)
    return table[word]


# Fields and objects that decide in a cluster, but are not simulated.

_SPECS: Final[Mapping[str, type[APIDocument]]] = {
    "ClusterQueue": ClusterQueueSpec,
    "Cohort": CohortSpec,
    "LocalQueue": LocalQueueSpec,
    "ResourceFlavor": ResourceFlavorSpec,
    "Workload": WorkloadSpec,
}
_READ: Final = frozenset({*_SPECS, "Configuration", "WorkloadPriorityClass"})
# The v1beta1 names of fields that are read.
_OLD_NAMES: Final = frozenset({"spec.cohort", "spec.parent", "spec.priorityClassSource"})
# The fields of a Configuration that decide about admission; the others configure Kueue's own process.
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
    """Return a sentence with the place for each field and object that decides in a cluster, but is not simulated."""
    return tuple(f"{source.place}: {sentence}" for source in sources for sentence in _of(source))


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
    elif source.kind in ("LimitRange", "RuntimeClass"):
        yield "it is not considered: the pods of Jobs count what is written"
    elif _labels(source).get(QUEUE_LABEL) and (source.document.get("apiVersion"), source.kind) != JOB:
        yield f"it has the label {QUEUE_LABEL}, but only admission of Jobs and Workloads is simulated"


def _fields(source: SourceDocument) -> Iterator[str]:
    for field in unknown_fields(_SPECS[source.kind], _at(source.document, "spec") or {}, "spec"):
        path = field.path
        # Everything in a pod template that decides admission is read.
        if path in _OLD_NAMES or ".template." in path or _at(source.document, path) is None:
            continue
        means = _MEANS.get(path)
        yield f"{path} is not simulated" + (f": {means}" if means else "")


def _at(document: Any, path: str) -> Any:
    """Return the value at a path; an element of a list counts as present."""
    for name in path.split("."):
        if "[" in name:
            return True
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _labels(source: SourceDocument) -> Mapping[str, Any]:
    labels = _at(source.document, "metadata.labels")
    return labels if isinstance(labels, Mapping) else {}
