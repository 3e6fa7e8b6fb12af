"""The simulator decides as Kueue's own code did, whose answers are in tests/vectors/flavors.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dranode.api.quantity import Quantity
from dranode.sim.queues.assign import (
    LAST_FLAVOR,
    Assignment,
    FlavorMode,
    Moment,
    PodSetAssignment,
    SearchState,
    Simulation,
    assign,
    still_valid,
)
from dranode.sim.queues.preemption import Preemptor
from dranode.sim.queues.setup import Setup, load
from dranode.sim.queues.simulate import QueueDecision, decide_workload
from dranode.sim.queues.values import FlavorResource, Workload, amount
from tests.fakes.queues import KUEUE, local_queue, sources, timestamp

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "flavors.json").read_text())
SCENARIOS = VECTORS["scenarios"]
# Preemption by fair sharing is not simulated.
BY_ID = [pytest.param(scenario, id=scenario["id"]) for scenario in SCENARIOS if not scenario.get("fairSharing")]
MODES = {
    FlavorMode.NO_FIT: "NoFit",
    FlavorMode.NO_CANDIDATES: "Preempt",
    FlavorMode.PREEMPT: "Preempt",
    FlavorMode.RECLAIM: "Preempt",
    FlavorMode.FIT: "Fit",
}
PREEMPTION = {"NoCandidates": FlavorMode.NO_CANDIDATES, "Preempt": FlavorMode.PREEMPT, "Reclaim": FlavorMode.RECLAIM}
IN_V1BETA1 = {"cohortName": "cohort"}


def _documents(scenario: Mapping[str, Any], version: str = KUEUE) -> list[dict[str, Any]]:
    """The scenario, as it would be in files."""
    made = [
        {"apiVersion": version if kind == "ClusterQueue" else KUEUE, "kind": kind, **item}
        for kind, key in (("ClusterQueue", "clusterQueues"), ("Cohort", "cohorts"), ("ResourceFlavor", "flavors"))
        for item in scenario[key]
    ]
    made += [
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **item}
        for item in scenario.get("deviceClasses", [])
    ]
    resources = {
        "deviceClassMappings": scenario.get("deviceClassMappings", []),
        "quotaCheckStrategy": scenario.get("quotaCheckStrategy", "BlockUndeclared"),
    }
    made.append({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "resources": resources})
    made.append(local_queue("door", scenario["workload"]["clusterQueue"]))
    made += [_workload(item) for item in (*scenario["usage"], scenario["workload"])]
    return made


def _workload(item: Mapping[str, Any]) -> dict[str, Any]:
    holder = {"name": "main", "count": 1, "requests": item.get("resourceUsage")}
    made: dict[str, Any] = {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {"name": item["name"], "creationTimestamp": timestamp(item["createdAt"])},
        "spec": {
            "queueName": "door",
            "priority": item["priority"],
            "podSets": [_pod_set(pod_set) for pod_set in item.get("podSets", [holder])],
        },
    }
    if "resourceUsage" in item:
        assignment = {"name": "main", "flavors": item["flavors"], "resourceUsage": item["resourceUsage"]}
        made["status"] = {"admission": {"clusterQueue": item["clusterQueue"], "podSetAssignments": [assignment]}}
    return made


def _pod_set(item: Mapping[str, Any]) -> dict[str, Any]:
    spec = {key: item[key] for key in ("nodeSelector", "affinity", "tolerations") if key in item}
    spec["containers"] = [{"name": "c", "resources": {"requests": item["requests"]}}]
    kept = {key: item[key] for key in ("name", "count", "minCount") if key in item}
    return {**kept, "template": {"spec": spec}}


def _setup(scenario: Mapping[str, Any]) -> Setup:
    return load(sources(_documents(scenario)))


def _now(scenario: Mapping[str, Any]) -> Moment:
    gates = scenario.get("featureGates", {})
    current = scenario["current"]
    preserve = gates.get("FlavorFungibilityPreserveScanProgress", True)
    return Moment(current["clusterQueueGeneration"], current["schedulingCycle"], preserve_progress=preserve)


def _last(scenario: Mapping[str, Any]) -> SearchState | None:
    last = scenario["lastState"]
    if last is None:
        return None
    shape = ("different",) if "schedulingHash" in last else None
    return SearchState(
        tuple(last["lastTriedFlavorIdx"]), last["clusterQueueGeneration"], last["schedulingCycle"], shape
    )


class Recorded:
    """An oracle that answers as Kueue's did, and fails on a question that Kueue did not ask."""

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self.answers = {
            (item["flavor"], item["resource"], amount(item["resource"], Quantity(item["quantity"]))): item
            for item in scenario["expected"]["simulations"]
        }
        self.asked: set[tuple[str, str, int]] = set()

    def __call__(self, workload: Workload, of: FlavorResource, wanted: int) -> Simulation:  # noqa: ARG002 - the seam
        self.asked.add((*of, wanted))
        answer = self.answers[*of, wanted]
        return Simulation(PREEMPTION[answer["result"]], answer["borrowAfter"], tuple(answer.get("targets", ())))


