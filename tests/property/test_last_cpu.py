"""Everything published can be allocated, to the last CPU, on every machine and with all options; one CPU is left."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UsageError
from dranode.cpu.options import CPUOptions, DeviceMode, GroupBy, Isolation, Threads, check_reserved
from dranode.cpu.topology import Topology
from tests.fakes.cpu_filling import filled
from tests.property.test_pick import machines


@st.composite
def published(draw: st.DrawFn) -> tuple[Topology, CPUOptions]:
    """A machine, and options that fit it."""
    machine = draw(machines())
    mode = draw(st.sampled_from(DeviceMode))
    grouped = mode is DeviceMode.GROUPED
    options = CPUOptions(
        mode=mode,
        group_by=draw(st.sampled_from(GroupBy)) if grouped else GroupBy.NUMANODE,
        threads=draw(st.sampled_from((Threads.ANY, Threads.FULL_CORE))),
        reserved=CPUSet(draw(st.sets(st.sampled_from(sorted(machine.online)), max_size=2) | st.just(set[int]()))),
        keep_shared=draw(st.booleans()),
        max_isolation=draw(st.sampled_from((Isolation.CPUSET, Isolation.QUIET))),
    )
    with contextlib.suppress(UsageError):
        check_reserved(options, machine)
        return machine, options
    return machine, options._replace(reserved=CPUSet())


@given(case=published(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_every_claim_that_fits_the_slices_is_granted(case: tuple[Topology, CPUOptions], sizes: list[int]) -> None:
    machine, options = case
    left = filled(machine, options, (size for _ in iter(int, 1) for size in sizes))
    needs_one = options.keep_shared or options.max_isolation is not Isolation.CPUSET
    assert left >= options.reserved & machine.online
    assert bool(left) or not needs_one
