"""The scenarios of Kubernetes' own allocator with its answers: tests/vectors/scheduler-*.json (see their `about`)."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode, encode_json
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import GATES, release
from dranode.sim.allocator.requests import Reason
from tests.fakes.in_use import allocated_of

VECTORS = Path(__file__).parents[3] / "vectors"


def scenarios(name: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads((VECTORS / f"scheduler-{name}.json").read_text("utf-8"))["scenarios"]
    return made


def features_of(gates: Iterable[str], kubernetes: str) -> Features:
    """The feature gates that are on; all others are off."""
    on = {gate for each in gates for gate in each.split("+")}
    return Features.of(release(kubernetes), {name: name in on for name in GATES})


def answer(scenario: dict[str, Any], features: Features) -> Any:
    """Allocations without shares' random IDs; nothing where it does not fit; `error` where the attempt ends."""
    allocator = Allocator(
        [decode(ResourceSlice, slice_) for slice_ in scenario["slices"]],
        [decode(DeviceClass, device_class) for device_class in scenario["deviceClasses"]],
        features,
        new_share_id=itertools.repeat("share").__next__,
    )
    node = decode(Node, scenario["node"] if "metadata" in scenario["node"] else {"metadata": scenario["node"]})
    claims = [decode(ResourceClaim, claim) for claim in scenario["claims"]]
    outcomes = allocator.allocate(claims, node, allocated_of(scenario["inUse"]))
    if any(outcome.reason not in (None, Reason.DOES_NOT_FIT) for outcome in outcomes):
        return "error"
    return [{"devices": {}} | json.loads(encode_json(outcome.allocation)) for outcome in outcomes if outcome.allocation]


@pytest.mark.parametrize(
    ("kubernetes", "scenario"),
    [
        pytest.param(kubernetes, scenario, id=f"{kubernetes}-{scenario['id']}")
        for kubernetes in ("1.36.3", "1.37.2")
        for scenario in scenarios(kubernetes)
    ],
)
def test_a_scenario_of_the_scheduler_gets_the_schedulers_answer(kubernetes: str, scenario: dict[str, Any]) -> None:
    expected = scenario["expected"]
    assert answer(scenario, features_of(scenario["features"], kubernetes)) == (
        "error" if "error" in expected else expected["allocations"]
    )


@pytest.mark.parametrize(
    ("kubernetes", "scenario"),
    [
        pytest.param(kubernetes, scenario, id=f"{kubernetes}-{scenario['id']}")
        for scenario in scenarios("minimal")
        for kubernetes in scenario["expected"]
    ],
)
def test_scenarios_that_random_tests_found_get_the_releases_answer(kubernetes: str, scenario: dict[str, Any]) -> None:
    features = Features.of(release(kubernetes), scenario["gates"])
    assert answer(scenario, features) == scenario["expected"][kubernetes]
