"""Properties of every pick on every machine."""

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.cpu.options import L3, Order, PickPolicy, Threads
from dranode.cpu.picking.pick import Pick, PickError, pick
from dranode.cpu.topology import Topology
from tests.fakes.topology import Place, regular, topology

# Uneven on purpose: cores of 1 to 4 threads, caches of 1 to 3 cores, and sometimes no cache.
_CORES = st.lists(st.sampled_from((1, 1, 2, 2, 2, 4)), min_size=1, max_size=3)
_CACHES = st.lists(st.tuples(st.booleans() | st.just(True), _CORES), min_size=1, max_size=3)  # noqa: FBT003 - a value
_NODES = st.lists(_CACHES, min_size=1, max_size=3)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Machines of up to 2 packages, with core ids that may repeat, and with CPUs numbered in any order."""
    packages = draw(st.lists(_NODES, min_size=1, max_size=2))
    repeat = draw(st.booleans())
    places: list[Place] = []
    node = cache = core = 0
    for package, nodes in enumerate(packages):
        core = 0 if repeat else core
        for caches in nodes:
            for cached, cores in caches:
                for threads in cores:
                    places += [(core, package, node, cache if cached else None)] * threads
                    core += 1
                cache += 1
            node += 1
    ids = draw(st.permutations(range(len(places))))
    return topology(dict(zip(ids, places, strict=True)))


@st.composite
def held(draw: st.DrawFn) -> tuple[Topology, CPUSet, CPUSet, int]:
    """A machine, its free CPUs, the same claim's CPUs among the rest, and a count that fits the free ones."""
    machine = draw(machines())
    taken = CPUSet(draw(st.sets(st.sampled_from(sorted(machine.online)), max_size=len(machine.online) - 1)))
    own = CPUSet(draw(st.sets(st.sampled_from(sorted(taken))))) if taken else taken
    free = machine.online - taken
    return machine, free, own, draw(st.integers(1, len(free)))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Topology, CPUSet, int]:
    """A machine, some of its CPUs and a count."""
    machine = draw(machines())
    taken = draw(st.sets(st.sampled_from(sorted(machine.online))) | st.just(set[int]()))
    return machine, machine.online - CPUSet(taken), draw(st.integers(1, len(machine.cpus)))


def _pick(
    request: tuple[Topology, CPUSet, int], policy: PickPolicy, group: int, threads: Threads, l3: L3
) -> Pick | PickError:
    machine, free, count = request
    step = group if policy is PickPolicy.NUMA_DISTRIBUTED else None
    try:
        return pick(machine, free, count, policy=policy, group=step, threads=threads, l3=l3)
    except PickError as error:
        return error


_WISHES = (st.sampled_from(PickPolicy), st.integers(1, 4), st.sampled_from(Threads), st.sampled_from(L3))


def _keeps_to_caches(machine: Topology, cpus: CPUSet, candidates: CPUSet) -> bool:
    touched = [cache for cache in machine.l3 if not cache.isdisjoint(cpus)]
    if not cpus <= CPUSet.union(touched):
        return False
    if len(cpus) <= max(len(cache) for cache in machine.l3 if not cache.isdisjoint(candidates)):
        return len(touched) == 1
    return sum(not cache <= cpus for cache in touched) <= 1


@given(requests(), *_WISHES)
def test_a_pick_has_the_requested_count_and_form(
    request: tuple[Topology, CPUSet, int], policy: PickPolicy, group: int, threads: Threads, l3: L3
) -> None:
    machine, free, count = request
    picked = _pick(request, policy, group, threads, l3)
    if isinstance(picked, PickError):
        return
    assert len(picked.held) == count
    assert picked.cpus <= picked.held <= free
    if threads is not Threads.ANY:
        assert machine.whole_cores(picked.held) == picked.held
    if threads is Threads.ONE_PER_CORE:
        assert [len(core & picked.cpus) for core in machine.cores if not core.isdisjoint(picked.held)] == [1] * len(
            picked.cpus
        )
    else:
        assert picked.cpus == picked.held
    if l3 is L3.REQUIRE:
        candidates = free
        if threads is not Threads.ANY:
            candidates = CPUSet.union(core for core in machine.cores if core <= free)
        assert _keeps_to_caches(machine, picked.held, candidates)


def _subsets(sets: list[CPUSet]) -> list[CPUSet]:
    return [CPUSet.union(some) for some in chain.from_iterable(combinations(sets, n) for n in range(len(sets) + 1))]


