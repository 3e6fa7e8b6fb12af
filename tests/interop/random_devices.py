"""Random devices, what taints them, and claims of them, with what the allocator looks at in the mix."""

import random
from collections.abc import Iterable
from typing import Any

from dranode.sim.allocator.features import Features

Document = dict[str, Any]

READY = "example.com/attached"  # a binding condition
DRIVER, NETWORK = "gpu.example.com", "nic.example.com"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
WIDGET = "example.com/widget"
_ROOT = "resource.kubernetes.io/pcieRoot"
_API = "resource.k8s.io/v1"
# What constraints see of a device: its own attributes, one that is a list, and one that a request derives.
_OF_LIST, _OF_REQUEST = f"{DRIVER}/nodes", f"{DRIVER}/parity"


class RandomDevices:
    """The slices, rules and claims of one cluster."""

    def __init__(self, dice: random.Random, features: Features, cluster: str) -> None:
        self._dice = dice
        self._features = features
        self._cluster = cluster
        # Devices that lack what selectors look at, which ends attempts; pools that are damaged.
        self._ragged = dice.random() < 0.12
        self._damaged = dice.random() < 0.12
        # Devices that are attached to a node first, for which kube-scheduler waits 5 s.
        self._binds = features.binding and dice.random() < 0.15
        self._serial = 0

    def slices(self, nodes: Iterable[Document]) -> list[Document]:
        dice = self._dice
        made: list[Document] = []
        for node in nodes:
            name = node["metadata"]["name"]
            if dice.random() < 0.75:
                made += self._gpus(name)
            if dice.random() < 0.35:
                made += self._pool(NETWORK, name, {"nodeName": name}, [self._nic(n) for n in range(dice.randint(1, 2))])
        if dice.random() < 0.4:
            devices = [self._gpu(f"far-{number}") for number in range(2)]
            made += self._pool(DRIVER, f"{self._cluster}-far", self._where(), devices)
        if dice.random() < 0.2:
            names = [node["metadata"]["name"] for node in nodes]
            devices = [{**self._gpu(f"fabric-{number}"), **self._own_place(names)} for number in range(3)]
            made += self._pool(DRIVER, f"{self._cluster}-fabric", {"perDeviceNodeSelection": True}, devices)
        return made

    def rules(self, nodes: list[Document]) -> list[Document]:
        """DeviceTaintRules, where the release looks at them."""
        dice = self._dice
        if not self._features.device_taint_rules or dice.random() > 0.35:
            return []
        rules = []
        for number in range(dice.randint(1, 2)):
            chosen = {
                "driver": dice.choice((DRIVER, NETWORK)),
                "pool": dice.choice(nodes)["metadata"]["name"],
                "device": f"gpu-{dice.randint(0, 2)}",
            }
            selector = {key: value for key, value in chosen.items() if dice.random() < 0.6}
            spec: Document = {"taint": self._taint()}
            if dice.random() < 0.9:
                spec["deviceSelector"] = selector
            rules.append(_document("DeviceTaintRule", f"{self._cluster}-{number}", spec))
        return rules

    def claim_spec(self, *, admin: bool) -> Document:
        """What a claim asks for; `admin` says that its namespace may have admin access."""
        dice = self._dice
        if dice.random() < 0.01:
            return {"devices": {}}
        requests = [self._request(f"r{number}", admin=admin) for number in range(dice.choice((1, 1, 1, 1, 2, 2, 3)))]
        devices: Document = {"requests": requests}
        names = [name for request in requests for name in _names(request)]
        derived = self._features.derived_attributes and dice.random() < 0.25
        if derived:
            self._derive(devices["requests"])
        if derived or dice.random() < 0.2:
            constraint: Document = {"matchAttribute": dice.choice((f"{DRIVER}/numa", _ROOT, _ROOT))}
            if self._features.list_type_attributes and dice.random() < 0.5:
                constraint["matchAttribute"] = _OF_LIST
            if derived:
                constraint["matchAttribute"] = _OF_REQUEST
            if self._features.consumable_capacity and dice.random() < 0.25:
                constraint = {"distinctAttribute": dice.choice((f"{DRIVER}/numa", _ROOT))}
            if dice.random() < 0.3 and not derived:
                constraint["requests"] = [dice.choice(names)]
            devices["constraints"] = [constraint]
        return {"devices": devices}

    def _derive(self, requests: list[Document]) -> None:
        """Let every request, and every alternative of one, derive the attribute that a constraint is about."""
        expressions = (
            f'device.attributes["{DRIVER}"].?numa.orValue(0) % 2',
            f'device.attributes["{DRIVER}"].?size.orValue("none")',
            "device.driver",
            f'device.attributes["{DRIVER}"].numa',
        )
        expression = self._dice.choice(expressions)
        for request in requests:
            for exact in [request["exactly"]] if "exactly" in request else request["firstAvailable"]:
                exact["derivedAttributes"] = [{"name": _OF_REQUEST, "expression": expression}]

    def _gpus(self, node: str) -> list[Document]:
        """The pool of a node: whole devices, or partitions of one."""
        dice = self._dice
        where = {"nodeName": node}
        if dice.random() < 0.3:
            counters = {"name": "set", "counters": {"memory": {"value": "40Gi"}}}
            parts = [self._partition(number) for number in range(4)]
            pool = {"driver": DRIVER, "pool": {"name": node, "resourceSliceCount": 2}, **where}
            return [
                _document("ResourceSlice", f"{node}-counters", {**pool, "sharedCounters": [counters]}),
                _document("ResourceSlice", f"{node}-devices", {**pool, "devices": parts}),
            ]
        return self._pool(DRIVER, node, where, [self._gpu(f"gpu-{number}") for number in range(dice.randint(1, 4))])

    def _pool(self, driver: str, name: str, where: Document, devices: list[Document]) -> list[Document]:
        """The pool in one slice or two; now and then with a slice of before, or damaged."""
        dice = self._dice
        kind = driver.partition(".")[0]
        parts = [devices[:1], devices[1:]] if len(devices) > 1 and dice.random() < 0.2 else [devices]
        generation = dice.choice((0, 0, 3))
        pool: Document = {"name": name, "resourceSliceCount": len(parts), "generation": generation}
        if self._damaged and dice.random() < 0.3:
            pool["resourceSliceCount"] += 1
        if self._damaged and len(parts) > 1 and dice.random() < 0.3:
            parts[1] = [{**parts[1][0], "name": parts[0][0]["name"]}]
        made = [
            _document(
                "ResourceSlice", f"{name}-{kind}-{number}", {"driver": driver, "pool": pool, **where, "devices": part}
            )
            for number, part in enumerate(parts)
        ]
        if generation and dice.random() < 0.3:
            old = {**pool, "generation": generation - 1, "resourceSliceCount": 1}
            device = {"name": "gone", "attributes": {"size": {"string": "large"}, "numa": {"int": 0}}}
            placed = {"allNodes": True} if "perDeviceNodeSelection" in where else where
            spec = {"driver": driver, "pool": old, **placed, "devices": [device]}
            made.append(_document("ResourceSlice", f"{name}-{kind}-old", spec))
        return made

    def _where(self) -> Document:
        term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]}
        return {"nodeSelector": {"nodeSelectorTerms": [term]}} if self._dice.random() < 0.5 else {"allNodes": True}

    def _own_place(self, nodes: list[str]) -> Document:
        return {"nodeName": self._dice.choice(nodes)} if self._dice.random() < 0.5 else self._where()

    def _gpu(self, name: str) -> Document:
        dice = self._dice
        self._serial += 1
        device: Document = {
            "name": name,
            "attributes": {
                "size": {"string": dice.choice(("large", "small"))},
                "numa": {"int": dice.randint(0, 1)},
                "driverVersion": {"version": dice.choice(("1.2.3", "2.0.0"))},
                "serial": {"string": f"s{self._serial}"},
                _ROOT: {"string": f"pci0000:{dice.randint(0, 1)}0"},
            },
            "capacity": {"memory": {"value": dice.choice(("16Gi", "40Gi"))}},
        }
        if self._features.list_type_attributes and dice.random() < 0.7:
            device["attributes"]["nodes"] = {"ints": sorted(dice.sample(range(4), dice.randint(1, 3)))}
        if self._binds and dice.random() < 0.4:
            device |= {"bindingConditions": [READY], "bindingFailureConditions": ["broken"]}
            if dice.random() < 0.5:
                device["bindsToNode"] = True
        if dice.random() < 0.5:
            device["attributes"]["ecc"] = {"bool": dice.random() < 0.5}
        if self._ragged and dice.random() < 0.15:
            del device["attributes"]["size"]
        if dice.random() < 0.14:
            device["taints"] = [self._taint()]
        if dice.random() < 0.25:
            device["allowMultipleAllocations"] = True
            if dice.random() < 0.6:
                device["capacity"]["memory"]["requestPolicy"] = dice.choice(
                    (
                        {"default": "4Gi", "validRange": {"min": "2Gi", "step": "2Gi"}},
                        {"default": "8Gi", "validValues": ["8Gi", "16Gi"]},
                    )
                )
        return self._stands_for(device)

    def _nic(self, number: int) -> Document:
        dice = self._dice
        device: Document = {
            "name": f"nic-{number}",
            "attributes": {"speed": {"int": dice.choice((25, 100))}, _ROOT: {"string": f"pci0000:{number}0"}},
            "capacity": {"bandwidth": {"value": dice.choice(("10G", "25G"))}},
        }
        if dice.random() < 0.6:
            device["allowMultipleAllocations"] = True
            if dice.random() < 0.6:
                policy = {"default": "1G", "validRange": {"min": "1G", "max": "8G", "step": "500M"}}
                device["capacity"]["bandwidth"]["requestPolicy"] = policy
        return device

    def _partition(self, number: int) -> Document:
        memory = ("40Gi", "20Gi", "20Gi", "10Gi")[number]
        consumed: Document = {"counterSet": "set", "counters": {"memory": {"value": memory}}}
        if self._features.device_compatibility_groups and self._dice.random() < 0.8:
            groups = ("whole", "half", "quarter")
            consumed["compatibilityGroups"] = sorted(self._dice.sample(groups, self._dice.randint(1, 2)))
        return {
            "name": f"part-{number}",
            "attributes": {
                "size": {"string": "large" if number == 0 else "small"},
                "numa": {"int": number % 2},
                _ROOT: {"string": f"pci0000:{number % 2}0"},
            },
            "capacity": {"memory": {"value": memory}},
            "consumesCounters": [consumed],
        }

    def _stands_for(self, device: Document) -> Document:
        """The device with what it stands for of its node (KEP-5517), if it does."""
        dice = self._dice
        if not self._features.node_allocatable_resources or dice.random() < 0.4:
            return device
        resources: Document = {}
        if device.get("allowMultipleAllocations"):
            resources["memory"] = {"mapping": {"capacityKey": "memory", "capacityMultiplier": "0.1"}}
        elif dice.random() < 0.6:
            resources["cpu"] = {"mapping": {"deviceMultiplier": dice.choice(("500m", "2"))}}
        if "memory" not in resources:
            resources["memory"] = {"overhead": {"perPod": "300Mi", "perContainer": "200Mi"}}
        return {**device, "nodeAllocatableResources": resources}

    def _taint(self) -> Document:
        dice = self._dice
        effect = dice.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))
        return {"key": dice.choice(("broken", "slow")), "value": dice.choice(("yes", "no")), "effect": effect}

    def _request(self, name: str, *, admin: bool) -> Document:
        dice = self._dice
        if dice.random() < 0.35:
            names = ("best", "good", "any")[-dice.choice((2, 2, 2, 3)) :]
            classes = ("large", "gpu", dice.choice(("gpu", "gpu", "nic")))[-len(names) :]
            alternatives = zip(names, classes, strict=True)
            return {
                "name": name,
                "firstAvailable": [{"name": each, **self._exact(kind, most=2)} for each, kind in alternatives],
            }
        exact = self._exact(dice.choice(("gpu", "gpu", "gpu", "large", "large", "nic")), most=1)
        if dice.random() < 0.05:
            exact["allocationMode"] = "All"
        elif dice.random() < 0.2:
            exact["count"] = 2
        if admin and dice.random() < 0.08:
            exact["adminAccess"] = True
        return {"name": name, "exactly": exact}

    def _exact(self, name: str, most: int) -> Document:
        dice = self._dice
        exact: Document = {"deviceClassName": name if dice.random() < 0.99 else "absent"}
        driver, capacity, amounts = DRIVER, "memory", ("3Gi", "8Gi", "20Gi")
        if name == "nic":
            driver, capacity, amounts = NETWORK, "bandwidth", ("500M", "1300M", "9G")
        if dice.random() < 0.35:
            exact["selectors"] = [{"cel": {"expression": self._expression(driver, capacity)}}]
        if dice.random() < 0.2:
            exact["tolerations"] = [self._toleration()]
        if self._features.consumable_capacity and dice.random() < 0.3:
            exact["capacity"] = {"requests": {capacity: dice.choice(amounts)}}
        if most > 1:
            exact["count"] = dice.randint(1, most)
        return exact

    def _toleration(self) -> Document:
        dice = self._dice
        if dice.random() < 0.5:
            return {"operator": "Exists"}
        return {
            "key": "broken",
            "operator": "Equal",
            "value": "yes",
            "effect": dice.choice(("NoSchedule", "NoExecute")),
        }

    def _expression(self, driver: str, capacity: str) -> str:
        amount = "20Gi" if capacity == "memory" else "20G"
        enough = f'device.capacity["{driver}"].{capacity}.compareTo(quantity("{amount}")) >= 0'
        if driver == NETWORK:
            return self._dice.choice((enough, f'device.attributes["{driver}"].speed >= 100'))
        attributes = f'device.attributes["{driver}"]'
        newer = f'{attributes}.driverVersion.isGreaterThan(semver("1.9.0"))'
        choices = [
            enough,
            enough,
            f'"driverVersion" in {attributes} && {newer}',
            f'{attributes}.?ecc.orValue(false) && {attributes}.size.matches("^(l|s)")',
            f'{attributes}.size in ["large", "huge"] || {attributes}.numa == 1',
        ]
        if self._ragged:
            choices.append(f"{attributes}.ecc")
        if self._features.list_type_attributes:
            choices += [f'"nodes" in {attributes} && {attributes}.nodes.includes(1)', f"{attributes}.numa.includes(1)"]
        if self._features.consumable_capacity:
            choices.append("device.allowMultipleAllocations == false")
        return self._dice.choice(choices)


def device_classes(*, extended: bool) -> list[Document]:
    """The classes; with `extended`, one stands behind an extended resource."""
    gpu = f'device.driver == "{DRIVER}"'
    named = {"extendedResourceName": WIDGET} if extended else {}
    return [
        _document("DeviceClass", "gpu", {"selectors": [{"cel": {"expression": gpu}}], **named}),
        _document(
            "DeviceClass",
            "large",
            {"selectors": [{"cel": {"expression": f'{gpu} && device.attributes["{DRIVER}"].size == "large"'}}]},
        ),
        _document("DeviceClass", "nic", {"selectors": [{"cel": {"expression": f'device.driver == "{NETWORK}"'}}]}),
    ]


def _names(request: Document) -> list[str]:
    """The names by which constraints mean a request, or one of its alternatives."""
    name = request["name"]
    return [name, *(f"{name}/{alternative['name']}" for alternative in request.get("firstAvailable", ()))]


def _document(kind: str, name: str, spec: Document) -> Document:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}
