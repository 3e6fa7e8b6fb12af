"""What the recorded scenarios do not cover: shortcuts of the search, its limit, gates, pools and explanations."""

import itertools
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import UsageError
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator import search
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import NEWEST_STABLE, RELEASES, Change, Release, release
from dranode.sim.allocator.requests import Outcome, Reason
from dranode.sim.allocator.state import Allocated

NODE = decode(Node, {"metadata": {"name": "n"}})


def slice_of(driver: str, *devices: dict[str, Any], count: int = 1, generation: int = 1, **spec: Any) -> dict[str, Any]:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": count}
    name = f"{driver}-{generation}-{'counters' if 'sharedCounters' in spec else 'devices'}"
    where = {} if "allNodes" in spec else {"nodeName": "n"}
    made = {"driver": driver, "pool": pool, **where, **spec}
    return {"metadata": {"name": name}, "spec": {**made, **({"devices": list(devices)} if devices else {})}}


def numa(name: str, node: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"resource.kubernetes.io/numaNode": {"int": node}, **more}}


def request(name: str, driver: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": driver, **more}}


def claim(*requests: dict[str, Any], name: str = "c", **more: Any) -> ResourceClaim:
    return decode(
        ResourceClaim, {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests), **more}}}
    )


def allocate(
    slices: list[dict[str, Any]],
    *claims: ResourceClaim,
    features: Features | None = None,
    allocated: Allocated | None = None,
) -> tuple[Outcome, ...]:
    drivers = {slice_["spec"]["driver"] for slice_ in slices} | {"gpu", "nic"}
    classes = [
        decode(
            DeviceClass,
            {
                "metadata": {"name": driver},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
            },
        )
        for driver in sorted(drivers)
    ]
    numbers = itertools.count()
    allocator = Allocator(
        [decode(ResourceSlice, slice_) for slice_ in slices],
        classes,
        features or Features(),
        new_share_id=lambda: str(next(numbers)),
    )
    return allocator.allocate(claims, NODE, allocated or Allocated())


def names(outcome: Outcome) -> list[str]:
    assert outcome.allocation is not None, outcome.error
    return [result.device for result in outcome.allocation.devices.results]


POOL = {"generation": 1, "resourceSliceCount": 1}
ALIGNED = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]


def test_another_device_is_tried_if_a_constraint_depends_on_it() -> None:
    slices = [
        slice_of("gpu", numa("gpu-0", 0), numa("gpu-1", 0, x={"int": 1}), numa("gpu-2", 1)),
        slice_of("nic", numa("eth0", 1)),
    ]
    (outcome,) = allocate(slices, claim(request("gpu", "gpu"), request("nic", "nic"), constraints=ALIGNED))
    assert names(outcome) == ["gpu-2", "eth0"]


def test_an_impossible_request_ends_the_search_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_STEPS", 5_000)
    devices = [{"name": f"d{number:03d}", "attributes": {"id": {"int": number}}} for number in range(128)]
    (outcome,) = allocate([slice_of("gpu", *devices)], claim(request("many", "gpu", count=16), request("nic", "nic")))
    assert outcome.reason is Reason.DOES_NOT_FIT
    assert "request nic needs 1 device of class nic; driver nic publishes none here" in str(outcome.error)


