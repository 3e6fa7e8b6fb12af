"""Reads queues and workloads from documents, and notes the parts of them that are not simulated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.names import is_label_name
from dranode.api.quantity import Quantity
from dranode.api.resource import APIDocument, APIObject, DeviceClass, ResourceClaimTemplate, ResourceSlice
from dranode.api.unknown_fields import unknown_fields
from dranode.sim.cluster.controllers import Controller, checked_template
from dranode.sim.cluster.manifests import decoded
from dranode.sim.cluster.workload import DEFAULT_CLASSES, default_class
from dranode.sim.queues.checks import check_ancestors, check_groups, check_policies, overused
from dranode.sim.queues.counts import Devices
from dranode.sim.queues.documents import (
    API_GROUP,
    CONFIG_GROUP,
    ClusterQueueDocument,
    CohortDocument,
    ConfigurationDocument,
    LocalQueueDocument,
    PriorityClassDocument,
    ResourceFlavorDocument,
    ResourceGroupSpec,
    WorkloadDocument,
    kueue_document,
)
from dranode.sim.queues.quota import Usage, unused_quota
from dranode.sim.queues.sources import JOB, QUEUE_LABEL, SourceValue, find, located, of_kind
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
    unsimulated = not_simulated(sources)
    values = find(sources)
    queues = queues_of(values)
    stopped = {item.name: _stopped(item.value) for item in of_kind(values, ClusterQueueDocument)}
    stopped |= {item.key: _stopped(item.value) for item in of_kind(values, LocalQueueDocument)}
    around = WorkloadContext(
        queues,
        devices_of(values, published),
        {item.key: item.value.spec.cluster_queue for item in of_kind(values, LocalQueueDocument)},
        stopped,
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
        admission = item.value.status.quota
        if admission is None or workload.inadmissible.endswith("(HoldAndDrain)"):
            pending.append(workload)
            continue
        holder = item.apply(admitted_of, item.value, admission, workload, queues)
        admitted.append(holder)
        usage = usage.charge(workload.queue, holder.usage)
    notes = tuple(
        f"{queue.source.place}: {sentence}"
        for queue in of_kind(values, ClusterQueueDocument)
        for sentence in overused(usage, queue.name, queue.value.spec.resource_groups)
    )
    by_key = {item.key: item.value for item in documents}
    return Setup(queues, tuple(pending), tuple(admitted), usage, by_key, (*unsimulated, *notes))


def _stopped(queue: ClusterQueueDocument | LocalQueueDocument) -> str:
    if queue.metadata.deletion_timestamp:
        return "is being deleted"
    return f"is stopped ({queue.spec.stop_policy})" if queue.spec.stop_policy != "None" else ""


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


def queues_of(documents: Sequence[SourceValue[Any]]) -> Queues:
    """Return queues, cohorts and flavors.

    Raises:
        DocumentError: an undefined name, a limit without effect, a negative number, or a cycle of cohorts.
    """
    configuration, gates = ConfigurationDocument(), QueueGates()
    for source in of_kind(documents, ConfigurationDocument):
        configuration = source.value
        gates = source.apply(QueueGates.of, configuration.feature_gates)
    flavors = {item.name: _flavor(item) for item in of_kind(documents, ResourceFlavorDocument)}
    cohorts = {item.name: item.apply(_cohort, item.value, flavors) for item in of_kind(documents, CohortDocument)}
    for item in of_kind(documents, CohortDocument):
        item.apply(check_ancestors, item.name, cohorts)
    ignores = configuration.resources.quota_check_strategy == "IgnoreUndeclared"
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


def devices_of(documents: Sequence[SourceValue[Any]], published: Iterable[ResourceSlice] | None) -> Devices:
    """Return the rules that turn devices into quota; `published` are the ResourceSlices of the cluster, if known.

    Raises:
        DocumentError: a mapping counts something else than devices, a class has two names, or fair sharing is on.
    """
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


def _mapped(configuration: ConfigurationDocument) -> dict[str, str]:
    """Return the resource name under which the devices of each DeviceClass count."""
    if configuration.fair_sharing is not None:
        raise DocumentError(
            "preemption by fair shares is not simulated; remove it to simulate preemption by priority", "fairSharing"
        )
    mapped: dict[str, str] = {}
    for number, mapping in enumerate(configuration.resources.device_class_mappings):
        path = f"resources.deviceClassMappings[{number}]"
        if not is_label_name(mapping.name):
            raise DocumentError(f'"{mapping.name}" is not the name of a resource, such as gpus', f"{path}.name")
        if mapping.name in mapped.values():
            raise DocumentError(f'"{mapping.name}" is listed twice; list all of its classes once', f"{path}.name")
        if mapping.sources:
            raise DocumentError(
                f'counts "{mapping.name}" by sources, but only whole devices can be simulated; remove sources',
                f"{path}.sources",
            )
        for name in mapping.device_class_names:
            if mapped.setdefault(name, mapping.name) != mapping.name:
                raise DocumentError(
                    f'DeviceClass "{name}" already counts as "{mapped[name]}"; remove it from one of the two',
                    f"{path}.deviceClassNames",
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
        spec.queueing_strategy == "StrictFIFO",
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


# Fields and objects that decide in a cluster, but are not simulated.

_ALSO: Final = """
    admissionScope concurrentAdmissionPolicy maximumExecutionTimeSeconds preemptionGates admissionFairSharing
    manageJobsWithoutQueueName managedJobsNamespaceSelector multiKueue waitForPodsReady excludeResourcePrefixes
    transformations
