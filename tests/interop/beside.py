"""The same random clusters in a real control plane and in the simulator, pod by pod."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from dranode.driver.core.api.documents import decode, encode
from dranode.driver.core.api.resource import ResourceClaim
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.placement import Placement
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.snapshot import PodInfo
from tests.fakes.placements import devices_differ, difference, sources_of
from tests.interop.api import Api, PodWatch, RefusedError
from tests.interop.clusters import RandomCluster

Document = dict[str, Any]
_RESOURCE = "/apis/resource.k8s.io/v1"
# Until what was created has reached the scheduler, which is told of each kind by itself.
_SETTLE = 0.15
_ATTEMPTS = 3
_OVERHEAD = {"cpu": "250m", "memory": "120Mi"}


@dataclass
class Tally:
    """What came of all pods."""

    pods: int = 0
    bound: int = 0
    lotteries: int = 0
    repeated: int = 0
    refused: int = 0
    differences: list[str] = field(default_factory=list)


class Beside:
    """One control plane, and cases in it one after another."""

    def __init__(self, api: Api, watch: PodWatch, version: str, gates: str = "") -> None:
        self.api = api
        self.watch = watch
        self.features = Features.parse(gates, release(version))
        self.tally = Tally()
        for each in RandomCluster(0, mappings=self.features.node_allocatable_resources).classes():
            api.create(f"{_RESOURCE}/deviceclasses", each)
        heavy = {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": {"podFixed": _OVERHEAD}}
        api.create("/apis/node.k8s.io/v1/runtimeclasses", heavy)

    def case(self, seed: int) -> Document:
        """Build the cluster of a seed and bring its pods, one after another; returns what became of them."""
        case = _Case(self, RandomCluster(seed, mappings=self.features.node_allocatable_resources))
        try:
            case.run()
        finally:
            case.clear()
        return {"documents": case.documents, "steps": case.steps}


class _Case:
    """One cluster on both sides."""

    def __init__(self, beside: Beside, cluster: RandomCluster) -> None:
        self._api = beside.api
        self._watch = beside.watch
        self._tally = beside.tally
        self._minor = beside.features.release.number[0]
        self._features = beside.features
        self._mappings = beside.features.node_allocatable_resources
        self._cluster = cluster
        self._namespaces = [f"{cluster.name}-red", f"{cluster.name}-blue"]
        self._made = [self._namespace(self._namespaces[0], "red"), self._namespace(self._namespaces[1], "blue")]
        nodes = [self._api.create("/api/v1/nodes", node) for node in cluster.nodes()]
        self._made += [*nodes, *cluster.classes()]
        self._made += [self._api.create(f"{_RESOURCE}/resourceslices", each) for each in cluster.slices(nodes)]
        self._made += [self._service(each) for each in cluster.services(self._namespaces[0])]
        dump = read_dump(sources_of(self._made))
        self._scheduler = Scheduler(Allocator(dump.slices, dump.classes, beside.features, new_share_id=lambda: "share"))
        self._state = ClusterState.of(dump, beside.features)
        # What the real scheduler did, for those who have none.
        self.documents = [_plain(document) for document in self._made]
        self.steps: list[Document] = []

    def run(self) -> None:
        time.sleep(_SETTLE)
        for claims, pod in self._cluster.pods(self._namespaces):
            path = f"{_RESOURCE}/namespaces/{pod['metadata']['namespace']}/resourceclaims"
            try:
                made = [self._api.create(path, claim) for claim in claims]
                self._made += made
                self.documents += map(_plain, made)
                self._bring(pod)
            except RefusedError as error:
                # A pod that is made up at random may break a rule of the server.
                if "is invalid" not in str(error):
                    raise
                self._tally.refused += 1

    def clear(self) -> None:
        for namespace in self._namespaces:
            self._api.delete_all(f"/api/v1/namespaces/{namespace}/pods")
            claims = f"{_RESOURCE}/namespaces/{namespace}/resourceclaims"
            for claim in self._api.send("GET", claims)["items"]:
                if claim["metadata"].get("finalizers"):
                    self._api.merge(f"{claims}/{claim['metadata']['name']}", {"metadata": {"finalizers": None}})
            self._api.delete_all(claims)
        self._api.delete_all(f"{_RESOURCE}/resourceslices")
        self._api.delete_all("/api/v1/nodes")

    def _bring(self, pod: Document) -> None:
        """Bring one pod; what the scheduler had not heard of yet is no difference, so once more when it has."""
        problem = ""
        for attempt in range(_ATTEMPTS):
            metadata = {**pod["metadata"], "name": f"{pod['metadata']['name']}-{attempt}"}
            created = self._api.create(
                f"/api/v1/namespaces/{metadata['namespace']}/pods", {**pod, "metadata": metadata}
            )
            self._tally.pods += not attempt
            dump = read_dump(sources_of([*self._made, created]))
            demand = demand_of(dump.pods[0], dump, self._features)
            mine = self._scheduler.place(self._state, demand)
            real = self._watch.settled(metadata["namespace"], metadata["name"])
            problem = difference(mine, real, len(self._state.nodes)) or self._devices_differ(mine, real)
            if not problem:
                self._tally.lotteries += len(mine.tied) > 1
                self._follow(demand, real)
                return
            self._tally.repeated += 1
            self._remove(demand)
            time.sleep(_SETTLE * 2 ** (attempt + 1))
        self._tally.differences.append(f"{self._cluster.name} {pod['metadata']['name']}: {problem}")

    def _follow(self, demand: PodDemand, real: Document) -> None:
        """Go on from what the real scheduler did."""
        node = real["spec"].get("nodeName")
        step: Document = {"pod": _plain(real)}
        self.steps.append(step)
        if node is None:
            self._remove(demand)
            return
        self._tally.bound += 1
        status = self._cluster.resized(real)
        if status is not None:
            path = f"/api/v1/namespaces/{real['metadata']['namespace']}/pods/{real['metadata']['name']}/status"
            real = self._api.merge(path, {"status": status})
            step["resized"] = _plain(real)
            time.sleep(_SETTLE)
        outcomes = self._scheduler.fits(self._state, demand, [node])[node]
        claims = [self._claim(outcome.claim, real) for outcome in outcomes]
        step["claims"] = [encode(claim) for claim in claims]
        allocated = [(claim, claim.status.allocation) for claim in claims if claim.status.allocation is not None]
        pod = decode(SchedulingPod, real)
        devices = pod.status.node_allocatable_resource_claim_statuses if self._mappings else ()
        demand = replace(demand, info=PodInfo.of(pod, self._minor, devices))
        for claim in claims:
            if ClaimKey.of(claim) not in demand.entries.values():
                demand = demand.with_special(claim)
        self._state = self._state.with_pod(demand, node, allocated)

    def _devices_differ(self, mine: Placement, real: Document) -> str:
        if real["spec"].get("nodeName") != mine.node:
            return ""  # another node of a lottery
        for outcome in mine.outcomes:
            differs = devices_differ(outcome, self._claim(outcome.claim, real).status.allocation)
            if differs:
                return differs
        return ""

    def _claim(self, claim: ResourceClaim, pod: Document | None = None) -> ResourceClaim:
        """The claim as it is now; that for a pod's extended resources has a name that the scheduler has made."""
        special = (pod or {}).get("status", {}).get("extendedResourceClaimStatus")
        made = pod is not None and claim.metadata.name == f"{pod['metadata']['name']}-extended-resources"
        name = special["resourceClaimName"] if special and made else claim.metadata.name
        path = f"{_RESOURCE}/namespaces/{claim.metadata.namespace}/resourceclaims/{name}"
        return decode(ResourceClaim, self._api.send("GET", path))

    def _remove(self, demand: PodDemand) -> None:
        """Take a pod away, and what its claims were given for it."""
        namespace, name = demand.pod.metadata.namespace, demand.pod.metadata.name
        self._api.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
        self._remove_made(namespace, name)
        for claim in demand.claims:
            current = self._claim(claim)
            users = [user for user in current.status.reserved_for if user.name != name]
            if current.status.allocation is not None and not users:
                path = f"{_RESOURCE}/namespaces/{namespace}/resourceclaims/{claim.metadata.name}/status"
                self._api.merge(path, {"status": {"allocation": None, "reservedFor": None}})

    def _remove_made(self, namespace: str, pod: str) -> None:
        """Delete the claim that the scheduler has made for the pod, which a controller would do."""
        path = f"{_RESOURCE}/namespaces/{namespace}/resourceclaims"
        for claim in self._api.send("GET", path)["items"]:
            if claim["metadata"]["name"].startswith(f"{pod}-extended-resources-"):
                one = f"{path}/{claim['metadata']['name']}"
                self._api.merge(one, {"metadata": {"finalizers": None}})
                self._api.send("DELETE", one)

    def _service(self, service: Document) -> Document:
        self._api.create(f"/api/v1/namespaces/{service['metadata']['namespace']}/services", service)
        return service

    def _namespace(self, name: str, team: str) -> Document:
        made = self._api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"team": team}}})
        return {**made, "kind": "Namespace", "apiVersion": "v1"}


def _plain(document: Document) -> Document:
    """The document without what the server adds for itself."""
    metadata = {
        key: document["metadata"][key] for key in ("name", "namespace", "labels") if key in document["metadata"]
    }
    return {**document, "metadata": metadata}
