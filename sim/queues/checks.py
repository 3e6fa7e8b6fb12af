"""Finds what makes no sense in the configuration of queues: one sentence, with the path in the object.

The rules are those of Kueue's webhooks, and those that only show across objects: names that nothing defines, cohorts
that contain themselves, more in use than the quotas allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dranode.api.errors import DocumentError
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
from dranode.sim.queues.values import Cohort, FlavorResource, Fungible, PreemptionPolicy, amount_text

_ZERO: Final = Quantity(0)
_WITHIN: Final = (
    PreemptionPolicy.NEVER,
    PreemptionPolicy.LOWER_PRIORITY,
    PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
)
_RECLAIM: Final = (PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY)
_BORROW: Final = (PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY)


def check_groups(groups: tuple[ResourceGroupSpec, ...], flavors: Iterable[str], *, lends: bool, cohort: bool) -> None:
    """Check `spec.resourceGroups`: `lends` where there is a cohort above, so that limits mean something.

    `flavors` are those that documents define. A `cohort` may lend more than its own quota, since it lends its members'.

    Raises:
        DocumentError: a resource or flavor stands twice, a flavor is not defined or has other resources than its group,
            a quota is below 0, or a limit means nothing.
    """
    seen: set[str] = set()
    used: set[str] = set()
    for number, group in enumerate(groups):
        path = f"spec.resourceGroups[{number}]"
        for resource in group.covered_resources:
            if resource in seen:
                raise DocumentError(f"{resource} is covered twice; list it once", f"{path}.coveredResources")
            seen.add(resource)
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
        wanted = ", ".join(group.covered_resources)
        raise DocumentError(f"has {', '.join(names)} where coveredResources has {wanted}", f"{path}.resources")
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
    """Check `flavorFungibility` (KEP-582) and `preemption`.

    Raises:
        DocumentError: a policy is none of its field's, or does not go with another field, so that Kueue refuses it.
    """
    fungibility = spec.flavor_fungibility
    both = (fungibility.when_can_borrow, fungibility.when_can_preempt)
    if fungibility.preference is not None and set(both) != {Fungible.TRY_NEXT_FLAVOR}:
        raise DocumentError(
            f"{fungibility.preference} needs whenCanBorrow and whenCanPreempt to be TryNextFlavor",
            "spec.flavorFungibility.preference",
        )
    preemption = spec.preemption
    for name, policy, allowed in (
        ("withinClusterQueue", preemption.within_cluster_queue, _WITHIN),
        ("reclaimWithinCohort", preemption.reclaim_within_cohort, _RECLAIM),
        ("borrowWithinCohort.policy", preemption.borrow_within_cohort.policy, _BORROW),
    ):
        if policy not in allowed:
            raise DocumentError(f"{policy} is not one of {', '.join(allowed)}", f"spec.preemption.{name}")
    if (
        preemption.borrow_within_cohort.policy is not PreemptionPolicy.NEVER
        and preemption.reclaim_within_cohort is PreemptionPolicy.NEVER
    ):
        raise DocumentError(
            "borrowWithinCohort needs a reclaimWithinCohort other than Never", "spec.preemption.borrowWithinCohort"
        )


def check_ancestors(cohort: str, cohorts: Mapping[str, Cohort]) -> None:
    """Refuse a cohort that is its own ancestor.

    Raises:
        DocumentError: it is one; the message has the whole cycle.
    """
    way = [cohort]
    while (parent := cohorts[way[-1]].parent if way[-1] in cohorts else "") and parent not in way:
        way.append(parent)
    if parent == cohort:
        circle = " -> ".join(f'"{name}"' for name in (*way, cohort))
        raise DocumentError(f"cohorts form a cycle: {circle}; remove one parentName", "spec.parentName")


def check_workload(spec: WorkloadSpec) -> None:
    """Check the names, counts and amounts of a workload's pod sets.

    Raises:
        DocumentError: two pod sets have one name, a number is below 0, or `minCount` is not between 1 and the count.
    """
    names = [pod_set.name for pod_set in spec.pod_sets]
    for number, pod_set in enumerate(spec.pod_sets):
        path = f"spec.podSets[{number}]"
        if pod_set.name in names[:number]:
            raise DocumentError(f'pod set "{pod_set.name}" is listed twice; rename one', f"{path}.name")
        if pod_set.count < 0:
            raise DocumentError(f"{pod_set.count} is below 0", f"{path}.count")
        if pod_set.min_count is not None and not 1 <= pod_set.min_count <= pod_set.count:
            raise DocumentError(
                f"{pod_set.min_count} is not between 1 and the count {pod_set.count}", f"{path}.minCount"
            )
        _check_requests(pod_set, f"{path}.template.spec")


def check_reclaimable(document: WorkloadDocument) -> None:
    """Check which pods are said to have ended.

    Raises:
        DocumentError: it is a pod set that the workload does not have, one that is named twice, or a number below 0.
    """
    names = [pod_set.name for pod_set in document.spec.pod_sets]
    seen: set[str] = set()
    for number, item in enumerate(document.status.reclaimable_pods):
        path = f"status.reclaimablePods[{number}]"
        if item.name not in names or item.name in seen:
            what = "stands twice" if item.name in seen else "is not a pod set of the workload"
            raise DocumentError(f'"{item.name}" {what}; there are {", ".join(names)}', f"{path}.name")
        if item.count < 0:
            raise DocumentError(f"{item.count} is below 0", f"{path}.count")
        seen.add(item.name)


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
            if quantity < _ZERO:
                raise DocumentError(f"{quantity} is below 0", f"{place}.{name}")


def check_use(usage: Usage, queue: str, groups: tuple[ResourceGroupSpec, ...]) -> None:
    """Refuse quotas below what admitted workloads use of them.

    Raises:
        DocumentError: more is used than the quotas allow; the message has what is used and what is missing.
    """
    for number, group in enumerate(groups):
        for index, flavor in enumerate(group.flavors):
            for which, quota in enumerate(flavor.resources):
                of = FlavorResource(flavor.name, quota.name)
                debt = -usage.balance(queue, of)
                if debt > 0:
                    used = amount_text(of.resource, usage.at(usage.nodes[queue], of))
                    missing = amount_text(of.resource, debt)
                    raise DocumentError(
                        f"admitted workloads use {used} of {of} in this queue, {missing} above what the quotas allow "
                        f"in total (nominalQuota {quota.nominal_quota}); raise a quota or release some",
                        f"spec.resourceGroups[{number}].flavors[{index}].resources[{which}].nominalQuota",
                    )
