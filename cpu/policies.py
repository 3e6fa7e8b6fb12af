"""What a request may wish of the pick."""

from __future__ import annotations

from enum import StrEnum


class PickPolicy(StrEnum):
    """Where CPUs are taken from."""

    PACKED = "packed"
    SPREAD = "spread"
    NUMA_DISTRIBUTED = "numa-distributed"


class Order(StrEnum):
    """Which cores single threads come from: those that no other claim has part of, or those of dra-driver-cpu."""

    UNTOUCHED_FIRST = "untouched-first"
    REFERENCE = "reference"


class Threads(StrEnum):
    """What of a physical core may be taken."""

    ANY = "any"
    FULL_CORE = "full-core"
    ONE_PER_CORE = "one-per-core"


class L3(StrEnum):
    """What L3 caches matter."""

    PREFER = "prefer"
    REQUIRE = "require"
    IGNORE = "ignore"
