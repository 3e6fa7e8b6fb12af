from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.driver.claims.record import ClaimState, Record, record_of
from dranode.memory.grant import memory_pool, pinned_memory, unread_memory_pool
from dranode.memory.machine import MachineMemory, MemoryNode
from dranode.memory.options import MemoryOptions
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import machine
from tests.fakes.memory import GIB, MIB, claim, config, granted, one_node, pages, result

PODS = (ResourceClaimConsumerReference(resource="pods", name="p", uid="pod-uid"),)


def record(*results: tuple[str, str, str], **own: str) -> Record:
    asked = claim([result(*each) for each in results], [config((), **own)] if own else [])
    return record_of(asked, granted(asked), PODS, ClaimState.COMPLETED)


def test_a_record_restricts_containers_to_its_nodes_and_pages() -> None:
    held = pinned_memory(record(("memory-numa0", "1Gi", "mem"), ("hugepages-2m-numa1", "8Mi", "small")))
    assert (held.nodes, held.binds, held.hugepages) == (CPUSet((0, 1)), True, ((2 * MIB, 8 * MIB),))
    assert [(part.nodes, part.hugepages) for part in held.parts] == [
        (CPUSet((0,)), ()),
        (CPUSet((1,)), ((2 * MIB, 8 * MIB),)),
    ]
    assert (held.pods, held.shared_in_pod, held.exclusive, held.cpus) == (frozenset({"pod-uid"}), False, True, CPUSet())


def test_pages_of_one_size_are_added_up_and_sizes_are_not() -> None:
    wants = (("hugepages-2m-numa0", "8Mi", "a"), ("hugepages-2m-numa1", "4Mi", "b"), ("hugepages-1g-numa0", "1Gi", "c"))
    assert pinned_memory(record(*wants)).hugepages == ((2 * MIB, 12 * MIB), (GIB, GIB))


def test_configurations_set_sharing_and_whether_nodes_are_binding() -> None:
    assert pinned_memory(record(("memory-numa0", "1Gi", "mem"), sharing="pod")).shared_in_pod
    assert not pinned_memory(record(("memory-numa0", "1Gi", "mem"), policy="preferred")).binds
    assert pinned_memory(record(("memory-numa0", "1Gi", "mem"), policy="interleave")).binds


def test_admin_access_holds_nothing() -> None:
    asked = claim([result("memory-numa0", "1Gi", admin_access=True)])
    held = pinned_memory(record_of(asked, granted(asked), PODS, ClaimState.COMPLETED))
    assert (held.nodes, held.exclusive) == (CPUSet(), False)


def test_the_pool_has_all_nodes_and_the_page_sizes_that_runtimes_can_limit() -> None:
    files = {**one_node(), **pages(0, 2048, 4)}
    for more, sizes, unified in (
        ({}, (), False),
        ({"sys/fs/cgroup/cgroup.controllers": "cpuset cpu hugetlb"}, (2 * MIB,), True),
        ({"sys/fs/cgroup/cgroup.controllers": "cpuset cpu"}, (), False),
        ({"sys/fs/cgroup/hugetlb/cgroup.procs": ""}, (2 * MIB,), False),
        ({"sys/fs/cgroup/unified/cgroup.controllers": "hugetlb"}, (), False),
    ):
        pool = memory_pool(read_memory(machine({**files, **more})), MemoryOptions(exclusive=True))
        assert (pool.page_sizes, pool.unified_pages, pool.pins_cpus, pool.mems) == (sizes, unified, False, CPUSet((0,)))
    gpus = MachineMemory((MemoryNode(0, GIB), MemoryNode(8, GIB, cpus=False)))
    assert memory_pool(gpus, MemoryOptions()).mems == CPUSet((0, 8))
    assert memory_pool(read_memory(open_machine("sockets=2,cores=2")), MemoryOptions()).mems == CPUSet((0, 1))


def test_nothing_is_enforced_on_an_unread_machine() -> None:
    pool = unread_memory_pool()
    assert (pool.mems, pool.page_sizes, pool.pins_cpus) == (CPUSet(), (), False)
    assert pool.variable
    assert pool.cdi_kind
