"""The part of the seam that only a driver which pins containers to CPUs implements, besides `Plugin`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dranode.driver.core.claims.inventory import Inventory
    from dranode.driver.core.claims.record import Record
    from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot


class Pins(ABC):
    """A driver whose claims hold CPUs: NRI pins their containers to these, and all other containers to the rest."""

    @abstractmethod
    def pool(self, inventory: Inventory) -> HeldSnapshot:
        """Return the CPUs that containers run on while there is no record.

        The framework adds what `pinned` returns for each record, and enforces the result through NRI.
        """

    def unread_pool(self) -> HeldSnapshot:
        """Return what is known of these CPUs while `discover` fails and has never succeeded.

        Without any online CPU, new containers get what they are known to have: the CPUs of their claims, or the
        reserved ones.
        """
        from dranode.driver.core.pinning.snapshot import HeldSnapshot  # noqa: PLC0415 - a driver listens first

        return HeldSnapshot()

    @abstractmethod
    def pinned(self, record: Record) -> HeldClaim:
        """Return what a record means for containers; the answer may depend on nothing but the record."""
