"""Random clusters and pods, with what decides where a pod can run in the mix."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]

DRIVER = "gpu.example.com"
ZONES = ("a", "b", "c")
APPS = ("web", "db", "batch")
TAINTS = (
    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
    {"key": "spot", "effect": "PreferNoSchedule"},
    {"key": "old", "value": "yes", "effect": "PreferNoSchedule"},
    {"key": "drain", "effect": "NoExecute"},
)
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


class RandomCluster:
    """One cluster and the pods that come to it, one after another; equal seeds make equal clusters."""

    def __init__(self, seed: int, *, mappings: bool = False) -> None:
        self.dice = random.Random(seed)
        # Devices that stand for resources of their node (KEP-5517), which is behind a gate.
        self.mappings = random.Random(seed) if mappings else None
        # Not beside those: kube-scheduler 1.37.1 cannot bind a pod that has both.
        self.extended = None if mappings else random.Random(seed)
        self.name = f"case-{seed}"
        self.crowded = self.dice.random() < 0.5

    def nodes(self) -> list[Document]:
        return [self._node(f"{self.name}-n{number}") for number in range(self.dice.randint(2, 9))]

    @property
    def _widget(self) -> str | None:
        """The extended resource that a class stands behind."""
        return None if self.extended is None else "example.com/widget"

    def classes(self) -> list[Document]:
        return [
            _class("gpu", f'device.driver == "{DRIVER}"', self._widget),
            _class("large", f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].size == "large"'),
        ]

    def slices(self, nodes: list[Document]) -> list[Document]:
        made = [
            made for node in nodes if self.dice.random() < 0.75 for made in self._local_slices(node["metadata"]["name"])
        ]
        if self.dice.random() < 0.4:
            made.append(self._shared_slice())
        return made

    def services(self, namespace: str) -> list[Document]:
        """Services, by which pods that say nothing of their spread are spread."""
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": app, "namespace": namespace},
                "spec": {"selector": {"app": app}, "clusterIP": "None", "ports": [{"port": 80}]},
            }
            for app in APPS
            if self.dice.random() < 0.3
        ]

    def resized(self, pod: Document) -> Document | None:
        """The status of a pod whose containers are resized in place; most are not."""
        dice = self.dice
        if dice.random() > 0.1:
            return None
        amounts = {"cpu": dice.choice(("50m", "1500m")), "memory": dice.choice(("32Mi", "3Gi"))}
        spec = pod["spec"]
        status: Document = {
            field: [self._status(container["name"], amounts) for container in spec.get(containers, [])]
            for field, containers in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"))
        }
        if dice.random() < 0.5:
            reason = dice.choice(("Infeasible", "Deferred"))
            pending = {"type": "PodResizePending", "status": "True", "reason": reason}
            status["conditions"] = [*pod["status"]["conditions"], pending]
        if dice.random() < 0.4:
            status |= {"allocatedResources": amounts, "resources": {"requests": amounts}}
        return status

    def pods(self, namespaces: list[str]) -> Iterator[tuple[list[Document], Document]]:
        """Pods, each with the claims that have to be made before it."""
        shared: list[str] = []
        for number in range(self.dice.randint(8, 30)):
            namespace = self.dice.choice(namespaces)
            pod = self._pod(f"p{number}", namespace)
            claims = []
            if self.dice.random() < 0.55:
                for index in range(1 if self.dice.random() < 0.8 else 2):
                    name = f"c{number}-{index}"
                    if shared and namespace == namespaces[0] and self.dice.random() < 0.15:
                        name = self.dice.choice(shared)
                    else:
                        claims.append(self._claim(name, namespace))
                        if namespace == namespaces[0]:
                            shared.append(name)
                    if name not in [each["resourceClaimName"] for each in pod["spec"].get("resourceClaims", [])]:
                        pod["spec"].setdefault("resourceClaims", []).append(
                            {"name": f"r{index}", "resourceClaimName": name}
                        )
            self._use(pod)
            self._ask_for_devices(pod)
            yield claims, pod

    def _ask_for_devices(self, pod: Document) -> None:
        """Let containers ask for devices as extended resources, by the name of a class or the one that it has."""
        if self.extended is None:
            return
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            if self.extended.random() < 0.12:
                implicit = "deviceclass.resource.kubernetes.io/large"
                name, amount = self.extended.choice((implicit, "example.com/widget")), self.extended.choice("112")
                asked = container.setdefault("resources", {})
                for side in ("requests", "limits"):
                    asked[side] = {**asked.get(side, {}), name: amount}

    def _use(self, pod: Document) -> None:
        """Let containers name the claims that they use, which counts where devices stand for resources."""
        if self.mappings is None:
            return
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            for entry in pod["spec"].get("resourceClaims", []):
                if self.mappings.random() < 0.7:
                    container["resources"].setdefault("claims", []).append({"name": entry["name"]})

    def _node(self, name: str) -> Document:
        dice = self.dice
        labels = {HOST: name, "disk": dice.choice(("ssd", "hdd")), "rank": str(dice.randint(0, 5))}
        if dice.random() < 0.85:
            labels[ZONE] = dice.choice(ZONES)
        allocatable = {
            "cpu": dice.choice(("2", "4", "7500m", "16")),
            "memory": dice.choice(("2Gi", "8Gi", "15900Mi", "32G")),
            "ephemeral-storage": dice.choice(("10Gi", "100Gi")),
            "pods": str(dice.choice((3, 6, 20, 110))),
        }
        if dice.random() < 0.4:
            allocatable["hugepages-2Mi"] = "512Mi"
        if dice.random() < 0.4:
            allocatable["example.com/widget"] = str(dice.randint(1, 3))
        spec: Document = {"taints": [taint for taint in TAINTS if dice.random() < 0.1]}
        if dice.random() < 0.05:
            spec["unschedulable"] = True
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"allocatable": allocatable, "capacity": allocatable, **self._declared()},
        }

    def _declared(self) -> Document:
        """What the server asks of a node before its devices may stand for its resources."""
        return {} if self.mappings is None else {"declaredFeatures": ["DRANodeAllocatableResources"]}

    def _local_slices(self, node: str) -> list[Document]:
        dice = self.dice
        spec: Document = {"driver": DRIVER, "nodeName": node, "pool": {"name": node, "resourceSliceCount": 1}}
        if dice.random() < 0.3:
            counters = {"name": "set", "counters": {"memory": {"value": "40Gi"}}}
            spec["pool"]["resourceSliceCount"] = 2
            first = {**spec, "sharedCounters": [counters]}
            second = {**spec, "devices": [self._partition(number) for number in range(4)]}
            return [_slice(f"{node}-counters", first), _slice(f"{node}-devices", second)]
        spec["devices"] = [self._device(f"gpu-{number}") for number in range(dice.randint(1, 4))]
        return [_slice(node, spec)]

    def _shared_slice(self) -> Document:
        devices = [self._device(f"far-{number}") for number in range(2)]
        spec: Document = {"driver": DRIVER, "pool": {"name": f"{self.name}-far", "resourceSliceCount": 1}}
        term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]}
        where = {"nodeSelector": {"nodeSelectorTerms": [term]}} if self.dice.random() < 0.5 else {"allNodes": True}
        return _slice(f"{self.name}-far", {**spec, **where, "devices": devices})

    def _device(self, name: str) -> Document:
        dice = self.dice
        device: Document = {
            "name": name,
            "attributes": {
                "size": {"string": dice.choice(("large", "small"))},
                "numa": {"int": dice.randint(0, 1)},
            },
            "capacity": {"memory": {"value": dice.choice(("16Gi", "40Gi"))}},
        }
        if dice.random() < 0.1:
            device["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
        if dice.random() < 0.2:
            device["allowMultipleAllocations"] = True
        return self._stands_for(device)

    def _stands_for(self, device: Document) -> Document:
        """The device with what it stands for of its node, if it does."""
        dice = self.mappings
        if dice is None or dice.random() < 0.4:
            return device
        resources: Document = {}
        if device.get("allowMultipleAllocations"):
            resources["memory"] = {"mapping": {"capacityKey": "memory", "capacityMultiplier": "0.1"}}
        elif dice.random() < 0.6:
            resources["cpu"] = {"mapping": {"deviceMultiplier": dice.choice(("500m", "2"))}}
        if "memory" not in resources:
            resources["memory"] = {"overhead": {"perPod": "300Mi", "perContainer": "200Mi"}}
        return {**device, "nodeAllocatableResources": resources}

    def _partition(self, number: int) -> Document:
        memory = ("40Gi", "20Gi", "20Gi", "10Gi")[number]
        consumed = {"counterSet": "set", "counters": {"memory": {"value": memory}}}
        return {
            "name": f"part-{number}",
            "attributes": {
                "size": {"string": "large" if number == 0 else "small"},
                "numa": {"int": number % 2},
            },
            "capacity": {"memory": {"value": memory}},
            "consumesCounters": [consumed],
        }

    def _claim(self, name: str, namespace: str) -> Document:
        dice = self.dice
        requests = [self._request(f"r{number}") for number in range(1 if dice.random() < 0.8 else 2)]
        devices: Document = {"requests": requests}
        if dice.random() < 0.15:
            devices["constraints"] = [{"matchAttribute": f"{DRIVER}/numa"}]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": devices},
        }

    def _request(self, name: str) -> Document:
        dice = self.dice
        if dice.random() < 0.35:
            first = {"name": "best", **self._exact("large", 2)}
            second = {"name": "any", **self._exact("gpu", 1)}
            return {"name": name, "firstAvailable": [first, second]}
        exact = self._exact(dice.choice(("gpu", "gpu", "large")), 1)
        if dice.random() < 0.05:
            exact["allocationMode"] = "All"
        elif dice.random() < 0.2:
            exact["count"] = 2
        return {"name": name, "exactly": exact}

    def _exact(self, name: str, most: int) -> Document:
        dice = self.dice
        exact: Document = {"deviceClassName": name}
        if dice.random() < 0.3:
            expression = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("20Gi")) >= 0'
            exact["selectors"] = [{"cel": {"expression": expression}}]
        if dice.random() < 0.2:
            exact["tolerations"] = [{"operator": "Exists"}]
        if most > 1:
            exact["count"] = dice.randint(1, most)
        return exact

    def _pod(self, name: str, namespace: str) -> Document:
        dice = self.dice
        spec: Document = {"containers": [self._container(f"c{number}") for number in range(dice.choice((1, 1, 1, 2)))]}
        if dice.random() < 0.25:
            spec["initContainers"] = [self._init_container(number) for number in range(dice.randint(1, 3))]
        if dice.random() < 0.12:
            spec["resources"] = {"requests": {"cpu": "6", "memory": "7Gi"}, "limits": {"cpu": "7"}}
        if dice.random() < 0.1:
            spec["runtimeClassName"] = "heavy"
        if dice.random() < 0.4:
            spec["tolerations"] = self._tolerations()
        if dice.random() < 0.1:
            spec["nodeSelector"] = {"disk": dice.choice(("ssd", "hdd"))}
        affinity = self._affinity()
        if affinity:
            spec["affinity"] = affinity
        if dice.random() < 0.25:
            spec["topologySpreadConstraints"] = [self._spread() for _ in range(dice.choice((1, 1, 2)))]
            _distinct_keys(spec)
        if dice.random() < 0.08:
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": dice.choice((80, 81))}]
        labels = {"app": dice.choice(APPS), "tier": dice.choice(("x", "y"))}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": spec,
        }

    def _container(self, name: str) -> Document:
        dice = self.dice
        requests: Document = {}
        limits: Document = {}
        if dice.random() < 0.7:
            requests["cpu"] = dice.choice(("100m", "333m", "1", "2500m"))
        if dice.random() < 0.6:
            requests["memory"] = dice.choice(("64Mi", "500M", "2Gi"))
        if dice.random() < 0.1:
            requests["ephemeral-storage"] = dice.choice(("1Gi", "20Gi"))
        if dice.random() < 0.08:
            limits["hugepages-2Mi"] = "256Mi"
            requests.setdefault("memory", "64Mi")
        if dice.random() < 0.08:
            limits["example.com/widget"] = "1"
        if dice.random() < 0.1:
            limits["cpu"] = "3"
        return {"name": name, "image": "example.com/none", "resources": {"requests": requests, "limits": limits}}

    def _init_container(self, number: int) -> Document:
        container = self._container(f"i{number}")
        if self.dice.random() < 0.5:
            container["restartPolicy"] = "Always"
        return container

    def _tolerations(self) -> list[Document]:
        dice = self.dice
        if dice.random() < 0.2:
            return [{"operator": "Exists"}]
        return [
            {"key": "dedicated", "operator": "Equal", "value": dice.choice(("gpu", "cpu")), "effect": "NoSchedule"},
            *([{"key": "spot", "operator": "Exists"}] if dice.random() < 0.5 else []),
            *([{"key": "drain", "operator": "Exists", "effect": "NoExecute"}] if dice.random() < 0.3 else []),
        ]

    def _status(self, name: str, amounts: Document) -> Document:
        status: Document = {
            "name": name,
            "image": "example.com/none",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {}},
            "allocatedResources": amounts,
        }
        if self.dice.random() < 0.7:
            status["resources"] = {"requests": {**amounts, "cpu": "700m"}}
        return status

    def _affinity(self) -> Document:
        dice = self.dice
        affinity: Document = {}
        if dice.random() < 0.2:
            affinity["nodeAffinity"] = self._node_affinity()
        if dice.random() < 0.15:
            affinity["podAffinity"] = self._pod_affinity(required=0.35)
        if dice.random() < 0.2:
            affinity["podAntiAffinity"] = self._pod_affinity(required=0.5)
        return affinity

    def _node_affinity(self) -> Document:
        dice = self.dice
        ranks = {"key": "rank", "operator": dice.choice(("Gt", "Lt")), "values": [str(dice.randint(1, 4))]}
        disks = {"key": "disk", "operator": dice.choice(("In", "NotIn")), "values": ["ssd"]}
        affinity: Document = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": dice.randint(1, 100), "preference": {"matchExpressions": [each]}} for each in (ranks, disks)
            ]
        }
        if dice.random() < 0.4:
            terms = [{"matchExpressions": [disks]}, {"matchExpressions": [ranks]}][: dice.randint(1, 2)]
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        return affinity

    def _pod_affinity(self, required: float) -> Document:
        if self.dice.random() < required:
            return {"requiredDuringSchedulingIgnoredDuringExecution": [self._term()]}
        terms = [{"weight": self.dice.randint(1, 100), "podAffinityTerm": self._term()} for _ in range(2)]
        return {"preferredDuringSchedulingIgnoredDuringExecution": terms}

    def _term(self) -> Document:
        dice = self.dice
        term: Document = {"topologyKey": dice.choice((HOST, ZONE, "disk")), "labelSelector": self._selector()}
        kind = dice.random()
        if kind < 0.15:
            term["namespaceSelector"] = {"matchLabels": {"team": "red"}}
        elif kind < 0.25:
            term["namespaceSelector"] = {}
        elif kind < 0.35:
            term["matchLabelKeys"] = ["tier"]
        return term

    def _selector(self) -> Document:
        if self.dice.random() < 0.7:
            return {"matchLabels": {"app": self.dice.choice(APPS)}}
        operator = self.dice.choice(("In", "NotIn"))
        return {"matchExpressions": [{"key": "app", "operator": operator, "values": list(APPS[:2])}]}

    def _spread(self) -> Document:
        dice = self.dice
        constraint: Document = {
            "maxSkew": dice.randint(1, 2),
            "topologyKey": dice.choice((HOST, ZONE, "disk")),
            "whenUnsatisfiable": dice.choice(("DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": self._selector(),
        }
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and dice.random() < 0.2:
            constraint["minDomains"] = 3
        if dice.random() < 0.2:
            constraint["nodeTaintsPolicy"] = "Honor"
        if dice.random() < 0.2:
            constraint["nodeAffinityPolicy"] = "Ignore"
        if dice.random() < 0.2:
            constraint["matchLabelKeys"] = ["tier"]
        return constraint


def _distinct_keys(spec: Document) -> None:
    """The server refuses two constraints for one topology and one action."""
    known = {(each["topologyKey"], each["whenUnsatisfiable"]): each for each in spec["topologySpreadConstraints"]}
    spec["topologySpreadConstraints"] = list(known.values())


def _class(name: str, expression: str, extended: str | None = None) -> Document:
    named = {"extendedResourceName": extended} if extended else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}], **named},
    }


def _slice(name: str, spec: Document) -> Document:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
