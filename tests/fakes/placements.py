"""Compares a real kube-scheduler's decisions with the simulator's, and replays them without the scheduler."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dranode.api.documents import decode, encode_json
from dranode.api.manifests import SourceDocument
from dranode.api.quantity import Quantity
from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.requests import Outcome
from dranode.sim.cluster.extended import NOT_BOUND
from dranode.sim.fit.choice import Placement, PodChoice, RefusalCase, available, reason_counts
from dranode.sim.fit.demand import demand_of
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.snapshot import PodInfo

Document = dict[str, Any]
_FILTER_ENDS = 'running "DynamicResources" filter plugin'
_DRAWN_OR_AMOUNT = ("shareID", "consumedCapacity")


def difference(mine: Placement, real: Document, nodes: int) -> str:
    """Return how the answers differ; empty if they do not."""
    node = real["spec"].get("nodeName")
    if node is None:
        message = next(each["message"] for each in real["status"]["conditions"] if each["type"] == "PodScheduled")
        return _refused_otherwise(mine, message, nodes)
    if node in mine.tied:
        return ""
    if mine.node is None:
        return f"bound to {node}, but here: {_sentence(mine, nodes)}"
    scores = {score.node: (score.total, dict(score.plugins)) for score in mine.scores}
    return f"bound to {node}, but here to {mine.tied}: {scores}"


def _refused_otherwise(mine: Placement, message: str, nodes: int) -> str:
    """Return how the answer differs for a pod that was refused with a message."""
    if mine.node is not None:
        lottery = len(mine.tied) > 1 and message.startswith(NOT_BOUND.partition("{")[0])
        return "" if lottery else f"bound to no node, but here to {mine.tied}: {message}"
    if mine.problem and not mine.everywhere and (message == mine.problem or message.startswith(_FILTER_ENDS)):
        return ""  # an error of a claim that ends the attempt on both sides, in words of their own
    ours = _sentence(mine, nodes)
    return "" if message.startswith(ours) else f"here: {ours}; there: {message}"


def chosen_otherwise(choice: PodChoice, mine: Placement) -> str:
    """Return how the choice by groups of nodes differs from the choice over all nodes; empty if it does not."""
    if choice.node is None or mine.node is None:
        return "" if choice.node == mine.node else f"{choice.node or choice.message}, not {mine.tied}"
    tied = choice.best.tied if choice.best is not None else 0
    same = choice.node == mine.node and tied == len(mine.tied)
    return "" if same else f"{choice.node}, one of {tied}, not {mine.tied}"


def _sentence(mine: Placement, nodes: int) -> str:
    """The message of the pod's Event."""
    cases = (RefusalCase(refusal, None, name) for name, refusal in mine.refusals.items())
    return available(reason_counts(cases), nodes, mine.problem)


def devices_differ(outcome: Outcome, theirs: AllocationResult | None) -> str:
    """Return how a claim's devices differ from the recorded ones; empty if they do not."""
    name = outcome.claim.metadata.name
    if theirs is None or outcome.allocation is None:
        return f"claim {name} is not allocated"
    ours, others = (_results(each) for each in (outcome.allocation, theirs))
    return "" if ours == others else f"claim {name}: {ours} here, {others} there"


def sources_of(documents: Iterable[Document]) -> list[SourceDocument]:
    return [SourceDocument("case", index, document) for index, document in enumerate(documents)]


def replay(case: Document, features: Features) -> list[str]:
    """Replay a recording pod by pod, and yield every difference."""
    minor = features.release.number[0]
    dump = read_dump(sources_of(case["documents"]))
    allocator = Allocator(dump.slices, dump.classes, features, new_share_id=lambda: "share")
    scheduler, state = Scheduler(allocator), ClusterState.of(dump, features)
    differences = []
    for step in case["steps"]:
        real = step["pod"]
        unbound = {**real, "spec": {key: value for key, value in real["spec"].items() if key != "nodeName"}}
        demand = demand_of(decode(SchedulingPod, unbound), dump, features)
        mine = scheduler.place(state, demand)
        node = real["spec"].get("nodeName")
        claims = {each["metadata"]["name"]: decode(ResourceClaim, each) for each in step.get("claims", ())}
        differs = [difference(mine, real, len(state.nodes))]
        if node == mine.node:
            differs += [
                devices_differ(outcome, claims[outcome.claim.metadata.name].status.allocation)
                for outcome in mine.outcomes
            ]
        differences += [f"{demand.pod.key}: {text}" for text in differs if text]
        if node is not None:
            pod = decode(SchedulingPod, step.get("resized", real))
            mapped = pod.status.node_allocatable_resource_claim_statuses if features.node_allocatable_resources else ()
            after = PodInfo.of(pod, minor, mapped)
            allocated = [
                (each, each.status.allocation) for each in claims.values() if each.status.allocation is not None
            ]
            state = state.with_pod(replace(demand, info=after), node, allocated)
    return differences


def _results(allocation: AllocationResult) -> list[Document]:
    results = json.loads(encode_json(allocation))["devices"].get("results", [])
    return [{**_amounts(each), **{key: each[key] for key in each if key not in _DRAWN_OR_AMOUNT}} for each in results]


def _amounts(result: Document) -> Document:
    """A result's amounts as numbers: the API server writes 1500000000 as 1500M."""
    return {name: Quantity(text).value for name, text in result.get("consumedCapacity", {}).items()}
