"""Claims for a driver: the identity that kubelet sends, and the object in the API server."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from dranode.api.documents import API_VERSION
from dranode.api.quantity import Quantity
from dranode.sanity.kinds import KubeDocument
from dranode.sanity.kubelet import ClaimIdentity

NAMESPACE: Final = "sanity"
_CLASS: Final = "sanity.example.com"


@dataclass(frozen=True)
class BenchClaim:
    """A claim for the driver: the identity that kubelet sends, and the object."""

    identity: ClaimIdentity
    document: KubeDocument

    @property
    def uid(self) -> str:
        """Return its UID."""
        return self.identity.uid

    @property
    def results(self) -> list[KubeDocument]:
        """Return the results of its allocation."""
        return list(self.document["status"]["allocation"]["devices"]["results"])

    @property
    def allocated(self) -> set[tuple[str, str]]:
        """Return pool and name of each allocated device."""
        return {(result["pool"], result["device"]) for result in self.results}


def allocated_claim(
    identity: ClaimIdentity,
    results: Sequence[Mapping[str, Any]],
    pod: str,
    *,
    requests: Sequence[str] = (),
    config: Iterable[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
) -> BenchClaim:
    """Return a claim that is allocated, and reserved for a pod.

    Args:
        identity: of the claim.
        results: of the allocation; those without a request get one of `requests`, or one made up.
        pod: the name of the pod.
        requests: names of requests (`name`, or `name/subrequest`).
        config: of the allocation.
        annotations: of the claim.
    """
    names = [*requests, *(f"r{index}" for index in range(len(requests), len(results)))]
    filled = [{**result, "request": result.get("request") or names[index]} for index, result in enumerate(results)]
    metadata: KubeDocument = {"namespace": identity.namespace, "name": identity.name, "uid": identity.uid}
    metadata["annotations"] = dict(annotations or {})
    metadata["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    document = {
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": {"devices": {"requests": _requests(filled)}},
        "status": {
            "allocation": {"devices": {"results": filled, "config": list(config)}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": str(uuid.uuid4())}],
        },
    }
    return BenchClaim(identity, document)


def _requests(results: Sequence[Mapping[str, Any]]) -> list[KubeDocument]:
    """Return the requests of a spec that such results fulfil."""
    requests: dict[str, KubeDocument] = {}
    for result in results:
        name, slash, alternative = str(result["request"]).partition("/")
        if slash:
            chosen = {"name": alternative, "deviceClassName": _CLASS}
            requests.setdefault(name, {"name": name, "firstAvailable": [chosen]})
        else:
            exactly: KubeDocument = {"deviceClassName": _CLASS}
            if result.get("adminAccess"):
                exactly["adminAccess"] = True
            if name in requests:
                requests[name]["exactly"] |= {"count": requests[name]["exactly"].get("count", 1) + 1}
            requests.setdefault(name, {"name": name, "exactly": exactly})
    return list(requests.values())


def missing_claim() -> BenchClaim:
    """Return a claim that does not exist in the API server."""
    identity = ClaimIdentity("sanity", f"missing-{uuid.uuid4().hex[:8]}", str(uuid.uuid4()))
    return BenchClaim(identity, {"status": {"allocation": {"devices": {"results": []}}}})


def deallocate(document: dict[str, Any]) -> None:
    """Remove a claim's allocation."""
    document["status"] = {}


_BLOCKING: Final = ("NoSchedule", "NoExecute")
# A claim takes this part of a capacity without a policy.
_PART: Final = 8


