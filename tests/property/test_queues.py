"""Properties of queues of any shape."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dranode.sim.queues.assign import LAST_FLAVOR, FlavorMode, Moment, SearchState, Simulation, assign
from dranode.sim.queues.preemption import Preemptor
from dranode.sim.queues.quota import Usage
from dranode.sim.queues.report import Anywhere, run_queues
from dranode.sim.queues.setup import Setup, load
from dranode.sim.queues.values import FlavorResource, Workload
from tests.fakes.queues import admitted, cluster_queue, cohort, flavor, group, local_queue, pod_set, sources, workload

FLAVORS = ("one", "two", "three")
FUNGIBLE = st.sampled_from(["MayStopSearch", "TryNextFlavor"])
WITHIN = st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"])
RECLAIM = st.sampled_from(["Never", "LowerPriority", "Any"])
SMALL = st.integers(0, 6)
LIMIT = st.none() | SMALL


@st.composite
def cohorts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A tree of cohorts with queues and pending workloads; nothing is in use yet."""
    parents = {name: draw(st.sampled_from(["", *["a", "b"][:number]])) for number, name in enumerate(["a", "b", "c"])}
    documents = [flavor(name) for name in FLAVORS]
    for name, parent in parents.items():
        limits = _limits(draw, free=True) if parent else {}
        documents.append(cohort(name, group(["gpu"], one=[{"nominalQuota": draw(SMALL), **limits}]), parent=parent))
    for name in ("p", "q", "r"):
        quotas = {}
        for each in FLAVORS:
            nominal = draw(SMALL)
            quotas[each] = [{"nominalQuota": nominal, **_limits(draw, nominal)}]
        documents.append(
            cluster_queue(
                name,
                group(["gpu"], **quotas),
                cohort=draw(st.sampled_from(["a", "b", "c"])),
                flavorFungibility={"whenCanBorrow": draw(FUNGIBLE), "whenCanPreempt": draw(FUNGIBLE)},
                preemption={"withinClusterQueue": draw(WITHIN), "reclaimWithinCohort": draw(RECLAIM)},
                queueingStrategy=draw(st.sampled_from(["BestEffortFIFO", "StrictFIFO"])),
            )
        )
        documents.append(local_queue(name, name))
    for number in range(draw(st.integers(1, 7))):
        pods = pod_set(count=draw(st.integers(1, 3)), gpu=draw(st.integers(1, 4)))
        documents.append(
            workload(f"w{number}", draw(st.sampled_from("pqr")), pods, priority=draw(st.integers(0, 2)), created=number)
        )
    return documents


def _limits(draw: st.DrawFn, nominal: int = 6, *, free: bool = False) -> dict[str, Any]:
    lending = draw(LIMIT)
    if lending is not None and not free:
        lending = min(lending, nominal)
    return {"borrowingLimit": draw(LIMIT), "lendingLimit": lending}


def _within_all_limits(setup: Setup, usage: Usage) -> None:
    """No node uses more than it owns and may borrow, and no tree more than it owns; recounted from the leaves."""
    for of in (FlavorResource(name, "gpu") for name in FLAVORS):
        for name in setup.queues.cluster_queues:
            for node in (usage.nodes[name], *usage.cohorts(name)):
                used = usage.at(node, of)
                limit = node.quota(of).borrowing_limit
                if node not in usage.parents:
                    assert used <= node.subtree.get(of, 0)
                elif limit is not None:
                    assert used <= node.subtree.get(of, 0) + limit
                if node.children:
                    beyond = [max(0, usage.at(child, of) - child.guaranteed(of)) for child in node.children]
                    assert used == sum(beyond)


@settings(max_examples=30)
@given(cohorts())
def test_a_run_places_or_parks_every_workload_within_all_limits(documents: list[dict[str, Any]]) -> None:
    setup = load(sources(documents))
    run = run_queues(load(sources(documents)), Anywhere())
    usage = run.situation.usage
    _within_all_limits(setup, usage)
    holders = {item.workload.label for item in run.situation.admitted}
    assert holders | set(run.waiting) == {item.label for item in setup.pending}
    assert len(holders) + len(run.waiting) == len(setup.pending)
    for name, node in usage.nodes.items():
        for of in node.quotas:
            total = sum(item.usage.get(of, 0) for item in run.situation.admitted if item.workload.queue == name)
            assert usage.at(node, of) == total


