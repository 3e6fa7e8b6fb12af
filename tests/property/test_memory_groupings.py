"""What claims hold of memory always fits the machine, whatever groupings it was granted under, in any order."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dranode.api.errors import ClaimConflictError, ClaimError
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.record import ClaimState, Record, record_of
from dranode.memory.devices import GivenMemory, MemoryInventory, given_sources, memory_impairments, memory_inventory
from dranode.memory.grant import grant_memory
from dranode.memory.options import MemoryGroupBy, MemoryOptions
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.forms import open_machine
from tests.fakes.memory import result

# Two sockets of two NUMA nodes.
MACHINE = read_memory(open_machine("sockets=2,numa=2,cores=4,memory=8,hugepages2m=4,hugepages1g=2"))
UNDER = {each: memory_inventory(MACHINE, MemoryOptions(group_by=each)) for each in MemoryGroupBy}
STEPS = st.lists(
    st.tuples(st.sampled_from(MemoryGroupBy), st.integers(0, 99), st.integers(1, 8), st.booleans()), max_size=40
)


def fits(records: list[Record], inventory: MemoryInventory) -> bool:
    """Whether the memory that claims hold fits: every set of NUMA nodes has enough for its claims (Hall's theorem)."""
    given = [each for record in records for each in map(GivenMemory.of, record.grants) if each is not None]
    nodes = [node.id for node in inventory.machine.nodes]
    sets = itertools.chain.from_iterable(itertools.combinations(nodes, count) for count in range(1, len(nodes) + 1))
    return all(
        sum(each.size for each in given if each.page_size == size and set(each.nodes) <= set(chosen))
        <= sum(
            device.size for device in inventory.devices if device.page_size == size and set(device.mems) <= set(chosen)
        )
        for chosen in sets
        for size in (0, *inventory.machine.page_sizes)
    )


@given(steps=STEPS)
def test_memory_is_given_once(steps: list[tuple[MemoryGroupBy, int, int, bool]]) -> None:
    held, records = Held(), dict[str, Record]()
    for number, (group_by, which, part, ends) in enumerate(steps):
        if ends and records:
            uid = sorted(records)[which % len(records)]
            held.drop(uid)
            del records[uid]
            continue
        inventory = UNDER[group_by]
        device = inventory.devices[which % len(inventory.devices)]
        size = max(1, device.size * part // 8 // device.step) * device.step
        ref = ClaimRef("ns", f"c-{number}", f"c-{number}")
        claim = AllocatedClaim(ref, (AllocatedResult(result(device.name, str(size))),))
        try:
            record = record_of(claim, grant_memory(claim, held, inventory.devices), (), ClaimState.COMPLETED)
        except ClaimError as error:
            if not (isinstance(error, ClaimConflictError) and records):
                raise
        else:
            records[ref.uid] = record
            held.add(record.holding(lambda _, state: given_sources(state)))
        assert fits(list(records.values()), UNDER[MemoryGroupBy.NUMA])
        for inventory in UNDER.values():
            assert list(memory_impairments(inventory, records.values())) == []
    for uid in records:
        held.drop(uid)
    assert held == Held()
