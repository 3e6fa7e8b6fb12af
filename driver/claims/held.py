"""Indexes the devices and CPUs that claims on record hold; every decision reads this index.

A claim holds devices and, if the driver hands out CPUs, CPUs. Admin access holds nothing. A device's name may depend on
the driver's options, and claims outlive these. So devices are compared by their sources: what they are made of, by
names that no option changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import force_setattr

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim


class ClaimRef(msgspec.Struct, frozen=True):
    """A claim's identity: namespace, name and UID, as kubelet sends it."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, claim: ResourceClaim) -> ClaimRef:
        """Return the identity of a claim that was read."""
        return cls(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"with UID {self.uid}"


class HeldDevice(msgspec.Struct, frozen=True):
    """The part of a device that one allocation result holds.

    Attributes:
        name: the device's name when it was granted; a driver's names are unique on its node.
        sources: what the device is made of (`Plugin.sources`); its name if left empty. None if unknown, so that it may
            be made of anything.
        amount: how much of it, in the driver's own unit, if several claims share it by amounts.
        whole: whether it is held as a whole: no other claim gets any of it, whatever the device allows now.
    """

    name: str
    sources: frozenset[str] | None = frozenset()
    amount: int = 0
    whole: bool = False

    def __post_init__(self) -> None:
        if self.sources is not None and not self.sources:
            force_setattr(self, "sources", frozenset((self.name,)))

    def of(self, sources: Iterable[str]) -> bool:
        """Return whether the device has, or may have, some of these sources."""
        # In doubt it has them: a device that is withheld can be corrected, one that is given twice cannot.
        return self.sources is None or not self.sources.isdisjoint(sources)


class Holding(msgspec.Struct, frozen=True):
    """The devices and CPUs that one claim holds.

    Attributes:
        claim: the claim.
        devices: the device of every result, except for admin access.
        cpus: the CPUs that no other claim gets.
    """

    claim: ClaimRef
    devices: tuple[HeldDevice, ...] = ()
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of its devices."""
        return frozenset(device.name for device in self.devices)

    def amount(self, sources: Iterable[str]) -> int:
        """Return how much it holds of devices that have some of these sources."""
        return sum(device.amount for device in self.devices if device.of(sources))


class Held(msgspec.Struct):
    """All holdings by claim UID, indexed by source and by CPU; `add` and `drop` cost what one claim holds.

    It is mutable and belongs to the lock on decisions; deciding functions only read it.
    """

    holdings: dict[str, Holding] = msgspec.field(default_factory=dict)
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    _sources: dict[str, set[str]] = msgspec.field(default_factory=dict)
    # The claims that hold a device with unknown sources.
    _anything: set[str] = msgspec.field(default_factory=set)
    # The claims that hold a whole device. If many claims share a device, these are few.
    _whole: set[str] = msgspec.field(default_factory=set)
    # By sets of sources, because the devices of one grouping have few different sets.
    _amounts: dict[frozenset[str] | None, int] = msgspec.field(default_factory=dict)
    # Several claims only hold the same CPU if another driver has left them so; it is never decided here.
    _cpu_holders: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, holdings: Iterable[Holding]) -> Held:
        """Return the index of these holdings."""
        held = cls()
        for holding in holdings:
            held.add(holding)
        return held

    def add(self, holding: Holding) -> None:
        """Add what a claim holds, instead of what it held before."""
        self.drop(holding.claim.uid)
        uid = holding.claim.uid
        self.holdings[uid] = holding
        self.cpus = self.cpus | holding.cpus
        for device in holding.devices:
            if device.sources is None:
                self._anything.add(uid)
            if device.whole:
                self._whole.add(uid)
            for source in device.sources or ():
                self._sources.setdefault(source, set()).add(uid)
            if device.amount:
                self._amounts[device.sources] = self._amounts.get(device.sources, 0) + device.amount
        for cpu in holding.cpus:
            self._cpu_holders[cpu] = (*self._cpu_holders.get(cpu, ()), uid)

    def drop(self, uid: str) -> Holding | None:
        """Remove what a claim holds, and return it; None if it held nothing."""
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return None
        self._anything.discard(uid)
        self._whole.discard(uid)
        # Each source once, because several devices of a claim may share it.
        for source in {source for device in holding.devices for source in device.sources or ()}:
            users = self._sources[source]
            users.discard(uid)
            if not users:
                del self._sources[source]
        for device in holding.devices:
            if device.amount:
                self._amounts[device.sources] -= device.amount
                if not self._amounts[device.sources]:
                    del self._amounts[device.sources]
        freed: list[int] = []
        for cpu in holding.cpus:
            others = tuple(other for other in self._cpu_holders.pop(cpu) if other != uid)
            if others:
                self._cpu_holders[cpu] = others
            else:
                freed.append(cpu)
        self.cpus = self.cpus - CPUSet(freed)
        return holding

    @property
    def sources(self) -> Collection[str]:
        """Return the sources of which claims hold something."""
        return self._sources.keys()

    def holders(self, sources: Iterable[str], *, whole: bool = False) -> tuple[ClaimRef, ...]:
        """Return the claims that hold, or may hold, some of these sources; with `whole` only if as a whole device."""
        # Nobody gets a device that a claim with unknown sources may hold.
        uids = self._anything.union(*(self._sources.get(source, ()) for source in sources))
        holdings = (self.holdings[uid] for uid in (uids & self._whole if whole else uids))
        holders = (
            holding.claim
            for holding in holdings
            # A claim in `_whole` may hold another device whole and only a share of this one, so its devices are
            # checked.
            if not whole or any(device.whole and device.of(sources) for device in holding.devices)
        )
        return tuple(sorted(holders, key=str))

    def namesakes(self, ref: ClaimRef) -> list[ClaimRef]:
        """Return the claims on record that have the name of this one but another UID."""
        claims = (holding.claim for holding in self.holdings.values())
        return [claim for claim in claims if str(claim) == str(ref) and claim != ref]

    def amount(self, sources: Iterable[str]) -> int:
        """Return the sum of `Grant.amount` over devices that have, or may have, some of these sources."""
        # An amount of unknown sources counts against every device: too little is given then, never too much.
        return sum(amount for held, amount in self._amounts.items() if held is None or not held.isdisjoint(sources))

    def cpu_holders(self, cpus: CPUSet) -> Mapping[ClaimRef, CPUSet]:
        """Return who holds which of `cpus`; CPUs that no claim holds do not appear."""
        holders: dict[ClaimRef, CPUSet] = {}
        for cpu in cpus & self.cpus:
            for uid in self._cpu_holders[cpu]:
                claim = self.holdings[uid].claim
                holders[claim] = holders.get(claim, CPUSet()) | CPUSet((cpu,))
        return holders

    def overlaps(self) -> Mapping[tuple[ClaimRef, ...], CPUSet]:
        """Return the CPUs that several claims hold, by those claims; this is never decided here, but may be found."""
        overlaps: dict[tuple[ClaimRef, ...], CPUSet] = {}
        for cpu, uids in self._cpu_holders.items():
            if len(uids) > 1:
                claims = tuple(self.holdings[uid].claim for uid in sorted(uids))
                overlaps[claims] = overlaps.get(claims, CPUSet()) | CPUSet((cpu,))
        return overlaps
