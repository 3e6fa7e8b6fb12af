"""Compares what the kernel lets a container use with what it should, in words where they differ."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.page_sizes import page_size_name
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.pinning.hugepages import NO_LIMITS, HugepageLimits


class Effective(msgspec.Struct, frozen=True):
    """The kernel's limits of a container; what could not be read, or was not asked for, is None or missing.

    Attributes:
        cpus: the CPUs (`cpuset.cpus.effective`).
        nodes: the NUMA nodes that its memory comes from (`cpuset.mems.effective`).
        hugepages: the limits of huge pages (`hugetlb.<size>.max`).
    """

    cpus: CPUSet | None = None
    nodes: CPUSet | None = None
    hugepages: HugepageLimits = NO_LIMITS

    def beside(self, other: Effective) -> tuple[Effective, Effective]:
        """Return the parts of this and of `other` that both have and that differ."""
        theirs = dict(other.hugepages)
        pages = tuple(pair for pair in self.hugepages if pair[0] in theirs and theirs[pair[0]] != pair[1])
        cpus = None not in (self.cpus, other.cpus) and self.cpus != other.cpus
        nodes = None not in (self.nodes, other.nodes) and self.nodes != other.nodes
        return (
            Effective(self.cpus if cpus else None, self.nodes if nodes else None, pages),
            Effective(
                other.cpus if cpus else None,
                other.nodes if nodes else None,
                tuple((size, theirs[size]) for size, _ in pages),
            ),
        )

    def __bool__(self) -> bool:
        return self != Effective()


def difference(expected: Effective, actual: Effective) -> str:
    """Say how what a container may use differs from what it should."""
    return ", and ".join(_differences(expected, actual))


def words(effective: Effective) -> str:
    """Say which memory a container gets."""
    parts = [] if effective.nodes is None else [f"takes memory from NUMA nodes {effective.nodes}"]
    parts += [f"may have {_amount(limit)} in pages of {page_size_name(size)}" for size, limit in effective.hugepages]
    return " and ".join(parts) or "is not to be seen"


def _differences(expected: Effective, actual: Effective) -> Iterator[str]:
    if actual.cpus is not None:
        yield f"runs on CPUs {actual.cpus}, but should run on {expected.cpus}"
    if actual.nodes is not None:
        yield f"takes memory from NUMA nodes {actual.nodes}, but should from {expected.nodes}"
    wanted = dict(expected.hugepages)
    for size, limit in actual.hugepages:
        yield f"may have {_amount(limit)} in pages of {page_size_name(size)}, but should have {_amount(wanted[size])}"


def _amount(limit: int) -> str:
    # The kernel's largest limit of a page counter is no limit (hugetlb.<size>.max reads "max").
    return "any amount" if limit >= 1 << 62 else str(Quantity.binary(limit))
