"""From documents to what admission works with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from dranode.api.manifests import SourceDocument
from dranode.api.resource import ResourceSlice
from dranode.sim.queues.checks import check_use
from dranode.sim.queues.configuration import (
    devices_of,
    doors_of,
    priorities_of,
    queues_of,
    selectors_of,
    stopped_in,
)
from dranode.sim.queues.documents import ClusterQueueDocument
from dranode.sim.queues.namespaces import namespaces_of
from dranode.sim.queues.not_simulated import not_simulated
from dranode.sim.queues.quota import Usage, unused_quota
from dranode.sim.queues.sources import SourceValue, find, of_kind
from dranode.sim.queues.values import Admitted, Queues, Workload
from dranode.sim.queues.workload_document import WorkloadDocument
from dranode.sim.queues.workloads import WorkloadContext, admitted_of, ages, workload_of

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
        doors_of(values, queues),
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
