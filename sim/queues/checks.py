"""Validates the configuration of queues; an error is one sentence with the path in the object.

The rules are those of Kueue's webhooks, and rules about several objects: undefined names and cycles of cohorts. Usage
beyond the quotas is noted.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dranode.api.errors import DocumentError
from dranode.api.names import is_dns_label, is_label_name, is_label_value
from dranode.api.quantity import Quantity
from dranode.sim.queues.documents import (
    ClusterQueueSpec,
    FlavorQuotasSpec,
    PodSetSpec,
    ResourceGroupSpec,
    ResourceQuotaSpec,
    WorkloadDocument,
    WorkloadSpec,
)
from dranode.sim.queues.quota import Usage
from dranode.sim.queues.values import Cohort, FlavorResource, Fungible, amount_text
from dranode.sim.scheduler.documents import LabelMatcher
from dranode.sim.scheduler.requests import PODS

_ZERO: Final = Quantity(0)


def check_groups(groups: tuple[ResourceGroupSpec, ...], flavors: Iterable[str], *, lends: bool, cohort: bool) -> None:
    """Check `spec.resourceGroups`; limits only make sense for a queue or cohort that `lends` to a parent.

    `flavors` are the defined ones. A `cohort` may lend more than its own quota, because it also lends its members'.

    Raises:
        DocumentError: a resource or flavor is listed twice, a flavor is not defined or has other resources than its
            group, a quota is below 0, or a limit has no effect.
    """
    covered: set[str] = set()
    used: set[str] = set()
    for number, group in enumerate(groups):
        path = f"spec.resourceGroups[{number}]"
        for resource in group.covered_resources:
            if resource in covered:
                raise DocumentError(f"{resource} is covered twice; list it once", f"{path}.coveredResources")
            covered.add(resource)
        for index, flavor in enumerate(group.flavors):
            place = f"{path}.flavors[{index}]"
            if flavor.name not in flavors:
                raise DocumentError(f'no document defines ResourceFlavor "{flavor.name}"; add it', f"{place}.name")
            if flavor.name in used:
                raise DocumentError(f'flavor "{flavor.name}" is listed twice; list it once', f"{place}.name")
            used.add(flavor.name)
            _check_flavor(flavor, group, place, lends=lends, cohort=cohort)


def _check_flavor(flavor: FlavorQuotasSpec, group: ResourceGroupSpec, path: str, *, lends: bool, cohort: bool) -> None:
    names = tuple(quota.name for quota in flavor.resources)
    if names != group.covered_resources:
        expected = ", ".join(group.covered_resources)
        raise DocumentError(f"has {', '.join(names)} where coveredResources has {expected}", f"{path}.resources")
    for number, quota in enumerate(flavor.resources):
        _check_quota(quota, f"{path}.resources[{number}]", lends=lends, cohort=cohort)


def _check_quota(quota: ResourceQuotaSpec, path: str, *, lends: bool, cohort: bool) -> None:
    limits = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
    for name, value in {"nominalQuota": quota.nominal_quota, **limits}.items():
        if value is not None and value < _ZERO:
            raise DocumentError(f"{value} is below 0", f"{path}.{name}")
    for name, value in limits.items():
        if value is not None and not lends:
            above = "parentName" if cohort else "cohortName"
            raise DocumentError(f"{value} has no effect without {above}; set one or remove the limit", f"{path}.{name}")
    if quota.lending_limit is not None and not cohort and quota.lending_limit > quota.nominal_quota:
        raise DocumentError(
            f"{quota.lending_limit} is more than the nominalQuota {quota.nominal_quota}", f"{path}.lendingLimit"
        )


def check_policies(spec: ClusterQueueSpec) -> None:
    """Check `flavorFungibility` (KEP-582), `preemption` and `namespaceSelector`.

    Raises:
        DocumentError: Kueue would reject a policy together with another field, or the selector is invalid.
    """
    try:
        LabelMatcher(spec.namespace_selector)
    except DocumentError as error:
        raise DocumentError(str(error), "spec.namespaceSelector") from error
    fungibility = spec.flavor_fungibility
    settings = {fungibility.when_can_borrow, fungibility.when_can_preempt}
    if fungibility.preference is not None and settings != {Fungible.TRY_NEXT_FLAVOR}:
        raise DocumentError(
            f"{fungibility.preference} needs whenCanBorrow and whenCanPreempt to be TryNextFlavor",
            "spec.flavorFungibility.preference",
        )
    preemption = spec.preemption
    if preemption.borrow_within_cohort.policy != "Never" and preemption.reclaim_within_cohort == "Never":
        raise DocumentError(
            "borrowWithinCohort needs a reclaimWithinCohort other than Never", "spec.preemption.borrowWithinCohort"
        )


def check_ancestors(cohort: str, cohorts: Mapping[str, Cohort]) -> None:
    """Check that a cohort is not its own ancestor.

    Raises:
        DocumentError: it is; the message shows the cycle.
    """
    path = [cohort]
    while (parent := cohorts[path[-1]].parent if path[-1] in cohorts else "") and parent not in path:
        path.append(parent)
    if parent == cohort:
        cycle = " -> ".join(f'"{name}"' for name in (*path, cohort))
        raise DocumentError(f"cohorts form a cycle: {cycle}; remove one parentName", "spec.parentName")


def check_workload(spec: WorkloadSpec) -> None:
    """Check the names, counts and amounts of a workload's pod sets.

    Raises:
        DocumentError: two pod sets have the same name, a name or label is invalid, a number is below 0, `minCount` is
            not between 1 and `count`, or several pod sets have one.
    """
    names = [pod_set.name for pod_set in spec.pod_sets]
    if sum(pod_set.min_count is not None for pod_set in spec.pod_sets) > 1:
        raise DocumentError("only one pod set may have a minCount", "spec.podSets")
    for number, pod_set in enumerate(spec.pod_sets):
        path = f"spec.podSets[{number}]"
        if pod_set.name in names[:number]:
            raise DocumentError(f'pod set "{pod_set.name}" is listed twice; rename one', f"{path}.name")
        if not is_dns_label(pod_set.name):
            raise DocumentError(
                f'"{pod_set.name}" is not a name of at most 63 lower-case letters, digits and -', f"{path}.name"
            )
        for name, value in pod_set.template.metadata.labels.items():
            if not (is_label_name(name) and is_label_value(value)):
                raise DocumentError(f'"{name}: {value}" is not a label', f"{path}.template.metadata.labels")
        if pod_set.count < 0:
            raise DocumentError(f"{pod_set.count} is below 0", f"{path}.count")
        if pod_set.min_count is not None and not 1 <= pod_set.min_count <= pod_set.count:
            raise DocumentError(
                f"{pod_set.min_count} is not between 1 and the count {pod_set.count}", f"{path}.minCount"
            )
        _check_requests(pod_set, f"{path}.template.spec")


def check_reclaimable(document: WorkloadDocument) -> None:
    """Check `status.reclaimablePods`.

    Raises:
        DocumentError: a pod set does not exist or is listed twice, or a number is below 0.
    """
    names = [pod_set.name for pod_set in document.spec.pod_sets]
    listed: set[str] = set()
    for number, item in enumerate(document.status.reclaimable_pods):
        path = f"status.reclaimablePods[{number}]"
        if item.name not in names or item.name in listed:
            problem = "is listed twice" if item.name in listed else "is not a pod set of the workload"
            raise DocumentError(f'"{item.name}" {problem}; it has {", ".join(names)}', f"{path}.name")
        if item.count < 0:
            raise DocumentError(f"{item.count} is below 0", f"{path}.count")
        listed.add(item.name)


def _check_requests(pod_set: PodSetSpec, path: str) -> None:
    spec = pod_set.template.spec
    written = {f"{path}.overhead": spec.overhead}
    for kind, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for number, container in enumerate(containers):
            written[f"{path}.{kind}[{number}].resources.requests"] = container.resources.requests
            written[f"{path}.{kind}[{number}].resources.limits"] = container.resources.limits
    written[f"{path}.resources.requests"] = spec.resources.requests
    for place, amounts in written.items():
        for name, quantity in amounts.items():
            if name == PODS:
                raise DocumentError("Kueue counts the pods itself; remove this", f"{place}.{name}")
            if quantity < _ZERO:
                raise DocumentError(f"{quantity} is below 0", f"{place}.{name}")


def overused(usage: Usage, queue: str, groups: tuple[ResourceGroupSpec, ...]) -> Iterator[str]:
    """Yield a sentence for each quota that admitted workloads exceed, as after a quota was lowered."""
    for number, group in enumerate(groups):
        for index, flavor in enumerate(group.flavors):
            for position, quota in enumerate(flavor.resources):
                of = FlavorResource(flavor.name, quota.name)
                debt = -usage.balance(queue, of)
                if debt > 0:
                    used = amount_text(of.resource, usage.at(usage.nodes[queue], of))
                    excess = amount_text(of.resource, debt)
                    yield (
                        f"spec.resourceGroups[{number}].flavors[{index}].resources[{position}].nominalQuota: admitted "
                        f"workloads use {used} of {of} in this queue, {excess} above what the quotas allow in total "
                        f"(nominalQuota {quota.nominal_quota}); no more is admitted before some of them leave"
                    )
