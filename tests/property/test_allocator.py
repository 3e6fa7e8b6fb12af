"""The allocator against a checker written from the specification, and against an exhaustive search in order."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dranode.api.documents import decode
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.requests import Outcome, Reason
from dranode.sim.allocator.state import Allocated

DRIVER = "d.example.com"
NODE = decode(Node, {"metadata": {"name": "n"}})
# Each selector twice with the same meaning: for CEL, and for Python over the plain device.
SELECTORS = {
    f'device.attributes["{DRIVER}"].size == "big"': lambda device: device["attributes"]["size"]["string"] == "big",
    f'device.attributes["{DRIVER}"].numa < 1': lambda device: device["attributes"]["numa"]["int"] < 1,
}
Picked = tuple[tuple[str, str, int], ...]  # for each result: request, device, consumed capacity (0 for a whole device)


@st.composite
def devices(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        device: dict[str, Any] = {
            "name": f"d{number}",
            "attributes": {
                "size": {"string": draw(st.sampled_from(["big", "small"]))},
                "numa": {"int": draw(st.integers(0, 1))},
            },
        }
        if draw(st.booleans()):
            device |= {
                "allowMultipleAllocations": True,
                "capacity": {"memory": {"value": str(draw(st.integers(1, 4)))}},
            }
        if draw(st.integers(0, 5)) == 0:
            device["taints"] = [{"key": "bad", "effect": "NoSchedule"}]
        made.append(device)
    return made


@st.composite
def wanted(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = {"deviceClassName": "any", "count": draw(st.integers(1, 3))}
    expressions = draw(st.lists(st.sampled_from(sorted(SELECTORS)), max_size=1))
    made["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    if draw(st.integers(0, 3)) == 0:
        made["tolerations"] = [{"key": "bad", "operator": "Exists"}]
    if draw(st.integers(0, 2)) == 0:
        made["capacity"] = {"requests": {"memory": str(draw(st.integers(1, 4)))}}
    return made


@st.composite
def claims(draw: st.DrawFn, name: str) -> dict[str, Any]:
    requests: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            requests.append({"name": f"r{number}", "exactly": draw(wanted())})
        else:
            listed = [{"name": f"a{index}", **draw(wanted())} for index in range(draw(st.integers(1, 3)))]
            requests.append({"name": f"r{number}", "firstAvailable": listed})
    constraints = []
    if draw(st.booleans()):
        bound = draw(st.lists(st.sampled_from([request["name"] for request in requests]), unique=True))
        constraints.append({"requests": bound, "matchAttribute": f"{DRIVER}/numa"})
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}


def allocator(published: list[dict[str, Any]]) -> Allocator:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slice_ = {
        "metadata": {"name": "s"},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": "n", "devices": published},
    }
    numbers = itertools.count()
    return Allocator(
        [decode(ResourceSlice, slice_)],
        [decode(DeviceClass, {"metadata": {"name": "any"}})],
        Features(),
        new_share_id=lambda: str(next(numbers)),
    )


def picked(outcome: Outcome) -> Picked:
    assert outcome.allocation is not None
    return tuple(
        (
            result.request,
            result.device,
            int(result.consumed_capacity["memory"].value) if result.consumed_capacity else 0,
        )
        for result in outcome.allocation.devices.results
    )


# --- written from the specification, not from the allocator ---


def alternatives(request: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if "exactly" in request:
        return [(request["name"], request["exactly"])]
    return [(f"{request['name']}/{one['name']}", one) for one in request["firstAvailable"]]


def shareable(device: dict[str, Any]) -> bool:
    return bool(device.get("allowMultipleAllocations"))


def serves(device: dict[str, Any], request: dict[str, Any]) -> bool:
    """Whether the device alone, with nothing in use, may serve the request."""
    asked = request.get("capacity", {}).get("requests", {}).get("memory")
    memory = device.get("capacity", {}).get("memory", {}).get("value")
    return (
        all(SELECTORS[selector["cel"]["expression"]](device) for selector in request["selectors"])
        and ("taints" not in device or "tolerations" in request)
        and (asked is None or (memory is not None and int(asked) <= int(memory)))
    )


def consumes(device: dict[str, Any], request: dict[str, Any]) -> int:
    if not shareable(device):
        return 0
    asked = request.get("capacity", {}).get("requests", {}).get("memory")
    return int(asked) if asked is not None else int(device["capacity"]["memory"]["value"])


def consistent(published: list[dict[str, Any]], wants: list[dict[str, Any]], picks: list[Picked]) -> bool:
    """Whether the picks of all claims are valid together: nothing twice, enough capacity, constraints kept."""
    known = {device["name"]: device for device in published}
    uses: Counter[str] = Counter()
    consumed: Counter[str] = Counter()
    for results in picks:
        for _, name, amount in results:
            uses[name] += 1
            consumed[name] += amount
    for name, times in uses.items():
        device = known[name]
        if not shareable(device) and times > 1:
            return False
        if shareable(device) and consumed[name] > int(device["capacity"]["memory"]["value"]):
            return False
    for claim, results in zip(wants, picks, strict=True):
        for constraint in claim["spec"]["devices"]["constraints"]:
            bound = constraint["requests"]
            mine = [name for request, name, _ in results if not bound or request.partition("/")[0] in bound]
            if len({known[name]["attributes"]["numa"]["int"] for name in mine}) > 1:
                return False
    return True


def everything(published: list[dict[str, Any]], claim: dict[str, Any]) -> Iterator[Picked]:
    """All ways to serve each of a claim's requests alone, in the order of preference."""

    def rest(requests: list[dict[str, Any]]) -> Iterator[Picked]:
        if not requests:
            yield ()
            return
        for name, one in alternatives(requests[0]):
            able = [device for device in published if serves(device, one)]
            for chosen in itertools.combinations(able, one["count"]):
                mine = tuple((name, device["name"], consumes(device, one)) for device in chosen)
                for others in rest(requests[1:]):
                    yield mine + others

    yield from rest(claim["spec"]["devices"]["requests"])