def _decide(scenario: Mapping[str, Any], setup: Setup) -> tuple[QueueDecision, Recorded]:
    oracle = Recorded(scenario)
    named = {item.workload.label: item for item in setup.admitted}
    recorded = tuple(named[name] for name in scenario["expected"]["preemptionTargets"])
    decision = decide_workload(
        setup.queues,
        setup.usage,
        setup.pending[0],
        _last(scenario),
        oracle,
        targets=lambda _: recorded,
        moment=_now(scenario),
    )
    return decision, oracle


def _attempts(item: PodSetAssignment) -> list[dict[str, Any]]:
    """As the vectors list them, by name."""
    listed = [
        {
            "flavor": attempt.flavor,
            "mode": MODES[attempt.worst.mode],
            "borrow": max((verdict.borrow for verdict in attempt.verdicts.values()), default=0),
            "preemption": attempt.worst.mode,
        }
        for scan in item.scans
        for attempt in scan.attempts
    ]
    return sorted(listed, key=lambda attempt: attempt["flavor"])


def _flavors(assignment: Assignment) -> list[dict[str, Any]]:
    return [
        {
            resource: {
                "flavor": got.flavor,
                "mode": MODES[got.verdict.mode],
                "borrows": got.verdict.borrow > 0,
                "borrow": got.verdict.borrow,
                "triedFlavorIdx": got.tried,
            }
            for resource, got in item.flavors.items()
        }
        for item in assignment.pod_sets
    ]


def test_every_scenario_of_kueue_is_here() -> None:
    assert len(SCENARIOS) == 85
    assert len({scenario["id"] for scenario in SCENARIOS}) == 85


@pytest.mark.parametrize("scenario", BY_ID)
def test_a_decision_is_that_of_kueue(scenario: dict[str, Any]) -> None:
    setup = _setup(scenario)
    decision, oracle = _decide(scenario, setup)
    expected = scenario["expected"]
    assert MODES[decision.assignment.mode] == expected["representativeMode"]
    assert decision.assignment.borrowing == expected["borrowing"]
    assert _flavors(decision.assignment) == [item["flavors"] for item in expected["podSets"]]
    assert [item.count for item in decision.assignment.pod_sets] == [item["count"] for item in expected["podSets"]]
    assert [MODES[item.mode] for item in decision.assignment.pod_sets] == [item["mode"] for item in expected["podSets"]]
    # The flavors that were looked at, and the questions about preemption.
    for item, wanted in zip(decision.assignment.pod_sets, expected["podSets"], strict=True):
        assert _attempts(item) == [
            {
                "flavor": attempt["flavor"],
                "mode": attempt["mode"],
                "borrow": attempt["borrow"],
                "preemption": PREEMPTION.get(
                    attempt.get("preemption", ""), FlavorMode.FIT if attempt["mode"] == "Fit" else FlavorMode.NO_FIT
                ),
            }
            for attempt in wanted["attempts"]
        ]
    assert oracle.asked == set(oracle.answers)
    # The state for the next attempt.
    assert list(decision.state.tried) == expected["lastState"]["lastTriedFlavorIdx"]
    assert decision.state.generation == expected["lastState"]["clusterQueueGeneration"]
    assert decision.state.cycle == expected["lastState"]["schedulingCycle"]
    assert decision.state.pending_flavors == expected["pendingFlavors"]
    # Usage and quota.
    assert {f"{of.flavor}/{of.resource}": number for of, number in decision.assignment.usage.items()} == {
        key: amount(key.partition("/")[2], Quantity(value)) for key, value in expected["assignedUsage"].items()
    }
    queue = scenario["workload"]["clusterQueue"]
    for key, numbers in expected["quotaBefore"].items():
        of = FlavorResource(*key.split("/", 1))
        node = setup.usage.nodes[queue]
        assert {
            "available": setup.usage.available(queue, of),
            "maxCapacity": setup.usage.capacity(queue, of),
            "nominal": node.quota(of).nominal,
            "used": setup.usage.at(node, of),
        } == {name: amount(of.resource, Quantity(value)) for name, value in numbers.items()}