def test_devices_that_differ_only_in_their_name_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_STEPS", 5_000)
    devices = [numa(f"d{number:03d}", number // 64) for number in range(128)]
    (outcome,) = allocate([slice_of("gpu", *devices)], claim(request("many", "gpu", count=32), constraints=ALIGNED))
    assert names(outcome) == [f"d{number:03d}" for number in range(32)]
    (outcome,) = allocate(
        [slice_of("gpu", *devices[32:96])],
        claim(request("a", "gpu", count=20), request("b", "gpu", count=12), constraints=ALIGNED),
        claim(request("a", "gpu", count=1), constraints=[{"matchAttribute": "example.com/none"}]),
    )[:1]
    assert outcome.reason is Reason.DOES_NOT_FIT


def test_a_claim_that_does_not_even_fit_alone_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_STEPS", 5_000)
    devices = [{"name": f"d{number:02d}", "attributes": {"id": {"int": number % 2}}} for number in range(10)]
    wanted = claim(*(request(name, "gpu") for name in "abc"), constraints=[{"distinctAttribute": "gpu/id"}], name="c2")
    others = [claim(request("a", "gpu"), name=name) for name in ("c0", "c1")]
    for version in ("1.36", "1.37"):
        outcomes = allocate([slice_of("gpu", *devices)], *others, wanted, features=Features.of(release(version)))
        assert {outcome.reason for outcome in outcomes} == {Reason.DOES_NOT_FIT}


def test_a_claim_that_does_not_fit_alone_fits_if_pools_share_counters() -> None:
    def drawing(driver: str, cores: int, *devices: int) -> list[dict[str, Any]]:
        def counters(amount: int) -> dict[str, Any]:
            return {"counters": {"cores": {"value": str(amount)}}}

        draws = [
            {"name": f"{driver}-{amount}", "consumesCounters": [{"counterSet": "x", **counters(amount)}]}
            for amount in devices
        ]
        return [
            slice_of(driver, count=2, sharedCounters=[{"name": "x", **counters(cores)}]),
            slice_of(driver, *draws, count=2),
        ]

    slices = [*drawing("gpu", 8, 7, 6, 1), *drawing("nic", 0, 5)]
    wanted = claim(request("a", "gpu"), name="c0"), claim(request("a", "nic"), name="c1")
    outcomes = allocate(slices, *wanted, features=Features.of(release("1.36.3")))
    assert [names(outcome) for outcome in outcomes] == [["gpu-1"], ["nic-5"]]
    assert not any(outcome.allocation for outcome in allocate(slices, *wanted))


def test_a_claim_that_does_not_fit_alone_fits_after_an_overflow() -> None:
    policy = {"default": "4", "validRange": {"min": "4", "step": "4"}}
    devices = [
        {
            "name": f"d{number}",
            "allowMultipleAllocations": True,
            "attributes": {"id": {"int": number}},
            "capacity": {"memory": {"value": "8", "requestPolicy": policy}},
        }
        for number in range(3)
    ]
    last = [{"cel": {"expression": 'device.attributes["gpu"].id == 2'}}]
    much = {"requests": {"memory": "9223372036854775806"}}
    wanted = (
        claim(request("a", "gpu", capacity=much), name="c0"),
        claim(request("a", "gpu", capacity={"requests": {"memory": "12"}}, selectors=last), name="c1"),
    )
    outcomes = allocate([slice_of("gpu", *devices)], *wanted, features=Features.of(release("1.36")))
    assert [names(outcome) for outcome in outcomes] == [["d2"], ["d2"]]
    # The second claim gets more than there is, which the note on the first one explains.
    assert [["wrap around" in note for note in outcome.notes] for outcome in outcomes] == [[True], []]


def test_a_search_that_takes_too_long_stops_at_the_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_STEPS", 2_000)
    devices = [{"name": f"d{number:02d}", "attributes": {"id": {"int": number}}} for number in range(40)]
    constraints = [{"requests": ["b"], "distinctAttribute": "gpu/nothing"}]
    wanted = claim(request("a", "gpu", count=16), request("b", "gpu"), constraints=constraints)
    (outcome,) = allocate([slice_of("gpu", *devices)], wanted)
    assert (outcome.reason, outcome.scope) == (Reason.SEARCH_TOO_LONG, "node")
    assert "2000 steps" in str(outcome.error)


def test_many_claims_with_many_devices_do_not_exhaust_the_stack() -> None:
    devices = [{"name": f"d{number:04d}"} for number in range(1024)]
    slices = [
        {**slice_of("gpu", *devices[start : start + 128], count=8), "metadata": {"name": f"s{start:04d}"}}
        for start in range(0, 1024, 128)
    ]
    outcomes = allocate(slices, *(claim(request("r", "gpu", count=32), name=f"c{number}") for number in range(32)))
    assert [name for outcome in outcomes for name in names(outcome)] == [device["name"] for device in devices]


def test_a_share_without_capacity_is_released_as_often_as_it_was_taken() -> None:
    counters = [{"name": "s", "counters": {"memory": {"value": "10"}}}]
    shared = {
        "name": "shared",
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "10"}}}],
    }
    slices = [slice_of("gpu", count=2, sharedCounters=counters), slice_of("gpu", shared, count=2)]
    first = [{"name": "both", "deviceClassName": "gpu"}, {"name": "one", "deviceClassName": "gpu"}]
    (outcome,) = allocate(slices, claim({"name": "a", "firstAvailable": first}, request("b", "gpu")))
    assert names(outcome) == ["shared", "shared"]
    (outcome,) = allocate(
        slices, claim({"name": "a", "firstAvailable": first}, request("b", "gpu"), request("c", "nic"))
    )
    assert outcome.reason is Reason.DOES_NOT_FIT


