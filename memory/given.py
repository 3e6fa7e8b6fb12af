"""The memory that an allocation result was given: `Grant.state` of this driver as a value, and what it is made of.

A device's name depends on the node's option for grouping, and claims keep what they were given under another one. What
they hold counts by sources, which no option changes: the memory, or the huge pages of one size, of one NUMA node.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dranode.driver import CPUSet, Grant, decode
from dranode.memory.config import MemoryPolicy, MemorySharing
from dranode.memory.page_size import kind_name


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


class _Place(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a state that say what the memory is made of; another version may have others besides."""

    nodes: CPUSet
    page_size: int = 0


def memory_sources(nodes: CPUSet, page_size: int) -> frozenset[str]:
    """Return the sources of memory on these NUMA nodes: `memory-numa0`, `hugepages-2m-numa1`."""
    return frozenset(f"{kind_name(page_size)}-numa{node}" for node in nodes)


def given_sources(state: Any) -> frozenset[str] | None:
    """Return the sources of what was given, by a grant's state; None if it does not name any.

    Raises:
        DocumentError: the state is not this driver's.
    """
    if state is None:
        return None
    place = decode(_Place, state)
    return memory_sources(place.nodes, place.page_size) or None