@dataclass(frozen=True)
class OfferedDevice:
    """A published device.

    Attributes:
        document: the device as it is published, in the form of v1.
        counters: the counters of its pool, by set and counter.
    """

    driver: str
    pool: str
    document: Mapping[str, Any]
    counters: Mapping[tuple[str, str], Fraction] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The device's name."""
        return str(self.document["name"])

    @property
    def shareable(self) -> bool:
        """Return whether several claims can have it at the same time."""
        return bool(self.document.get("allowMultipleAllocations"))

    @property
    def hindered(self) -> bool:
        """Return whether a plain claim would not get it, or only after another component has acted."""
        blocked = any(taint.get("effect") in _BLOCKING for taint in self.document.get("taints") or ())
        return blocked or bool(self.document.get("bindingConditions"))

    def draws(self) -> Iterator[tuple[tuple[str, str], Fraction]]:
        """Return the counters that it consumes, and how much of each."""
        for consumption in self.document.get("consumesCounters") or ():
            for counter, amount in consumption["counters"].items():
                yield (consumption["counterSet"], counter), Fraction(Quantity(amount["value"]).value)

    def amounts(self) -> dict[str, str]:
        """Return how much of each capacity a claim takes with the smallest possible request (KEP-5075)."""
        capacities = self.document.get("capacity") or {}
        return {name: _least(capacity) for name, capacity in capacities.items()} if self.shareable else {}

    def shares(self) -> int:
        """Return how many claims can take that much at the same time; 1 if it cannot be shared."""
        fits = [
            int(Quantity(capacity["value"]).value // Quantity(amount).value)
            for name, capacity in (self.document.get("capacity") or {}).items()
            if (amount := self.amounts().get(name)) and Quantity(amount).value > 0
        ]
        return max(1, min(fits, default=_PART)) if self.shareable else 1

    def result(self, request: str) -> dict[str, Any]:
        """Return the result that kube-scheduler would write for a request."""
        copied = {name: self.document[name] for name in ("bindingConditions", "bindingFailureConditions")
                  if self.document.get(name)}  # fmt: skip
        shared = {"shareID": str(uuid.uuid4()), "consumedCapacity": self.amounts()} if self.shareable else {}
        return {"request": request, "driver": self.driver, "pool": self.pool, "device": self.name, **copied, **shared}


def current_pools(slices: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the slices of each pool's newest generation, by the pool's name."""
    pools: dict[str, list[Mapping[str, Any]]] = {}
    for document in slices:
        pools.setdefault(document["spec"]["pool"]["name"], []).append(document)
    newest = {name: max(map(_generation, documents)) for name, documents in pools.items()}
    return {
        name: [document for document in documents if _generation(document) == newest[name]]
        for name, documents in sorted(pools.items())
    }


def offered_devices(slices: Iterable[Mapping[str, Any]]) -> list[OfferedDevice]:
    """Return the devices of complete pools; those that any claim can get come first."""
    devices = []
    for pool, documents in current_pools(slices).items():
        if len(documents) != documents[0]["spec"]["pool"]["resourceSliceCount"]:
            continue
        counters = {
            (group["name"], name): Fraction(Quantity(counter["value"]).value)
            for document in documents
            for group in document["spec"].get("sharedCounters") or ()
            for name, counter in group["counters"].items()
        }
        devices += [
            OfferedDevice(document["spec"]["driver"], pool, device, counters)
            for document in sorted(documents, key=lambda document: str(document["metadata"].get("name")))
            for device in document["spec"].get("devices") or ()
        ]
    return sorted(devices, key=lambda device: device.hindered)


def together(devices: Sequence[OfferedDevice]) -> list[OfferedDevice]:
    """Return the devices that can be allocated at the same time, because partitions share counters."""
    used: dict[tuple[str, tuple[str, str]], Fraction] = {}
    taken = []
    for device in devices:
        draws = list(device.draws())
        after = {(device.pool, key): used.get((device.pool, key), Fraction(0)) + amount for key, amount in draws}
        if all(amount <= device.counters.get(key, Fraction(0)) for (_, key), amount in after.items()):
            used |= after
            taken.append(device)
    return taken


def _generation(document: Mapping[str, Any]) -> int:
    return int(document["spec"]["pool"].get("generation", 0))


def _least(capacity: Mapping[str, Any]) -> str:
    policy = capacity.get("requestPolicy") or {}
    if (bounds := policy.get("validRange")) is not None:
        # The default may be the whole capacity. A request for the minimum or one step is valid too.
        steps = Quantity(bounds["min"]).value or Quantity(bounds.get("step") or policy["default"]).value
        return _text(Fraction(steps))
    if policy.get("validValues"):
        return str(policy["validValues"][0])
    if policy.get("default"):
        return str(policy["default"])
    value = Fraction(Quantity(capacity["value"]).value)
    return _text(value / _PART if value >= _PART and (value / _PART).denominator == 1 else value)


def _text(amount: Fraction) -> str:
    return str(amount.numerator) if amount.denominator == 1 else f"{int(amount * 1000)}m"
