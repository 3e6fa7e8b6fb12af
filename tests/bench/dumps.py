"""Makes dumps of large clusters, as `kubectl get -A -o json` prints them; they are always the same.

Nodes have eight devices each, in two NUMA nodes, of two products. Pods ask for one device, two of one NUMA node, four,
or one of the rarer product. They use templates whose claims exist already, as controllers make them. Half of the pods
belong to Jobs, half to ReplicaSets.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DRIVER: Final = "gpu.example.com"
DEVICES: Final = 8
_UIDS: Final = uuid.UUID("0f3a0d3e-5a52-4bb1-9a1e-7d0c9c3f3b11")
_ZONES: Final = ("eu-1a", "eu-1b", "eu-1c")
_NUMA: Final = "resource.kubernetes.io/numaNode"
# For each pod in a round: the template, and the number of devices that it requests.
_ROUND: Final = ("one",) * 16 + ("pair",) * 2 + ("four", "rare")
_COUNTS: Final = {"one": 1, "pair": 2, "four": 4, "rare": 1}
_TIME: Final = "2026-03-01T08:00:00Z"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DumpSize:
    """The size of a cluster.

    Attributes:
        nodes: how many nodes.
        waiting: how many pods wait for a node.
        held: the number of nodes whose devices are all held, by one running pod each.
    """

    nodes: int
    waiting: int
    held: int = 0


def documents(size: DumpSize) -> Iterator[Document]:
    """All documents of the cluster, kind after kind."""
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": _metadata("gpu", ""),
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
    for name in ("default", "team-0", "team-1", "team-2", "team-3"):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {**_metadata(name, ""), "labels": {"team": name}}}
    for number in range(size.nodes):
        yield _node(number)
        yield _slice(number)
    for team in range(4):
        yield from (_template(name, f"team-{team}") for name in _COUNTS)
        yield from _owners(f"team-{team}")
    for number in range(size.held * DEVICES):
        yield from _pod(f"held-{number}", "one", number, bound=number)
    for number in range(size.waiting):
        yield from _pod(f"pod-{number}", _ROUND[number % len(_ROUND)], number)


def write_json(size: DumpSize, path: Path) -> None:
    """Write the dump in kubectl's `-o json` format."""
    items = list(documents(size))
    text = json.dumps(
        {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}, indent=4
    )
    path.write_text(text + "\n", encoding="utf-8")


def _metadata(name: str, namespace: str, **more: Any) -> Document:
    place = {"namespace": namespace} if namespace else {}
    uid = str(uuid.uuid5(_UIDS, f"{namespace}/{name}"))
    return {"creationTimestamp": _TIME, "name": name, **place, "resourceVersion": "1234567", "uid": uid, **more}


def _node(number: int) -> Document:
    name = f"node-{number:04d}"
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "gpu-8",
        "topology.kubernetes.io/region": "eu-1",
        "topology.kubernetes.io/zone": _ZONES[number % len(_ZONES)],
    }
    amounts = {"cpu": "191", "ephemeral-storage": "900Gi", "hugepages-1Gi": "0", "memory": "2062Gi", "pods": "110"}
    conditions = [
        {
            "lastHeartbeatTime": _TIME,
            "lastTransitionTime": _TIME,
            "message": f"kubelet has {what}",
            "reason": f"KubeletHas{what}",
            "status": "False",
            "type": what,
        }
        for what in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    images = [
        {"names": [f"registry.example.com/team/image-{image}:v1.{image}"], "sizeBytes": 812345678 + image}
        for image in range(20)
    ]
    # One in fifty is cordoned.
    cordoned: Document = {"unschedulable": True} if number % 50 == 7 else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _metadata(name, "", labels=labels, annotations={"node.alpha.kubernetes.io/ttl": "0"}),
        "spec": {"podCIDR": f"10.{number // 256}.{number % 256}.0/24", "providerID": f"cloud:///{name}", **cordoned},
        "status": {
            "addresses": [{"address": f"192.168.{number // 256}.{number % 256}", "type": "InternalIP"}],
            "allocatable": amounts,
            "capacity": {**amounts, "cpu": "192"},
            "conditions": conditions,
            "images": images,
            "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.37.1", "operatingSystem": "linux"},
        },
    }


def _slice(number: int) -> Document:
    node = f"node-{number:04d}"
    rare = number % 5 == 4
    devices = [
        {
            "name": f"gpu-{gpu}",
            "attributes": {
                "architecture": {"string": "Ada" if rare else "Hopper"},
                "driverVersion": {"version": "580.95.5"},
                "index": {"int": gpu},
                "pcieBusID": {"string": f"0000:{gpu:02x}:00.0"},
                "productName": {"string": "NVIDIA L40S" if rare else "NVIDIA H100 80GB HBM3"},
                _NUMA: {"int": gpu // (DEVICES // 2)},
                "uuid": {"string": f"GPU-{number:08x}-{gpu:04x}-4222-8333-444455556666"},
            },
            "capacity": {"memory": {"value": "46068Mi" if rare else "81559Mi"}},
        }
        for gpu in range(DEVICES)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": _metadata(f"{node}-{DRIVER}-x7k2p", "", generateName=f"{node}-{DRIVER}-", generation=1),
        "spec": {
            "devices": devices,
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"generation": 1, "name": node, "resourceSliceCount": 1},
        },
    }