@pytest.mark.parametrize(
    "scenario",
    [item for item in BY_ID if "lastStateOutdated" in item.values[0]["expected"]],  # type: ignore[index]
)
def test_a_saved_state_is_outdated_when_kueue_says_so(scenario: dict[str, Any]) -> None:
    last = _last(scenario)
    assert last is not None
    valid = still_valid(last, _setup(scenario).pending[0], _now(scenario))
    assert valid != scenario["expected"]["lastStateOutdated"]


@pytest.mark.parametrize("scenario", BY_ID)
def test_our_preemption_answers_like_kueues(scenario: dict[str, Any]) -> None:
    setup = _setup(scenario)
    preemptor = Preemptor(setup.queues, setup.usage, setup.admitted)
    for expected in scenario["expected"]["simulations"]:
        of = FlavorResource(expected["flavor"], expected["resource"])
        simulated = preemptor.simulate(setup.pending[0], of, amount(of.resource, Quantity(expected["quantity"])))
        assert simulated.mode is PREEMPTION[expected["result"]]
        assert simulated.borrow == expected["borrowAfter"]
        assert [key.removeprefix("default/") for key in simulated.targets] == expected.get("targets", [])


@pytest.mark.parametrize("scenario", BY_ID)
def test_the_preempted_workloads_are_kueues(scenario: dict[str, Any]) -> None:
    setup = _setup(scenario)
    preemptor = Preemptor(setup.queues, setup.usage, setup.admitted)
    workload = setup.pending[0]
    decision = decide_workload(
        setup.queues,
        setup.usage,
        workload,
        _last(scenario),
        preemptor.simulate,
        targets=lambda found: preemptor.targets(workload, found.contested, found.usage),
        moment=_now(scenario),
    )
    assert [item.workload.label for item in decision.targets] == scenario["expected"]["preemptionTargets"]
    assert _flavors(decision.assignment) == [item["flavors"] for item in scenario["expected"]["podSets"]]


@pytest.mark.parametrize("scenario", [item for item in BY_ID if "flavorFungibilityV1beta1" in item.values[0]])  # type: ignore[operator]
def test_the_v1beta1_form_of_a_queue_is_the_same_queue(scenario: dict[str, Any]) -> None:
    older = {**scenario, "clusterQueues": []}
    for queue in scenario["clusterQueues"]:
        spec = {IN_V1BETA1.get(key, key): value for key, value in queue["spec"].items()}
        if queue["metadata"]["name"] == "cq":
            spec["flavorFungibility"] = scenario["flavorFungibilityV1beta1"]
        older["clusterQueues"].append({**queue, "spec": spec})
    assert load(sources(_documents(older, "kueue.x-k8s.io/v1beta1"))).queues == _setup(scenario).queues


def test_an_assignment_alone_needs_no_moment() -> None:
    setup = _setup(SCENARIOS[0])
    assignment, state = assign(setup.queues, setup.usage, setup.pending[0], None, Recorded(SCENARIOS[0]))
    assert assignment.mode is FlavorMode.FIT
    assert state.tried == ({"cpu": 0},)
    assert LAST_FLAVOR not in state.tried[0].values()
