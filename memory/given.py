"""The memory that an allocation result was given: `Grant.state` of this driver as a value."""

from __future__ import annotations

import msgspec

from dranode.driver import CPUSet, Grant, decode
from dranode.memory.config import MemoryPolicy, MemorySharing


class GivenMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The memory of one allocation result.

    Attributes:
        nodes: its NUMA nodes (list format).
        size: bytes.
        page_size: bytes of a huge page; 0 for ordinary memory.
        policy: where on these nodes memory comes from.
        sharing: which containers may run with it at the same time.
    """

    nodes: CPUSet
    size: int
    page_size: int = 0
    policy: MemoryPolicy = MemoryPolicy.BIND
    sharing: MemorySharing = MemorySharing.CONTAINER

    @classmethod
    def of(cls, grant: Grant) -> GivenMemory | None:
        """Return what a recorded grant was given; None for admin access, and for a grant recovered without it.

        Raises:
            DocumentError: the state is not this driver's.
        """
        return None if grant.state is None else decode(cls, grant.state)
