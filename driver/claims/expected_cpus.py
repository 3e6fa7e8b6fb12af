"""On which CPUs a container should run, by what its claims were given.

Enforcement, `dranode claims --verify` and `dranode explain` all ask here, so they cannot answer differently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.record import Record


class GivenCPUs(msgspec.Struct, frozen=True):
    """The CPUs that a claim was given.

    Attributes:
        whole: those of a container that has all of the claim.
        parts: those of each allocation result, by its number; empty if the claim does not tell its results apart.
    """

    whole: CPUSet
    parts: Mapping[int, CPUSet]

    def of_parts(self, indexes: Collection[int]) -> CPUSet:
        """Return the CPUs of a container that is known to have these allocation results."""
        mine = parts_of_container(indexes, self.parts)
        return self.whole if len(mine) == len(self.parts) else CPUSet.union(self.parts[index] for index in mine)


def cpus_of_requests(record: Record) -> dict[str, CPUSet]:
    """Return the CPUs of each request of a claim on record; empty if that does not tell its requests apart."""
    requests: dict[str, CPUSet] = {}
    for index, cpus in given_cpus(record).parts.items():
        request = record.grants[index].request
        requests[request] = requests.get(request, CPUSet()) | cpus
    return requests


def given_cpus(record: Record) -> GivenCPUs:
    """Return the CPUs of a claim on record; its results count as parts only if each has CPUs of its own."""
    parts = {index: grant.cpus for index, grant in enumerate(record.grants) if grant.cpus is not None}
    return GivenCPUs(record.cpus, parts if len(parts) == len(record.grants) else {})


def with_pool(record: Record, indexes: Collection[int]) -> bool:
    """Return whether a container with these results of a claim, or all of it, runs on the shared pool besides."""
    mine = parts_of_container(indexes, given_cpus(record).parts) or range(len(record.grants))
    return any(record.grants[index].with_pool for index in mine)


def parts_of_container(indexes: Collection[int], parts: Iterable[int]) -> tuple[int, ...]:
    """Return the parts of a claim that a container has; all parts if it is not known to have any."""
    every = tuple(parts)
    return tuple(index for index in every if index in indexes) or every


def expected_cpus(claims: Iterable[CPUSet], online: CPUSet) -> CPUSet | None:
    """Return the CPUs on which a container should run that has these CPUs of its claims.

    Offline CPUs are left out, because some kernels refuse them. The answer is None if its claims have no CPUs for it,
    as with admin access, or if none of them is online: the container belongs to the shared pool. The kernel lets what
    has lost every CPU run wherever its parent may, which is on CPUs of other claims (cgroups(7), cpuset).
    """
    return (CPUSet.union(claims) & online) or None