@pytest.mark.parametrize("published", ["cpu", "dra.cpu/cpu"])
@pytest.mark.parametrize("consumed", ["cpu", "dra.cpu/cpu"])
def test_consumed_capacity_counts_under_the_short_and_the_full_name(published: str, consumed: str) -> None:
    group = {"name": "numa0", "allowMultipleAllocations": True, "capacity": {published: {"value": "8"}}}
    taken = {"request": "r", "driver": "dra.cpu", "pool": "n", "device": "numa0", "shareID": "1"}
    results = [
        {**taken, "consumedCapacity": {consumed: "3"}},
        {**taken, "shareID": "2", "consumedCapacity": {"dra.cpu/cpu": "2"}},
    ]
    allocation = {"allocation": {"devices": {"results": results}}}
    before = Allocated.of([decode(ResourceClaim, {"metadata": {"name": "before"}, "status": allocation})])
    fits, not_fits = (
        allocate(
            [slice_of("dra.cpu", group)],
            claim(request("r", "dra.cpu", capacity={"requests": {published: count}})),
            allocated=before,
        )[0]
        for count in ("3", "4")
    )
    assert names(fits) == ["numa0"]
    assert not_fits.allocation is None


def _without_capacity(kubernetes: Release) -> Features:
    gates = {"DRAConsumableCapacity": False, "DRAFractionalCapacityRange": False, "DRAPartitionableDevices": True}
    return Features.of(kubernetes, gates)


@pytest.mark.parametrize("kubernetes", RELEASES)
@pytest.mark.parametrize("mode", ["ExactCount", "All"])
def test_a_share_is_the_whole_device_if_capacity_is_no_longer_shared(kubernetes: str, mode: str) -> None:
    group = {"name": "numa0", "allowMultipleAllocations": True, "capacity": {"cpu": {"value": "8"}}}
    taken = {"request": "r", "driver": "dra.cpu", "pool": "n", "device": "numa0", "shareID": "1"}
    results = [{**taken, "consumedCapacity": {"dra.cpu/cpu": "2"}}]
    status = {"allocation": {"devices": {"results": results}}}
    before = Allocated.of([decode(ResourceClaim, {"metadata": {"name": "before"}, "status": status})])
    off = _without_capacity(RELEASES[kubernetes])
    wanted = claim(request("r", "dra.cpu", allocationMode=mode))
    slices = [slice_of("dra.cpu", group, {"name": "numa1"})]
    (outcome,) = allocate(slices, wanted, allocated=before, features=off)
    if mode == "ExactCount":
        assert names(outcome) == ["numa1"]
    else:
        assert outcome.reason is Reason.DOES_NOT_FIT


