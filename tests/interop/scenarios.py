"""Random scenarios for the allocator: slices, classes, claims and what is in use, with every feature in the mix.

A scenario is a document of the form of tests/vectors/scheduler-minimal.json, made from a seed alone. Names and values
are few, so that devices, pools, requests and constraints meet.
"""

from random import Random
from typing import Any, Final

Document = dict[str, Any]

DRIVERS: Final = ("a.example.com", "b.example.com")
NODE: Final[Document] = {
    "metadata": {"name": "n", "labels": {"zone": "east", "rank": "3"}},
    "status": {"declaredFeatures": ["DRAOptionalNodeOperations"]},
}
_STANDARD: Final = "resource.kubernetes.io/numaNode"
_SELECTORS: Final = (
    "true",
    'device.driver == "a.example.com"',
    'device.driver in ["a.example.com", "b.example.com"]',
    '"size" in device.attributes["a.example.com"] && device.attributes["a.example.com"].size == "big"',
    'device.attributes["a.example.com"].?size.orValue("") != "small"',
    'device.attributes["b.example.com"].?rank.orValue(0) < 2',
    'has(device.attributes["a.example.com"].healthy)',
    'device.attributes["resource.kubernetes.io"].?numaNode.orValue(0) <= 1',
    'device.capacity["a.example.com"].?memory.orValue(quantity("4")).compareTo(quantity("3")) >= 0',
    '!("memory" in device.capacity["b.example.com"]) || device.capacity["b.example.com"].memory.asInteger() > 1',
)
# These fail on some devices, or everywhere.
_FAILING: Final = (
    'device.attributes["a.example.com"].size == "big"',
    'device.attributes["b.example.com"].rank > 0',
    'device.capacity["a.example.com"].memory.isGreaterThan(quantity("2"))',
    "device.unknown",
    "device.driver",
    "device.allowMultipleAllocations != true",
    'device.attributes["a.example.com"].nodes.includes(1)',
    "1 / 0 == 1",
)
_DERIVED: Final = (
    'device.attributes["a.example.com"].?size.orValue("none")',
    'device.attributes["a.example.com"].?rank.orValue(7) % 2',
    "device.driver",
    'device.attributes["resource.kubernetes.io"].?numaNode.orValue(0)',
    'device.attributes["a.example.com"].size',
    'string(device.attributes["b.example.com"].?rank.orValue(1))',
)
_ATTRIBUTES: Final = (
    "a.example.com/size",
    "a.example.com/rank",
    "b.example.com/rank",
    _STANDARD,
    "a.example.com/nodes",
)
_AMOUNTS: Final = (
    "0",
    "1",
    "2",
    "3",
    "4",
    "500m",
    "1500m",
    "1Ki",
    "2Ki",
    "1.5",
    "3k",
    "300m",
    "0.3",
    "1e1",
    "100u",
    "2.25",
)