@given(requests(), *_WISHES)
def test_a_pick_succeeds_exactly_if_a_valid_choice_exists(
    request: tuple[Topology, CPUSet, int], policy: PickPolicy, group: int, threads: Threads, l3: L3
) -> None:
    machine, free, count = request
    units = [CPUSet((cpu,)) for cpu in free]
    if threads is not Threads.ANY:
        units = [core for core in machine.cores if core <= free]
    # Every choice is tried, so the machine must be small.
    if len(units) > 10:
        return
    candidates = CPUSet.union(units)
    possible = {
        len(cpus)
        for cpus in _subsets(units)
        if cpus and (l3 is not L3.REQUIRE or (machine.l3 and _keeps_to_caches(machine, cpus, candidates)))
    }
    picked = _pick(request, policy, group, threads, l3)
    if isinstance(picked, PickError):
        assert count not in possible
        below = [fit for fit in possible if fit < count]
        above = [fit for fit in possible if fit > count]
        assert picked.fits == ((max(below),) if below else ()) + ((min(above),) if above else ())
    else:
        assert count in possible


@given(requests(), *_WISHES)
def test_a_pick_depends_only_on_its_arguments(
    request: tuple[Topology, CPUSet, int], policy: PickPolicy, group: int, threads: Threads, l3: L3
) -> None:
    machine, free, count = request
    again = replace(machine, cpus={cpu: machine.cpus[cpu] for cpu in sorted(machine.cpus, reverse=True)})
    first = _pick(request, policy, group, threads, l3)
    second = _pick((again, CPUSet(free), count), policy, group, threads, l3)
    assert repr(first) == repr(second)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12
    ),
    st.integers(1, 12),
    st.sampled_from(PickPolicy),
    st.sampled_from((Threads.FULL_CORE, Threads.ONE_PER_CORE)),
    st.sampled_from(L3),
)
def test_whole_cores_are_whole_even_if_the_kernel_reports_their_cpus_in_several_places(
    told: list[tuple[int, int, int, int]], count: int, policy: PickPolicy, threads: Threads, l3: L3
) -> None:
    # The kernel reports a CPU's core, package, node and cache separately, and they may contradict each other.
    cores = topology({cpu: (core, 0, 0, 0) for cpu, (core, _, _, _) in enumerate(told)})
    places = topology({cpu: (cpu, package, node, cache) for cpu, (_, package, node, cache) in enumerate(told)})
    cpus = {cpu: replace(one, core=cores.cpus[cpu].core) for cpu, one in places.cpus.items()}
    machine = replace(places, cpus=cpus, cores=cores.cores)
    picked = _pick((machine, machine.online, count), policy, 1, threads, l3)
    if isinstance(picked, Pick):
        assert len(picked.held) == count
        assert machine.whole_cores(picked.held) == picked.held


def _strangers(machine: Topology, free: CPUSet, own: CPUSet) -> CPUSet:
    """The free CPUs of cores that other claims partly hold."""
    return CPUSet.union(core & free for core in machine.cores if not core <= free | own)


@given(held(), st.sampled_from((PickPolicy.PACKED, PickPolicy.SPREAD)), st.sampled_from((L3.PREFER, L3.IGNORE)))
def test_a_pick_takes_as_few_threads_as_possible_of_cores_that_others_partly_hold(
    request: tuple[Topology, CPUSet, CPUSet, int], policy: PickPolicy, l3: L3
) -> None:
    machine, free, own, count = request
    strangers = _strangers(machine, free, own)
    picked = pick(machine, free, count, policy=policy, l3=l3, own=own).cpus
    assert len(picked) == count
    assert picked <= free
    assert len(picked & strangers) == max(0, count - len(free - strangers))


