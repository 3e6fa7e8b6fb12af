"""The variables that tell a claim's containers, and the NRI plug-in, about its memory.

`DRANODE_MEMS_<claim UID>=<NUMA nodes>` stands in every container with the claim. Each of its allocation results has a
CDI device of its own besides, with `DRANODE_MEMORY_<claim UID>_<number of the result>`, the nodes of that result, and
`DRANODE_MEMPOLICY_<claim UID>_<number>`, its policy and these nodes: `interleave:0-1`. The policies are `bind`,
`interleave`, `weighted-interleave` and `prefer`, those of set_mempolicy(2).
"""

from __future__ import annotations

from typing import Final

from dranode.driver import ContainerEdits, CPUSet, Mount
from dranode.memory.config import MemoryPolicy, MemorySettings
from dranode.memory.given import GivenMemory
from dranode.memory.page_size import short_name

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
    """Return a hugetlbfs of the result's pages, which holds as many of them as it was given."""
    unit = short_name(given.page_size).upper()
    options = ("nosuid", "nodev", f"pagesize={unit}", f"size={given.size}", "mode=1777")
    return Mount(host_path="hugetlbfs", container_path=path, type="hugetlbfs", options=options)