class ScenarioMaker:
    """One scenario from one seed."""

    def __init__(self, seed: int, gates: dict[str, bool], *, size: int = 4, strays: float = 0.03) -> None:
        """`gates` are those in force; a part of `strays` of all has fields whose gates are off."""
        self.random = Random(seed)
        self.gates = gates
        self.size = size
        self.strays = strays
        self.sets: dict[tuple[str, str], list[Document]] = {}
        self.devices: list[tuple[str, str, Document]] = []
        self.slices = 0
        # What a scenario is about: features are used much, a little or not at all.
        self.taste = {name: self.random.choice((0.0, 0.0, 0.15, 0.5)) for name in _TASTES}

    def make(self) -> Document:
        """The scenario."""
        slices = self._slices()
        classes = [self._class(number) for number in range(self.random.randint(1, 2))]
        claims = [self._claim(number, len(classes)) for number in range(1 if self._chance(0.5) else self._few(1, 3))]
        return {
            "node": NODE if self._chance(0.7) else {"metadata": NODE["metadata"]},
            "deviceClasses": classes,
            "slices": slices,
            "claims": claims,
            "inUse": self._in_use(),
        }

    # --- chance ---

    def _chance(self, part: float) -> bool:
        return self.random.random() < part

    def _likes(self, taste: str, gate: str = "") -> bool:
        if gate and not self.gates.get(gate, False) and not self._chance(self.strays):
            return False
        return self._chance(self.taste[taste])

    def _few(self, least: int, most: int) -> int:
        return min(self.random.randint(least, most), self.random.randint(least, most))

    def _amount(self) -> str:
        return self.random.choice(_AMOUNTS[:5] if self._chance(0.6) else _AMOUNTS)

    # --- slices ---

    def _slices(self) -> list[Document]:
        made: list[Document] = []
        for driver in DRIVERS[: self.random.randint(1, 2)]:
            for pool in ("p", "q")[: self.random.randint(1, 2)]:
                made += self._pool(driver, pool)
        self.random.shuffle(made)
        return made

    def _pool(self, driver: str, pool: str) -> list[Document]:
        generation, place = self.random.randint(1, 2), self._place()
        specs = self._specs(driver, pool)
        where = {"name": pool, "generation": generation, "resourceSliceCount": len(specs)}
        slices = [self._slice(driver, where, {**spec, **self._placed(spec, place)}) for spec in specs]
        if self._chance(0.03):
            slices.pop(self.random.randrange(len(slices)))
        if self._chance(0.08):
            other = {"name": pool, "generation": generation + self.random.choice((-1, 1))}
            where = {**other, "resourceSliceCount": self.random.choice((1, 1, 2))}
            slices.append(self._slice(driver, where, {"devices": [self._device(driver, pool)], **self._place()}))
        if self._chance(0.02) and slices:
            slices[0]["spec"]["pool"] = {**slices[0]["spec"]["pool"], "resourceSliceCount": len(specs) + 1}
        return slices

    def _specs(self, driver: str, pool: str) -> list[Document]:
        specs: list[Document] = []
        if self._likes("counters", "DRAPartitionableDevices"):
            self.sets[driver, pool] = [self._counter_set(name) for name in ("x", "y")[: self.random.randint(1, 2)]]
            if self._chance(0.04):
                self.sets[driver, pool].append(self._counter_set("x"))
            specs.append({"sharedCounters": self.sets[driver, pool]})
        for _ in range(self._few(1, 3)):
            devices = [self._device(driver, pool) for _ in range(self.random.randint(0, self.size))]
            specs.append({"devices": devices})
        return specs

    def _placed(self, spec: Document, place: Document) -> Document:
        mine = self._place() if self._chance(0.1) else place
        if mine.get("perDeviceNodeSelection"):
            for device in spec.get("devices", ()):
                places: list[Document] = [{"allNodes": True}, {"nodeName": "n"}, {"nodeName": "m"}]
                device.update(self.random.choice([*places, {"nodeSelector": self._node_selector()}]))
        if self._likes("skips", "DRAOptionalNodeOperations"):
            mine = mine | {"skipNodeOperations": self.random.choice((["*"], ["NodeUnprepareResources"]))}
        return mine

    def _slice(self, driver: str, where: Document, spec: Document) -> Document:
        self.slices += 1
        name = f"{self.random.randint(0, 9)}-{driver[0]}{where['name']}{self.slices}"
        return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": where, **spec}}

    def _place(self) -> Document:
        places: list[Document] = [{"nodeName": "n"}] * 10 + [{"allNodes": True}] * 2 + [{"nodeName": "m"}]
        places.append({"nodeSelector": self._node_selector()})
        if self._likes("per device", "DRAPartitionableDevices"):
            return {"perDeviceNodeSelection": True}
        return self.random.choice(places)

    def _node_selector(self) -> Document:
        requirement = self.random.choice(
            (
                {"key": "zone", "operator": "In", "values": ["east"]},
                {"key": "zone", "operator": "In", "values": ["west", "east"]},
                {"key": "zone", "operator": "NotIn", "values": ["east"]},
                {"key": "rank", "operator": "Gt", "values": ["2"]},
                {"key": "gpu", "operator": "DoesNotExist"},
            )
        )
        term: Document = {"matchExpressions": [requirement]}
        if self._chance(0.2):
            term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": ["n"]}]
        return {"nodeSelectorTerms": [term]}

    def _counter_set(self, name: str) -> Document:
        counters = {each: {"value": self.random.choice(("1", "2", "4", "8"))} for each in ("memory", "cores")}
        return {"name": name, "counters": counters}

    # --- devices ---

    def _device(self, driver: str, pool: str) -> Document:
        device: Document = {"name": f"d{len(self.devices)}"}
        if self._chance(0.01) and self.devices:
            device["name"] = self.devices[-1][2]["name"]
        self.devices.append((driver, pool, device))
        device["attributes"] = _once(self._attributes(), driver)
        shared = self._likes("shared", "DRAConsumableCapacity")
        if shared:
            device["allowMultipleAllocations"] = True
        if self._chance(0.5 if shared else 0.2):
            names = self.random.sample(("memory", f"{driver}/cores", "b.example.com/memory"), self.random.randint(1, 2))
            device["capacity"] = _once({name: self._capacity(shared=shared) for name in names}, driver)
        if self._likes("taints", "DRADeviceTaints"):
            device["taints"] = [self._taint() for _ in range(self._few(1, 2))]
        sets = self.sets.get((driver, pool))
        if sets and self._chance(0.7):
            device["consumesCounters"] = self._consumption(sets)
        if self._likes("binding", "DRADeviceBindingConditions"):
            device["bindingConditions"] = ["ready", "x.example.com/attached"][: self.random.randint(1, 2)]
            if self._chance(0.8):
                device["bindingFailureConditions"] = ["broken"]
        if self._likes("binding", "DRADeviceBindingConditions") and self._chance(0.5):
            device["bindsToNode"] = True
        return device

    def _attributes(self) -> Document:
        made: Document = {}
        choices: tuple[tuple[str, Document], ...] = (
            ("size", {"string": self.random.choice(("big", "small"))}),
            ("rank", {"int": self.random.randint(0, 2)}),
            ("b.example.com/rank", {"int": self.random.randint(0, 2)}),
            ("a.example.com/size", {"string": self.random.choice(("big", "small"))}),
            ("healthy", {"bool": self._chance(0.5)}),
            ("rank", {"version": self.random.choice(("1.0.0", "1.2.0"))}),
            (_STANDARD, {"int": self.random.randint(0, 1)}),
        )
        for name, value in choices:
            if self._chance(0.5):
                made[name] = value
        if self._likes("lists", "DRAListTypeAttributes"):
            for name in ("nodes", _STANDARD, "rank"):
                if self._chance(0.6):
                    values = self.random.sample((0, 1, 2, 3), self.random.randint(1, 3))
                    made[name] = {"ints": values} if self._chance(0.8) else {"strings": [str(one) for one in values]}
        return made

    def _capacity(self, *, shared: bool) -> Document:
        made: Document = {"value": self.random.choice(("2", "4", "8", "4Ki", "2500m"))}
        if not shared or not self._chance(0.6):
            return made
        policy: Document = {}
        kind = self.random.randint(0, 3)
        if kind == 1:
            values = sorted(self.random.sample((1, 2, 3, 4), self.random.randint(1, 3)))
            policy = {"default": str(values[0]), "validValues": [str(value) for value in values]}
        elif kind > 1:
            least = self.random.choice(("0", "1", "500m", "250m"))
            limits: Document = {"min": least}
            if self._chance(0.4):
                limits["max"] = self.random.choice(("3", "4", "2500m"))
            if self._chance(0.7):
                limits["step"] = self.random.choice(("1", "2", "250m", "500m", "1Ki"))
            policy = {"default": least if self._chance(0.8) else "2", "validRange": limits}
        elif self._chance(0.5):
            policy = {"default": self.random.choice(("1", "2"))}
        return made | ({"requestPolicy": policy} if policy else {})

    def _taint(self) -> Document:
        taint = {"key": self.random.choice(("sick", "old")), "effect": self.random.choice(_EFFECTS)}
        return taint | ({"value": self.random.choice(("x", "y"))} if self._chance(0.5) else {})

    def _consumption(self, sets: list[Document]) -> list[Document]:
        made = []
        for one in self.random.sample(sets, self.random.randint(1, len(sets))):
            names = self.random.sample(("memory", "cores"), self.random.randint(1, 2))
            if self._chance(0.01):
                names.append("unknown")
            entry: Document = {
                "counterSet": one["name"] if self._chance(0.99) else "unknown",
                "counters": {name: {"value": self.random.choice(("1", "1", "2", "4"))} for name in names},
            }
            if self._likes("groups", "DRADeviceCompatibilityGroups"):
                entry["compatibilityGroups"] = self.random.sample(("g", "h", "i"), self.random.randint(1, 2))
            made.append(entry)
        return made

    # --- classes and claims ---

    def _class(self, number: int) -> Document:
        spec: Document = {"selectors": self._selectors()}
        if self._chance(0.3):
            spec["config"] = [self._opaque() for _ in range(self._few(1, 2))]
        return {"metadata": {"name": f"class{number}"}, "spec": spec}

    def _opaque(self) -> Document:
        return {"opaque": {"driver": self.random.choice(DRIVERS), "parameters": {"n": self.random.randint(0, 9)}}}

    def _selectors(self) -> list[Document]:
        made = []
        for _ in range(self._few(0, 2)):
            expressions = _FAILING if self._chance(0.02) else _SELECTORS
            made.append({"cel": {"expression": self.random.choice(expressions)}})
        return made

    def _claim(self, number: int, classes: int) -> Document:
        requests = [self._request(index, classes) for index in range(1 if self._chance(0.4) else self._few(1, 4))]
        devices: Document = {"requests": requests}
        names = [request["name"] for request in requests]
        names += [f"{one['name']}/{sub['name']}" for one in requests for sub in one.get("firstAvailable", ())]
        constraints = [self._constraint(names) for _ in range(self._few(1, 3)) if self._likes("constraints")]
        if constraints:
            devices["constraints"] = constraints
        if self._likes("config"):
            devices["config"] = [
                {**self._opaque(), **({"requests": self._some(names)} if self._chance(0.7) else {})}
                for _ in range(self._few(1, 3))
            ]
        return {"metadata": {"namespace": "default", "name": f"c{number}"}, "spec": {"devices": devices}}

    def _some(self, names: list[str]) -> list[str]:
        return self.random.sample(names, self.random.randint(1, min(3, len(names))))

    def _constraint(self, names: list[str]) -> Document:
        kind = "matchAttribute"
        if self._likes("distinct", "DRAConsumableCapacity"):
            kind = "distinctAttribute"
        made: Document = {kind: self.random.choice(_ATTRIBUTES)}
        if self._chance(0.5):
            made["requests"] = self._some(names)
        return made

    def _request(self, index: int, classes: int) -> Document:
        if self._likes("alternatives", "DRAPrioritizedList"):
            subs = [{"name": f"s{sub}", **self._wanted(classes, sub=True)} for sub in range(self.random.randint(1, 3))]
            return {"name": f"r{index}", "firstAvailable": subs}
        return {"name": f"r{index}", "exactly": self._wanted(classes, sub=False)}

    def _wanted(self, classes: int, *, sub: bool) -> Document:
        name = "missing" if self._chance(0.003) else f"class{self.random.randrange(classes)}"
        made: Document = {"deviceClassName": name}
        if self._likes("all"):
            made["allocationMode"] = "All"
        else:
            made |= {"allocationMode": "ExactCount", "count": 1 if self._chance(0.6) else self._few(1, 3)}
            if self._chance(0.01):
                made["count"] = self.random.choice((12, 20, 33))
        selectors = self._selectors()
        if selectors:
            made["selectors"] = selectors
        if not sub and self._likes("admin", "DRAAdminAccess"):
            made["adminAccess"] = True
        if self._likes("taints", "DRADeviceTaints"):
            made["tolerations"] = [self._toleration() for _ in range(self._few(1, 2))]
        if self._likes("shared", "DRAConsumableCapacity"):
            names = self.random.sample(_CAPACITIES, 1 if self._chance(0.8) else 2)
            made["capacity"] = {"requests": {name: self._amount() for name in names}}
        if self._likes("derived", "DRADerivedAttributes"):
            names = self.random.sample(_ATTRIBUTES, self.random.randint(1, 2))
            made["derivedAttributes"] = [{"name": one, "expression": self.random.choice(_DERIVED)} for one in names]
        return made

    def _toleration(self) -> Document:
        made: Document = {"operator": self.random.choice(("Exists", "Equal"))}
        if self._chance(0.8):
            made["key"] = self.random.choice(("sick", "old"))
        elif made["operator"] == "Equal":
            made["operator"] = "Exists"
        if made["operator"] == "Equal" and self._chance(0.7):
            made["value"] = self.random.choice(("x", "y"))
        if self._chance(0.3):
            made["effect"] = self.random.choice(_EFFECTS)
            if made["effect"] == "NoExecute" and self._chance(0.5):
                made["tolerationSeconds"] = self.random.choice((0, 30))
        return made

    # --- what is in use ---

    def _in_use(self) -> Document:
        devices, shares, consumed = set(), set(), {}
        for driver, pool, device in self.devices:
            name = f"{driver}/{pool}/{device['name']}"
            if not self._likes("in use") or self._chance(0.4):
                continue
            if not device.get("allowMultipleAllocations"):
                devices.add(name)
                continue
            shares.add(f"{name}/s")
            if device.get("capacity"):
                consumed[name] = {one: self.random.choice(("0", "1", "2")) for one in device["capacity"]}
        return {"devices": sorted(devices), "shares": sorted(shares), "consumed": consumed}