def test_a_share_consumes_counters_if_capacity_is_no_longer_shared() -> None:
    draws = [{"counterSet": "all", "counters": {"c": {"value": "1"}}}]
    slices = [
        slice_of("gpu", count=2, sharedCounters=[{"name": "all", "counters": {"c": {"value": "1"}}}]),
        slice_of("gpu", *({"name": name, "consumesCounters": draws} for name in ("half", "whole")), count=2),
    ]
    taken = {"request": "r", "driver": "gpu", "pool": "n", "device": "half", "shareID": "1"}
    status = {"allocation": {"devices": {"results": [taken]}}}
    before = Allocated.of([decode(ResourceClaim, {"metadata": {"name": "before"}, "status": status})])
    off = _without_capacity(NEWEST_STABLE)
    (outcome,) = allocate(slices, claim(request("r", "gpu")), allocated=before, features=off)
    assert outcome.reason is Reason.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("gate", "wanted", "message"),
    [
        ("DRAAdminAccess", request("r", "gpu", adminAccess=True), "wants admin access"),
        (
            "DRAConsumableCapacity",
            request("r", "gpu", capacity={"requests": {"x": "1"}}),
            "DRAConsumableCapacity",
        ),
        (
            "DRAPrioritizedList",
            {"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]},
            "DRAPrioritizedList",
        ),
    ],
)
def test_a_claim_that_needs_a_gate_that_is_off_is_an_error(gate: str, wanted: dict[str, Any], message: str) -> None:
    (outcome,) = allocate(
        [slice_of("gpu", {"name": "g"})], claim(wanted), features=Features.of(NEWEST_STABLE, {gate: False})
    )
    assert (outcome.reason, outcome.scope) == (Reason.FEATURE_OFF, "fatal")
    assert message in str(outcome.error)


def test_gates_that_are_off_change_which_devices_can_be_allocated() -> None:
    tainted = {"name": "g", "taints": [{"key": "k", "effect": "NoSchedule"}]}
    binding = {"name": "g", "bindingConditions": ["a/b"], "bindingFailureConditions": ["a/c"]}
    one = claim(request("r", "gpu"))
    assert allocate([slice_of("gpu", tainted)], one)[0].allocation is None
    assert names(allocate([slice_of("gpu", tainted)], one, features=Features(device_taints=False))[0]) == ["g"]
    assert names(allocate([slice_of("gpu", binding)], one)[0]) == ["g"]
    off = Features(device_binding_conditions=False)
    assert allocate([slice_of("gpu", binding)], one, features=off)[0].allocation is None
    shared = {"name": "g", "allowMultipleAllocations": True}
    (outcome,) = allocate([slice_of("gpu", shared)], one, features=Features(consumable_capacity=False))
    assert outcome.allocation is not None
    assert outcome.allocation.devices.results[0].share_id is None


