"""How nodes are scored, where the recorded placements of real schedulers cannot tell one rule from another."""

import math
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.sim.scheduler.documents import LabelMatcher, LabelSelector, SchedulingNode, SchedulingPod
from dranode.sim.scheduler.node_rules import disliked_taints
from dranode.sim.scheduler.resources import ResourceScore
from dranode.sim.scheduler.scores import totals
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo, Snapshot
from dranode.sim.scheduler.spread import SpreadFilter, spread_scores
from dranode.sim.scheduler.versions import VersionedMap
from tests.fakes.clusters import node_document, pod_document


def pod(name: str = "p", **spec: Any) -> SchedulingPod:
    return decode(SchedulingPod, pod_document(name, "1", **spec))


def snapshot(*nodes: NodeInfo) -> Snapshot:
    return Snapshot(VersionedMap({node.name: node for node in nodes}), {}, lambda _: None)


def info(name: str, *pods: str, taints: tuple[dict[str, str], ...] = (), **labels: str) -> NodeInfo:
    node = decode(SchedulingNode, node_document(name, taints=taints, **labels))
    return NodeInfo.of(node, (PodInfo.of(pod(each), 37) for each in pods))


def test_the_score_of_devices_has_a_weight_of_two() -> None:
    nodes = snapshot(info("a"), info("b"))
    scores = totals(PodInfo.of(pod(), 37), nodes, list(nodes.nodes.values()), {"a": 8, "b": 4}, 37)
    assert [(score.node, score.plugins["DynamicResources"]) for score in scores] == [("a", 100), ("b", 50)]
    assert scores[0].total - scores[1].total == 2 * 50


def test_a_toleration_of_another_effect_does_not_change_a_taints_score() -> None:
    taint = {"key": "spot", "effect": "PreferNoSchedule"}
    node = info("a", taints=(taint,)).node
    assert disliked_taints(node, pod()) == 1
    assert disliked_taints(node, pod(tolerations=[{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}])) == 1
    assert disliked_taints(node, pod(tolerations=[{"key": "spot", "operator": "Exists"}])) == 0


@pytest.mark.parametrize(("minor", "balanced", "refused"), [(35, 87, False), (36, 72, False), (38, 72, True)])
def test_balance_and_empty_selectors_count_as_in_the_release(minor: int, balanced: int, *, refused: bool) -> None:
    nodes = snapshot(info("a", "o", zone="x"), info("b", zone="y"))
    spread = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "labelSelector": {}}
    filtered = SpreadFilter(pod(topologySpreadConstraints=[spread]), nodes, minor).refusal(nodes.nodes["a"].node)
    assert (filtered is not None) == refused
    assert ResourceScore.of(pod(), minor).balanced(nodes.nodes["a"]) == balanced


def test_spread_pods_weigh_by_the_logarithm_of_the_number_of_zones() -> None:
    apps = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    spread = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1, "labelSelector": apps}
    others = [f"o{number}" for number in range(10)]
    nodes = snapshot(info("a", *others, zone="x"), info("b", "p", zone="y"), info("c", zone="z"))
    most, some = round(10 * math.log(5)), round(math.log(5))
    scores = spread_scores(pod(topologySpreadConstraints=[spread]), nodes, nodes.nodes.values(), 37)
    assert scores == {"a": 0, "b": 100 * (most - some) // most, "c": 100}


def test_pods_of_a_service_are_spread_even_if_no_node_has_a_zone() -> None:
    together = LabelMatcher(LabelSelector(match_labels={"app": "p"}))
    nodes = Snapshot(VersionedMap({node.name: node for node in (info("a", "p"), info("b"))}), {}, lambda _: together)
    # One pod weighs log(4), and the default maxSkew of 3 for nodes adds 2 to each; zones are ignored. So the raw scores
    # are 3 and 2.
    assert spread_scores(pod(), nodes, nodes.nodes.values(), 37) == {"a": 100 * 2 // 3, "b": 100}