# A gate that Kubernetes does not turn on without another one.
NEEDS: Final = {
    "DRAFractionalCapacityRange": "DRAConsumableCapacity",
    "DRADeviceCompatibilityGroups": "DRAPartitionableDevices",
    "DRADeviceBindingConditions": "DRAResourceClaimDeviceStatus",
}
_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")
_CAPACITIES: Final = (
    "memory",
    "a.example.com/memory",
    "a.example.com/cores",
    "b.example.com/cores",
    "b.example.com/memory",
)
_TASTES: Final = (
    "admin",
    "all",
    "alternatives",
    "binding",
    "config",
    "constraints",
    "counters",
    "derived",
    "distinct",
    "groups",
    "in use",
    "lists",
    "per device",
    "shared",
    "skips",
    "taints",
)


def _once(entries: Document, driver: str) -> Document:
    """The entries without those that stand there twice, with the driver's domain and without: Go takes either."""
    return {
        name: value for name, value in entries.items() if name.removeprefix(f"{driver}/") not in entries.keys() - {name}
    }


def gates_of(seed: int, defaults: dict[str, bool], free: list[str]) -> dict[str, bool]:
    """The gates of a scenario: half the time the defaults, else with some of those in `free` flipped."""
    random = Random(~seed)
    if random.random() < 0.5:
        return dict(defaults)
    part = random.choice((0.1, 0.3, 0.6))
    gates = {name: value ^ (name in free and random.random() < part) for name, value in defaults.items()}
    for name, needed in NEEDS.items():
        gates[name] = gates.get(name, False) and gates.get(needed, False)
    return gates
