"""The scenarios of tests/vectors/allocator.json: what kube-scheduler 1.36.3's allocator answered (see its `about`)."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode, encode_json
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import RELEASES
from dranode.sim.allocator.requests import Outcome, Reason
from dranode.sim.allocator.state import Allocated

VECTORS = Path(__file__).parents[3] / "vectors" / "allocator.json"
SCENARIOS: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))["scenarios"]


def outcomes(scenario: dict[str, Any]) -> list[Outcome]:
    numbers = itertools.count(1)
    allocator = Allocator(
        [decode(ResourceSlice, slice_) for slice_ in scenario["slices"]],
        [decode(DeviceClass, device_class) for device_class in scenario["deviceClasses"]],
        Features.of(RELEASES["1.36"], scenario.get("features", {})),
        new_share_id=lambda: f"share-{next(numbers)}",
    )
    node = decode(Node, {"metadata": scenario["node"]})
    allocated = Allocated.of(decode(ResourceClaim, claim) for claim in scenario.get("allocated", ()))
    claims = [decode(ResourceClaim, claim) for claim in scenario["claims"]]
    made: list[Outcome] = []
    for together in [[claim] for claim in claims] if scenario.get("mode") == "sequence" else [claims]:
        got = allocator.allocate(together, node, allocated)
        allocated = allocated.with_allocations(outcome.allocation for outcome in got if outcome.allocation)
        made += got
    return made


def as_expected(outcome: Outcome) -> dict[str, Any]:
    """An outcome in the form of the vectors, without the text of errors."""
    name = {"claim": outcome.claim.metadata.name}
    if outcome.allocation is not None:
        allocation = json.loads(encode_json(outcome.allocation))
        return {**name, "outcome": "allocated", "allocation": {"devices": {}, **allocation}}
    assert outcome.reason is not None
    if outcome.reason is Reason.DOES_NOT_FIT:
        assert outcome.scope is None
        return {**name, "outcome": "does-not-fit"}
    return {**name, "outcome": "error", "errorKind": outcome.reason.value, "errorScope": outcome.scope}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["id"] for scenario in SCENARIOS])
def test_a_scenario_gets_kube_schedulers_answer(scenario: dict[str, Any]) -> None:
    expected = [
        {key: value for key, value in each.items() if key != "error"} for each in scenario["expected"]["claims"]
    ]
    made = outcomes(scenario)
    assert [as_expected(outcome) for outcome in made] == expected
    if "quirk" in scenario:
        assert any(outcome.notes for outcome in made), "a quirk of kube-scheduler is not told"
    else:
        notes = [note for outcome in made for note in outcome.notes]
        assert not [note for note in notes if "has binding conditions" not in note]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["id"] for scenario in SCENARIOS])
def test_an_error_is_one_sentence_that_names_something(scenario: dict[str, Any]) -> None:
    for outcome in outcomes(scenario):
        if outcome.error is not None:
            assert "\n" not in outcome.error
            assert any(word in outcome.error for word in ("claim", "class", "node", "pool"))
