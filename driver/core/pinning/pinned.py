"""The known containers, the CPUs that they have, and the CPUs that they should have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.expected_cpus import expected_cpus
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A container that exists, without its environment.

    Attributes:
        container: the container as the runtime described it.
        claims: the UIDs of its claims.
        cpus: the mask that it was last given; empty if it has none, or if its real mask was seen to differ.
        mems: the memory nodes that this driver last gave it; empty if none.
        parts: for claims of which it has only some allocation results, the UID and the number of each result.
        provisional: it got its resources between its creation and its start. The runtime may have read its
            configuration before the update, so its real mask is unknown until it gets the resources again.
        unsure: it was added while the ledger could not be read. It may have other claims than these, so its mask
            stays unchanged until the runtime reports it again.
        untold: it names an unknown claim, and may have it.
        unheard: it names a claim on record, and kubelet did not answer whether it has it; `container` is whole, so that
            it can be looked at again. Meanwhile it stays on CPUs that claims hold, where only a driver puts anybody.
    """

    container: Container
    claims: tuple[str, ...] = ()
    cpus: CPUSet = field(default_factory=CPUSet)
    mems: str = ""
    provisional: bool = False
    parts: frozenset[tuple[str, int]] = frozenset()
    unsure: bool = False
    untold: bool = False
    unheard: bool = False

    def given(self, resources: Resources) -> Pinned:
        """Return the container after it was given these resources."""
        return replace(self, cpus=resources.cpus or self.cpus, mems=resources.mems or self.mems)

    def updated(self, resources: Resources) -> Pinned:
        """Return the container after an update with these resources."""
        return replace(self.given(resources), provisional=not self.container.started)

    def started(self) -> Pinned:
        """Return the container after its start."""
        running = replace(self, container=replace(self.container, started=True), provisional=False)
        return replace(running, cpus=CPUSet()) if self.provisional else running


@dataclass(frozen=True, slots=True)
class Drift:
    """A container that does not run on the CPUs that it should."""

    container: Container
    expected: CPUSet
    actual: CPUSet

    def __str__(self) -> str:
        return f"{self.container} runs on CPUs {self.actual}, but should run on {self.expected}"


@dataclass(frozen=True, slots=True)
class ContainerChange:
    """The change that a decision makes to the known containers.

    Attributes:
        put: containers that are new or have other resources now.
        drop: the ids of containers that are gone.
        settled: the snapshot with which all containers agree afterwards; None if that was not checked.
    """

    put: tuple[Pinned, ...] = ()
    drop: tuple[str, ...] = ()
    settled: HeldSnapshot | None = None


