"""The part of the seam that only a driver which pins containers to CPUs or NUMA nodes implements, besides `Plugin`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.record import Record
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot


class Pins(ABC):
    """A driver whose claims hold CPUs or NUMA nodes: NRI pins their containers to these.

    All other containers are pinned to the CPUs that are left, if the driver hands out CPUs.
    """

    @abstractmethod
    def pool(self, inventory: Inventory) -> HeldSnapshot:
        """Return what containers have while there is no record: the CPUs or the NUMA nodes of the machine.

        The framework adds what `pinned` returns for each record, and enforces the result through NRI.
        """

    def unread_pool(self) -> HeldSnapshot:
        """Return what is known of these while `discover` fails and has never succeeded.

        Without any online CPU, new containers get what they are known to have: the CPUs of their claims, or the
        reserved ones.
        """
        return HeldSnapshot()

    @abstractmethod
    def pinned(self, record: Record) -> HeldClaim:
        """Return what a record means for containers; the answer may depend on nothing but the record."""
