"""Random pods, with what decides where a pod can run in the mix, but for devices."""

import random
from typing import Any

Document = dict[str, Any]

ZONES = ("a", "b", "c")
APPS = ("web", "db", "batch")
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


class RandomPods:
    """The pods of one cluster."""

    def __init__(self, dice: random.Random, nodes: list[str]) -> None:
        """Make pods for a cluster of these nodes."""
        self.dice = dice
        self._nodes = nodes

    def pod(self, name: str, namespace: str) -> Document:
        dice = self.dice
        spec: Document = {"containers": [self._container(f"c{number}") for number in range(dice.choice((1, 1, 1, 2)))]}
        if dice.random() < 0.25:
            spec["initContainers"] = [self._init_container(number) for number in range(dice.randint(1, 3))]
        if dice.random() < 0.12:
            spec["resources"] = {"requests": {"cpu": "6", "memory": "7Gi"}, "limits": {"cpu": "7"}}
            if dice.random() < 0.3 and not _asks_for_hugepages(spec):
                spec["resources"]["limits"]["hugepages-2Mi"] = "256Mi"
        if dice.random() < 0.1:
            spec["runtimeClassName"] = "heavy"
        if dice.random() < 0.08:
            spec["containers"][0]["ports"] = [self._port()]
        labels = {"app": dice.choice(APPS), "tier": dice.choice(("x", "y"))}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {**spec, **self._where()},
        }

    def _where(self) -> Document:
        """What a pod says of its node, and of where other pods are."""
        dice = self.dice
        spec: Document = {}
        if dice.random() < 0.4:
            spec["tolerations"] = self._tolerations()
        if dice.random() < 0.1:
            spec["nodeSelector"] = dice.choice(({"disk": "ssd"}, {"disk": "hdd"}, {ZONE: "a"}))
        affinity = self._affinity()
        if affinity:
            spec["affinity"] = affinity
        if dice.random() < 0.25:
            spec["topologySpreadConstraints"] = [self._spread() for _ in range(dice.choice((1, 1, 2)))]
            _distinct_keys(spec)
        if dice.random() < 0.04:
            spec["nodeName"] = dice.choice(self._nodes)
        return spec

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
            status["conditions"] = [*pod["status"].get("conditions", []), pending]
        if dice.random() < 0.4:
            status |= {"allocatedResources": amounts, "resources": {"requests": amounts}}
        return status

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
            limits[dice.choice(("hugepages-2Mi", "hugepages-2Mi", "hugepages-1Gi"))] = dice.choice(("1Gi", "2Gi"))
            requests.setdefault("memory", "64Mi")
        if dice.random() < 0.08:
            limits[dice.choice(("example.com/widget", "example.com/plain"))] = dice.choice("12")
        if dice.random() < 0.1:
            limits["cpu"] = "3"
        return {"name": name, "image": "example.com/none", "resources": {"requests": requests, "limits": limits}}

    def _init_container(self, number: int) -> Document:
        container = self._container(f"i{number}")
        if self.dice.random() < 0.5:
            container["restartPolicy"] = "Always"
        return container

    def _port(self) -> Document:
        dice = self.dice
        port: Document = {"containerPort": 80, "hostPort": dice.choice((80, 81))}
        if dice.random() < 0.3:
            port["protocol"] = "UDP"
        if dice.random() < 0.3:
            port["hostIP"] = dice.choice(("10.0.0.1", "10.0.0.2"))
        return port

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
        ranks: Document = {"key": "rank", "operator": dice.choice(("Gt", "Lt")), "values": [str(dice.randint(1, 4))]}
        if dice.random() < 0.3:
            ranks = {"key": ZONE, "operator": dice.choice(("Exists", "DoesNotExist"))}
        disks = {"key": "disk", "operator": dice.choice(("In", "NotIn")), "values": ["ssd"]}
        affinity: Document = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": dice.randint(1, 100), "preference": {"matchExpressions": [each]}} for each in (ranks, disks)
            ]
        }
        if dice.random() < 0.4:
            terms = [{"matchExpressions": [disks]}, {"matchExpressions": [ranks]}][: dice.randint(1, 2)]
            if dice.random() < 0.3:
                operator = dice.choice(("In", "In", "NotIn"))
                terms[0]["matchFields"] = [
                    {"key": "metadata.name", "operator": operator, "values": [dice.choice(self._nodes)]}
                ]
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
            term[dice.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["tier"]
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


def _asks_for_hugepages(spec: Document) -> bool:
    """The server refuses containers that ask for more of these than their pod."""
    containers = (*spec["containers"], *spec.get("initContainers", ()))
    return any(name.startswith("hugepages") for each in containers for name in each["resources"]["limits"])
