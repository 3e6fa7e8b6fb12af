"""Choosing a node by incrementally updated groups of nodes gives the same as checking every node for each pod."""

import random
from dataclasses import replace
from typing import Any

import pytest

from dranode.api.documents import decode, encode
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import RELEASES
from dranode.sim.allocator.requests import Outcome
from dranode.sim.fit.choice import PodChoice, choice_of
from dranode.sim.fit.demand import copy_of, demand_of
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.amounts import pod_scheduling_errors
from dranode.sim.scheduler.documents import SchedulingPod
from tests.fakes.in_use import allocated_of
from tests.interop.clusters import RandomCluster
from tests.interop.goallocator import Scenario, scenarios

Document = dict[str, Any]
_NAMESPACES = ["blue", "green"]


def _documents(cluster: RandomCluster) -> tuple[list[Document], list[Document]]:
    """The cluster with its pods' claims, and the pods in order of creation."""
    nodes = cluster.nodes()
    documents = [*nodes, *cluster.classes(), *cluster.slices(nodes), *cluster.rules(nodes)]
    for namespace in _NAMESPACES:
        documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        documents += cluster.services(namespace)
    pods = []
    for more, pod in cluster.pods(_NAMESPACES):
        documents += more
        # A random pod may break a rule of the API server.
        if not any(pod_scheduling_errors(decode(SchedulingPod, pod))):
            pods.append(pod)
    return documents, pods


def _said(choice: PodChoice) -> object:
    """What people and programs see; the ids of shares are random."""
    return (
        choice.node,
        choice.best,
        choice.problem,
        choice.message,
        # The size of a group is the group's to say; a node that is checked alone counts as one.
        [replace(group, nearest=replace(group.nearest, count=1)) for group in choice.groups],
        [_devices(outcome) for outcome in choice.outcomes],
    )


def _devices(outcome: Outcome) -> object:
    return outcome.claim.metadata.name, outcome.error, encode(outcome.allocation)


@pytest.mark.parametrize("seed", range(25))
def test_choosing_by_groups_gives_the_same_as_checking_every_node(seed: int) -> None:
    cluster, dice = RandomCluster(seed), random.Random(seed)
    documents, pods = _documents(cluster)
    features = Features.of(RELEASES["1.37"], {})
    dump = read_dump([SourceDocument("case", index, each) for index, each in enumerate([*documents, *pods])])
    # The slow one also treats all devices as different.
    fast, slow = (
        Scheduler(
            Allocator(
                dump.slices, dump.classes, features, new_share_id=lambda: "share", rules=dump.rules, claims=claims
            )
        )
        for claims in (dump.device_claims, None)
    )
    states = [ClusterState.of(dump, features)]
    for number, pod in enumerate([*dump.waiting] * 3):
        # Mostly the newest state, sometimes an older one, or one without some of its pods.
        state = states[-1] if dice.random() < 0.8 else dice.choice(states)
        if dice.random() < 0.2 and state.demands:
            state = state.without_pods(frozenset(dice.sample(list(state.demands), 1)))
        demand = copy_of(demand_of(pod, dump, features), number)
        choice = fast.choose(state, demand)
        placement = slow.place(state, demand)
        cases = slow.cases(state, demand, placement.refusals) if placement.node is None else ()
        assert _said(choice) == _said(choice_of(placement, cases, len(state.nodes))), demand.pod.key
        if choice.node is not None:
            states.append(fast.bind(state, demand, choice.node, choice.outcomes))


def _outcomes(scenario: Scenario, features: Features, *, announced: bool) -> list[object]:
    document = scenario.document
    claims = [decode(ResourceClaim, each) for each in document["claims"]]
    allocator = Allocator(
        [decode(ResourceSlice, each) for each in document["slices"]],
        [decode(DeviceClass, each) for each in document["deviceClasses"]],
        features,
        new_share_id=lambda: "share",
        claims=[claim.spec.devices for claim in claims] if announced else None,
    )
    node, allocated = decode(Node, document["node"]), allocated_of(document["inUse"])
    return [_devices(outcome) for outcome in allocator.allocate(claims, node, allocated)]


@pytest.mark.parametrize("release", ["1.34", "1.36", "1.37"])
def test_attributes_that_no_claim_reads_change_no_answer(release: str) -> None:
    for scenario in scenarios(RELEASES[release], range(60)):
        features = Features.of(RELEASES[release], scenario.gates)
        known, unknown = (_outcomes(scenario, features, announced=announced) for announced in (True, False))
        assert known == unknown, scenario.seed
