"""Documents of Kueue's objects for tests, short to write."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dranode.api.manifests import SourceDocument

KUEUE = "kueue.x-k8s.io/v1beta2"


def sources(documents: Sequence[Mapping[str, Any]], file: str = "queues.yaml") -> list[SourceDocument]:
    """Documents as `load_documents` returns them."""
    return [SourceDocument(file, index, dict(document)) for index, document in enumerate(documents)]


def document(kind: str, name: str, spec: Mapping[str, Any], version: str = KUEUE, **more: Any) -> dict[str, Any]:
    """An object of any kind."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": dict(spec), **more}


def group(resources: Sequence[str], **flavors: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """A resource group: nominal quotas by flavor, in order; or mappings that also have limits."""
    return {
        "coveredResources": list(resources),
        "flavors": [
            {
                "name": name,
                "resources": [
                    {"name": resource, **(quota if isinstance(quota, Mapping) else {"nominalQuota": quota})}
                    for resource, quota in zip(resources, quotas, strict=True)
                ],
            }
            for name, quotas in flavors.items()
        ],
    }


def cluster_queue(name: str, *groups: Mapping[str, Any], cohort: str = "", **spec: Any) -> dict[str, Any]:
    """A ClusterQueue that accepts all namespaces."""
    everywhere: dict[str, Any] = {"namespaceSelector": {}}
    made = {**everywhere, "resourceGroups": list(groups), "cohortName": cohort, **spec}
    return document("ClusterQueue", name, made)


def cohort(name: str, *groups: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """A Cohort."""
    return document("Cohort", name, {"resourceGroups": list(groups), "parentName": parent})


def flavor(name: str, **labels: str) -> dict[str, Any]:
    """A ResourceFlavor with node labels."""
    return document("ResourceFlavor", name, {"nodeLabels": labels})


def local_queue(name: str, queue: str) -> dict[str, Any]:
    """A LocalQueue in the namespace default."""
    return document("LocalQueue", name, {"clusterQueue": queue})


def pod_set(name: str = "main", count: int = 1, min_count: int | None = None, **requests: Any) -> dict[str, Any]:
    """A pod set with one container; keywords that are not resource names (`spec`) go into the pod's spec."""
    spec = requests.pop("spec", {})
    container = {"name": "c", "resources": {"requests": requests}}
    return {
        "name": name,
        "count": count,
        "minCount": min_count,
        "template": {"spec": {"containers": [container], **spec}},
    }


def workload(
    name: str, queue: str, *pod_sets: Mapping[str, Any], priority: int = 0, created: float | None = None
) -> dict[str, Any]:
    """A waiting Workload."""
    made = document("Workload", name, {"queueName": queue, "priority": priority, "podSets": list(pod_sets)})
    if created is not None:
        made["metadata"]["creationTimestamp"] = timestamp(created)
    return made


def admitted(
    name: str,
    queue: str,
    flavors: Mapping[str, str],
    usage: Mapping[str, Any],
    *,
    priority: int = 0,
    created: float = 0,
) -> dict[str, Any]:
    """A Workload with one pod set that holds quota."""
    made = workload(name, "", pod_set(**usage), priority=priority, created=created)
    assignment = {"name": "main", "flavors": dict(flavors), "resourceUsage": dict(usage), "count": 1}
    made["status"] = {"admission": {"clusterQueue": queue, "podSetAssignments": [assignment]}}
    return made


def timestamp(seconds: float) -> str:
    """Format seconds as the API does."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
