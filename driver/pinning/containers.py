"""Containers as the runtime describes them, what they should have, and the changes to ask the runtime for.

A container with claims should have their CPUs, every other container the shared pool. Its claims also decide from which
NUMA nodes it takes memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.quantity import Quantity, page_size_name
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.given_cpus import expected_cpus
from dranode.driver.pinning.snapshot import (
    NO_LIMITS,
    HugepageLimits,
    PinnedClaim,
    PinSnapshot,
    limit_sums,
    limits_held_to,
    limits_over,
)


class Container(msgspec.Struct, frozen=True):
    """A container that exists or is about to be created.

    Attributes:
        id: the runtime's id.
        env: the variables of its OCI configuration (`NAME=value`), including those that CDI injected.
        cdi_devices: the CDI devices that kubelet asked for, if the runtime reports them (containerd from 2.3).
        cpus: the configured `cpuset.cpus`; empty if there is none.
        mems: the configured `cpuset.mems`; empty if there is none.
        quota: the configured `cpu.cfs_quota_us`; 0 or less means no limit.
        hugepages: the configured limits of huge pages.
        started: whether its process has been started.
        cgroup: the OCI `cgroupsPath`: a path, or `slice:prefix:name` with the systemd driver.
    """

    id: str
    name: str
    pod: PodSandbox
    env: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    cpus: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    quota: int = 0
    started: bool = False
    cgroup: str = ""
    hugepages: HugepageLimits = NO_LIMITS

    def __str__(self) -> str:
        return f'container "{self.name}" of pod {self.pod}'


class Resources(msgspec.Struct, frozen=True):
    """Resources to set on a container. An empty or False field leaves its resource unchanged.

    NRI cannot clear a cpuset: the runtime takes an empty text for "no change".

    Attributes:
        cpus: `cpuset.cpus`.
        mems: `cpuset.mems`.
        lift_quota: whether to remove the CFS quota.
        hugepages: limits of huge pages; sizes that are left out are not changed.
        unified: whether limits of huge pages are set as files of cgroup v2 (`unified` in the OCI configuration). runc
            changes the limits of an existing container only this way.
    """

    cpus: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    lift_quota: bool = False
    hugepages: HugepageLimits = NO_LIMITS
    unified: bool = False

    def __bool__(self) -> bool:
        return bool(self.cpus) or bool(self.mems) or self.lift_quota or bool(self.hugepages)


class ContainerUpdate(msgspec.Struct, frozen=True):
    """New resources for a container that exists.

    Attributes:
        ignore_failure: whether the operation that carries this update succeeds if the runtime cannot apply it.
    """

    container_id: str
    resources: Resources
    ignore_failure: bool = False


class Effective(msgspec.Struct, frozen=True):
    """The limits of a container in the kernel. A limit that was not read is None or missing.

    Attributes:
        cpus: the CPUs (`cpuset.cpus.effective`).
        nodes: the NUMA nodes that its memory comes from (`cpuset.mems.effective`).
        hugepages: the limits of huge pages (`hugetlb.<size>.max`).
    """

    cpus: CPUSet | None = None
    nodes: CPUSet | None = None
    hugepages: HugepageLimits = NO_LIMITS

    def beside(self, other: Effective) -> tuple[Effective, Effective]:
        """Return the limits that both have with different values: those of this one, and those of `other`."""
        # A limit that could not be read on one side is left out: it is not known to differ.
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
    """Describe how the limits of a container differ from the expected ones."""
    differences: list[str] = []
    if actual.cpus is not None:
        differences.append(f"runs on CPUs {actual.cpus}, but should run on {expected.cpus}")
    if actual.nodes is not None:
        differences.append(f"takes memory from NUMA nodes {actual.nodes}, but should from {expected.nodes}")
    wanted = dict(expected.hugepages)
    differences += (
        f"may have {_amount(limit)} in pages of {page_size_name(size)}, but should have {_amount(wanted[size])}"
        for size, limit in actual.hugepages
    )
    return ", and ".join(differences)


def memory_in_words(effective: Effective) -> str:
    """Describe the memory that a container gets."""
    parts = [] if effective.nodes is None else [f"takes memory from NUMA nodes {effective.nodes}"]
    parts += [f"may have {_amount(limit)} in pages of {page_size_name(size)}" for size, limit in effective.hugepages]
    return " and ".join(parts) or "cannot be seen"


def _amount(limit: int) -> str:
    # The kernel shows a limit that is not set as "max" in cgroup v2, and as its largest page count in v1.
    return "any amount" if limit >= 1 << 62 else str(Quantity.binary(limit))


class Pinned(msgspec.Struct, frozen=True):
    """An existing container with its claims and the resources that it was given, without its environment.

    Attributes:
        container: the container as the runtime described it.
        claims: the keys of its claims.
        cpus: the mask that it was last given; empty if it has none, or if its real mask was found to differ.
        mems: the memory nodes that this driver last gave it; empty if it gave none.
        hugepages: the limits of huge pages that it has.
        parts: if it has only some allocation results of a claim, the claim's key and the number of each result.
        provisional: it was updated between its creation and its start. The runtime may have read its configuration
            before the update, so its real mask is unknown until its resources are sent again.
        unsure: it was added while the ledger could not be read, so it may have other claims than these. Its mask is not
            changed until the runtime reports it again.
        unresolved: it names a claim that is not known, and may have it.
        unanswered: it names a claim on record, but kubelet did not answer whether its pod has the claim. `container`
            keeps the environment, so that it can be identified again. If it runs on CPUs that claims hold, it stays
            there until then, because only a driver puts a container there.
        denied: it names a claim on record, but kubelet says that its pod does not have it. `container` keeps the
            environment too, because a kubelet that has just started may not know the pod yet.
        memory_unsure: like `unsure`, for claims that only hold memory.
        resend: its resources are sent again even if they seem right, because an update did not arrive, or because the
            kernel showed others.
    """

    container: Container
    claims: tuple[str, ...] = ()
    cpus: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    provisional: bool = False
    parts: frozenset[tuple[str, int]] = frozenset()
    unsure: bool = False
    unresolved: bool = False
    unanswered: bool = False
    denied: bool = False
    hugepages: HugepageLimits = NO_LIMITS
    memory_unsure: bool = False
    resend: bool = False

    @property
    def effective(self) -> Effective:
        """Return the limits that the kernel should show, according to what the container was given."""
        return Effective(self.cpus, self.mems or None, self.hugepages)

    def given(self, resources: Resources) -> Pinned:
        """Return the container after it was given these resources."""
        return replace(
            self,
            cpus=resources.cpus or self.cpus,
            mems=resources.mems or self.mems,
            hugepages=limits_over(self.hugepages, resources.hugepages),
            resend=False,
        )

    def updated(self, resources: Resources) -> Pinned:
        """Return the container after an update with these resources."""
        return replace(self.given(resources), provisional=not self.container.started)

    def after_start(self) -> Pinned:
        """Return the container after its start."""
        # The runtime may have read the configuration before the last update reached it. Then the process runs with the
        # old resources, so they are set again.
        running = replace(self, container=replace(self.container, started=True), provisional=False)
        return running.with_unknown_mask() if self.provisional else running

    def with_unknown_mask(self) -> Pinned:
        """Return the container with its mask unknown, so that its resources are sent again."""
        return replace(self, cpus=CPUSet(), resend=True)


def resources_for(claims: Iterable[PinnedClaim], snapshot: PinSnapshot, own: HugepageLimits = NO_LIMITS) -> Resources:
    """Return the resources that a container with these claims should have.

    Its CPUs are those of its claims, plus the shared pool if a claim asks for that. Without claims it gets the shared
    pool, which may be empty. Its memory comes from the nodes of claims that hold memory. If it has no such claim, its
    memory comes from the nodes of its CPUs, provided that every claim with CPUs asks for that.

    Args:
        claims: the claims.
        snapshot: the claims on record and the machine.
        own: the container's current limits of huge pages.
    """
    claims = tuple(claims)
    having_cpus = [claim for claim in claims if claim.cpus]
    return Resources(
        _cpus(having_cpus, snapshot) if snapshot.pins_cpus else CPUSet(),
        _for_pods(bound_nodes(claims) or nodes_near_cpus(claims), snapshot),
        lift_quota=any(claim.lift_quota for claim in having_cpus),
        hugepages=_pages(claims, snapshot, own) if snapshot.page_sizes else NO_LIMITS,
        unified=snapshot.unified_pages,
    )


def _pages(claims: Iterable[PinnedClaim], snapshot: PinSnapshot, own: HugepageLimits) -> HugepageLimits:
    claimed = limit_sums(claim.hugepages for claim in claims if claim.hugepages)
    return limits_held_to(claimed, own, snapshot.page_sizes, exclusive=snapshot.exclusive_pages)


def _for_pods(nodes: CPUSet, snapshot: PinSnapshot) -> CPUSet:
    """Return the container's memory nodes that pods may use; if there are none, all nodes that pods may use."""
    # An empty answer would leave the container's memory nodes unchanged.
    return (nodes & snapshot.mems or snapshot.mems) if nodes and snapshot.mems else nodes