class Containers:
    """All containers that exist, indexed by id, by sandbox, by pod and name, and by claim.

    Decisions only read it; its owner carries out their changes. Other threads may iterate.

    Attributes:
        settled: the snapshot with which every container agrees; None if a container may not agree.
    """

    def __init__(self, pinned: Iterable[Pinned] = ()) -> None:
        """Start with these containers."""
        self._all: dict[str, Pinned] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        self._users: dict[str, set[str]] = {}
        self._sandboxes: dict[str, set[str]] = {}
        # Containers that belong to the shared pool by the settled snapshot.
        self._pooled: set[str] = set()
        self._unsure: set[str] = set()
        self._unheard: set[str] = set()
        self.settled: HeldSnapshot | None = None
        for each in pinned:
            self._put(each)

    def __iter__(self) -> Iterator[Pinned]:
        return iter(tuple(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def get(self, key: str) -> Pinned | None:
        """Return the container with that id, if it is known."""
        return self._all.get(key)

    def of_sandbox(self, sandbox: str) -> tuple[str, ...]:
        """The ids of the containers of a pod sandbox."""
        return tuple(self._sandboxes.get(sandbox, ()))

    @property
    def claims(self) -> frozenset[str]:
        """The UIDs of the claims that a container has."""
        return frozenset(self._users)

    def users(self, uid: str) -> tuple[Container, ...]:
        """Return the containers that have the claim."""
        return tuple(self._all[key].container for key in self._users.get(uid, ()))

    def users_of(self, claim: HeldClaim) -> tuple[Container, ...]:
        """Return the containers that have the claim, or a part of it that holds CPUs and that `claim` has too."""
        uid, mine = claim.claim.uid, {part.index for part in claim.parts if part.held}
        users = (self._all[key] for key in self._users.get(uid, ()))
        theirs = ((user.container, {index for of, index in user.parts if of == uid}) for user in users)
        return tuple(user for user, parts in theirs if not mine or not parts or mine & parts)

    @property
    def certain(self) -> bool:
        """Return whether the claims of every container are certain."""
        return not (self._unsure or self._unheard)

    @property
    def unsure(self) -> bool:
        """Whether there are containers that were taken in while the ledger could not be read."""
        return bool(self._unsure)

    @property
    def unheard(self) -> tuple[Pinned, ...]:
        """The containers about which kubelet did not answer."""
        return tuple(self._all[key] for key in self._unheard)

    def namesakes(self, container: Container) -> tuple[str, ...]:
        """Return the ids of the container and of all containers of its name in its pod."""
        same = self._names.get((container.pod.uid, container.name), ()) if container.pod.uid else ()
        return (*same, container.id) if container.id in self._all and container.id not in same else tuple(same)

    def concerned(self, snapshot: HeldSnapshot) -> tuple[Pinned, ...]:
        """Return the containers that may not agree with a snapshot, by what has changed since the settled one."""
        before = self.settled
        if before is snapshot:
            return ()
        if before is None or (before.online, before.mems) != (snapshot.online, snapshot.mems):
            return tuple(self._all.values())
        keys = self._users_of(before.index.by_uid.differing(snapshot.index.by_uid))
        if before.shared != snapshot.shared:
            keys |= self._pooled
        return tuple(self._all[key] for key in keys)

    def carry_out(self, change: ContainerChange) -> None:
        """Make a change."""
        for key in change.drop:
            self._drop(key)
        for pinned in change.put:
            self._put(pinned)
        # A snapshot that may lack claims was not compared with the containers.
        after = change.settled if change.settled is not None and change.settled.unread is None else None
        before, self.settled = self.settled, after
        if after is None:
            return
        if before is None:
            keys = set(self._all)
        else:
            keys = self._users_of(before.index.by_uid.differing(after.index.by_uid))
            keys.update(pinned.container.id for pinned in change.put)
        for key in keys:
            (self._pooled.add if pooled(self._all[key], after) else self._pooled.discard)(key)

    def _users_of(self, claims: Iterable[str]) -> set[str]:
        return {key for uid in claims for key in self._users.get(uid, ())}

    def _put(self, pinned: Pinned) -> None:
        key = pinned.container.id
        before = self._all.get(key)
        if before is None or before.claims != pinned.claims:
            self._drop(key)
            self._enter(pinned)
        self._all[key] = pinned
        (self._unsure.add if pinned.unsure else self._unsure.discard)(key)
        (self._unheard.add if pinned.unheard else self._unheard.discard)(key)

    def _enter(self, pinned: Pinned) -> None:
        key = pinned.container.id
        self._names.setdefault((pinned.container.pod.uid, pinned.container.name), set()).add(key)
        self._sandboxes.setdefault(pinned.container.pod.id, set()).add(key)
        for uid in pinned.claims:
            self._users.setdefault(uid, set()).add(key)

    def _drop(self, key: str) -> None:
        pinned = self._all.pop(key, None)
        if pinned is None:
            return
        self._pooled.discard(key)
        self._unsure.discard(key)
        self._unheard.discard(key)
        _discard(self._names, (pinned.container.pod.uid, pinned.container.name), key)
        _discard(self._sandboxes, pinned.container.pod.id, key)
        for uid in pinned.claims:
            _discard(self._users, uid, key)


def _discard(index: dict[K, set[str]], key: K, value: str) -> None:
    values = index[key]
    values.discard(value)
    if not values:
        del index[key]


def resources_for(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> Resources:
    """Return the resources that a container with these claims should have; without CPUs if there are none for it.

    Memory nodes are set if every claim asks for local memory.
    """
    having_cpus = [claim for claim in claims if claim.cpus]
    cpus = expected_cpus((claim.cpus for claim in having_cpus), snapshot.online)
    if cpus is None:
        return Resources(snapshot.shared)
    mems = CPUSet()
    if all(claim.mems for claim in having_cpus):
        mems = CPUSet.union(CPUSet.parse(claim.mems) for claim in having_cpus)
    return Resources(cpus, str(mems), lift_quota=any(claim.lift_quota for claim in having_cpus))


def expected(pinned: Pinned, snapshot: HeldSnapshot) -> Resources:
    """Return the resources that an existing container should have.

    If all its claims were unprepared, it belongs to the shared pool. It keeps its resources while it is uncertain which
    claims it has, or while records cannot be read.
    """
    claims = having(pinned, snapshot)
    if pinned.unsure or snapshot.unread is not None or (pinned.unheard and _on_held(pinned, snapshot)):
        return Resources(pinned.cpus, pinned.mems, lift_quota=any(claim.lift_quota for claim in claims))
    return resources_for(claims, snapshot)


def _on_held(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    return bool(pinned.cpus) and pinned.cpus <= snapshot.held


def pooled(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    """Return whether a container belongs to the shared pool, because no claim of it holds CPUs (any more)."""
    return not any(claim.cpus for claim in having(pinned, snapshot))


def having(pinned: Pinned, snapshot: HeldSnapshot) -> tuple[HeldClaim, ...]:
    """Return the claims on record that a container has, each with the parts that it has."""
    records = ((uid, snapshot.claims.get(uid)) for uid in pinned.claims)
    return tuple(
        claim if not pinned.parts else claim.of_parts([index for of, index in pinned.parts if of == uid])
        for uid, claim in records
        if claim is not None
    )


def some_of(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> frozenset[tuple[str, int]]:
    """Return `Pinned.parts` of a container that has these claims."""
    return frozenset(
        (claim.claim.uid, part.index)
        for claim in claims
        if claim.parts != snapshot.claims[claim.claim.uid].parts
        for part in claim.parts
    )


def claims_of(container: Container, containers: Containers, snapshot: HeldSnapshot) -> tuple[ClaimRef, ...]:
    """Return the claims on record that a container has; none if the container is unknown."""
    pinned = containers.get(container.id)
    return () if pinned is None else tuple(held.claim for held in having(pinned, snapshot))


def changes(containers: Containers, snapshot: HeldSnapshot) -> Iterator[tuple[Pinned, Resources]]:
    """Yield the containers with a wrong mask, and the resources that they should have; no mask is ever empty."""
    if snapshot.unread is not None:
        return
    shared = Resources(snapshot.shared)
    for pinned in containers.concerned(snapshot):
        resources = expected(pinned, snapshot) if pinned.claims or pinned.unsure or pinned.unheard else shared
        if resources.cpus.mask == pinned.cpus.mask and resources.mems == pinned.mems:
            continue
        if pinned.mems and not resources.mems:
            # NRI cannot clear `cpuset.mems`, so memory from anywhere means naming every node.
            resources = replace(resources, mems=snapshot.mems)
            if resources.cpus == pinned.cpus and resources.mems in ("", pinned.mems):
                continue
        if resources.cpus:
            yield pinned, resources


def settle(
    containers: Containers, snapshot: HeldSnapshot, drop: Iterable[str] = (), *, ignore_failure: bool = True
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """Return the updates that correct the mask of every container except those of `drop`, and the change they make."""
    drop = tuple(drop)
    due = [each for each in changes(containers, snapshot) if each[0].container.id not in drop]
    return settled(due, snapshot, drop, ignore_failure=ignore_failure)


def settled(
    due: Iterable[tuple[Pinned, Resources]],
    snapshot: HeldSnapshot,
    drop: tuple[str, ...] = (),
    *,
    ignore_failure: bool,
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """Return the updates that make these changes, and the change of the known containers."""
    put: list[Pinned] = []
    updates: list[ContainerUpdate] = []
    for pinned, wanted in due:
        put.append(pinned.updated(wanted))
        updates.append(ContainerUpdate(pinned.container.id, wanted, ignore_failure))
    return ContainerChange(tuple(put), drop, snapshot), tuple(updates)


def drift(containers: Containers, snapshot: HeldSnapshot, effective: Mapping[str, CPUSet]) -> tuple[Drift, ...]:
    """Return the containers that do not run where they should, by the kernel's masks (`cpuset.cpus.effective`).

    A container without a certain mask does not drift.
    """
    drifts: list[Drift] = []
    for key, cpus in effective.items():
        pinned = containers.get(key)
        if pinned is not None and not (pinned.unsure or pinned.unheard) and snapshot.unread is None:
            cpus_expected = expected(pinned, snapshot).cpus
            if cpus_expected and cpus != cpus_expected:
                drifts.append(Drift(pinned.container, cpus_expected, cpus))
    return tuple(drifts)


def drifted(containers: Containers, drifts: Iterable[Drift]) -> ContainerChange:
    """Enter the real masks of drifting containers, so that `settle` corrects them."""
    put = ((containers.get(each.container.id), each.actual) for each in drifts)
    return ContainerChange(tuple(replace(pinned, cpus=found) for pinned, found in put if pinned is not None))
