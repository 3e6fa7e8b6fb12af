"""All existing containers, indexed so that a changed record finds the containers that it concerns; and their updates.

A node may have hundreds of containers, and every Prepare changes the shared pool. A change must not compare all
containers.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dranode.driver.claims.held import ClaimRef
from dranode.driver.pinning.containers import (
    Container,
    ContainerUpdate,
    Effective,
    Pinned,
    Resources,
    expected,
    having,
    pooled,
    resources_for,
)
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot

K = TypeVar("K")


class ContainerChange(msgspec.Struct, frozen=True):
    """The change that a decision makes to the known containers.

    Attributes:
        put: the containers that are new or have other resources now.
        drop: the ids of the containers that are gone.
        settled: the snapshot that all containers agree with afterwards; None if that was not checked.
    """

    put: tuple[Pinned, ...] = ()
    drop: tuple[str, ...] = ()
    settled: PinSnapshot | None = None


class Containers:
    """All existing containers, indexed by id, by sandbox, by pod and name, and by claim.

    Decisions only read it; its owner carries out their changes. Other threads may iterate over it.

    Attributes:
        settled: the snapshot that every container agrees with; None if some may not.
    """

    def __init__(self, pinned: Iterable[Pinned] = ()) -> None:
        """Start with these containers."""
        self._all: dict[str, Pinned] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        self._users: dict[str, set[str]] = {}
        self._sandboxes: dict[str, set[str]] = {}
        # The containers on the shared pool, according to the settled snapshot.
        self._pooled: set[str] = set()
        # The containers that were added while the ledger of a driver for CPUs, or of one for memory, could not be read.
        self._unsure: set[str] = set()
        self._memory_unsure: set[str] = set()
        self._unanswered: set[str] = set()
        self._denied: set[str] = set()
        self.settled: PinSnapshot | None = None
        for container in pinned:
            self._put(container)

    def __iter__(self) -> Iterator[Pinned]:
        # Copied, because other threads (metrics, the verifier) iterate while the NRI thread changes the dictionary.
        return iter(tuple(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def get(self, key: str) -> Pinned | None:
        """Return the container with that id; None if it is not known."""
        return self._all.get(key)

    def of_sandbox(self, sandbox: str) -> tuple[str, ...]:
        """Return the ids of the containers of a pod sandbox."""
        return tuple(self._sandboxes.get(sandbox, ()))

    @property
    def claims(self) -> frozenset[str]:
        """Return the keys of the claims that containers have."""
        return frozenset(self._users)

    def users(self, key: str) -> tuple[Container, ...]:
        """Return the containers that have the claim with this key."""
        return tuple(self._all[user].container for user in self._users.get(key, ()))

    def users_of(self, claim: PinnedClaim) -> tuple[Container, ...]:
        """Return the containers that have the claim, or share a part with `claim` that holds something."""
        wanted = {part.index for part in claim.parts if part.exclusive}
        users = (self._all[user] for user in self._users.get(claim.key, ()))
        # A user without parts has the whole claim, so it is in the way of every part.
        theirs = ((user.container, {index for of, index in user.parts if of == claim.key}) for user in users)
        return tuple(user for user, parts in theirs if not wanted or not parts or wanted & parts)

    @property
    def certain(self) -> bool:
        """Return whether it is certain for every container which claims it has."""
        return not (self.unsure or self._unanswered)

    @property
    def unsure(self) -> bool:
        """Return whether some containers were added while a ledger could not be read."""
        return bool(self._unsure or self._memory_unsure)

    def clarified(self, snapshot: PinSnapshot) -> bool:
        """Return whether there are such containers and their ledger can be read again, so they can be identified."""
        return bool(
            (self._unsure and snapshot.unread is None) or (self._memory_unsure and snapshot.memory_unread is None)
        )

    @property
    def unanswered(self) -> tuple[Pinned, ...]:
        """Return the containers for which kubelet did not answer."""
        return tuple(self._all[key] for key in self._unanswered)

    @property
    def denied(self) -> tuple[Pinned, ...]:
        """Return the containers that name a claim which their pod does not have, according to kubelet."""
        return tuple(self._all[key] for key in self._denied)

    def namesakes(self, container: Container) -> tuple[str, ...]:
        """Return the ids of the container and of all containers with the same name in its pod."""
        # Without a pod UID, containers of unrelated sandboxes would be taken for one that was restarted.
        same = self._names.get((container.pod.uid, container.name), ()) if container.pod.uid else ()
        return (*same, container.id) if container.id in self._all and container.id not in same else tuple(same)

    def concerned(self, snapshot: PinSnapshot) -> tuple[Pinned, ...]:
        """Return the containers that may not agree with a snapshot."""
        # A changed record concerns the containers with its claim, and those on the shared pool if the pool has changed.
        before = self.settled
        if before is snapshot:
            return ()
        if before is None or before.machine != snapshot.machine:
            return tuple(self._all.values())
        keys = self._users_of(before.claims.differing(snapshot.claims))
        if before.shared != snapshot.shared:
            keys |= self._pooled
        return tuple(self._all[key] for key in keys)

    def apply(self, change: ContainerChange) -> None:
        """Apply a change."""
        for key in change.drop:
            self._drop(key)
        for pinned in change.put:
            self._put(pinned)
        # Containers are not compared with a snapshot that may lack claims, so it is not settled.
        after = change.settled if change.settled is not None and not change.settled.lacks_claims else None
        before, self.settled = self.settled, after
        if after is None:
            return
        if before is None or before.machine != after.machine:
            keys = set(self._all)
        else:
            # Only a changed record, or a container that is new, can change who runs on the shared pool.
            keys = self._users_of(before.claims.differing(after.claims))
            keys.update(pinned.container.id for pinned in change.put)
        for key in keys:
            (self._pooled.add if pooled(self._all[key], after) else self._pooled.discard)(key)

    def _users_of(self, claims: Iterable[str]) -> set[str]:
        return {user for key in claims for user in self._users.get(key, ())}

    def _put(self, pinned: Pinned) -> None:
        key = pinned.container.id
        # Most updates change only the resources; then the indexes by name, sandbox and claim stay unchanged.
        before = self._all.get(key)
        if before is None or before.claims != pinned.claims:
            self._drop(key)
            self._enter(pinned)
        self._all[key] = pinned
        (self._unsure.add if pinned.unsure else self._unsure.discard)(key)
        (self._memory_unsure.add if pinned.memory_unsure else self._memory_unsure.discard)(key)
        (self._unanswered.add if pinned.unanswered else self._unanswered.discard)(key)
        (self._denied.add if pinned.denied else self._denied.discard)(key)

    def _enter(self, pinned: Pinned) -> None:
        key = pinned.container.id
        self._names.setdefault((pinned.container.pod.uid, pinned.container.name), set()).add(key)
        self._sandboxes.setdefault(pinned.container.pod.id, set()).add(key)
        for claim in pinned.claims:
            self._users.setdefault(claim, set()).add(key)

    def _drop(self, key: str) -> None:
        pinned = self._all.pop(key, None)
        if pinned is None:
            return
        self._pooled.discard(key)
        self._unsure.discard(key)
        self._memory_unsure.discard(key)
        self._unanswered.discard(key)
        self._denied.discard(key)
        _discard(self._names, (pinned.container.pod.uid, pinned.container.name), key)
        _discard(self._sandboxes, pinned.container.pod.id, key)
        for claim in pinned.claims:
            _discard(self._users, claim, key)


def _discard(index: dict[K, set[str]], key: K, value: str) -> None:
    values = index[key]
    values.discard(value)
    if not values:
        del index[key]


def claims_of(container: Container, containers: Containers, snapshot: PinSnapshot) -> tuple[ClaimRef, ...]:
    """Return the claims on record that a container has; none if the container is unknown."""
    pinned = containers.get(container.id)
    claims = () if pinned is None else (held.claim for held in having(pinned, snapshot))
    return tuple(dict.fromkeys(claims))


def corrections(containers: Containers, snapshot: PinSnapshot) -> Iterator[tuple[Pinned, Resources]]:
    """Yield the containers whose resources are wrong, with the right ones; no mask is ever empty."""
    # While the ledger cannot be read it is not known who holds what, so no mask is changed.
    if snapshot.unread is not None:
        return
    unclaimed = resources_for((), snapshot)
    for pinned in containers.concerned(snapshot):
        certain = not (pinned.claims or pinned.unsure or pinned.unanswered or pinned.memory_unsure)
        resources = unclaimed if certain and snapshot.memory_unread is None else expected(pinned, snapshot)
        if pinned.mems and not resources.mems:
            # NRI cannot clear `cpuset.mems`. To allow memory from anywhere, all nodes are named.
            resources = replace(resources, mems=snapshot.mems)
        if snapshot.pins_cpus and not resources.cpus:
            continue
        if resources and not has_what_it_should(pinned, resources):
            yield pinned, resources


def has_what_it_should(pinned: Pinned, resources: Resources) -> bool:
    """Return whether a container was given these resources; empty fields match anything."""
    return (
        (not resources.cpus or resources.cpus.mask == pinned.cpus.mask)
        and (not resources.mems or resources.mems.mask == pinned.mems.mask)
        and (not resources.hugepages or set(resources.hugepages) <= set(pinned.hugepages))
        and not (pinned.resend and resources)
    )


def settle(
    containers: Containers, snapshot: PinSnapshot, drop: Iterable[str] = ()
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """Return the updates that correct the resources of all containers but those in `drop`, and their change."""
    drop = tuple(drop)
    due = [(pinned, right) for pinned, right in corrections(containers, snapshot) if pinned.container.id not in drop]
    # The answer to an event must not fail because of another container. The kernel shows later which update failed.
    return updates_for(due, snapshot, drop, ignore_failure=True)


def updates_for(
    due: Iterable[tuple[Pinned, Resources]],
    snapshot: PinSnapshot,
    drop: tuple[str, ...] = (),
    *,
    ignore_failure: bool,
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """Return the updates that give containers these resources, and the change of the known containers."""
    put: list[Pinned] = []
    updates: list[ContainerUpdate] = []
    for pinned, resources in due:
        put.append(pinned.updated(resources))
        updates.append(ContainerUpdate(pinned.container.id, resources, ignore_failure))
    return ContainerChange(tuple(put), drop, snapshot), tuple(updates)


def effective_of(configured: Container | Resources) -> Effective:
    """Return the limits that the kernel should show for a container, with its own or with these resources."""
    return Effective(configured.cpus or None, configured.mems or None, configured.hugepages)
