"""How long a pick takes on large machines of which much is taken, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.cpu.options import L3, PickPolicy, Threads
from dranode.cpu.pick import PickError, pick
from dranode.cpu.topology import Topology
from tests.bench.table import Row
from tests.fakes.topology import regular

LIMIT_MS: Final = 0.6
_PICKS: Final = 400
# Small, odd, a cache's worth and large: each takes another way through the picker.
_COUNTS: Final = (1, 2, 3, 7, 8, 16, 33, 64, 100)
_SHAPES: Final = {512: (2, 4, 8, 4, 2), 768: (2, 4, 12, 4, 2)}
_WAYS: Final[dict[str, Callable[[Topology, CPUSet, int], object]]] = {
    "packed": pick,
    "spread": partial(pick, policy=PickPolicy.SPREAD),
    "numa-distributed": partial(pick, policy=PickPolicy.NUMA_DISTRIBUTED),
    "L3 required": partial(pick, l3=L3.REQUIRE),
    "full-core": partial(pick, threads=Threads.FULL_CORE),
}


def bench() -> Iterable[Row]:
    """Medians over picks of many sizes from many states of the machine."""
    for cpus, shape in _SHAPES.items():
        machine = regular(*shape)
        single = _fragmented([CPUSet((cpu,)) for cpu in machine.online])
        cores = _fragmented(machine.cores)
        floor = _milliseconds(partial(_count, machine, free) for free, _ in single)
        for name, way in _WAYS.items():
            states = cores if name == "full-core" else single
            value = _milliseconds(partial(_picked, way, machine, *state) for state in states)
            yield Row(
                name=f"pick, {cpus} CPUs, {name}",
                value=value,
                unit="ms",
                floor=floor,
                floor_name="count the free CPUs of every core",
                target=f"under {LIMIT_MS} ms",
                ok=value < LIMIT_MS,
            )


def _fragmented(units: Sequence[CPUSet]) -> list[tuple[CPUSet, int]]:
    """Free CPUs, scattered in these units, and counts to pick of them."""
    random = Random(len(units))
    size = len(units[0])
    states = []
    for _ in range(_PICKS):
        share = random.choice((0.9, 0.7, 0.5, 0.3))
        free = CPUSet.union(unit for unit in units if random.random() < share)
        count = random.choice((*_COUNTS, len(free) // 2, len(free) * 3 // 4))
        states.append((free, max(1, count // size) * size))
    return states


def _picked(way: Callable[[Topology, CPUSet, int], object], machine: Topology, free: CPUSet, count: int) -> None:
    # Saying no, with the counts that would fit, is an answer too.
    with suppress(PickError):
        way(machine, free, count)


def _count(machine: Topology, free: CPUSet) -> int:
    """What no picker can do without: how many CPUs of every core are free."""
    return max((core & free.mask).bit_count() for core in machine.groups.cores)


def _milliseconds(calls: Iterable[Callable[[], object]]) -> float:
    times = []
    for call in calls:
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return 1000 * median(times)