def _claim_spec(template: str) -> Document:
    exactly: Document = {"allocationMode": "ExactCount", "count": _COUNTS[template], "deviceClassName": "gpu"}
    product = "L40S" if template == "rare" else "H100"
    expression = f'device.attributes["{DRIVER}"].productName.contains("{product}")'
    exactly["selectors"] = [{"cel": {"expression": expression}}]
    devices: Document = {"requests": [{"exactly": exactly, "name": "gpu"}]}
    if template == "pair":
        devices["constraints"] = [{"matchAttribute": _NUMA, "requests": ["gpu"]}]
    return {"devices": devices}


def _template(name: str, namespace: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(name, namespace),
        "spec": {"metadata": {}, "spec": _claim_spec(name)},
    }


def _owners(namespace: str) -> Iterator[Document]:
    for name in _COUNTS:
        yield {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": _metadata(f"serve-{name}", namespace),
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": f"serve-{name}"}}},
        }
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(f"serve-{name}", namespace),
            "spec": {"ports": [{"port": 80}], "selector": {"app": f"serve-{name}"}, "type": "ClusterIP"},
        }


def _pod(name: str, template: str, number: int, bound: int | None = None) -> Iterator[Document]:
    """A pod and its claim; the claim is allocated if the pod is bound to a node."""
    namespace = f"team-{number // len(_ROUND) % 4}"
    serves = number // len(_ROUND) % 8 >= 4
    owner = f"serve-{template}" if serves else f"train-{template}-{number // 1000}"
    claim = f"{name}-gpu-{number % 9973:05d}"
    metadata = _metadata(
        name,
        namespace,
        generateName=f"{owner}-",
        labels={"app": owner, "pod-template-hash": "5d8f7c9b4"},
        ownerReferences=[
            {
                "apiVersion": "apps/v1" if serves else "batch/v1",
                "blockOwnerDeletion": True,
                "controller": True,
                "kind": "ReplicaSet" if serves else "Job",
                "name": owner,
                "uid": str(uuid.uuid5(_UIDS, owner)),
            }
        ],
    )
    node = {"nodeName": f"node-{bound // DEVICES:04d}"} if bound is not None else {}
    statuses = [{"name": "gpu", "resourceClaimName": claim}]
    phase = "Pending" if bound is None else "Running"
    status = {"phase": phase, "qosClass": "Burstable", "resourceClaimStatuses": statuses, **_conditions(bound)}
    yield {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**_pod_spec(template), **node},
        "status": status,
    }
    yield _claim(claim, name, namespace, template, bound)


def _conditions(bound: int | None) -> Document:
    if bound is None:
        message = "0/5000 nodes are available: 5000 cannot allocate all claims. preemption: not eligible"
        return {
            "conditions": [{"message": message, "reason": "Unschedulable", "status": "False", "type": "PodScheduled"}]
        }
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {"conditions": [{"lastTransitionTime": _TIME, "status": "True", "type": kind} for kind in kinds]}


def _pod_spec(template: str) -> Document:
    mount = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": True}
    container = {
        "args": ["--model", "/models/large", "--batch", "64"],
        "command": ["python", "-m", "work"],
        "env": [
            {"name": "NCCL_DEBUG", "value": "WARN"},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        ],
        "image": "registry.example.com/team/work:v1.12.3",
        "imagePullPolicy": "IfNotPresent",
        "name": "work",
        "resources": {
            "claims": [{"name": "gpu"}],
            "limits": {"memory": "64Gi"},
            "requests": {"cpu": str(4 * _COUNTS[template]), "memory": "64Gi"},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [mount],
    }
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
    ]
    tolerations = [
        {"effect": "NoExecute", "key": f"node.kubernetes.io/{key}", "operator": "Exists", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    return {
        "containers": [container],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": tolerations,
        "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": sources}}],
    }


def _claim(name: str, pod: str, namespace: str, template: str, bound: int | None) -> Document:
    owner = {"apiVersion": "v1", "blockOwnerDeletion": True, "controller": True, "kind": "Pod", "name": pod}
    uid = str(uuid.uuid5(_UIDS, f"{namespace}/{pod}"))
    metadata = _metadata(
        name,
        namespace,
        annotations={"resource.kubernetes.io/pod-claim-name": "gpu"},
        generateName=f"{pod}-gpu-",
        ownerReferences=[{**owner, "uid": uid}],
    )
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": _claim_spec(template),
    }
    if bound is None:
        return {**claim, "status": {}}
    node = f"node-{bound // DEVICES:04d}"
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    result = {"device": f"gpu-{bound % DEVICES}", "driver": DRIVER, "pool": node, "request": "gpu"}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    users = [{"name": pod, "resource": "pods", "uid": uid}]
    return {**claim, "status": {"allocation": allocation, "reservedFor": users}}
