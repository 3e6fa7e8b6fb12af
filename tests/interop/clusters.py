"""Random clusters and pods, with everything that decides where a pod can run."""

import random
from collections.abc import Iterator
from typing import Any

from dranode.sim.allocator.features import Features
from tests.interop.random_devices import WIDGET, RandomDevices, device_classes
from tests.interop.random_pods import APPS, HOST, ZONE, ZONES, RandomPods

Document = dict[str, Any]

TAINTS = (
    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
    {"key": "spot", "effect": "PreferNoSchedule"},
    {"key": "old", "value": "yes", "effect": "PreferNoSchedule"},
    {"key": "drain", "effect": "NoExecute"},
)
# Claims in namespaces with this label may have admin access.
ADMIN = "resource.kubernetes.io/admin-access"
_GROUP = "scheduling.k8s.io/v1beta1"


class RandomCluster:
    """A random cluster and its pods; equal seeds give equal clusters."""

    def __init__(self, seed: int, features: Features | None = None) -> None:
        """Draw the cluster from a seed, with the features that the release's gates allow."""
        self.dice = random.Random(seed)
        self.name = f"case-{seed}"
        self._features = features or Features()
        # Not together with devices that stand for node resources: kube-scheduler 1.37.1 cannot bind a pod with both.
        self._extended = not self._features.node_allocatable_resources
        self._devices = RandomDevices(self.dice, self._features, self.name)
        self._names = [f"{self.name}-n{number}" for number in range(self.dice.randint(2, 9))]
        self._pods = RandomPods(self.dice, self._names)

    def nodes(self) -> list[Document]:
        return [self._node(name) for name in self._names]

    def classes(self) -> list[Document]:
        return device_classes(extended=self._extended)

    def slices(self, nodes: list[Document]) -> list[Document]:
        return self._devices.slices(nodes)

    def rules(self, nodes: list[Document]) -> list[Document]:
        """Return DeviceTaintRules."""
        return self._devices.rules(nodes)

    def groups(self, namespace: str) -> list[Document]:
        """Return PodGroups with claims, and the templates of these claims, if their gates are on."""
        if not self._features.workload_resource_claims:
            return []
        template = self._template("shared", namespace)
        entries = [{"name": "shared", "resourceClaimTemplateName": "shared"}]
        spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": entries}
        groups = [
            {
                "apiVersion": _GROUP,
                "kind": "PodGroup",
                "metadata": {"name": f"group-{number}", "namespace": namespace},
                "spec": spec,
            }
            for number in range(2)
        ]
        return [template, *groups]

    def services(self, namespace: str) -> list[Document]:
        """Return Services, by which pods without spread constraints are spread."""
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
        """Return the status of a pod, of which a few are being resized in place."""
        return self._pods.resized(pod)

    def pods(self, namespaces: list[str]) -> Iterator[tuple[list[Document], Document]]:
        """Yield pods, each with the claims and templates that have to exist before it."""
        shared: dict[str, list[str]] = {namespace: [] for namespace in namespaces}
        for number in range(self.dice.randint(8, 30)):
            namespace = self.dice.choice(namespaces)
            pod = self._pods.pod(f"p{number}", namespace)
            made = []
            entries: list[Document] = []
            if self.dice.random() < 0.55:
                for index in range(1 if self.dice.random() < 0.8 else 2):
                    entry, documents = self._entry(index, f"c{number}-{index}", namespace, shared[namespace])
                    made += documents
                    if not any(_source(entry) == _source(other) for other in entries):
                        entries.append(entry)
            if self._features.workload_resource_claims and self.dice.random() < 0.3:
                pod["spec"]["schedulingGroup"] = {"podGroupName": f"group-{self.dice.randint(0, 1)}"}
                if self.dice.random() < 0.7:
                    entries.append({"name": "shared", "resourceClaimTemplateName": "shared"})
            if entries:
                pod["spec"]["resourceClaims"] = entries
            self._use(pod)
            self._ask_for_devices(pod)
            yield made, pod

    def _entry(self, index: int, name: str, namespace: str, shared: list[str]) -> tuple[Document, list[Document]]:
        """Return an entry of `spec.resourceClaims`, and the claim or template that has to exist for it, if any."""
        kind = self.dice.random()
        if kind < 0.3:
            template = self._template(name, namespace)
            return {"name": f"r{index}", "resourceClaimTemplateName": name}, [template]
        if shared and kind < 0.42:
            return {"name": f"r{index}", "resourceClaimName": self.dice.choice(shared)}, []
        shared.append(name)
        claim = _document("ResourceClaim", name, namespace, self._claim_spec(namespace))
        return {"name": f"r{index}", "resourceClaimName": name}, [claim]

    def _template(self, name: str, namespace: str) -> Document:
        return _document("ResourceClaimTemplate", name, namespace, {"spec": self._claim_spec(namespace)})

    def _claim_spec(self, namespace: str) -> Document:
        return self._devices.claim_spec(admin=namespace.endswith("blue"))

    def _ask_for_devices(self, pod: Document) -> None:
        """Let containers request devices as extended resources, by the implicit or the explicit name of a class."""
        if not self._extended:
            return
        for container in _containers(pod):
            if self.dice.random() < 0.12:
                implicit = "deviceclass.resource.kubernetes.io/large"
                name, amount = self.dice.choice((implicit, WIDGET)), self.dice.choice("112")
                asked = container.setdefault("resources", {})
                for side in ("requests", "limits"):
                    asked[side] = {**asked.get(side, {}), name: amount}

    def _use(self, pod: Document) -> None:
        """Let containers name the claims that they use, which matters for devices that stand for node resources."""
        if not self._features.node_allocatable_resources:
            return
        for container in _containers(pod):
            for entry in pod["spec"].get("resourceClaims", []):
                if self.dice.random() < 0.7:
                    container["resources"].setdefault("claims", []).append({"name": entry["name"]})

    def _node(self, name: str) -> Document:
        dice = self.dice
        labels = {HOST: name, "disk": dice.choice(("ssd", "hdd")), "rank": dice.choice(("0", "1", "2", "3", "5", "x"))}
        if dice.random() < 0.85:
            labels[ZONE] = dice.choice(ZONES)
        allocatable = {
            "cpu": dice.choice(("2", "4", "7500m", "16")),
            "memory": dice.choice(("2Gi", "8Gi", "15900Mi", "32G")),
            "ephemeral-storage": dice.choice(("10Gi", "100Gi")),
            "pods": str(dice.choice((3, 6, 20, 110))),
        }
        for resource, amounts in (
            ("hugepages-2Mi", ("512Mi", "4Gi")),
            ("hugepages-1Gi", ("2Gi",)),
            (WIDGET, "123"),
            ("example.com/plain", "24"),
        ):
            if dice.random() < 0.4:
                allocatable[resource] = dice.choice(amounts)
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
        """Return what a node has to declare before its devices may stand for its resources."""
        if not self._features.node_allocatable_resources:
            return {}
        return {"declaredFeatures": ["DRANodeAllocatableResources"]}


def _containers(pod: Document) -> list[Document]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def _source(entry: Document) -> Document:
    """Return the entry without its name."""
    return {key: value for key, value in entry.items() if key != "name"}


def _document(kind: str, name: str, namespace: str, spec: Document) -> Document:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
