"""The containers that are known, the CPUs they have and the CPUs they should have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A container that exists, without its environment.

    Attributes:
        container: what the runtime told of it.
        claims: UIDs of the claims that it has.
        cpus: the mask that it was last given; empty if it has none or if the mask was seen to be another one.
        mems: the memory nodes that it was last given by this driver; empty if none.
        parts: of the claims of which it has only some allocation results: UID and number of each that it has.
        provisional: it was given them between its creation and its start. A runtime may have read its configuration
            for the start before it took the update, so nobody knows what it runs with until it is told again.
        unsure: it was taken in while the ledger could not be read. It may have other claims than these, so its mask
            stays as it is until the runtime tells of it again.
        untold: it names a claim of which nothing that is known tells, and may have it.
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
        """The container after it was given these resources."""
        return replace(self, cpus=resources.cpus or self.cpus, mems=resources.mems or self.mems)

    def updated(self, resources: Resources) -> Pinned:
        """The container after an update with these resources."""
        return replace(self.given(resources), provisional=not self.container.started)

    def started(self) -> Pinned:
        """The container once it runs."""
        running = replace(self, container=replace(self.container, started=True), provisional=False)
        return replace(running, cpus=CPUSet()) if self.provisional else running


@dataclass(frozen=True, slots=True)
class Drift:
    """A container that runs on other CPUs than it should."""

    container: Container
    expected: CPUSet
    found: CPUSet

    def __str__(self) -> str:
        return f"{self.container} runs on CPUs {self.found}, but should run on {self.expected}"


@dataclass(frozen=True, slots=True)
class ContainerChange:
    """What a decision does to the containers that are known.

    Attributes:
        put: those that are new or have other resources now.
        drop: the ids of those that are gone.
        settled: the snapshot with which all of them agree afterwards; None if that was not looked at.
    """

    put: tuple[Pinned, ...] = ()
    drop: tuple[str, ...] = ()
    settled: HeldSnapshot | None = None


class Containers:
    """All containers that exist, indexed by id, by sandbox, by pod and name, and by claim.

    Decisions only read it; whoever owns it carries their changes out. Other threads may iterate.

    Attributes:
        settled: the snapshot with which every container agrees; None if one may not.
    """

    def __init__(self, pinned: Iterable[Pinned] = ()) -> None:
        """Enter these containers."""
        self._all: dict[str, Pinned] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        self._users: dict[str, set[str]] = {}
        self._sandboxes: dict[str, set[str]] = {}
        # Those that belong to the shared pool by the settled snapshot.
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
        """The container of that id."""
        return self._all.get(key)

    def of_sandbox(self, sandbox: str) -> tuple[str, ...]:
        """The ids of the containers of a pod sandbox."""
        return tuple(self._sandboxes.get(sandbox, ()))

    @property
    def claims(self) -> frozenset[str]:
        """The UIDs of the claims that a container has."""
        return frozenset(self._users)

    def users(self, uid: str) -> tuple[Container, ...]:
        """The containers that have the claim."""
        return tuple(self._all[key].container for key in self._users.get(uid, ()))

    def users_of(self, claim: HeldClaim) -> tuple[Container, ...]:
        """The containers that have the claim, or a part of it that holds CPUs and that this one has as well."""
        uid, mine = claim.claim.uid, {part.index for part in claim.parts if part.held}
        users = (self._all[key] for key in self._users.get(uid, ()))
        theirs = ((user.container, {index for of, index in user.parts if of == uid}) for user in users)
        return tuple(user for user, parts in theirs if not mine or not parts or mine & parts)

    @property
    def certain(self) -> bool:
        """Whether it is certain of every container which claims it has."""
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
        """The ids of the containers of the same name in the same pod, and of the container itself."""
        same = self._names.get((container.pod.uid, container.name), ()) if container.pod.uid else ()
        return (*same, container.id) if container.id in self._all and container.id not in same else tuple(same)

    def concerned(self, snapshot: HeldSnapshot) -> tuple[Pinned, ...]:
        """The containers that may not agree with a snapshot, by what has changed since all of them did."""
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
        # By a snapshot that may not be all nobody was looked at.
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
    """What a container with these claims should have; without CPUs if there are none for it.

    CPUs that are offline are left out: no kernel takes them everywhere. Memory nodes are set if every claim asks for
    its own.
    """
    having_cpus = [claim for claim in claims if claim.cpus]
    if not having_cpus:
        return Resources(snapshot.shared)
    cpus = CPUSet.union(claim.cpus for claim in having_cpus) & snapshot.online
    mems = CPUSet()
    if all(claim.mems for claim in having_cpus):
        mems = CPUSet.union(CPUSet.parse(claim.mems) for claim in having_cpus)
    return Resources(cpus, str(mems), lift_quota=any(claim.lift_quota for claim in having_cpus))


def expected(pinned: Pinned, snapshot: HeldSnapshot) -> Resources:
    """What a container that exists should have. One whose claims were all unprepared belongs to the shared pool.

    It keeps what it has while it is not certain which claims it has, or what is on record.
    """
    claims = having(pinned, snapshot)
    if pinned.unsure or snapshot.unread is not None or (pinned.unheard and _on_held(pinned, snapshot)):
        return Resources(pinned.cpus, pinned.mems, lift_quota=any(claim.lift_quota for claim in claims))
    return resources_for(claims, snapshot)


def _on_held(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    return bool(pinned.cpus) and pinned.cpus <= snapshot.held


def pooled(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    """Whether a container belongs to the shared pool: none of its claims has CPUs any more, or it never had one."""
    return not any(claim.cpus for claim in having(pinned, snapshot))


def having(pinned: Pinned, snapshot: HeldSnapshot) -> tuple[HeldClaim, ...]:
    """The claims on record that a container has, as far as it has them."""
    found = ((uid, snapshot.claims.get(uid)) for uid in pinned.claims)
    return tuple(
        claim if not pinned.parts else claim.of_parts([index for of, index in pinned.parts if of == uid])
        for uid, claim in found
        if claim is not None
    )


def some_of(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> frozenset[tuple[str, int]]:
    """`Pinned.parts` of a container that has these claims."""
    return frozenset(
        (claim.claim.uid, part.index)
        for claim in claims
        if claim.parts != snapshot.claims[claim.claim.uid].parts
        for part in claim.parts
    )


def claims_of(container: Container, containers: Containers, snapshot: HeldSnapshot) -> tuple[ClaimRef, ...]:
    """The claims on record that a container has; none if the container is not known."""
    pinned = containers.get(container.id)
    return () if pinned is None else tuple(held.claim for held in having(pinned, snapshot))


def changes(containers: Containers, snapshot: HeldSnapshot) -> Iterator[tuple[Pinned, Resources]]:
    """The containers whose mask is not what it should be, with what they should have. No mask is ever empty."""
    if snapshot.unread is not None:
        return
    shared = Resources(snapshot.shared)
    for pinned in containers.concerned(snapshot):
        wanted = expected(pinned, snapshot) if pinned.claims or pinned.unsure or pinned.unheard else shared
        if wanted.cpus.mask == pinned.cpus.mask and wanted.mems == pinned.mems:
            continue
        if pinned.mems and not wanted.mems:
            # There is no way back to "anywhere" but to name every node.
            wanted = replace(wanted, mems=snapshot.mems)
            if wanted.cpus == pinned.cpus and wanted.mems in ("", pinned.mems):
                continue
        if wanted.cpus:
            yield pinned, wanted


def settle(
    containers: Containers, snapshot: HeldSnapshot, drop: Iterable[str] = (), *, ignore_failure: bool = True
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """The updates that bring every container but those of `drop` to what it should have, and what they change."""
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
    """The updates that make these changes, and what they change."""
    put: list[Pinned] = []
    updates: list[ContainerUpdate] = []
    for pinned, wanted in due:
        put.append(pinned.updated(wanted))
        updates.append(ContainerUpdate(pinned.container.id, wanted, ignore_failure))
    return ContainerChange(tuple(put), drop, snapshot), tuple(updates)


def drift(containers: Containers, snapshot: HeldSnapshot, effective: Mapping[str, CPUSet]) -> tuple[Drift, ...]:
    """The containers that do not run where they should, by what the kernel says (`cpuset.cpus.effective`).

    There are none as long as nobody knows for certain where they should.
    """
    found: list[Drift] = []
    for key, cpus in effective.items():
        pinned = containers.get(key)
        if pinned is not None and not (pinned.unsure or pinned.unheard) and snapshot.unread is None:
            wanted = expected(pinned, snapshot).cpus
            if wanted and cpus != wanted:
                found.append(Drift(pinned.container, wanted, cpus))
    return tuple(found)


def drifted(containers: Containers, drifts: Iterable[Drift]) -> ContainerChange:
    """The containers get the masks that they were found to have, so that `settle` mends them."""
    put = ((containers.get(each.container.id), each.found) for each in drifts)
    return ContainerChange(tuple(replace(pinned, cpus=found) for pinned, found in put if pinned is not None))
