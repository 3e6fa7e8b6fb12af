"""The policies by which a request can influence the pick."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class PickPolicy(StrEnum):
    """From where the pick takes CPUs."""

    PACKED = "packed"
    SPREAD = "spread"
    NUMA_DISTRIBUTED = "numa-distributed"


class Order(StrEnum):
    """The cores that single threads come from: those that no other claim has part of, or those of dra-driver-cpu."""

    UNTOUCHED_FIRST = "untouched-first"
    REFERENCE = "reference"


class Threads(StrEnum):
    """The threads of a physical core that may be taken."""

    ANY = "any"
    FULL_CORE = "full-core"
    ONE_PER_CORE = "one-per-core"


class L3(StrEnum):
    """The weight of L3 caches in a pick."""

    PREFER = "prefer"
    REQUIRE = "require"
    IGNORE = "ignore"


class Isolation(StrEnum):
    """The levels of isolation, each with what it keeps off a claim's CPUs besides what the one before does.

    CPUSET: other containers. QUIET: interrupts, unbound kernel work and the host's own services, as far as the kernel
    lets them be moved. PARTITION: the scheduler's load balancing, by a partition of cgroup v2.
    """

    CPUSET = "cpuset"
    QUIET = "quiet"
    PARTITION = "partition"

    @property
    def level(self) -> int:
        """Return how much it keeps off, in the order of the values."""
        return _LEVELS[self]


_LEVELS: Final = {isolation: level for level, isolation in enumerate(Isolation)}
