"""A cluster with pods that have claims, in the state that the control plane and kubelet leave behind.

Names of generated claims, Events and messages are those of Kubernetes 1.37 (pkg/controller/resourceclaim, pkg/kubelet,
pkg/scheduler/framework/plugins/dynamicresources, pkg/controller/devicetainteviction).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click import Command
from click.testing import CliRunner, Result

from dranode.sanity.kinds import KINDS
from dranode.tools.cli.explain import command as explain
from tests.fakes.apiserver import ApiServer

NAMESPACE = "default"
CPU = "dra.cpu"
GPU = "gpu.example.com"
CORE_EVENT = next(kind for kind in KINDS if (kind.group, kind.resource) == ("", "events"))
POD_GROUPS = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups"}
FAILED_PREPARE = "Failed to prepare dynamic resources: prepare dynamic resources: "

Document = dict[str, Any]


def request(name: str = "r", device_class: str = CPU, **exactly: Any) -> Document:
    """A request of a claim."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **exactly}}


def cpus(count: str, name: str = "r") -> Document:
    """A request for CPUs of one device."""
    return request(name, capacity={"requests": {f"{CPU}/cpu": count}})


def result(device: str, driver: str, node: str, request_name: str = "r", /, **more: Any) -> Document:
    """A result of an allocation."""
    return {"request": request_name, "driver": driver, "pool": node, "device": device, **more}


def waiting(reason: str, message: str = "", name: str = "main") -> Document:
    """The status of a waiting container."""
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}, "restartCount": 0}


def running(name: str = "main", **more: Any) -> Document:
    """The status of a running container."""
    return {"name": name, "state": {"running": {"startedAt": "2026-11-22T07:00:09Z"}}, "restartCount": 0, **more}


def on_laptop(command: Command, cluster: PodCluster, folder: Path, *arguments: str) -> Result:
    """Run a command that knows only the cluster's kubeconfig; errors of the command itself are raised."""
    kubeconfig = cluster.api.kubeconfig(folder / "kubeconfig")
    laptop = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": kubeconfig, "HOME": str(folder)}
    ran = CliRunner(env=laptop).invoke(command, arguments)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran


def explained(cluster: PodCluster, folder: Path, *arguments: str, output: str = "json") -> tuple[int, Any]:
    """Run `explain`, for the pod `app` by default; returns exit status and output."""
    asked = [*(arguments or ("app",)), "-o", output, "--node-name", "laptop", "--kubelet-root", str(folder)]
    ran = on_laptop(explain, cluster, folder, *asked)
    return ran.exit_code, json.loads(ran.stdout) if output == "json" else ran.stdout


