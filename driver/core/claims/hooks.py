"""What some drivers are besides a `Plugin`: each class stands for one thing that the framework then does for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dranode.cdi.spec import Spec
    from dranode.driver.core.claims.grant import AllocatedClaim, ClaimGrant, Grant
    from dranode.driver.core.claims.held import ClaimRef
    from dranode.driver.core.claims.inventory import Inventory
    from dranode.driver.core.claims.plugin import Plugin


class Configures(ABC):
    """A driver that brings hardware into a state for a claim; the ledger keeps how far that has come."""

    @abstractmethod
    def configures(self, grants: tuple[Grant, ...]) -> bool:
        """Whether these grants need `configure` and `restore`."""

    @abstractmethod
    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        """Bring the hardware into the state that the grants need; called again after a crash, so idempotent.

        Write through the `Root` that the driver was made for: it refuses where the machine is captured or made up.

        Raises:
            ClaimError: it cannot be; says what to do.
        """

    @abstractmethod
    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        """Undo `configure`; works when the hardware is gone or was never configured.

        Raises:
            ClaimError: it cannot be undone now; kubelet asks again.
        """


class Recovers(ABC):
    """A driver whose CDI specs have a form that is given, and say what claims were given.

    Used where the record is lost: a damaged row, a corrupt ledger, another driver whose place this one takes. For a
    driver that is none, the framework keeps a copy of the record in every spec and reads that.
    """

    @abstractmethod
    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        """What a CDI spec that lies on the node says claim `uid` was given; None if the spec is not this driver's.

        `grants` may be empty if the spec says `cpus`; they come back with the next Prepare.
        """

    def adopted(self, claim: AllocatedClaim, recovered: ClaimGrant, inventory: Inventory) -> tuple[Grant, ...]:  # noqa: ARG002 - subclasses use it
        """The grants of a claim of which `recover` found CPUs and no grants: what `grant` would note of its results.

        Nothing is decided: what the claim holds is what was recovered.

        Raises:
            ClaimError: the claim's configurations contradict the machine.
        """
        return plain_grants(claim)

    def foreign(self, device: str) -> str:  # noqa: ARG002 - subclasses use it
        """What hands out devices of that name under this driver's, where its claims cannot be taken over; else empty.

        Asked about the devices of claims whose CDI specs lie on the node without a record.
        """
        return ""


def plain_grants(claim: AllocatedClaim) -> tuple[Grant, ...]:
    """A grant for each result, with nothing particular to it."""
    from dranode.driver.core.claims.grant import Grant  # noqa: PLC0415 - a driver listens first

    return tuple(Grant.of(each.result) for each in claim.results)


def needs_configuring(plugin: Plugin, grants: tuple[Grant, ...]) -> bool:
    """Whether hardware is configured for these grants, and restored after them."""
    return isinstance(plugin, Configures) and plugin.configures(grants)