def first_that_stands(published: list[dict[str, Any]], wants: list[dict[str, Any]]) -> list[Picked] | None:
    """Search claim by claim, request by request, alternative by alternative; return the first choice valid for all."""

    def rest(done: list[Picked]) -> list[Picked] | None:
        if len(done) == len(wants):
            return done
        for picks in everything(published, wants[len(done)]):
            if consistent(published, wants[: len(done) + 1], [*done, picks]):
                found = rest([*done, picks])
                if found is not None:
                    return found
        return None

    return rest([])


@settings(max_examples=60)
@given(devices(), claims("c0"), claims("c1"))
def test_the_allocator_finds_the_first_result_of_an_exhaustive_search(
    published: list[dict[str, Any]], one: dict[str, Any], other: dict[str, Any]
) -> None:
    wants = [one, other]
    outcomes = allocator(published).allocate([decode(ResourceClaim, claim) for claim in wants], NODE, Allocated())
    expected = first_that_stands(published, wants)
    if expected is None:
        assert [outcome.reason for outcome in outcomes] == [Reason.DOES_NOT_FIT] * 2
    else:
        assert [picked(outcome) for outcome in outcomes] == expected


@settings(max_examples=60)
@given(devices(), st.lists(claims("c"), min_size=1, max_size=4))
def test_successive_claims_never_share_a_device_that_is_not_shareable(
    published: list[dict[str, Any]], wants: list[dict[str, Any]]
) -> None:
    here, allocated = allocator(published), Allocated()
    served: list[dict[str, Any]] = []
    picks: list[Picked] = []
    for want in wants:
        (outcome,) = here.allocate([decode(ResourceClaim, want)], NODE, allocated)
        if outcome.allocation is None:
            continue
        allocated = allocated.with_allocations([outcome.allocation])
        served.append(want)
        picks.append(picked(outcome))
        known = {device["name"]: device for device in published}
        requests = dict(pair for request in want["spec"]["devices"]["requests"] for pair in alternatives(request))
        counts = Counter(request for request, _, _ in picks[-1])
        assert all(counts[name] == requests[name]["count"] for name in counts)
        assert all(serves(known[name], requests[request]) for request, name, _ in picks[-1])
    assert consistent(published, served, picks)


@settings(max_examples=60)
@given(devices(), claims("c"))
def test_an_alternative_is_skipped_only_if_it_cannot_be_allocated(
    published: list[dict[str, Any]], want: dict[str, Any]
) -> None:
    """For a claim's first list: every earlier alternative fails together with the rest of the claim."""
    (outcome,) = allocator(published).allocate([decode(ResourceClaim, want)], NODE, Allocated())
    first = want["spec"]["devices"]["requests"][0]
    if outcome.allocation is None or "firstAvailable" not in first:
        return
    taken = picked(outcome)[0][0]
    for index, (name, _) in enumerate(alternatives(first)):
        if name == taken:
            return
        alone = {**first, "firstAvailable": [first["firstAvailable"][index]]}
        rest = want["spec"]["devices"]["requests"][1:]
        narrowed = {**want, "spec": {"devices": {**want["spec"]["devices"], "requests": [alone, *rest]}}}
        assert first_that_stands(published, [narrowed]) is None
