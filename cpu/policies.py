"""The policies by which a request can influence the pick."""

from __future__ import annotations

from enum import StrEnum


class PickPolicy(StrEnum):
    """From where the pick takes CPUs."""

    PACKED = "packed"
    SPREAD = "spread"
    NUMA_DISTRIBUTED = "numa-distributed"


class Order(StrEnum):
    """Which cores single threads come from: those that no other claim has part of, or those of dra-driver-cpu."""

    UNTOUCHED_FIRST = "untouched-first"
    REFERENCE = "reference"


class Threads(StrEnum):
    """Which threads of a physical core may be taken."""

    ANY = "any"
    FULL_CORE = "full-core"
    ONE_PER_CORE = "one-per-core"


class L3(StrEnum):
    """How much L3 caches matter."""

    PREFER = "prefer"
    REQUIRE = "require"
    IGNORE = "ignore"
