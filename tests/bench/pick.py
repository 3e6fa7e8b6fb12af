"""How long a pick takes on large machines of which much is taken, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

from dranode.cpu.pick import L3, PickError, Policy, Threads, pick
from dranode.cpu.topology import Topology
from dranode.driver.core.cpuset import CPUSet
from tests.bench.table import Row
from tests.fakes_topology import regular

LIMIT_MS: Final = 0.6
_PICKS: Final = 400
# Small, odd, a cache's worth and large: each takes another way through the picker.
_COUNTS: Final = (1, 2, 3, 7, 8, 16, 33, 64, 100)
_SHAPES: Final = {512: (2, 4, 8, 4, 2), 768: (2, 4, 12, 4, 2)}


def bench() -> Iterable[Row]:
    """Medians over picks of many sizes from many states of the machine."""
    for cpus, shape in _SHAPES.items():
        machine = regular(*shape)
        scattered = _fragmented(machine, machine.online)
        floor = _milliseconds(partial(_count, machine, free) for free, _ in scattered)
        for name, picking in _WAYS.items():
            yield _row(f"pick, {cpus} CPUs, {name}", _milliseconds(partial(picking, machine, *s) for s in scattered), floor)
        picking = partial(pick, threads=Threads.FULL_CORE)
        cores = _fragmented(machine, machine.cores)
        yield _row(f"pick, {cpus} CPUs, whole cores", _milliseconds(partial(picking, machine, *s) for s in cores), floor)


def _fragmented(machine: Topology, *, whole: bool) -> list[tuple[CPUSet, int]]:
    """Free CPUs, scattered, and counts that they can give; with `whole` of whole cores."""
    random = Random(512)
    units = list(machine.cores) if whole else [CPUSet((cpu,)) for cpu in machine.online]
    states = []
    for _ in range(_PICKS):
        share = random.choice((0.9, 0.7, 0.5, 0.3))
        free = CPUSet.union(unit for unit in units if random.random() < share)
        count = random.choice((*_COUNTS, len(free) // 2, len(free) * 3 // 4))
        states.append((free, max(2, count // 2 * 2) if whole else count))
    return states


def _row(name: str, value: float, floor: float) -> Row:
    return Row(
        name=name,
        value=value,
        unit="ms",
        floor=floor,
        floor_name="count the free CPUs of every core",
        target=f"under {LIMIT_MS} ms",
        ok=value < LIMIT_MS,
    )
