"""Claims for a driver: what kubelet sends of one, and the object that the API server has."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dranode.api.documents import API_VERSION
from dranode.sanity.kinds import KubeDocument
from dranode.sanity.kubelet import ClaimIdentity

NAMESPACE: Final = "sanity"
_CLASS: Final = "sanity.example.com"


@dataclass(frozen=True)
class BenchClaim:
    """A claim for the driver: what kubelet sends of it, and the object."""

    identity: ClaimIdentity
    document: KubeDocument

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.identity.uid

    @property
    def results(self) -> list[KubeDocument]:
        """The results of its allocation."""
        return list(self.document["status"]["allocation"]["devices"]["results"])


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
    """The requests of the spec that such results answer."""
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
    """A claim that no API server has."""
    identity = ClaimIdentity("sanity", f"missing-{uuid.uuid4().hex[:8]}", str(uuid.uuid4()))
    return BenchClaim(identity, {"status": {"allocation": {"devices": {"results": []}}}})


def deallocate(document: dict[str, Any]) -> None:
    """Take a claim's allocation away."""
    document["status"] = {}