@dataclass
class PodCluster:
    """Two workers with CPUs and GPUs, and a control plane; a test adds pods and breaks things.

    Attributes:
        api: the API server.
        clock: the time of the last Event in seconds; each Event advances it.
    """

    api: ApiServer
    clock: int = 0
    _pods: dict[str, Document] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("worker-1", "worker-2"):
            self.node(name)
            self.slice(name, CPU, [cpu_device()])
            self.slice(name, GPU, [{"name": "gpu-0"}, {"name": "gpu-1"}])
        self.node("control-plane", taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
        for driver in (CPU, GPU):
            expression = f'device.driver == "{driver}"'
            self.device_class(driver, selectors=[{"cel": {"expression": expression}}])

    # --- cluster ---

    def node(self, name: str, *, ready: str = "True", message: str = "", **spec: Any) -> None:
        self.api.put(
            "nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "spec": spec,
                "status": {
                    "conditions": [
                        {"type": "MemoryPressure", "status": "False"},
                        {"type": "Ready", "status": ready, "reason": "KubeletReady", "message": message},
                    ],
                    "nodeInfo": {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "containerd://2.1.4"},
                    "allocatable": {"cpu": "8"},
                },
            },
        )

    def slice(self, node: str, driver: str, devices: Iterable[Document], **pool: Any) -> None:
        self.api.put(
            "resourceslices",
            {
                "metadata": {"name": f"00000-{driver}-{node}-abcde"},
                "spec": {
                    "driver": driver,
                    "nodeName": node,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1, **pool},
                    "devices": list(devices),
                },
            },
        )

    def device_class(self, name: str, **spec: Any) -> None:
        self.api.put("deviceclasses", {"metadata": {"name": name}, "spec": spec})

    def template(self, name: str, *requests: Document) -> None:
        self.api.put(
            "resourceclaimtemplates",
            {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"spec": claim_spec(*requests)}},
        )

    def claim(
        self,
        name: str,
        *requests: Document,
        results: Iterable[Document] = (),
        node: str = "",
        pods: Iterable[str] = (),
        groups: Iterable[str] = (),
        constraints: Iterable[Document] = (),
        **metadata: Any,
    ) -> None:
        """Add a claim; with results it is allocated on a node and reserved for pods and PodGroups."""
        spec = claim_spec(*requests)
        spec["devices"] |= {"constraints": list(constraints)} if constraints else {}
        document = {"metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", **metadata}, "spec": spec}
        results = list(results)
        if results:
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            document["status"] = {
                "allocation": {
                    "devices": {"results": results},
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
                },
                "reservedFor": [
                    *({"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods),
                    *({**POD_GROUPS, "name": group, "uid": f"uid-{group}"} for group in groups),
                ],
            }
        self.api.put("resourceclaims", document)

    def made_claim(self, pod: str, entry: str, *requests: Document, suffix: str = "x7k2p", **more: Any) -> str:
        """Add a claim as the controller generates it for a pod from a template; returns its name."""
        name = f"{pod}-{entry}-{suffix}"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}
        self.claim(
            name,
            *requests,
            generateName=f"{pod}-{entry}-",
            annotations={"resource.kubernetes.io/pod-claim-name": entry},
            ownerReferences=[owner],
            **more,
        )
        return name

    # --- pods ---

    def pod(
        self,
        name: str = "app",
        *,
        claims: Mapping[str, str] | None = None,
        templates: Mapping[str, str] | None = None,
        made: Mapping[str, str | None] | None = None,
        node: str = "",
        containers: Iterable[Document] = (),
        status: Document | None = None,
        named: bool = True,
        **spec: Any,
    ) -> None:
        """Add a pod with claims by name or from templates, and the claims that the controller generated from those."""
        entries = [{"name": entry, "resourceClaimName": claim} for entry, claim in (claims or {}).items()]
        entries += [{"name": entry, "resourceClaimTemplateName": one} for entry, one in (templates or {}).items()]
        container: Document = {"name": "main", "image": "app:1", "resources": {}}
        if named:
            container["resources"]["claims"] = [{"name": entry["name"]} for entry in entries]
        statuses = [
            {"name": entry, **({"resourceClaimName": claim} if claim else {})} for entry, claim in (made or {}).items()
        ]
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
        if status is not None and "metadata" in status:
            metadata |= status.pop("metadata")
        conditions = [{"type": "PodScheduled", "status": "True"}] if node else []
        self.api.put(
            "pods",
            {
                "metadata": metadata,
                "spec": {
                    "containers": [container],
                    "schedulerName": "default-scheduler",
                    **({"resourceClaims": entries} if entries else {}),
                    **({"nodeName": node} if node else {}),
                    **spec,
                },
                "status": {
                    "phase": "Pending",
                    "conditions": conditions,
                    **({"resourceClaimStatuses": statuses} if statuses else {}),
                    **({"containerStatuses": list(containers)} if containers else {}),
                    **(status or {}),
                },
            },
        )

    def event(
        self, reason: str, message: str, *, pod: str = "app", source: str = "kubelet", kind: str = "Warning"
    ) -> None:
        """Add an Event about a pod, later than all earlier ones; kube-scheduler's are of events.k8s.io."""
        self.clock += 1
        when = f"2026-11-22T07:00:{self.clock:02}Z"
        about = {"kind": "Pod", "namespace": NAMESPACE, "name": pod, "uid": f"uid-{pod}", "apiVersion": "v1"}
        document: Document = {
            "metadata": {"name": f"{pod}.{self.clock}", "namespace": NAMESPACE},
            "reason": reason,
            "type": kind,
        }
        if source == "default-scheduler":
            document |= {"note": message, "regarding": about, "reportingController": source}
            document |= {"eventTime": f"{when[:-1]}.000000Z", "involvedObject": about}
        else:
            document |= {"message": message, "involvedObject": about, "source": {"component": source}}
            document |= {"firstTimestamp": when, "lastTimestamp": when, "count": 1, "eventTime": None}
        self.api.objects.create(CORE_EVENT, document)

    def unschedulable(self, message: str) -> Document:
        """Give a pod the status that kube-scheduler found no node for it, with its Event."""
        self.event("FailedScheduling", message, source="default-scheduler")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return {"conditions": [condition]}


def cpu_device(name: str = "cpudevnuma000", count: str = "8", **more: Any) -> Document:
    """A device as the CPU driver publishes it: CPUs that claims share."""
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    capacity = {f"{CPU}/cpu": {"value": count, "requestPolicy": policy}}
    return {"name": name, "allowMultipleAllocations": True, "capacity": capacity, **more}


def claim_spec(*requests: Document) -> Document:
    """The spec of a claim; for one CPU by default."""
    return {"devices": {"requests": list(requests) or [request()]}}
