"""The CPUs on which a container should run, according to what its claims were given.

Enforcement, `dranode claims --verify` and `dranode explain` all use these functions, so their answers cannot differ.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.record import Record


class GivenCPUs(msgspec.Struct, frozen=True):
    """The CPUs that a claim was given.

    Attributes:
        whole: the CPUs of a container that has the whole claim.
        parts: the CPUs of each allocation result, by its index; empty if all containers get the same.
    """

    whole: CPUSet
    parts: Mapping[int, CPUSet]

    def of_parts(self, indexes: Collection[int]) -> CPUSet:
        """Return the CPUs of a container that is known to have these allocation results."""
        parts = parts_of_container(indexes, self.parts)
        return self.whole if len(parts) == len(self.parts) else CPUSet.union(self.parts[index] for index in parts)


def cpus_of_requests(record: Record) -> dict[str, CPUSet]:
    """Return the CPUs of each request of a claim on record; empty if all containers with the claim get the same."""
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
    """Return whether a container with these results of a claim, or the whole claim, also runs on the shared pool."""
    parts = parts_of_container(indexes, given_cpus(record).parts) or range(len(record.grants))
    return any(record.grants[index].with_pool for index in parts)


def parts_of_container(indexes: Collection[int], parts: Iterable[int]) -> tuple[int, ...]:
    """Return the parts of a claim that a container has; all parts if it is not known to have any."""
    parts = tuple(parts)
    return tuple(index for index in parts if index in indexes) or parts


def expected_cpus(claims: Iterable[CPUSet], online: CPUSet) -> CPUSet | None:
    """Return the CPUs on which a container should run whose claims have these CPUs.

    Offline CPUs are left out, because some kernels reject them. The answer is None if its claims have no CPUs for it,
    as with admin access, or if all of them are offline: the container belongs to the shared pool. If a cgroup has lost
    all its CPUs, the kernel gives it those of its parent, which include CPUs of other claims (cgroups(7), cpuset).
    """
    return (CPUSet.union(claims) & online) or None
