"""Everything that captured machines publish can be allocated (hwloc's test data, beside the repository)."""

from itertools import cycle

import pytest

from dranode.api.cpuset import CPUSet
from dranode.cpu.options import CPUOptions, DeviceMode, GroupBy, Isolation, Threads
from dranode.cpu.sysfs import read_topology
from tests.fakes.cpu_filling import filled
from tests.machines.test_captured_machines import NAMES, captured

FORMS = (
    *(
        CPUOptions(group_by=group_by, threads=threads)
        for group_by in GroupBy
        for threads in (Threads.ANY, Threads.FULL_CORE)
    ),
    *(CPUOptions(mode=DeviceMode.INDIVIDUAL, threads=threads) for threads in (Threads.ANY, Threads.FULL_CORE)),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_that_fits_a_captured_machines_slices_is_granted(name: str) -> None:
    machine = read_topology(captured(name))
    for form in FORMS:
        for kept in (
            form,
            form._replace(keep_shared=True),
            form._replace(max_isolation=Isolation.QUIET),
            form._replace(keep_shared=True, reserved=machine.cores[0]),
            form._replace(reserved=CPUSet((machine.online.first(),))),
        ):
            left = filled(machine, kept, cycle((1, 3, 2)))
            lacks = not (kept.keep_shared or kept.reserved or kept.max_isolation is not Isolation.CPUSET)
            assert bool(left) is not lacks, kept
