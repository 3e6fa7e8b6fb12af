"""What a request may wish of the pick."""

from __future__ import annotations

from enum import StrEnum


class PickPolicy(StrEnum):
    """Where CPUs are taken from."""

    PACKED = "packed"
    SPREAD = "spread"
    NUMA_DISTRIBUTED = "numa-distributed"


class Order(StrEnum):
    """Which cores single threads come from: the reference's packing, or cores that nobody else has part of."""

    REFERENCE = "reference"
    UNTOUCHED_FIRST = "untouched-first"


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
