"""The pods of an admitted workload, bound to the flavors that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dranode.api.documents import encode
from dranode.api.manifests import SourceDocument
from dranode.sim.queues.values import Admitted, ResourceFlavor
from dranode.sim.queues.workload_document import PodSetSpec, WorkloadDocument


def pods_of(
    document: WorkloadDocument, admitted: Admitted, flavors: Mapping[str, ResourceFlavor]
) -> tuple[SourceDocument, ...]:
    """One Pod document for each pod: `<workload>-<pod set>-<number>`, with the labels and tolerations of its flavors.

    `index` counts the pods; `file` is the workload's key.
    """
    pods = [
        _pod(
            document, pod_set, number, [flavors[name] for name in sorted(set(admitted.flavors[pod_set.name].values()))]
        )
        for pod_set in document.spec.pod_sets
        if pod_set.name in admitted.flavors
        for number in range(admitted.counts[pod_set.name])
    ]
    return tuple(SourceDocument(admitted.workload.key, index, pod) for index, pod in enumerate(pods))


def _pod(document: WorkloadDocument, pod_set: PodSetSpec, number: int, flavors: list[ResourceFlavor]) -> dict[str, Any]:
    template = pod_set.template
    spec: dict[str, Any] = encode(template.spec)
    labels = {key: value for flavor in flavors for key, value in flavor.node_labels.items()}
    tolerations = [*template.spec.tolerations, *(item for flavor in flavors for item in flavor.tolerations)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{document.metadata.name}-{pod_set.name}-{number}",
            "namespace": document.metadata.namespace or "default",
            "labels": dict(template.metadata.labels),
        },
        "spec": {
            **spec,
            "nodeSelector": {**template.spec.node_selector, **labels},
            "tolerations": [encode(item) for item in tolerations],
        },
    }