@pytest.mark.parametrize(
    ("kubernetes", "text", "message"),
    [
        ("1.37", "DRAFoo=true", '"DRAFoo" is not simulated for Kubernetes 1.37'),
        ("1.37", "DRADeviceTaints=maybe", "maybe"),
        ("1.37", "DRAPrioritizedList=false", "DRAPrioritizedList is locked to true in Kubernetes 1.37"),
        ("1.36", "DRADerivedAttributes=true", '"DRADerivedAttributes" is not simulated for Kubernetes 1.36'),
        ("1.37", "DRAResourcePoolStatus=true", "its effect is not simulated"),
        ("1.37", "DRAConsumableCapacity=false", "DRAFractionalCapacityRange of Kubernetes 1.37 needs DRAConsumable"),
        ("1.36", "DRAResourceClaimDeviceStatus=false", "DRADeviceBindingConditions of Kubernetes 1.36 needs"),
        ("1.34", "DRAConsumableCapacity=true", "alpha feature gate DRAConsumableCapacity of Kubernetes 1.34 is not"),
    ],
)
def test_a_feature_gate_that_the_release_does_not_let_change_is_refused(
    kubernetes: str, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Features.parse(text, release(kubernetes))


@pytest.mark.parametrize("name", ["1.33", "1.40", "1", "latest", "1.37.x", "v1.37"])
def test_a_release_that_is_not_simulated_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not simulated; choose"):
        release(name)


def test_a_patch_release_has_what_was_backported_to_it() -> None:
    carried_back = Change.COUNTERS_BY_POOL_ID
    assert [carried_back in release(name).changes for name in ("1.36", "1.36.3", "1.36.4", "1.37.0")] == [
        False,
        False,
        True,
        True,
    ]


def test_a_note_says_that_the_release_searches_in_random_order() -> None:
    pools = [slice_of("gpu", {"name": "d"}), slice_of("nic", {"name": "d"})]
    both = [slice_of("gpu", {"name": "d"}), slice_of("gpu", {"name": "e"}, pool={**POOL, "name": "other"})]
    old = Features.of(release("1.35"))
    (drawn,) = allocate(both, claim(request("r", "gpu")), features=old)
    assert names(drawn) == ["d"]
    assert ["in random order" in note for note in drawn.notes] == [True]
    assert not allocate(both, claim(request("r", "gpu")))[0].notes
    assert not allocate(pools, claim(request("r", "gpu")), features=old)[0].notes
    assert not allocate(both, claim(request("r", "nic")), features=old)[0].notes


def test_an_error_that_depends_on_the_random_order_says_so() -> None:
    broken = slice_of("gpu", {"name": "d"}, {"name": "d"})
    whole = slice_of("gpu", {"name": "d"}, pool={**POOL, "name": "other"})
    (outcome,) = allocate([broken, whole], claim(request("r", "gpu")), features=Features.of(release("1.34")))
    assert outcome.error is not None
    assert outcome.error.endswith("searches pools in random order, and another order ends differently)")


def test_the_first_bad_request_is_the_one_that_is_refused() -> None:
    everything, missing = request("all", "gpu", allocationMode="All"), request("r", "missing")
    twice = [slice_of("gpu", {"name": "d"}, {"name": "d"})]
    assert allocate(twice, claim(everything, missing))[0].reason is Reason.POOL_INVALID
    assert allocate(twice, claim(missing, everything))[0].reason is Reason.CLASS_NOT_FOUND
    many = claim(request("many", "gpu", count=33), missing)
    reasons = {
        name: allocate([], many, features=Features.of(release(name)))[0].reason for name in ("1.36.3", "1.36.5", "1.37")
    }
    assert reasons == {
        "1.36.3": Reason.CLASS_NOT_FOUND,
        "1.36.5": Reason.TOO_MANY_DEVICES,
        "1.37": Reason.TOO_MANY_DEVICES,
    }


def test_the_defaults_are_those_of_the_newest_stable_release() -> None:
    assert Features() == Features.of(NEWEST_STABLE) == Features.parse("")


def test_all_devices_of_an_incomplete_pool_cannot_be_allocated() -> None:
    wanted = claim(request("r", "gpu", allocationMode="All"))
    (outcome,) = allocate([slice_of("gpu", {"name": "g"}, count=2)], wanted)
    assert (outcome.reason, outcome.scope) == (Reason.POOL_INCOMPLETE, "fatal")


def test_a_constraint_that_forbids_one_of_all_devices_is_an_error() -> None:
    wanted = claim(request("r", "gpu", allocationMode="All"), constraints=ALIGNED)
    (outcome,) = allocate([slice_of("gpu", numa("a", 0), numa("b", 1))], wanted)
    assert (outcome.reason, outcome.scope) == (Reason.CONSTRAINT_ON_ALL, "fatal")


def test_a_pool_with_a_newer_generation_elsewhere_is_skipped() -> None:
    newer = slice_of("gpu", {"name": "new"}, count=2, generation=2)
    newer["spec"]["nodeName"] = "other"
    old = slice_of("gpu", {"name": "old"}, count=2)
    (outcome,) = allocate([old, newer], claim(request("r", "gpu")))
    assert outcome.allocation is None
    assert outcome.reason is Reason.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("device", "wanted", "sentence"),
    [
        ({"name": "g"}, request("r", "gpu", count=2), "needs 2 devices of class gpu; there is only 1"),
        (
            {"name": "g"},
            request("r", "gpu", selectors=[{"cel": {"expression": "false"}}]),
            "g, is excluded by selector #0 of request r: false",
        ),
        (
            {"name": "g", "capacity": {"memory": {"value": "8Gi"}}},
            request("r", "gpu", capacity={"requests": {"memory": "10Gi"}}),
            "g, has 8Gi free (2Gi too little)",
        ),
        ({"name": "g"}, request("r", "gpu", capacity={"requests": {"x": "1"}}), "g, has no capacity x"),
        (
            {"name": "g", "taints": [{"key": "k", "effect": "NoExecute"}]},
            request("r", "gpu"),
            "g, has the taint k:NoExecute, which is not tolerated",
        ),
        ({"name": "g"}, request("r", "nic"), "driver nic publishes none here"),
    ],
)
def test_the_nearest_fit_is_reported_for_a_claim_that_does_not_fit(
    device: dict[str, Any], wanted: dict[str, Any], sentence: str
) -> None:
    (outcome,) = allocate([slice_of("gpu", device)], claim(wanted))
    assert sentence in str(outcome.error)


