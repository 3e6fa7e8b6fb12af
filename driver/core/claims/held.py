"""Indexes the devices and CPUs that claims on record hold. Every decision reads it, and keeping it costs nothing.

A claim holds devices (by name) and, where the driver hands out CPUs, CPUs. Admin access holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dranode.driver.core.api.cpuset import CPUSet

if TYPE_CHECKING:
    from dranode.driver.core.api.resource import ResourceClaim


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


class Holding(msgspec.Struct, frozen=True):
    """The devices and CPUs that one claim holds.

    Attributes:
        claim: who holds it.
        devices: the device of every result, without those of admin access; a driver's names are unique on its node.
        cpus: the CPUs that no other claim gets.
        amounts: how much it holds of devices that several claims share, by device, in the driver's own unit.
    """

    claim: ClaimRef
    devices: frozenset[str] = frozenset()
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    amounts: Mapping[str, int] = msgspec.field(default_factory=dict)


class Held(msgspec.Struct):
    """All holdings by claim UID, indexed by device and by CPU; `add` and `drop` cost what one claim holds.

    It is mutable and belongs to the lock on decisions; deciding functions only read it.
    """

    holdings: dict[str, Holding] = msgspec.field(default_factory=dict)
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    _devices: dict[str, set[str]] = msgspec.field(default_factory=dict)
    _amounts: dict[str, int] = msgspec.field(default_factory=dict)
    # More than one only where claims overlap, which is never decided but can be found (another driver's leftovers).
    _cpu_holders: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, holdings: Iterable[Holding]) -> Held:
        """The index of these holdings."""
        held = cls()
        for holding in holdings:
            held.add(holding)
        return held

    def add(self, holding: Holding) -> None:
        """Enter what a claim holds, in place of what it held before."""
        self.drop(holding.claim.uid)
        uid = holding.claim.uid
        self.holdings[uid] = holding
        self.cpus = self.cpus | holding.cpus
        for device in holding.devices:
            self._devices.setdefault(device, set()).add(uid)
        for device, amount in holding.amounts.items():
            self._amounts[device] = self._amounts.get(device, 0) + amount
        for cpu in holding.cpus:
            self._cpu_holders[cpu] = (*self._cpu_holders.get(cpu, ()), uid)

    def drop(self, uid: str) -> Holding | None:
        """Forget what a claim holds; None if it held nothing."""
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return None
        for device in holding.devices:
            users = self._devices[device]
            users.discard(uid)
            if not users:
                del self._devices[device]
        for device, amount in holding.amounts.items():
            self._amounts[device] -= amount
            if not self._amounts[device]:
                del self._amounts[device]
        freed: list[int] = []
        for cpu in holding.cpus:
            others = tuple(other for other in self._cpu_holders.pop(cpu) if other != uid)
            if others:
                self._cpu_holders[cpu] = others
            else:
                freed.append(cpu)
        self.cpus = self.cpus - CPUSet(freed)
        return holding

    def device_holders(self, device: str) -> tuple[ClaimRef, ...]:
        """The claims that hold the device, by name."""
        users = self._devices.get(device, ())
        return tuple(sorted((self.holdings[uid].claim for uid in users), key=str))

    def amount(self, device: str) -> int:
        """Return how much of a device the claims hold, by `Grant.amount`."""
        return self._amounts.get(device, 0)

    def cpu_holders(self, cpus: CPUSet) -> Mapping[ClaimRef, CPUSet]:
        """Return who holds which of `cpus`; CPUs that no claim holds do not appear."""
        holders: dict[ClaimRef, CPUSet] = {}
        for cpu in cpus & self.cpus:
            for uid in self._cpu_holders[cpu]:
                claim = self.holdings[uid].claim
                holders[claim] = holders.get(claim, CPUSet()) | CPUSet((cpu,))
        return holders

    def overlaps(self) -> Mapping[tuple[ClaimRef, ...], CPUSet]:
        """The CPUs that several claims hold, by those claims; nothing of the kind is ever decided."""
        found: dict[tuple[ClaimRef, ...], CPUSet] = {}
        for cpu, uids in self._cpu_holders.items():
            if len(uids) > 1:
                claims = tuple(self.holdings[uid].claim for uid in sorted(uids))
                found[claims] = found.get(claims, CPUSet()) | CPUSet((cpu,))
        return found
