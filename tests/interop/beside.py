"""Runs the same random clusters in a real control plane and in the simulator, and compares them pod by pod."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dranode.api.documents import decode, encode
from dranode.api.resource import ResourceClaim
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.allocator.requests import Outcome
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.choice import Placement
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.snapshot import PodInfo
from tests.fakes.placements import chosen_otherwise, devices_differ, difference, sources_of
from tests.interop.api import Api, ClaimWatch, PodWatch, RefusedError
from tests.interop.clusters import ADMIN, RandomCluster
from tests.interop.control_plane import TOKEN

Document = dict[str, Any]
_RESOURCE = "/apis/resource.k8s.io/v1"
_SCHEDULING = "/apis/scheduling.k8s.io/v1beta1"
_PLURALS = {"DeviceClass": "deviceclasses"}
# The fields of `spec.resourceClaims[]` that refer to something.
_SOURCES = {"resourceClaimName": "ResourceClaim", "resourceClaimTemplateName": "ResourceClaimTemplate"}
_RULES_STABLE_SINCE = 37
# How long it takes until new objects have reached the scheduler, which watches each kind separately.
_SETTLE = 0.15
_ATTEMPTS = 4
_OVERHEAD = {"cpu": "250m", "memory": "120Mi"}


@dataclass
class Tally:
    """Counts the outcomes of all pods.

    Attributes:
        pods: those that came.
        bound: of these, how many were bound.
        lotteries: of these, how many might have been bound to several nodes.
        named: pods that named their node, which pass the scheduler by.
        templates: pods that had a claim from a template.
        attached: claims with devices that had to be attached first (binding conditions).
        repeated: attempts that were made once more.
        refused: pods that the server refused.
        differences: what differs.
    """

    pods: int = 0
    bound: int = 0
    lotteries: int = 0
    named: int = 0
    templates: int = 0
    attached: int = 0
    repeated: int = 0
    refused: int = 0
    differences: list[str] = field(default_factory=list)


class Beside:
    """One control plane, and cases in it one after another."""

    def __init__(self, api: Api, watches: tuple[PodWatch, ClaimWatch], version: str, gates: str = "") -> None:
        self.api = api
        self.pods, self.claims = watches
        self.features = Features.parse(gates, release(version))
        self.tally = Tally()
        for each in RandomCluster(0, self.features).classes():
            api.create(f"{_RESOURCE}/deviceclasses", each)
        heavy = {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": {"podFixed": _OVERHEAD}}
        api.create("/apis/node.k8s.io/v1/runtimeclasses", heavy)

    @classmethod
    @contextlib.contextmanager
    def running(cls, api: Api, version: str, gates: str = "") -> Iterator[Beside]:
        """Watch the server while cases run."""
        with (
            contextlib.closing(PodWatch(api, TOKEN)) as pods,
            contextlib.closing(ClaimWatch(api, TOKEN)) as claims,
        ):
            yield cls(api, (pods, claims), version, gates)

    def case(self, seed: int) -> Document:
        """Build the cluster of a seed and create its pods one after another; returns their outcomes."""
        case = _Case(self, RandomCluster(seed, self.features))
        try:
            case.run()
        finally:
            self.tally.attached = self.claims.attached
            case.clear()
        return {"documents": case.documents, "steps": case.steps}


class _Case:
    """One cluster on both sides."""

    def __init__(self, beside: Beside, cluster: RandomCluster) -> None:
        self._api = beside.api
        self._beside = beside
        self._tally = beside.tally
        self._features = beside.features
        self._minor = beside.features.release.number[0]
        self._mappings = beside.features.node_allocatable_resources
        self._cluster = cluster
        self._namespaces = [f"{cluster.name}-red", f"{cluster.name}-blue"]
        nodes = cluster.nodes()
        slices, rules = cluster.slices(nodes), [_of_version(each, self._minor) for each in cluster.rules(nodes)]
        services = cluster.services(self._namespaces[0])
        groups = [each for namespace in self._namespaces for each in cluster.groups(namespace)]
        pods = list(cluster.pods(self._namespaces))
        # The cluster as the server has it, for a comparison without a real scheduler.
        self.documents: list[Document] = []
        self.steps: list[Document] = []
        self._rules = bool(rules)
        # Namespaces come before their objects, and nodes before the devices that stand for their resources.
        self._create([*(_namespace(name) for name in self._namespaces), *nodes])
        self._create([*slices, *rules, *services, *groups, *(each for made, _ in pods for each in made)])
        self._pods = [pod for _, pod in pods if not self._lacks(pod)]
        self._tally.refused += len(pods) - len(self._pods)
        self._templates = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["spec"]
            for each in self.documents
            if each["kind"] == "ResourceClaimTemplate"
        }
        # The names of the claims of PodGroups, by namespace, group and entry.
        self._shared: dict[tuple[str, ...], str] = {}
        for group in [each for each in self.documents if each["kind"] == "PodGroup"]:
            self._make_claims_of(group)
        self.documents += cluster.classes()
        self._dump = read_dump(sources_of(self.documents))
        allocator = Allocator(
            self._dump.slices,
            self._dump.classes,
            beside.features,
            new_share_id=lambda: "share",
            rules=self._dump.rules,
            claims=self._dump.device_claims,
        )
        self._scheduler = Scheduler(allocator)
        self._state = ClusterState.of(self._dump, beside.features)

    def run(self) -> None:
        time.sleep(_SETTLE)
        for pod in self._pods:
            try:
                self._bring(pod)
            except RefusedError as error:
                # A random pod may break a rule of the server.
                if "is invalid" not in str(error):
                    raise
                self._tally.refused += 1

    def clear(self) -> None:
        """Delete the cluster. Its claims stay, because no other cluster has their devices."""
        for namespace in self._namespaces:
            self._api.delete_all(f"/api/v1/namespaces/{namespace}/pods")
        if self._rules:
            self._api.delete_all(f"/apis/{_rule_version(self._minor)}/devicetaintrules")
        self._api.delete_all(f"{_RESOURCE}/resourceslices")
        self._api.delete_all("/api/v1/nodes")

    def _bring(self, pod: Document) -> None:
        """Create a pod and compare; a difference is checked again, as the scheduler may not have seen all objects."""
        problem = ""
        for attempt in range(_ATTEMPTS):
            metadata = {**pod["metadata"], "name": f"{pod['metadata']['name']}-{attempt}"}
            created = self._api.create(
                f"/api/v1/namespaces/{metadata['namespace']}/pods", {**pod, "metadata": metadata}
            )
            self._tally.pods += not attempt
            before = self._demand(created)
            demand = self._demand(*self._make_claims(created))
            mine = self._scheduler.place(self._state, demand)
            real = self._beside.pods.settled(metadata["namespace"], metadata["name"])
            if pod["spec"].get("nodeName"):
                self._name_node(demand, mine, real)
                return
            outcomes = self._outcomes(demand, mine, real)
            claims = self._claims(demand, real)
            problem = (
                difference(mine, real, len(self._state.nodes))
                or _devices_differ(outcomes, claims)
                or self._otherwise(demand, mine, before)
            )
            if not problem:
                self._tally.lotteries += len(mine.tied) > 1
                self._follow(demand, real, claims)
                return
            self._tally.repeated += 1
            self._remove(demand)
            self._give_back(demand, real)
            time.sleep(_SETTLE * 2 ** (attempt + 1))
        self._tally.differences.append(f"{self._cluster.name} {pod['metadata']['name']}: {problem}")

    def _demand(self, pod: Document, claims: Iterable[Document] = ()) -> PodDemand:
        """Return the pod as the simulator reads it, with the claims made for it."""
        more = {ClaimKey.of(claim): claim for claim in (decode(ResourceClaim, each) for each in claims)}
        self._dump = replace(self._dump, claims={**self._dump.claims, **more})
        (read,) = read_dump(sources_of([pod])).pods
        return demand_of(read, self._dump, self._features)

    def _make_claims(self, pod: Document) -> tuple[Document, list[Document]]:
        """Create the claims of the pod's templates, as a controller would; returns the pod with them."""
        metadata = pod["metadata"]
        group = metadata["namespace"], pod["spec"].get("schedulingGroup", {}).get("podGroupName")
        entries = [each for each in pod["spec"].get("resourceClaims", []) if "resourceClaimTemplateName" in each]
        if not entries:
            return pod, []
        self._tally.templates += metadata["name"].endswith("-0")
        names, claims = [], []
        for entry in entries:
            name = self._shared.get((*group, entry["name"]))
            if name is None:
                claims.append(self._generate(pod, entry))
                name = claims[-1]["metadata"]["name"]
            names.append(name)
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        return {**self._api.merge(path, _claim_statuses(entries, names)), "kind": "Pod"}, claims

    def _make_claims_of(self, group: Document) -> None:
        """Create the claims of a PodGroup."""
        metadata, entries = group["metadata"], group["spec"]["resourceClaims"]
        names = [self._generate(group, entry)["metadata"]["name"] for entry in entries]
        for entry, name in zip(entries, names, strict=True):
            self._shared[metadata["namespace"], metadata["name"], entry["name"]] = name
        path = f"{_SCHEDULING}/namespaces/{metadata['namespace']}/podgroups/{metadata['name']}/status"
        group["status"] = self._api.merge(path, _claim_statuses(entries, names))["status"]

    def _generate(self, owner: Document, entry: Document) -> Document:
        """Create the claim of an entry of a pod or PodGroup."""
        metadata = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": f"{metadata['name']}-{entry['name']}-x7x7x",
                "namespace": metadata["namespace"],
                "annotations": {"resource.kubernetes.io/pod-claim-name": entry["name"]},
                "ownerReferences": [reference],
            },
            "spec": self._templates[metadata["namespace"], entry["resourceClaimTemplateName"]],
        }
        made = self._api.create(_path(claim), claim)
        self.documents.append(_plain(made))
        return made

    def _otherwise(self, demand: PodDemand, mine: Placement, before: PodDemand) -> str:
        """Return how two other ways to the answer differ: groups of nodes, and claims that do not exist yet."""
        choice = self._scheduler.choose(self._state, demand)
        problem = chosen_otherwise(choice, mine)
        if problem:
            return f"chosen by groups of nodes: {problem}"
        early = self._scheduler.place(self._state, before) if before.claims != demand.claims else mine
        if (early.node, early.tied, early.refusals) != (mine.node, mine.tied, mine.refusals):
            return f"from the template {early.tied or early.problem}, with the claim {mine.tied or mine.problem}"
        return ""

    def _name_node(self, demand: PodDemand, mine: Placement, real: Document) -> None:
        """Continue after a pod that names its node: its claims are not allocated, and it uses the node's resources."""
        self._tally.named += 1
        waiting = [claim for claim in demand.claims if ClaimKey.of(claim) not in self._state.allocations]
        if mine.node is not None or not mine.problem:
            self._tally.differences.append(f"{demand.pod.key} names its node, but here: {mine.tied} {mine.problem}")
        for claim in waiting:
            if self._claim(ClaimKey.of(claim)).status.allocation is not None:
                self._tally.differences.append(
                    f"{demand.pod.key} names its node, and {claim.metadata.name} is allocated"
                )
        self.steps.append({"pod": _plain(real)})
        self._state = self._state.with_pod(demand, real["spec"]["nodeName"], ())

    def _outcomes(self, demand: PodDemand, mine: Placement, real: Document) -> tuple[Outcome, ...]:
        """Return what the claims get in the simulator on the node that the real scheduler chose."""
        node = real["spec"].get("nodeName")
        if node is None:
            return ()
        if node == mine.node:
            return mine.outcomes
        return self._scheduler.fits(self._state, demand, [node]).get(node, ())

    def _claims(self, demand: PodDemand, real: Document) -> list[ResourceClaim]:
        """Return a pod's allocated claims; the scheduler generates the name of the one for extended resources."""
        if real["spec"].get("nodeName") is None:
            return []
        keys = [ClaimKey.of(claim) for claim in demand.claims]
        keys = [key for key in keys if key not in self._state.allocations]
        special = real["status"].get("extendedResourceClaimStatus")
        if special is not None:
            keys.append(ClaimKey(real["metadata"]["namespace"], special["resourceClaimName"]))
        return [decode(ResourceClaim, self._beside.claims.until(key.namespace, key.name, _allocated)) for key in keys]

    def _claim(self, key: ClaimKey) -> ResourceClaim:
        path = f"{_RESOURCE}/namespaces/{key.namespace}/resourceclaims/{key.name}"
        return decode(ResourceClaim, self._api.send("GET", path))

    def _follow(self, demand: PodDemand, real: Document, claims: list[ResourceClaim]) -> None:
        """Apply the real scheduler's decision to the simulated cluster."""
        node = real["spec"].get("nodeName")
        step: Document = {"pod": _plain(real)}
        self.steps.append(step)
        if node is None:
            self._remove(demand)
            self._give_back(demand, real)
            return
        self._tally.bound += 1
        status = self._cluster.resized(real)
        if status is not None:
            path = f"/api/v1/namespaces/{real['metadata']['namespace']}/pods/{real['metadata']['name']}/status"
            real = self._api.merge(path, {"status": status})
            step["resized"] = _plain(real)
        step["claims"] = [encode(claim) for claim in claims]
        allocated = [(claim, claim.status.allocation) for claim in claims if claim.status.allocation is not None]
        pod = decode(SchedulingPod, real)
        devices = pod.status.node_allocatable_resource_claim_statuses if self._mappings else ()
        demand = replace(demand, info=PodInfo.of(pod, self._minor, devices))
        for claim in claims:
            if ClaimKey.of(claim) not in demand.entries.values():
                demand = demand.with_special(claim)
        self._state = self._state.with_pod(demand, node, allocated)

    def _remove(self, demand: PodDemand) -> None:
        namespace, name = demand.pod.metadata.namespace, demand.pod.metadata.name
        self._api.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
        if demand.extended:
            self._remove_made(namespace, name)

    def _give_back(self, demand: PodDemand, real: Document) -> None:
        """Deallocate the claims of a pod that was deleted."""
        refused = (each["message"] for each in real["status"]["conditions"] if each["status"] == "False")
        # An attempt that fails during binding may already have allocated claims.
        if real["spec"].get("nodeName") is None and not any(text.startswith("running PreBind") for text in refused):
            return
        for claim in demand.claims:
            key = ClaimKey.of(claim)
            if key not in self._state.allocations:
                path = f"{_RESOURCE}/namespaces/{key.namespace}/resourceclaims/{key.name}/status"
                self._api.merge(path, {"status": {"allocation": None, "reservedFor": None, "devices": None}})

    def _remove_made(self, namespace: str, pod: str) -> None:
        """Delete the claim that the scheduler created for the pod, as a controller would."""
        path = f"{_RESOURCE}/namespaces/{namespace}/resourceclaims"
        for claim in self._api.send("GET", path)["items"]:
            if claim["metadata"]["name"].startswith(f"{pod}-extended-resources-"):
                one = f"{path}/{claim['metadata']['name']}"
                self._api.merge(one, {"metadata": {"finalizers": None}})
                self._api.send("DELETE", one)

    def _create(self, documents: list[Document]) -> None:
        """Create objects that do not depend on each other; returns those that the server accepted."""
        for document, made in zip(
            documents, self._api.create_all([(_path(each), each) for each in documents]), strict=True
        ):
            if not isinstance(made, RefusedError):
                self.documents.append({**_plain(made), "kind": document["kind"], "apiVersion": document["apiVersion"]})
            elif "is invalid" not in str(made):
                raise made

    def _lacks(self, pod: Document) -> bool:
        """Whether the server refused an object that the pod needs."""
        known = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in self.documents}
        namespace = pod["metadata"]["namespace"]
        return any(
            (kind, namespace, entry[field]) not in known
            for entry in pod["spec"].get("resourceClaims", [])
            for field, kind in _SOURCES.items()
            if field in entry
        )