@pytest.mark.parametrize(
    ("gate", "more", "nearest"),
    [
        ("DRADeviceTaints", {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "there is only 1"),
        (
            "DRADeviceBindingConditions",
            {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]},
            "g, has binding conditions, and DRADeviceBindingConditions is off",
        ),
        (
            "DRAPartitionableDevices",
            {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]},
            "g, consumes counters, and DRAPartitionableDevices is off",
        ),
        (
            "DRAConsumableCapacity",
            {"capacity": {"c": {"value": "1", "requestPolicy": {"default": "2", "validValues": ["2"]}}}},
            "there is only 1",
        ),
    ],
)
def test_the_nearest_miss_respects_gates_that_are_off(gate: str, more: dict[str, Any], nearest: str) -> None:
    published = [slice_of("gpu", {"name": "g", **more})]
    (outcome,) = allocate(
        published, claim(request("r", "gpu", count=2)), features=Features.of(NEWEST_STABLE, {gate: False})
    )
    assert nearest in (outcome.error or "")


def test_the_nearest_miss_of_a_constraint_names_value_and_request() -> None:
    slices = [slice_of("gpu", numa("gpu-0", 0)), slice_of("nic", numa("eth0", 1))]
    (outcome,) = allocate(slices, claim(request("gpu", "gpu"), request("nic", "nic"), constraints=ALIGNED))
    assert "no value of resource.kubernetes.io/numaNode (matchAttribute) serves every request: the closest, int" in str(
        outcome.error
    )


def _with_counters(*devices: dict[str, Any]) -> list[dict[str, Any]]:
    draws = [{"counterSet": "all", "counters": {"c": {"value": "1"}}}]
    return [
        slice_of("gpu", count=2, sharedCounters=[{"name": "all", "counters": {"c": {"value": "1"}}}]),
        slice_of("gpu", *({**device, "consumesCounters": draws} for device in devices), count=2),
    ]