def _cpus(having_cpus: Collection[PinnedClaim], snapshot: PinSnapshot) -> CPUSet:
    cpus = expected_cpus((claim.cpus for claim in having_cpus), snapshot.online)
    if cpus is None:
        return snapshot.shared
    return cpus | snapshot.shared if any(claim.with_pool for claim in having_cpus) else cpus


def bound_nodes(claims: Iterable[PinnedClaim]) -> CPUSet:
    """Return the nodes of the memory that a container's claims hold; none if it may also take memory elsewhere."""
    having_memory = [claim for claim in claims if claim.nodes]
    binds = any(claim.binds for claim in having_memory)
    return CPUSet.union(claim.nodes for claim in having_memory) if binds else CPUSet()


def nodes_near_cpus(claims: Iterable[PinnedClaim]) -> CPUSet:
    """Return the nodes of a container's CPUs, if each of its claims with CPUs asks for memory from there; else none."""
    having_cpus = [claim for claim in claims if claim.cpus]
    # A container has one `cpuset.mems` for all of its CPUs, so one claim that takes memory from anywhere decides.
    if not all(claim.mems for claim in having_cpus):
        return CPUSet()
    return CPUSet.union(claim.mems for claim in having_cpus)


def expected(pinned: Pinned, snapshot: PinSnapshot) -> Resources:
    """Return the resources that an existing container should have.

    It keeps its resources while it is not certain which claims it has, and while records cannot be read. If its claims
    were unprepared, it belongs to the shared pool.
    """
    # If it is not certain, the container stays where it is. Moving it could take away CPUs that it owns. Leaving it
    # does no harm, because no claim gets CPUs that such a container still uses (`why_occupied`).
    claims = having(pinned, snapshot)
    on_held = bool(pinned.cpus) and pinned.cpus <= snapshot.held
    if pinned.unsure or snapshot.unread is not None or (pinned.unanswered and on_held):
        return Resources(pinned.cpus, pinned.mems, lift_quota=any(claim.lift_quota for claim in claims))
    right = resources_for(claims, snapshot, pinned.hugepages)
    if keeps_memory(pinned, snapshot):
        return replace(right, mems=pinned.mems, hugepages=NO_LIMITS)
    return right


