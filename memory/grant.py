"""Decides which memory a claim gets, from its allocation, the memory that other claims hold, and the machine.

An allocation says how many bytes of which device a claim gets; memory is anonymous, so there is nothing to choose. The
claims on a device never hold more than the machine has of it, even if devices were grouped differently when the claims
were prepared: a claim over several NUMA nodes counts against every group that has one of them, because its memory may
be on any of them. A result with admin access holds nothing, and its containers are not restricted.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from dranode.api import CPUSet, Quantity, encode, named_value
from dranode.driver import (
    AllocatedClaim,
    AllocatedResult,
    ClaimConflictError,
    ClaimError,
    ClaimGrant,
    ClaimRef,
    ContainerEdits,
    Grant,
    Held,
    Mount,
    Part,
    PinnedClaim,
    PinSnapshot,
    Record,
)
from dranode.memory.config import MemoryPolicy, MemorySettings, MemorySharing, memory_settings
from dranode.memory.devices import SIZE, GivenMemory, MemoryDevice
from dranode.memory.machine import MachineMemory, resource_name, short_name
from dranode.memory.options import MemoryOptions

# The variables with which a claim's containers and the NRI plug-in learn about its memory. Every container with the
# claim has `DRANODE_MEMS_<claim UID>=<NUMA nodes>`. Each of its allocation results also has its own CDI device, with
# the nodes of that result in `DRANODE_MEMORY_<claim UID>_<number of the result>`, and its policy and nodes
# (`interleave:0-1`) in `DRANODE_MEMPOLICY_<claim UID>_<number>`. The policies are those of set_mempolicy(2): `bind`,
# `interleave`, `weighted-interleave` and `prefer`.

CDI_KIND: Final = "dra.memory/claim"
CLAIM_PREFIX: Final = "DRANODE_MEMS_"
PART_PREFIX: Final = "DRANODE_MEMORY_"
POLICY_PREFIX: Final = "DRANODE_MEMPOLICY_"

_WORDS: Final = {
    MemoryPolicy.BIND: "bind",
    MemoryPolicy.INTERLEAVE: "interleave",
    MemoryPolicy.WEIGHTED: "weighted-interleave",
    MemoryPolicy.PREFERRED: "prefer",
}


def memory_claim_edits(uid: str, nodes: CPUSet) -> ContainerEdits | None:
    """Return the edits that every container with the claim gets; None for a claim without memory."""
    return ContainerEdits(env=(f"{CLAIM_PREFIX}{uid}={nodes}",)) if nodes else None


def result_edits(uid: str, index: int, given: GivenMemory, asked: MemorySettings) -> ContainerEdits:
    """Return the edits for containers that name the request of result number `index`."""
    policy = f"{POLICY_PREFIX}{uid}_{index}={_WORDS[given.policy]}:{given.nodes}"
    return ContainerEdits(
        env=(f"{PART_PREFIX}{uid}_{index}={given.nodes}", policy),
        mounts=(_hugetlbfs(given, asked.mount),) if asked.mount else (),
    )


def empty_edits(uid: str, index: int) -> ContainerEdits:
    """Return the edits for containers that name a request which holds nothing."""
    return ContainerEdits(env=(f"{PART_PREFIX}{uid}_{index}=",))


def _hugetlbfs(given: GivenMemory, path: str) -> Mount:
    """Return the mount of a hugetlbfs that is limited to the result's huge pages."""
    unit = short_name(given.page_size).upper()
    options = ("nosuid", "nodev", f"pagesize={unit}", f"size={given.size}", "mode=1777")
    return Mount(host_path="hugetlbfs", container_path=path, type="hugetlbfs", options=options)


_GATE = "enable the DRAConsumableCapacity feature gate, and request a capacity"


class _Asked(msgspec.Struct, frozen=True):
    """One allocation result with its device and the merged settings of its configurations."""

    claim: ClaimRef
    allocated: AllocatedResult
    device: MemoryDevice
    settings: MemorySettings

    @property
    def admin(self) -> bool:
        return bool(self.allocated.result.admin_access)

    def __str__(self) -> str:
        return f'request "{self.allocated.result.request}" of claim {self.claim}'


def grant_memory(claim: AllocatedClaim, held: Held, devices: Sequence[MemoryDevice]) -> ClaimGrant:
    """Decide what the claim gets; the framework has checked that its devices are published.

    Raises:
        ClaimConflictError: other claims hold memory that this one was allocated.
        ClaimError: the claim cannot get what it was allocated; the message says which request, how much and why.
    """
    by_name = {device.name: device for device in devices}
    results = [
        _Asked(claim.ref, result, by_name[result.result.device], memory_settings(result.configs))
        for result in claim.results
    ]
    _check_mounts(results)
    sizes = [0 if asked.admin else _consumed(asked) for asked in results]
    _check_room(results, sizes, held)
    nodes = CPUSet.union(asked.device.mems for asked in results if not asked.admin)
    grants = tuple(
        _grant(index, asked, size) if size else _nothing(index, asked, shown=bool(nodes))
        for index, (asked, size) in enumerate(zip(results, sizes, strict=True))
    )
    return ClaimGrant(grants=grants, edits=memory_claim_edits(claim.ref.uid, nodes))


