"""The scenarios of Kubernetes' own allocator with its answers: tests/vectors/scheduler-*.json (see their `about`)."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.core.api.documents import decode, encode_json
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import GATES, Features
from dranode.sim.allocator.outcome import Reason
from dranode.sim.allocator.state import Allocated, Consumption, PoolID, PoolState

VECTORS = Path(__file__).parents[3] / "vectors"


def scenarios(release: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads((VECTORS / f"scheduler-{release}.json").read_text("utf-8"))["scenarios"]
    return made


def features_of(gates: Iterable[str]) -> Features:
    """The gates that are on; all others are off."""
    on = {gate for each in gates for gate in each.split("+")}
    return Features(**{field: name in on for name, field in GATES.items()})


def allocated_of(in_use: dict[str, Any]) -> Allocated:
    pools: dict[PoolID, PoolState] = {}

    def enter(driver: str, pool: str, **more: frozenset[Any]) -> None:
        known = pools.get(PoolID(driver, pool), PoolState())
        pools[PoolID(driver, pool)] = PoolState(
            known.devices | more.get("devices", frozenset()),
            known.shared | more.get("shared", frozenset()),
            known.consumed | more.get("consumed", frozenset()),
        )

    for name in in_use["devices"]:
        driver, pool, device = name.split("/")
        enter(driver, pool, devices=frozenset({device}))
    for name in in_use["shares"]:
        driver, pool, device, _ = name.split("/")
        enter(driver, pool, shared=frozenset({device}))
    for name, amounts in in_use["consumed"].items():
        driver, pool, device = name.split("/")
        consumed = {Consumption(device, capacity, Quantity(amount).value) for capacity, amount in amounts.items()}
        enter(driver, pool, shared=frozenset({device}), consumed=frozenset(consumed))
    return Allocated(pools)


def answer(scenario: dict[str, Any]) -> Any:
    """Allocations without shares' random IDs; nothing where it does not fit; `error` where the attempt ends."""
    allocator = Allocator(
        [decode(ResourceSlice, slice_) for slice_ in scenario["slices"]],
        [decode(DeviceClass, device_class) for device_class in scenario["deviceClasses"]],
        features_of(scenario["features"]),
        new_share_id=itertools.repeat("share").__next__,
    )
    node = decode(Node, {"metadata": scenario["node"]})
    claims = [decode(ResourceClaim, claim) for claim in scenario["claims"]]
    outcomes = allocator.allocate(claims, node, allocated_of(scenario["inUse"]))
    if any(outcome.reason not in (None, Reason.DOES_NOT_FIT) for outcome in outcomes):
        return "error"
    return [{"devices": {}} | json.loads(encode_json(outcome.allocation)) for outcome in outcomes if outcome.allocation]


# What is modelled is 1.36, so these are answered as 1.36 does; each reason is what 1.37 changed.
_DISTINCT = "distinctAttribute compares all devices, not one for each request"
_CONFIG = "a configuration is listed once, and without requests where it is for all"
_GATE = "a gate that is new in 1.37"
DIFFERENT_IN_1_37 = {
    "claim-config-covering-all-requests-is-cleared": _CONFIG,
    "prioritized-list-class-config": _CONFIG,
    "with-claim-config-for-two-requests": _CONFIG,
    "with-class-device-config": _CONFIG,
    "distinct-constraint-single-request-count-3-not-distinct": _DISTINCT,
    "distinct-constraint-single-request-multiple-devices-attribute-set": _DISTINCT,
    "distinct-constraint-two-requests-with-count-not-distinct": _DISTINCT,
    "list-attributes-distinct-constraint-single-request-count-3-not-distinct": _DISTINCT,
    "list-attributes-match-constraint-backtrack-needs-intersection-restore": "giving back widens common values again",
    "list-attributes-disabled-distinct-constraint-with-lists": "selectors see lists whatever the gate says",
    "list-attributes-disabled-match-constraint-with-lists": "selectors see lists whatever the gate says",
    "consumable-capacity-range-policy-overflow-aborts-not-skip": "an amount beyond 64 bits ends the attempt",
    "consumable-capacity-range-policy-rounded-value-overflow-rejected": "an amount beyond 64 bits ends the attempt",
    "partitionable-consumable-capacity-shared-device-counter-not-recharged": "a share without capacity keeps counters",
    "partitionable-devices-counter-cache-scoped-by-pool-ID": "counters are kept by driver and pool, not by pool name",
    "compatibility-groups-disabled-skips-ungrouped-device-in-grouped-pool": _GATE,
    "compatibility-groups-incompatible-with-allocated-peer": _GATE,
    "derived-attributes-override": _GATE,
    "derived-attributes-with-prioritized-list": _GATE,
    "optional-node-operations-missing-feature": _GATE,
}


def marks(release: str, scenario: str) -> tuple[pytest.MarkDecorator, ...]:
    reason = DIFFERENT_IN_1_37.get(scenario) if release == "1.37.2" else None
    return () if reason is None else (pytest.mark.xfail(reason=reason, strict=True),)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=f"{release}-{scenario['id']}", marks=marks(release, scenario["id"]))
        for release in ("1.36.3", "1.37.2")
        for scenario in scenarios(release)
    ],
)
def test_a_scenario_of_the_scheduler_is_answered_as_it_answers(scenario: dict[str, Any]) -> None:
    expected = scenario["expected"]
    assert answer(scenario) == ("error" if "error" in expected else expected["allocations"])