@given(held(), *_WISHES)
def test_both_orders_agree_if_the_references_is_in_one_place_and_avoids_partly_held_cores(
    request: tuple[Topology, CPUSet, CPUSet, int], policy: PickPolicy, group: int, threads: Threads, l3: L3
) -> None:
    machine, free, _, count = request
    strangers = _strangers(machine, free, CPUSet())
    if policy is PickPolicy.SPREAD:
        return  # The reference's order prefers free nodes, packages and caches before it spreads.
    step = group if policy is PickPolicy.NUMA_DISTRIBUTED else None

    def answer(order: Order) -> str:
        try:
            return repr(pick(machine, free, count, policy=policy, group=step, threads=threads, l3=l3, order=order))
        except PickError as error:
            return str(error)

    try:
        packed = pick(
            machine, free, count, policy=policy, group=step, threads=threads, l3=l3, order=Order.REFERENCE
        ).cpus
    except PickError:
        packed = CPUSet()
    kinds = (machine.packages.values(), machine.numa.values(), machine.l3)
    together = policy is not PickPolicy.PACKED or all(any(packed <= place for place in places) for places in kinds)
    if together and len(packed & strangers) <= max(0, count - len(free - strangers)):
        assert answer(Order.UNTOUCHED_FIRST) == answer(Order.REFERENCE)


@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.sampled_from((1, 2, 3)), st.data())
def test_a_pick_uses_as_few_cores_as_the_count_needs_in_one_place_if_one_has_enough(
    sockets: int, numa: int, l3: int, threads: int, data: st.DataObject
) -> None:
    machine = regular(sockets, numa, l3, 3, threads)
    taken = CPUSet(data.draw(st.sets(st.sampled_from(sorted(machine.online)), max_size=len(machine.online) - 1)))
    own = CPUSet(data.draw(st.sets(st.sampled_from(sorted(taken))))) if taken else taken
    free = machine.online - taken
    count = data.draw(st.integers(1, len(free)))
    untouched = free - _strangers(machine, free, own)
    halves = CPUSet.union(core & untouched for core in machine.cores if not core.isdisjoint(own))
    picked = pick(machine, free, count, own=own).cpus
    opened = sum(not core.isdisjoint(picked) for core in machine.cores if core <= free)
    assert opened == -(-max(0, min(count, len(untouched)) - len(halves)) // threads)
    for places in (machine.packages.values(), machine.numa.values(), machine.l3) if not own else ():
        if any(len(place & untouched) >= count for place in places):
            assert any(picked <= place for place in places)


def _places_spread_over(machine: Topology, cpus: CPUSet) -> tuple[int, int]:
    """The number of cores, and of L3 caches."""
    caches = {machine.cpus[cpu].l3 for cpu in cpus}
    return sum(not core.isdisjoint(cpus) for core in machine.cores), len(caches)


@given(held(), st.sampled_from(L3), st.sampled_from(Threads))
@settings(max_examples=100)
def test_a_spread_pick_uses_as_many_cores_and_then_caches_as_possible(
    request: tuple[Topology, CPUSet, CPUSet, int], l3: L3, threads: Threads
) -> None:
    machine, free, own, count = request
    whole = threads is not Threads.ANY
    units = [core for core in machine.cores if core <= free] if whole else [CPUSet((cpu,)) for cpu in free]
    # Every choice is tried, so the machine must be small.
    if len(units) > 10:
        return
    candidates = CPUSet.union(units)
    choices = [cpus for cpus in _subsets(units) if len(cpus) == count]
    if l3 is L3.REQUIRE:
        choices = [cpus for cpus in choices if machine.l3 and _keeps_to_caches(machine, cpus, candidates)]
    strangers = _strangers(machine, free, own)
    if l3 is not L3.REQUIRE or any(cpus.isdisjoint(strangers) for cpus in choices):
        # The default order comes first: cores that others partly hold are used only for what the rest cannot give.
        least = min((len(cpus & strangers) for cpus in choices), default=0)
        choices = [cpus for cpus in choices if len(cpus & strangers) == least]
    try:
        picked = pick(machine, free, count, policy=PickPolicy.SPREAD, l3=l3, threads=threads, own=own).held
    except PickError:
        assert not choices
        return
    assert picked in choices
    cores = [_places_spread_over(machine, cpus)[0] for cpus in choices]
    assert _places_spread_over(machine, picked)[0] == max(cores)
    if l3 is L3.REQUIRE or (whole and len({len(core) for core in machine.cores}) > 1):
        return
    # The CPUs that the claim has already count as well.
    best = [cpus for cpus, number in zip(choices, cores, strict=True) if number == max(cores)]
    both = [_places_spread_over(machine, cpus | own) for cpus in best]
    most = max(cores_of_claim for cores_of_claim, _ in both)
    caches = [number for cores_of_claim, number in both if cores_of_claim == most]
    assert _places_spread_over(machine, picked | own) == (most, max(caches) if l3 is L3.IGNORE else min(caches))