def _grant(index: int, asked: _Asked, size: int) -> Grant:
    result = asked.allocated.result
    given = GivenMemory(
        nodes=asked.device.mems,
        size=size,
        page_size=asked.device.page_size,
        policy=asked.settings.policy,
        sharing=asked.settings.sharing,
    )
    return Grant.of(
        result,
        edits=result_edits(asked.claim.uid, index, given, asked.settings),
        attributes=_metadata(given),
        state=encode(given),
        amount=size,
    )


def _nothing(index: int, asked: _Asked, *, shown: bool) -> Grant:
    """Return the grant of a result with admin access; it has edits if other results of the claim have some."""
    edits = empty_edits(asked.claim.uid, index) if shown else None
    return Grant.of(asked.allocated.result, edits=edits)


def _metadata(given: GivenMemory) -> dict[str, str | int]:
    """Return the attributes that the workload sees in addition to those that the device publishes."""
    return {
        "dra.memory/allocatedSize": given.size,
        "dra.memory/numaNodes": str(given.nodes),
        "dra.memory/policy": given.policy.value,
    }


def _consumed(asked: _Asked) -> int:
    """Return how many bytes the result was allocated.

    Raises:
        ClaimError: the amount is missing, or not a whole number of steps.
    """
    result, step = asked.allocated.result, asked.device.step
    amount = named_value(result.consumed_capacity, SIZE, result.driver)
    if amount is None:
        raise ClaimError(f'{asked}: capacity "{SIZE}" of device "{result.device}" is missing; {_GATE}')
    if not isinstance(amount.value, int) or amount.value <= 0 or amount.value % step:
        raise ClaimError(
            f'{asked} was allocated {amount} of device "{result.device}", which is not a positive multiple of '
            f"{Quantity.binary(step)}, its step"
        )
    return amount.value


def _check_room(results: Sequence[_Asked], sizes: Sequence[int], held: Held) -> None:
    """Refuse more memory than other claims leave: the scheduler may have allocated from an outdated slice."""
    own: Counter[str] = Counter()
    for asked, size in zip(results, sizes, strict=True):
        device = asked.device
        room = device.size - held.amount(device.sources) - own[device.name]
        if size <= room:
            own[device.name] += size
            continue
        what = (
            f"{asked} was allocated {Quantity.binary(size)} of {device.name}, "
            f"which has {Quantity.binary(max(0, room))} of {Quantity.binary(device.size)} left"
        )
        if size + own[device.name] > device.size:
            raise ClaimError(f"{what}; delete the claim so that it is allocated again")
        holders = held.holders(device.sources)
        raise ClaimConflictError(f"{what}; the rest is held by {' and '.join(map(str, holders))}")


def _check_mounts(results: Sequence[_Asked]) -> None:
    paths: dict[str, _Asked] = {}
    for asked in results:
        path, device = asked.settings.mount, asked.device
        if not path or asked.admin:
            continue
        if not device.page_size:
            raise ClaimError(f"{asked} has a mount at {path}, but {device.name} has no huge pages; leave out mount")
        other = paths.setdefault(path, asked)
        if other is not asked:
            raise ClaimError(
                f"{asked} and {other} both have a mount at {path}, for "
                f"{resource_name(device.page_size)} and {resource_name(other.device.page_size)}; "
                "give each its own path, in a configuration that names its request"
            )


# The limits of a claim's containers: the NUMA nodes of its memory, and the amounts of its huge pages.


def memory_pool(machine: MachineMemory, options: MemoryOptions) -> PinSnapshot:
    """Return the machine without claims, for enforcement by NRI. It pins no CPUs, which another driver does."""
    return PinSnapshot(
        pins_cpus=False,
        mems=CPUSet(node.id for node in machine.for_pods),
        page_sizes=machine.page_sizes if machine.limits_pages else (),
        exclusive_pages=options.exclusive,
        unified_pages=machine.unified,
        variable=CLAIM_PREFIX,
        part_variable=PART_PREFIX,
        cdi_kind=CDI_KIND,
    )


def unread_memory_pool() -> PinSnapshot:
    """Return what NRI can enforce on an unknown machine."""
    return memory_pool(MachineMemory(()), MemoryOptions())


def pinned_memory(record: Record) -> PinnedClaim:
    """Return a record's claim, for enforcement by NRI."""
    memories = [GivenMemory.of(grant) for grant in record.grants]
    sharing = {given.sharing for given in memories if given is not None}
    claim = PinnedClaim(
        record.ref,
        pods=frozenset(pod.uid for pod in record.pods if pod.is_pod and pod.uid),
        shared_in_pod=sharing == {MemorySharing.POD},
    )
    return claim.with_parts(tuple(_part(index, given) for index, given in enumerate(memories)))


def _part(index: int, given: GivenMemory | None) -> Part:
    """Return what one allocation result was given; a result with admin access holds nothing."""
    if given is None:
        return Part(index)
    return Part(
        index,
        nodes=given.nodes,
        binds=given.policy is not MemoryPolicy.PREFERRED,
        memory=0 if given.page_size else given.size,
        hugepages=((given.page_size, given.size),) if given.page_size else (),
    )