@settings(max_examples=30)
@given(cohorts())
def test_a_parked_workload_fits_no_flavor(documents: list[dict[str, Any]]) -> None:
    run = run_queues(load(sources(documents)), Anywhere())
    strict = {name for name, queue in run.situation.queues.cluster_queues.items() if queue.strict_fifo}
    waiting = [item for item in run.situation.parked if item.queue not in strict]
    for item in waiting:
        for of in run.situation.usage.nodes[item.queue].quotas:
            wanted = item.pod_sets[0].requests["gpu"] * item.pod_sets[0].count
            fits = run.situation.usage.holds(item.queue, {of: wanted})
            tried = [row for row in run.rows if row.workload == item.label and row.flavor == of.flavor]
            assert tried, "every flavor was looked at"
            # If a resource's queue lost its quota to another one in the same cycle, the search went on with the next
            # flavor.
            assert not fits or any("took the quota" in row.reason or "preempts the same" in row.reason for row in tried)


@settings(max_examples=30)
@given(cohorts(), st.integers(0, 6), st.integers(1, 12))
def test_preemption_frees_just_enough_quota(documents: list[dict[str, Any]], priority: int, wanted: int) -> None:
    run = run_queues(load(sources(documents)), Anywhere())
    situation = run.situation
    preemptor = Preemptor(situation.queues, situation.usage, situation.admitted)
    of = FlavorResource("one", "gpu")
    newcomer = Workload("default/new", "p", priority, -1.0, ())
    targets = preemptor.targets(newcomer, frozenset({of}), {of: wanted})
    if not targets or situation.usage.holds("p", {of: wanted}):
        return
    assert situation.usage.without(*targets).holds("p", {of: wanted})
    for spared in targets[:-1]:
        fewer = [item for item in targets if item is not spared]
        room = situation.usage.without(*fewer)
        borrowing = room.borrows_with(room.nodes["p"], of, wanted)
        assert borrowing or not room.holds("p", {of: wanted})
    for target in targets:
        policies = situation.queues.cluster_queues["p"].preemption
        policy = policies.within_cluster_queue if target.workload.queue == "p" else policies.reclaim_within_cohort
        assert policy != "Never"
        assert policy == "Any" or target.workload.priority <= priority


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(SMALL, SMALL, st.sampled_from([FlavorMode.NO_CANDIDATES, FlavorMode.PREEMPT, FlavorMode.RECLAIM])),
        min_size=1,
        max_size=3,
    ),
    SMALL,
    FUNGIBLE,
    FUNGIBLE,
    st.integers(-1, 1),
)
def test_the_flavor_search_follows_kep_582(
    kinds: list[tuple[int, int, FlavorMode]], wanted: int, borrow: str, preempt: str, last: int
) -> None:
    """A second implementation of KEP-582, with numbers worked out by hand: queue and lender own 6 of each flavor."""
    names = FLAVORS[: len(kinds)]
    six = {name: [6] for name in names}
    documents = [
        *(flavor(name) for name in names),
        local_queue("door", "q"),
        cluster_queue(
            "q",
            group(["gpu"], **six),
            cohort="c",
            flavorFungibility={"whenCanBorrow": borrow, "whenCanPreempt": preempt},
        ),
        cluster_queue("lender", group(["gpu"], **six), cohort="c"),
        workload("w", "door", pod_set(gpu=wanted)),
    ]
    for name, (own, lent, _) in zip(names, kinds, strict=True):
        documents += [
            admitted(f"own-{name}", "q", {"gpu": name}, {"gpu": own}),
            admitted(f"lent-{name}", "lender", {"gpu": name}, {"gpu": lent}),
        ]
    setup = load(sources(documents))
    answers = {name: kind[2] for name, kind in zip(names, kinds, strict=True)}
    assignment, state = assign(
        setup.queues,
        setup.usage,
        setup.pending[0],
        SearchState(({"gpu": last},), 0, 0),
        lambda _, of, __: Simulation(answers[of.flavor]),
        moment=Moment(0, 1),
    )
    start = last + 1
    best, ended = None, len(names) - 1
    for number in range(start, len(names)):
        own, lent, answer = kinds[number]
        fits = wanted <= 12 - own - lent
        mode = FlavorMode.FIT if fits else answer
        borrows = fits and own + wanted > 6
        score = (mode > FlavorMode.NO_CANDIDATES, mode, not borrows)
        if best is None or score > best[1]:
            best = (number, score)
        goes_on = (
            mode is FlavorMode.NO_CANDIDATES
            or (mode is not FlavorMode.FIT and preempt == "TryNextFlavor")
            or (borrows and borrow == "TryNextFlavor")
        )
        if not goes_on:
            best, ended = (number, score), number
            break
    if best is None:
        assert state.tried == ({},)
        return
    got = assignment.pod_sets[0].flavors["gpu"]
    assert got.flavor == names[best[0]]
    assert got.verdict.mode is best[1][1]
    assert state.tried == ({"gpu": LAST_FLAVOR if ended == len(names) - 1 else ended},)
