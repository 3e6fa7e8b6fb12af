"""What a driver is that holds containers to CPUs, besides a `Plugin`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.record import Record
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot


class Pins(ABC):
    """A driver whose claims stand for CPUs: containers are held to them through NRI, all others to the rest."""

    @abstractmethod
    def pool(self, inventory: Inventory) -> HeldSnapshot:
        """What containers run on while no claim is on record.

        With what `pinned` says of the claims on record it is enforced through NRI.
        """

    @abstractmethod
    def pinned(self, record: Record) -> HeldClaim:
        """What a claim on record means for containers: a function of the record alone, called when it has changed."""