"""
_NOT_SIMULATED: Final = {
    **dict.fromkeys(_ALSO.split(), ""),
    "admissionChecks": ": its workloads count as admitted once they hold quota",
    "admissionChecksStrategy": ": its workloads count as admitted once they hold quota",
    "fairSharing": ": preemption and order go by priority alone",
    "topologyName": ": pods are placed without regard to racks and blocks",
}
# Workload slices, and topologies.
_ANNOTATIONS: Final = tuple(f"kueue.x-k8s.io/{name}" for name in ("elastic-job", "workload-slice-", "podset-"))
_WITHOUT_EFFECT: Final = """
    apiVersion kind metadata status description namespace webhook metrics health pprofBindAddress leaderElection
    controller tls internalCertManagement clientConnection integrations queueVisibility objectRetentionPolicies
    visibilityServer managedFields selfLink deletionGracePeriodSeconds
"""


def not_simulated(sources: Iterable[SourceDocument]) -> tuple[str, ...]:
    """Return a sentence with the place for each field and object that decides in a cluster, but is not simulated.

    Raises:
        DocumentError: a field does not exist, and no API server has stored the document.
    """
    return tuple(f"{source.place}: {sentence}" for source in sources for sentence in located(source, _of, source))


def _of(source: SourceDocument) -> list[str]:
    group = str(source.document.get("apiVersion", "")).rpartition("/")[0]
    metadata = decode(APIObject, source.document).metadata
    known = kueue_document(source.document)
    if known is not None:
        gates = source.document.get("featureGates")
        names = not_simulated_gates(gates) if isinstance(gates, Mapping) else ()
        return [
            *_annotated(metadata.annotations),
            *_fields(*known, stored=bool(metadata.uid)),
            *(f"featureGates.{name} is not simulated: its default applies" for name in names),
        ]
    if group in (API_GROUP, CONFIG_GROUP):
        return ["objects of this kind are not simulated"]
    if source.kind in ("LimitRange", "ResourceQuota", "RuntimeClass"):
        return ["it is not considered: the pods of Jobs count what is written, and all of them are created"]
    if (source.document.get("apiVersion"), source.kind) == JOB:
        template = checked_template(decode(Controller, source.document).spec.template or {}, "spec.template")
        return _annotated((*metadata.annotations, *template.metadata.annotations))
    if QUEUE_LABEL in metadata.labels:
        return [f"it has the label {QUEUE_LABEL}, but only admission of Jobs and Workloads is simulated"]
    return []


def _annotated(annotations: Iterable[str]) -> list[str]:
    return [f"the annotation {name} is not simulated" for name in annotations if name.startswith(_ANNOTATIONS)]


def _fields(kind: type[APIDocument], document: Mapping[str, Any], *, stored: bool) -> Iterator[str]:
    for field in unknown_fields(kind, document):
        path, name = field.path, field.path.rpartition(".")[2]
        # Everything in a pod template and in a status that decides admission is read.
        if name in _WITHOUT_EFFECT.split() or ".template." in path or path.startswith("status."):
            continue
        if name in _NOT_SIMULATED or ".topologyRequest." in path:
            yield f"{path} is not simulated{_NOT_SIMULATED.get(name, '')}"
        elif not stored:
            near = get_close_matches(name, field.known, 1)
            hint = f'did you mean "{near[0]}"' if near else f"the fields are {', '.join(field.known)}"
            raise DocumentError(f"there is no such field; {hint}", path)