def keeps_memory(pinned: Pinned, snapshot: PinSnapshot) -> bool:
    """Return whether a container's memory stays unchanged because its claims may hold more than is known."""
    return pinned.unsure or pinned.memory_unsure or snapshot.lacks_claims


def pooled(pinned: Pinned, snapshot: PinSnapshot) -> bool:
    """Return whether a container runs on the shared pool: no claim has an online CPU, or one asks for the pool too."""
    # A mask cannot consist of offline CPUs, so a container whose claims have no other CPUs moves to the shared pool.
    with_cpus = [claim for claim in having(pinned, snapshot) if claim.cpus & snapshot.online]
    return not with_cpus or any(claim.with_pool for claim in with_cpus)


def having(pinned: Pinned, snapshot: PinSnapshot) -> tuple[PinnedClaim, ...]:
    """Return the claims on record that a container has, each reduced to the parts that it has."""
    records = ((key, snapshot.claims.get(key)) for key in pinned.claims)
    return tuple(
        claim if not pinned.parts else claim.of_parts([index for of, index in pinned.parts if of == key])
        for key, claim in records
        if claim is not None
    )


def stays_on(pinned: Pinned, snapshot: PinSnapshot) -> CPUSet:
    """Return the mask that a container keeps if it should run on the shared pool and the pool is empty."""
    if not snapshot.pins_cpus:
        return CPUSet()
    return pinned.cpus or CPUSet.union(claim.cpus for claim in having(pinned, snapshot))


def some_of(claims: Iterable[PinnedClaim], snapshot: PinSnapshot) -> frozenset[tuple[str, int]]:
    """Return `Pinned.parts` of a container that has these claims."""
    return frozenset(
        (claim.key, part.index)
        for claim in claims
        if claim.parts != snapshot.claims[claim.key].parts
        for part in claim.parts
    )
