"""The configuration of queues from its documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import DeviceClass, ResourceClaimTemplate, ResourceSlice
from dranode.sim.cluster.workload import DEFAULT_CLASSES, default_class
from dranode.sim.queues.checks import check_ancestors, check_groups, check_policies
from dranode.sim.queues.counts import Devices
from dranode.sim.queues.documents import (
    ClusterQueueDocument,
    CohortDocument,
    ConfigurationDocument,
    LocalQueueDocument,
    PriorityClassDocument,
    ResourceFlavorDocument,
    ResourceGroupSpec,
)
from dranode.sim.queues.sources import SourceValue, of_kind
from dranode.sim.queues.values import (
    ClusterQueue,
    Cohort,
    FlavorResource,
    QueueGates,
    Queues,
    Quota,
    ResourceFlavor,
    ResourceGroup,
    amount,
)
from dranode.sim.scheduler.documents import LabelSelector

_STRICT: Final = {"": False, "BestEffortFIFO": False, "StrictFIFO": True}
_IGNORES: Final = {"BlockUndeclared": False, "IgnoreUndeclared": True}
_RUNNING: Final = "None"


def queues_of(documents: Iterable[SourceValue[Any]]) -> Queues:
    """Queues, cohorts and flavors.

    Raises:
        DocumentError: a name that nothing defines, a limit that limits nothing, a negative number, a circle of cohorts.
    """
    documents = tuple(documents)
    configuration = _configuration(documents)
    flavors = {item.name: _flavor(item) for item in of_kind(documents, ResourceFlavorDocument)}
    cohorts = {item.name: item.apply(_cohort, item.value, flavors) for item in of_kind(documents, CohortDocument)}
    for item in of_kind(documents, CohortDocument):
        item.apply(check_ancestors, item.name, cohorts)
    gates = _gates(documents)
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
    """Return what turns devices into quota; `published` is what the cluster publishes, where that is known.

    Raises:
        DocumentError: a mapping counts something else than devices.
    """
    documents = tuple(documents)
    mapped: dict[str, str] = {}
    for item in of_kind(documents, ConfigurationDocument):
        for name, resource in item.apply(_mapped, item.value):
            mapped.setdefault(name, resource)
    classes = {name: default_class(name) for name in DEFAULT_CLASSES}
    classes |= {item.name: item.value for item in of_kind(documents, DeviceClass)}
    return Devices(
        mapped,
        {item.key: item.value.spec.spec for item in of_kind(documents, ResourceClaimTemplate)},
        tuple(classes.values()),
        None if published is None else tuple(published),
    )


def cluster_queue_names(documents: Iterable[SourceValue[Any]], queues: Queues) -> Mapping[str, str]:
    """By key of a LocalQueue (`<namespace>/<name>`), the name of the ClusterQueue behind it.

    Raises:
        DocumentError: the ClusterQueue does not exist.
    """
    return {item.key: item.apply(_behind, item.value, queues) for item in of_kind(documents, LocalQueueDocument)}


def stopped_in(documents: Iterable[SourceValue[Any]]) -> Mapping[str, str]:
    """Return who takes no workloads: by ClusterQueue name or LocalQueue key, the `stopPolicy` (`Hold`, `HoldAndDrain`).

    Raises:
        DocumentError: a queue is there twice.
    """
    documents = tuple(documents)
    policies = {item.name: item.value.spec.stop_policy for item in of_kind(documents, ClusterQueueDocument)}
    policies |= {item.key: item.value.spec.stop_policy for item in of_kind(documents, LocalQueueDocument)}
    return {name: policy for name, policy in policies.items() if policy != _RUNNING}


def selectors_of(documents: Iterable[SourceValue[Any]]) -> Mapping[str, LabelSelector | None]:
    """By ClusterQueue, its `namespaceSelector`; None selects no namespace, an empty selector all.

    Raises:
        DocumentError: a ClusterQueue is there twice.
    """
    return {item.name: item.value.spec.namespace_selector for item in of_kind(documents, ClusterQueueDocument)}


def priorities_of(documents: Iterable[SourceValue[Any]]) -> Mapping[tuple[str, str], int]:
    """The values of the priority classes, by kind (`WorkloadPriorityClass` or `PriorityClass`) and name."""
    return {
        (item.value.kind, item.name): item.value.value
        for item in documents
        if isinstance(item.value, PriorityClassDocument)
    }


def _configuration(documents: tuple[SourceValue[Any], ...]) -> ConfigurationDocument:
    for item in of_kind(documents, ConfigurationDocument):
        item.apply(_check_configuration, item.value)
        return item.value
    return ConfigurationDocument()


def _gates(documents: tuple[SourceValue[Any], ...]) -> QueueGates:
    for item in of_kind(documents, ConfigurationDocument):
        gates: QueueGates = item.apply(QueueGates.of, item.value.feature_gates)
        return gates
    return QueueGates()


def _check_configuration(configuration: ConfigurationDocument) -> None:
    shares = configuration.fair_sharing
    if shares is not None and not (isinstance(shares, Mapping) and shares.get("enable") is False):
        raise DocumentError(
            "preemption by fair shares is not simulated; remove it to simulate preemption by priority",
            "fairSharing",
        )


def _mapped(configuration: ConfigurationDocument) -> list[tuple[str, str]]:
    """DeviceClasses, each with the name that its devices count under."""
    named = {"resources.": configuration.resources.device_class_mappings, "": configuration.device_class_mappings}
    pairs: list[tuple[str, str]] = []
    for place, mappings in named.items():
        for number, mapping in enumerate(mappings):
            if mapping.sources:
                raise DocumentError(
                    f'counts "{mapping.name}" by sources, but only whole devices can be counted here; remove sources',
                    f"{place}deviceClassMappings[{number}].sources",
                )
            pairs += [(name, mapping.name) for name in mapping.device_class_names]
    return pairs


def _behind(document: LocalQueueDocument, queues: Queues) -> str:
    name = document.spec.cluster_queue
    if name not in queues.cluster_queues:
        raise DocumentError(f'no document defines ClusterQueue "{name}"; add it', "spec.clusterQueue")
    return name


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
        raise DocumentError(f'"{word}" is none of {", ".join(name for name in table if name)}', path)
    return table[word]