@pytest.mark.parametrize(("kubernetes", "expected"), [("1.36.2", None), ("1.36.3", "b"), ("1.37.0", "b")])
@pytest.mark.parametrize("turned_down", ["taint", "constraint"])
def test_counters_of_a_rejected_device_are_lost_until_1_36_2(
    kubernetes: str, expected: str | None, turned_down: str
) -> None:
    if turned_down == "taint":
        slices = _with_counters({"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]}, {"name": "b"})
        wanted = claim(request("r", "gpu"))
    else:
        slices = _with_counters({"name": "a"}, {"name": "b", "attributes": {"gpu/good": {"bool": True}}})
        wanted = claim(request("r", "gpu"), constraints=[{"matchAttribute": "gpu/good"}])
    (outcome,) = allocate(slices, wanted, features=Features.of(release(kubernetes)))
    if expected is None:
        assert outcome.reason is Reason.DOES_NOT_FIT
    else:
        assert names(outcome) == [expected]


@pytest.mark.parametrize(
    ("kubernetes", "panics"), [("1.36.0", True), ("1.36.1", True), ("1.36.2", False), ("1.37.0", False)]
)
def test_all_of_devices_with_counters_makes_the_scheduler_panic_until_1_36_1(kubernetes: str, *, panics: bool) -> None:
    wanted = claim(request("r", "gpu", allocationMode="All"))
    (outcome,) = allocate(_with_counters({"name": "a"}), wanted, features=Features.of(release(kubernetes)))
    assert (outcome.reason is Reason.SCHEDULER_PANICS) is panics
    assert bool(outcome.allocation) is not panics


@pytest.mark.parametrize(("kubernetes", "fits"), [("1.36.0", False), ("1.36.5", False), ("1.37.0", True)])
def test_constraints_compare_lists_from_1_37_on(kubernetes: str, *, fits: bool) -> None:
    devices = [
        {"name": name, "attributes": {"roots": {"strings": roots}}} for name, roots in (("a", ["x", "y"]), ("b", ["y"]))
    ]
    wanted = claim(request("r", "gpu", count=2), constraints=[{"matchAttribute": "gpu/roots"}])
    features = Features.of(release(kubernetes), {"DRAListTypeAttributes": True})
    (outcome,) = allocate([slice_of("gpu", *devices)], wanted, features=features)
    assert bool(outcome.allocation) is fits


def test_a_miss_counts_only_the_devices_of_the_classs_driver() -> None:
    slices = [slice_of("gpu", numa("g", 0)), slice_of("nic", numa("n1", 0), numa("n2", 1))]
    selectors = [{"cel": {"expression": "false"}}]
    (outcome,) = allocate(slices, claim(request("r", "gpu", selectors=selectors)))
    assert "the only one, g, is excluded by selector #0 of request r" in str(outcome.error)


def _shared(name: str, amount: str) -> dict[str, Any]:
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"cpu": {"value": amount}}}


def test_requests_that_need_too_much_together_are_explained() -> None:
    slices = [slice_of("dra.cpu", _shared("numa0", "16"))]
    wants = [claim(request("r", "dra.cpu", capacity={"requests": {"cpu": "10"}}), name=name) for name in ("a", "b")]
    error = allocate(slices, *wants)[0].error
    assert error is not None
    assert "after the earlier requests, request r of claim 2 of 2 needs 10 CPUs from one device" in error
    assert "numa0, has 6 free (4 too few)" in error
    assert "constraint" not in error


def test_two_requests_for_the_same_device_are_explained() -> None:
    wanted = claim(request("a", "gpu"), request("b", "gpu"))
    (outcome,) = allocate([slice_of("gpu", numa("g", 0))], wanted)
    assert "after the earlier requests, request b needs 1 device of class gpu" in str(outcome.error)
    assert "the only one, g, is in use" in str(outcome.error)


def test_requests_that_fit_except_for_a_constraint_name_it() -> None:
    slices = [slice_of("gpu", numa("g0", 0), numa("g1", 0))]
    wanted = claim(
        request("a", "gpu"), request("b", "gpu"), constraints=[{"distinctAttribute": "resource.kubernetes.io/numaNode"}]
    )
    (outcome,) = allocate(slices, wanted)
    assert "not all of them together under distinctAttribute resource.kubernetes.io/numaNode" in str(outcome.error)


def test_a_node_selector_of_two_terms_can_end_the_attempt() -> None:
    def term(value: str) -> dict[str, Any]:
        return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [value]}]}

    for_two = {"name": "far", "nodeSelector": {"nodeSelectorTerms": [term("n"), term("other")]}}
    far = slice_of("nic", for_two, nodeName=None, perDeviceNodeSelection=True)
    near = slice_of("gpu", {"name": "near"})
    wants_far, wants_near = request("far", "nic"), request("near", "gpu")
    (outcome,) = allocate([far, near], claim(wants_far, wants_near))
    assert outcome.allocation is None
    assert outcome.scope == "fatal"
    assert outcome.error == (
        "create NodeSelector for claim c: unsupported ResourceSlice.NodeSelector with 2 terms: device nic/n/far may "
        "have only one"
    )
    # kube-scheduler looks at the devices one after the other, and needs no selector after one that is bound.
    (outcome,) = allocate([far, near], claim(wants_near, wants_far))
    assert outcome.allocation is not None
