"""What the picker adds: real sizes, whole cores, one thread a core, required L3 caches, errors that say what fits."""

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UsageError
from dranode.cpu.options import L3, Order, PickPolicy, Threads
from dranode.cpu.picking.packed import Caches
from dranode.cpu.picking.pick import Pick, PickError, pick
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.sim.machines.forms import open_machine
from tests.fakes.topology import regular, topology

# One package of 8 cores with 2 threads, one L3; and two packages of 2 NUMA nodes with 2 L3 caches of 4 such cores.
SMALL = regular(1, 1, 1, 8, 2)
SERVER = regular(2, 2, 2, 4, 2)
# Two cores with 2 threads and four with 1.
HYBRID = topology({cpu: ([0, 0, 4, 4, 8, 9, 10, 11][cpu], 0, 0, 0) for cpu in range(8)})
# Packages with a cache of 2, 3 and 4 CPUs each; one core, CPU 4, has a single thread.
MIXED = topology({cpu: ((cpu + (cpu > 4)) // 2, place := (cpu > 1) + (cpu > 4), 0, place) for cpu in range(9)})


def _cpus(machine: Topology, free: str, count: int, **wishes: object) -> str:
    return str(pick(machine, CPUSet.parse(free), count, **wishes).cpus)  # type: ignore[arg-type]


def _error(machine: Topology, free: str, count: int, **wishes: object) -> PickError:
    with pytest.raises(PickError) as caught:
        pick(machine, CPUSet.parse(free), count, **wishes)  # type: ignore[arg-type]
    return caught.value


def test_a_pick_of_nothing_is_empty() -> None:
    assert pick(SMALL, SMALL.online, 0) == Pick(CPUSet(), CPUSet())


def test_too_large_a_count_is_refused_with_what_is_free() -> None:
    error = _error(SMALL, "5-7", 8)
    assert str(error) == "cannot give 8 CPUs: 3 are free; ask for 3 (free: 5-7)"
    assert error.fits == (3,)


def test_an_absurd_count_costs_no_memory() -> None:
    assert _error(SMALL, "5-7", 10**30).fits == (3,)
    assert _error(SMALL, "0-15", 10**30, threads=Threads.FULL_CORE, l3=L3.REQUIRE).fits == (16,)
    assert _cpus(SMALL, "0-15", 4, policy=PickPolicy.NUMA_DISTRIBUTED, group=10**30) == "0-1,8-9"


def test_an_error_says_that_nothing_is_free() -> None:
    assert str(_error(SMALL, "", 1)) == "cannot give 1 CPU: none is free; wait for CPUs to become free"


def test_candidates_that_are_not_online_are_never_picked() -> None:
    assert str(_error(SMALL, "15-40", 2)) == "cannot give 2 CPUs: 1 is free; ask for 1 (free: 15)"


def test_a_core_with_a_taken_sibling_is_not_whole_on_a_hybrid_machine() -> None:
    # The reference compares with the average of one thread a core, and picks the reserved CPU 0.
    assert _cpus(HYBRID, "1-7", 2) == "4-5"


def test_core_ids_that_contradict_the_siblings_split_no_core() -> None:
    machine = regular(1, 1, 1, 2, 2)
    machine = replace(machine, cpus={cpu: replace(one, core_id=cpu) for cpu, one in machine.cpus.items()})
    assert _error(machine, "0-3", 1, threads=Threads.FULL_CORE).fits == (2,)
    assert _cpus(machine, "0-3", 2, threads=Threads.FULL_CORE) == "0,2"
    assert _cpus(machine, "0-3", 4, threads=Threads.ONE_PER_CORE) == "0-1"


def test_a_core_in_several_packages_is_picked_whole_or_not_at_all() -> None:
    machine = regular(1, 1, 1, 3, 2)
    packages = {cpu: replace(one, package=cpu // 3) for cpu, one in machine.cpus.items()}
    machine = replace(machine, cpus=packages, packages={0: CPUSet(range(3)), 1: CPUSet(range(3, 6))})
    for count in (2, 4, 6):
        cpus = pick(machine, machine.online, count, threads=Threads.FULL_CORE, l3=L3.IGNORE).cpus
        assert machine.whole_cores(cpus) == cpus
        assert len(cpus) == count


def test_a_second_pick_works_with_an_offline_sibling() -> None:
    uneven = topology({cpu: (cpu % 8, 0, 0, 0) for cpu in range(16) if cpu != 8})
    free = uneven.online
    for count in (1, 2, 3, 4, 5):
        picked = pick(uneven, free, count).cpus
        assert picked <= free
        assert len(picked) == count
        free -= picked
    assert not free


def test_a_package_with_fewer_cpus_than_another_is_picked_whole() -> None:
    uneven = topology({cpu: (cpu, int(cpu >= 4), int(cpu >= 4), int(cpu >= 4)) for cpu in range(12)})
    assert _cpus(uneven, "0-11", 4) == "0-3"
    assert _cpus(uneven, "0-11", 8, order=Order.REFERENCE) == "0-7"


def test_a_package_in_two_numa_nodes_is_picked_once() -> None:
    # Packages 0 and 1 both have a CPU in either NUMA node, so each is visited twice.
    crossed = topology({cpu: (cpu, cpu // 4, cpu % 2, 0) for cpu in range(8)})
    for count in range(1, 9):
        assert len(pick(crossed, crossed.online, count, l3=L3.IGNORE).cpus) == count


def test_a_core_in_two_numa_nodes_is_picked_once() -> None:
    # Broken firmware can report this; the core is visited twice, under both nodes.
    shared = topology({cpu: (cpu % 4, 0, cpu // 4, 0) for cpu in range(8)})
    assert _cpus(shared, "0-2,4-6", 4, l3=L3.IGNORE) == "0-1,4-5"


def test_cores_are_picked_by_package_if_core_ids_repeat_without_caches() -> None:
    # As one group without a cache, all cores are in one row: 0 to 3 of package 0, then those of package 1.
    bare = topology({cpu: (cpu % 4, cpu % 8 // 4, cpu % 8 // 4, None) for cpu in range(16)})
    assert _cpus(bare, "2-6,10-14", 6, order=Order.REFERENCE) == "2-4,10-12"


def test_cpus_without_numa_package_or_cache_information_are_picked() -> None:
    bare = topology(dict.fromkeys(range(4), (-1, -1, None, None)))
    assert _cpus(bare, "1-3", 2) == "1-2"


@pytest.mark.parametrize("threads", [Threads.FULL_CORE, Threads.ONE_PER_CORE])
def test_whole_cores_skip_cores_with_a_taken_thread(threads: Threads) -> None:
    assert pick(SMALL, CPUSet.parse("1-3,8-11"), 4, threads=threads).held == CPUSet.parse("1-2,9-10")


def test_one_per_core_runs_on_the_first_thread_and_holds_the_siblings() -> None:
    picked = pick(SMALL, SMALL.online, 8, threads=Threads.ONE_PER_CORE)
    assert picked == Pick(CPUSet.parse("0-3"), CPUSet.parse("0-3,8-11"))


@pytest.mark.parametrize("threads", [Threads.FULL_CORE, Threads.ONE_PER_CORE])
def test_an_odd_count_of_whole_cores_is_refused_with_the_counts_that_fit(threads: Threads) -> None:
    error = _error(SMALL, "0-15", 3, threads=threads)
    assert error.fits == (2, 4)
    assert str(error) == (
        "cannot give 3 CPUs in whole physical cores: 16 are free in whole physical cores; ask for 2 or 4 (free: 0-15)"
    )


def test_more_whole_cores_than_are_free_are_refused_with_the_count_that_fits() -> None:
    assert _error(SMALL, "0-3,9-11", 8, threads=Threads.FULL_CORE).fits == (6,)


def test_an_error_says_that_no_whole_core_is_free() -> None:
    error = _error(SMALL, "0-7", 2, threads=Threads.FULL_CORE)
    assert "none is free in whole physical cores; wait" in str(error)
    assert error.fits == ()


@pytest.mark.parametrize(("count", "cores"), [(1, "4"), (2, "4-5"), (3, "4-6"), (5, "0-1,4-6"), (7, "0-3,4-6")])
def test_whole_cores_of_different_sizes_add_up_to_the_count(count: int, cores: str) -> None:
    assert pick(HYBRID, HYBRID.online, count, threads=Threads.FULL_CORE).cpus == CPUSet.parse(cores)


def test_a_core_is_left_out_if_whole_cores_could_not_give_the_rest() -> None:
    # One core of 1, two of 2: the single thread comes first in order but would leave 3, which two cores cannot make.
    mixed = topology({cpu: ([0, 1, 1, 2, 2][cpu], 0, 0, 0) for cpu in range(5)})
    assert pick(mixed, mixed.online, 4, threads=Threads.FULL_CORE).cpus == CPUSet.parse("1-4")


def test_whole_cores_are_spread_in_the_order_of_their_first_cpus() -> None:
    wishes = {"policy": PickPolicy.SPREAD, "threads": Threads.FULL_CORE, "l3": L3.IGNORE}
    assert _cpus(SMALL, "0-7,9-15", 4, **wishes) == "1-2,9-10"


def test_a_required_cache_refuses_a_count_that_needs_two_caches() -> None:
    assert _error(SERVER, "0,1,2,4-6,36", 5, l3=L3.REQUIRE).fits == (4,)
    error = _error(SERVER, "0-2,4-7,36-38", 8, l3=L3.REQUIRE)
    assert str(error).startswith(
        "cannot give 8 CPUs that keep to L3 caches (inside one, or whole ones and a part of one)"
    )
    assert error.fits == (7,)


def test_a_large_count_with_required_caches_uses_whole_ones_and_one_part() -> None:
    # Cache 0 is partly used, so it gives the part; the whole caches come first.
    free = SERVER.online - CPUSet.parse("0,1")
    picked = pick(SERVER, free, 20, l3=L3.REQUIRE).cpus
    parts = [cache for cache in SERVER.l3 if cache & picked and not cache <= picked]
    assert len(picked) == 20
    assert len(parts) <= 1


def test_whole_caches_and_a_part_are_found_among_caches_of_different_sizes() -> None:
    # Caches of 8, 4 and 4 CPUs; 3 of the first are taken. 9 CPUs are both small caches and 1 of the large one.
    uneven = topology({cpu: (cpu, 0, 0, (0 if cpu < 8 else cpu // 4)) for cpu in range(16)})
    picked = pick(uneven, CPUSet.parse("3-15"), 9, l3=L3.REQUIRE).cpus
    assert picked == CPUSet.parse("3,8-15")


def test_as_many_cpus_as_possible_are_in_whole_caches() -> None:
    # The cache of 12 is first in order and could give 9 beside the whole cache of 8; whole, it leaves 5 for the used
    # one.
    uneven = topology({cpu: (cpu, 0, int(cpu >= 12), 0 if cpu < 12 else (cpu - 4) // 8) for cpu in range(28)})
    caches = Caches.of(uneven.groups, CPUSet.parse("0-19,23-27").mask, whole=False)
    entire, part, size = caches.split(17)
    assert (list(entire), CPUSet.of_mask(part), size) == ([CPUSet.parse("0-11").mask], CPUSet.parse("23-27"), 5)


def test_required_caches_and_whole_cores_can_be_combined() -> None:
    free = SERVER.online - CPUSet.parse("0,4,9,13,16,20,25,29")
    picked = pick(SERVER, free, 6, l3=L3.REQUIRE, threads=Threads.FULL_CORE).cpus
    assert sum(bool(cache & picked) for cache in SERVER.l3) == 1
    assert SERVER.whole_cores(picked) == picked
    assert _error(SERVER, str(free), 8, l3=L3.REQUIRE, threads=Threads.FULL_CORE).fits == (6,)


def test_required_caches_on_a_machine_without_any_are_refused() -> None:
    bare = topology({cpu: (cpu, 0, 0, None) for cpu in range(4)})
    error = _error(bare, "0-3", 2, l3=L3.REQUIRE)
    assert str(error) == "cannot keep 2 CPUs to L3 caches: this machine reports none; leave out l3: require"


def test_the_required_cache_may_be_shared_by_two_numa_nodes() -> None:
    shared = topology({cpu: (cpu % 4, 0, cpu % 4 // 2, 0) for cpu in range(8)})
    assert _cpus(shared, "0-1,4-5", 3, l3=L3.REQUIRE) == "0-1,4"


def test_distributed_whole_cores_are_divided_in_steps_of_a_core() -> None:
    # 40 CPUs need three NUMA nodes of 16; in steps of a core these give 14, 14 and 12.
    picked = pick(SERVER, SERVER.online, 40, policy=PickPolicy.NUMA_DISTRIBUTED, threads=Threads.FULL_CORE).cpus
    assert sorted(len(node & picked) for node in SERVER.numa.values()) == [0, 12, 14, 14]
    assert SERVER.whole_cores(picked) == picked


def test_distributed_with_required_caches_respects_the_caches() -> None:
    picked = pick(SERVER, SERVER.online, 40, policy=PickPolicy.NUMA_DISTRIBUTED, l3=L3.REQUIRE).cpus
    assert sum(bool(cache & picked) and not cache <= picked for cache in SERVER.l3) <= 1


def test_distribution_leaves_out_a_remainder_below_a_whole_step() -> None:
    # The reference never ends here: every node has CPUs left, but none a whole step of 3.
    nodes = regular(1, 8, 2, 2, 2)
    free = CPUSet.parse("0-12,14-17,19,21-26,28-47,49,51-59,61-63")
    assert len(pick(nodes, free, 21, policy=PickPolicy.NUMA_DISTRIBUTED, group=3).cpus) == 21


def test_the_best_node_set_is_kept_if_later_ones_share_its_first_nodes() -> None:
    # The reference overwrites the last node of the best set so far, and ends with node 7.
    nodes = regular(1, 8, 2, 2, 2)
    picked = pick(nodes, nodes.online, 52, policy=PickPolicy.NUMA_DISTRIBUTED, group=2).cpus
    assert [len(node & picked) for node in nodes.numa.values()] == [8, 8, 8, 8, 8, 6, 6, 0]


def test_many_nodes_are_divided_without_a_search() -> None:
    nodes = regular(4, 8, 1, 8, 2)
    free = nodes.online - CPUSet(range(0, 256, 5))
    picked = pick(nodes, free, 200, policy=PickPolicy.NUMA_DISTRIBUTED).cpus
    shares = {len(node & picked) for node in nodes.numa.values()} - {0}
    assert len(picked) == 200
    assert max(shares) - min(shares) <= 1


def test_a_group_without_distribution_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="a group of 2 CPUs is only for the policy numa-distributed, not for packed"):
        pick(SMALL, SMALL.online, 2, group=2)


def test_an_empty_group_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="a group of 0 CPUs is impossible"):
        pick(SMALL, SMALL.online, 2, policy=PickPolicy.NUMA_DISTRIBUTED, group=0)


@pytest.mark.parametrize(
    ("machine", "free", "count", "wishes", "want"),
    [
        # NUMA node 0 has 3 free cores, node 1 has 6: the reference takes all of the first and one of the second.
        (SERVER, "0,4-5,9-11,13-15,32,36-37,41-43,45-47", 8, {}, "9-11,13,41-43,45"),
        (SERVER, "0,4-5,9-11,13-15,32,36-37,41-43,45-47", 8, {"threads": Threads.FULL_CORE}, "9-11,13,41-43,45"),
        # One socket has enough.
        (SERVER, "0-3,9,12-19,32-35,41,44-51", 17, {"l3": L3.REQUIRE}, "0-3,9,12-15,32-35,44-47"),
        (SERVER, "0,4,8-11,16-18,32,36,40-43,48-50", 12, {"l3": L3.IGNORE}, "0,4,8-11,32,36,40-43"),
        # A cache has enough threads of partly taken cores, and its first two cores have fewer.
        (SERVER, "0,1,2,4-6,36", 4, {}, "4-6,36"),
        (SERVER, "0,1,2,4-6,36", 4, {"l3": L3.REQUIRE}, "4-6,36"),
        # Two NUMA nodes have enough, and one of them under two caches; the largest cache is elsewhere.
        (regular(sockets=1, numa=3, l3=4, cores=4, threads=1), "0-1,4-5,8-9,16-18,20-22,32-35", 6, {}, "16-18,20-22"),
        # The rest of 3 CPUs does not come from the cache of 4, where it would split a core.
        (MIXED, "0-1,3-8", 5, {"threads": Threads.FULL_CORE, "l3": L3.REQUIRE}, "4-8"),
    ],
)
def test_a_pick_is_in_as_few_numa_nodes_and_caches_as_possible(
    machine: Topology, free: str, count: int, wishes: dict[str, object], want: str
) -> None:
    assert _cpus(machine, free, count, **wishes) == want


class TestUntouchedFirst:
    """Cores that others partly hold are left alone while the other cores are enough."""

    NODE = open_machine("sockets=2,numa=2,cores=16,threads=2")

    def test_a_single_thread_comes_from_an_untouched_core(self) -> None:
        machine, free = read_topology(self.NODE), CPUSet.parse("8-15,65,72-79")
        assert str(pick(machine, free, 3, order=Order.REFERENCE).cpus) == "8,65,72"
        assert str(pick(machine, free, 3).cpus) == "8-9,72"

    @pytest.mark.parametrize("count", [1, 4, 7, 14])
    def test_touched_cores_are_used_only_for_what_the_others_cannot_give(self, count: int) -> None:
        machine = regular(sockets=1, numa=1, l3=1, cores=8, threads=2)
        free = machine.online - CPUSet((0,))
        picked = pick(machine, free, count).cpus
        assert len(picked) == count
        assert CPUSet((8,)).isdisjoint(picked)
        assert len(pick(machine, free, 15).cpus) == 15

    def test_a_count_that_needs_touched_cores_uses_as_few_of_them_as_possible(self) -> None:
        # Untouched are 0,4 and 2,6; the reference takes both single threads and leaves half a core.
        machine, free = regular(sockets=1, numa=1, l3=2, cores=2, threads=2), CPUSet.parse("0-4,6")
        assert str(pick(machine, free, 5).cpus) == "0-2,4,6"

    def test_a_core_that_the_claim_partly_holds_is_not_avoided(self) -> None:
        machine = regular(sockets=1, numa=1, l3=1, cores=2, threads=2)
        free, own = CPUSet.parse("1-3"), CPUSet((0,))
        assert str(pick(machine, free, 1).cpus) == "1"
        assert str(pick(machine, free, 1, own=own).cpus) == "2"

    def test_a_core_that_the_claim_partly_holds_is_completed_first(self) -> None:
        # In the cache's order the core of 5 comes last; taking it leaves one more untouched core for others.
        machine = regular(sockets=1, numa=1, l3=1, cores=6, threads=2)
        free, own = machine.online - CPUSet((5,)), CPUSet((5,))
        assert str(pick(machine, free, 3, order=Order.REFERENCE).cpus) == "0-1,6"
        assert str(pick(machine, free, 3, own=own).cpus) == "0,6,11"
        assert str(pick(machine, free, 4, own=own).cpus) == "0-1,6-7"
        assert str(pick(machine, free, 3, own=own, policy=PickPolicy.SPREAD, l3=L3.IGNORE).cpus) == "0-2"

    def test_balance_comes_before_untouched_cores(self) -> None:
        machine = regular(sockets=2, numa=1, l3=1, cores=2, threads=2)
        free, wishes = CPUSet.parse("0-1,4-6"), {"policy": PickPolicy.NUMA_DISTRIBUTED, "group": 1}
        assert str(pick(machine, free, 5, **wishes).cpus) == "0-1,4-6"  # type: ignore[arg-type]


def test_equal_parts_come_from_the_numa_nodes_of_one_package_if_it_has_enough() -> None:
    # Each package has four NUMA nodes, of which the last has fewer CPUs free (kubernetes/kubernetes#141237).
    machine = topology({cpu: (cpu, cpu // 32, cpu // 8, 0) for cpu in range(64)})
    free = machine.online - CPUSet.parse("30-31,62-63")
    picks = {count: str(pick(machine, free, count, policy=PickPolicy.NUMA_DISTRIBUTED).cpus) for count in (25, 28)}
    assert picks == {25: "0-6,8-13,16-21,24-29", 28: "0-6,8-14,16-22,32-38"}
