"""All containers that exist, with indexes by which a change of what is on record finds those that it concerns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.pinning.containers import Container
from dranode.driver.core.pinning.pinned import Pinned, having, pooled
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot

K = TypeVar("K")


class ContainerChange(msgspec.Struct, frozen=True):
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
        # Those that came while a ledger was unread: that of a driver which decides about CPUs, or about memory alone.
        self._unsure: set[str] = set()
        self._memory_unsure: set[str] = set()
        self._unheard: set[str] = set()
        self._denied: set[str] = set()
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
        """The keys of the claims that a container has."""
        return frozenset(self._users)

    def users(self, key: str) -> tuple[Container, ...]:
        """Return the containers that have the claim with this key."""
        return tuple(self._all[user].container for user in self._users.get(key, ()))

    def users_of(self, claim: HeldClaim) -> tuple[Container, ...]:
        """Return the containers that have the claim, or a part of it that holds something and that `claim` has too."""
        mine = {part.index for part in claim.parts if part.exclusive}
        users = (self._all[user] for user in self._users.get(claim.key, ()))
        theirs = ((user.container, {index for of, index in user.parts if of == claim.key}) for user in users)
        return tuple(user for user, parts in theirs if not mine or not parts or mine & parts)

    @property
    def certain(self) -> bool:
        """Return whether the claims of every container are certain."""
        return not (self.unsure or self._unheard)

    @property
    def unsure(self) -> bool:
        """Return whether there are containers that were taken in while a ledger could not be read."""
        return bool(self._unsure or self._memory_unsure)

    def clarified(self, snapshot: HeldSnapshot) -> bool:
        """Return whether there are such containers, and the ledger that was unread then has been read by now."""
        return bool(
            (self._unsure and snapshot.unread is None) or (self._memory_unsure and snapshot.memory_unread is None)
        )

    @property
    def unheard(self) -> tuple[Pinned, ...]:
        """The containers about which kubelet did not answer."""
        return tuple(self._all[key] for key in self._unheard)

    @property
    def denied(self) -> tuple[Pinned, ...]:
        """The containers that name a claim which kubelet says they have not."""
        return tuple(self._all[key] for key in self._denied)

    def namesakes(self, container: Container) -> tuple[str, ...]:
        """Return the ids of the container and of all containers of its name in its pod."""
        same = self._names.get((container.pod.uid, container.name), ()) if container.pod.uid else ()
        return (*same, container.id) if container.id in self._all and container.id not in same else tuple(same)

    def concerned(self, snapshot: HeldSnapshot) -> tuple[Pinned, ...]:
        """Return the containers that may not agree with a snapshot, by what has changed since the settled one."""
        before = self.settled
        if before is snapshot:
            return ()
        if before is None or before.machine != snapshot.machine:
            return tuple(self._all.values())
        keys = self._users_of(before.index.differing(snapshot.index))
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
        after = change.settled if change.settled is not None and not change.settled.lacks_claims else None
        before, self.settled = self.settled, after
        if after is None:
            return
        if before is None or before.machine != after.machine:
            keys = set(self._all)
        else:
            keys = self._users_of(before.index.differing(after.index))
            keys.update(pinned.container.id for pinned in change.put)
        for key in keys:
            (self._pooled.add if pooled(self._all[key], after) else self._pooled.discard)(key)

    def _users_of(self, claims: Iterable[str]) -> set[str]:
        return {user for key in claims for user in self._users.get(key, ())}

    def _put(self, pinned: Pinned) -> None:
        key = pinned.container.id
        before = self._all.get(key)
        if before is None or before.claims != pinned.claims:
            self._drop(key)
            self._enter(pinned)
        self._all[key] = pinned
        (self._unsure.add if pinned.unsure else self._unsure.discard)(key)
        (self._memory_unsure.add if pinned.memory_unsure else self._memory_unsure.discard)(key)
        (self._unheard.add if pinned.unheard else self._unheard.discard)(key)
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
        self._unheard.discard(key)
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


def claims_of(container: Container, containers: Containers, snapshot: HeldSnapshot) -> tuple[ClaimRef, ...]:
    """Return the claims on record that a container has; none if the container is unknown."""
    pinned = containers.get(container.id)
    claims = () if pinned is None else (held.claim for held in having(pinned, snapshot))
    return tuple(dict.fromkeys(claims))