def _path(document: Document) -> str:
    """Return the path under which an object is created."""
    plural = _PLURALS.get(document["kind"], f"{document['kind'].lower()}s")
    version = document["apiVersion"]
    namespace = document["metadata"].get("namespace")
    return "/".join(
        ["/api" if version == "v1" else "/apis", version, *(["namespaces", namespace] if namespace else []), plural]
    )


def _namespace(name: str) -> Document:
    team = name.rpartition("-")[2]
    labels = {"team": team, **({ADMIN: "true"} if team == "blue" else {})}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _claim_statuses(entries: list[Document], names: list[str]) -> Document:
    pairs = zip(entries, names, strict=True)
    statuses = [{"name": entry["name"], "resourceClaimName": name} for entry, name in pairs]
    return {"status": {"resourceClaimStatuses": statuses}}


def _allocated(claim: Document) -> bool:
    return "allocation" in claim.get("status", {})


def _devices_differ(outcomes: tuple[Outcome, ...], claims: list[ResourceClaim]) -> str:
    """Return how claims differ from the allocated ones; empty if they are equal."""
    if len(outcomes) != len(claims):
        return f"{len(outcomes)} claims are allocated here, {len(claims)} there"
    differs = (
        devices_differ(outcome, claim.status.allocation) for outcome, claim in zip(outcomes, claims, strict=True)
    )
    return next(filter(None, differs), "")


def _of_version(rule: Document, minor: int) -> Document:
    """Return the DeviceTaintRule in the API version that the release serves."""
    return {**rule, "apiVersion": _rule_version(minor)}


def _rule_version(minor: int) -> str:
    return "resource.k8s.io/v1" if minor >= _RULES_STABLE_SINCE else "resource.k8s.io/v1beta2"


def _plain(document: Document) -> Document:
    """Return the document without the fields that the server adds."""
    kept = ("name", "namespace", "labels", "ownerReferences", "uid")
    metadata = {key: document["metadata"][key] for key in kept if key in document["metadata"]}
    return {**document, "metadata": metadata}
