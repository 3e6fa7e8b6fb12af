"""Documents of small clusters, as short as tests want to write them."""

from collections.abc import Iterable
from typing import Any

from dranode.api.manifests import SourceDocument
from dranode.sim.allocator.features import Features
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.questions import ClusterQuestions

Document = dict[str, Any]
DRIVER = "gpu.example.com"
CLASS: Document = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def node_document(
    name: str, cpu: str = "8", *, taints: Iterable[Document] = (), pods: str = "110", **labels: str
) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": pods}},
    }


def pod_document(name: str, cpu: str = "", *, claims: Iterable[str] = (), node: str = "", **spec: Any) -> Document:
    """A pod that uses claims, or templates where a name begins with `t-`; if a node is given, it is bound to it."""
    entries = [
        {"name": claim, "resourceClaimTemplateName" if claim.startswith("t-") else "resourceClaimName": claim}
        for claim in claims
    ]
    container = {"name": "c", "resources": {"requests": {"cpu": cpu} if cpu else {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"containers": [container], "resourceClaims": entries, **({"nodeName": node} if node else {}), **spec},
    }


def slice_document(node: str, devices: int | Iterable[Document] = 1) -> Document:
    listed = [{"name": f"gpu-{number}"} for number in range(devices)] if isinstance(devices, int) else list(devices)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpu"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": listed,
        },
    }


def claim_document(name: str, count: int = 1, *, on: tuple[str, ...] = (), users: Iterable[str] = ()) -> Document:
    """A claim for GPUs; `on` is a node and its devices that are allocated to the claim."""
    results = [{"request": "r", "driver": DRIVER, "pool": on[0], "device": device} for device in on[1:]]
    requirement = {"key": "metadata.name", "operator": "In", "values": list(on[:1])}
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [requirement]}]},
    }
    reserved = [{"resource": "pods", "name": user, "uid": user} for user in users]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}]}},
        "status": {"allocation": allocation, "reservedFor": reserved} if on else {},
    }


def template_document(name: str, count: int = 1) -> Document:
    claim = claim_document(name, count)
    return {**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}


def questions_of(*documents: Document, features: Features | None = None) -> ClusterQuestions:
    sources = [SourceDocument("cluster.yaml", index, document) for index, document in enumerate(documents)]
    return ClusterQuestions.of(read_dump(sources), features or Features(), lambda: "share")
