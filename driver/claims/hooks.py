"""The optional parts of the seam: each class adds one ability to a `Plugin`, and the framework then uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.cdi.spec import Spec
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.inventory import Inventory
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import ClaimState, Record

# The value of what has disturbed the CPUs of a claim since it began; whoever reads the kernel's counters makes it.


class Disturbance(msgspec.Struct, frozen=True):
    """The disturbances on the CPUs of a claim since it began.

    Attributes:
        claim: the claim.
        cpus: the CPUs that are to be quiet.
        interrupts: how often devices interrupted them, by number and name of the interrupt: `36 virtio1-req.0`; without
            those that did not. None if the kernel does not say, or did not when the claim began.
        kernel: the same for what the kernel itself interrupts with, such as its timer: `LOC Local timer interrupts`.
        busy: how many seconds tasks ran on them, the claim's own and others; None if the kernel does not say.
        processes: the threads that have not the claim and ran there last, by names and processes, the busiest first;
            filled in by who looks at processes.
    """

    claim: ClaimRef
    cpus: CPUSet
    interrupts: Mapping[str, int] | None = None
    kernel: Mapping[str, int] | None = None
    busy: float | None = None
    processes: tuple[str, ...] = ()

    @property
    def count(self) -> int | None:
        """Return how often devices interrupted the CPUs; None if that is not known."""
        return None if self.interrupts is None else sum(self.interrupts.values())


class Configures(ABC):
    """A driver that brings hardware into a state for a claim; the ledger keeps how far that has come."""

    @abstractmethod
    def configures(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether these grants need `configure` and `restore`."""

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


class Notes(Protocol):
    """A driver's notes beside its claims; they outlive the process, and another version reads them."""

    @property
    def lost(self) -> str:
        """Return why `read` may lack what was written last; empty if it does not, and after the next writing."""

    def read(self) -> Any:
        """Return what was written last, as plain JSON; None if nothing was, or if it is damaged."""

    def write(self, notes: Any) -> None:
        """Put plain JSON on record in place of what was there; it is durable on return. None forgets it.

        Raises:
            LedgerError: it cannot be written.
        """


# Holds the lock on decisions, and gives the claims for which settings are to be made, and the driver's notes.
HeldTuning = Callable[[], "AbstractContextManager[tuple[Collection[Record], Notes]]"]


class Tunes(ABC):
    """A driver that changes settings of the machine in which all its claims have a say.

    `Configures` is for hardware that one claim has for itself. A setting has one value for all claims, so it is decided
    from all of them and from what it was before the first, which the driver notes before it changes anything. Then
    claims may come and go in any order.
    """

    @abstractmethod
    def tunes(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether these grants need `tune`."""

    @abstractmethod
    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        """Bring the machine's settings into the state that these claims need together.

        `claims` are those on record that need it; without any, everything is as it was before the first. It is called
        under the lock on decisions: in Prepare with one claim more, in Unprepare with one less, when a container with
        such a claim starts (where NRI says so), and every ten seconds while there are claims or notes. After a crash
        at any point it is called again, by this or another version.
        Write through the `Root` that the driver was made for.

        Raises:
            ClaimError: the settings cannot be changed; says what to do.
        """

    untold: bool = False
    """Whether `tell` has something to do, by the last `tune`."""

    def tell(self, held: HeldTuning) -> bool:  # noqa: ARG002 - subclasses use it
        """Have other processes of the node heed the claims, and return whether `tune` is to be called again.

        It is called without the lock on decisions, after `tune`, by one thread at a time, since a process may take its
        time. What it needs to know and to note it asks of `held`, in which the lock is held: as short as can be.

        Raises:
            ClaimError, LedgerError: something cannot be decided or noted; says what to do.
        """
        return False

    def disturbances(self, claims: Collection[Record], notes: Any) -> Iterable[Disturbance]:  # noqa: ARG002 - subclasses use it
        """Return what has disturbed the CPUs of these claims since they began, as far as it is known.

        `notes` is what `tune` put on record, as plain JSON. Any process may ask, one with other options too.
        """
        return ()

    def tuned(self, record: Record) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether settings were made for a record without grants: one of which only the CDI spec is left."""
        return False

    def unrestorable(self, notes: Any) -> str:  # noqa: ARG002 - subclasses use it
        """Return why settings that claims have changed cannot be put back; empty if all can, by what is on record.

        `notes` is what `tune` put on record, as plain JSON. Any process may ask, one with other options too.
        """
        return ""


class Recovers(ABC):
    """A driver whose CDI specs have a form that is given, and say what claims were given.

    Used where the record is lost: a damaged row, a corrupt ledger, another driver whose place this one takes. For a
    driver that is none, the framework keeps a copy of the record in every spec and reads that; so it does where a claim
    has no edits or several requests.
    """

    @abstractmethod
    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        """Return what claim `uid` was given by a CDI spec on the node; None if the spec is not this driver's.

        `grants` may be empty if the spec says `cpus`; they come back with the next Prepare. Beside the edits of a claim
        its spec mounts device metadata (KEP-5304), which is none of them.
        """

    def adopted(self, claim: AllocatedClaim, recovered: ClaimGrant, inventory: Inventory) -> tuple[Grant, ...]:  # noqa: ARG002 - subclasses use it
        """The grants of a claim of which `recover` found CPUs and no grants: what `grant` would note of its results.

        Nothing is decided: what the claim holds is what was recovered.

        Raises:
            ClaimError: the claim's configurations contradict the machine.
        """
        return plain_grants(claim)

    def foreign(self, device: str) -> str:  # noqa: ARG002 - subclasses use it
        """Return who hands out devices under this driver's name if its claims cannot be taken over; else empty.

        Asked about the devices of claims whose CDI specs lie on the node without a record.
        """
        return ""


def plain_grants(claim: AllocatedClaim) -> tuple[Grant, ...]:
    """A grant for each result, with nothing particular to it."""
    return tuple(Grant.of(each.result) for each in claim.results)


def needs_configuring(plugin: Plugin, grants: tuple[Grant, ...]) -> bool:
    """Return whether hardware is configured for these grants, and restored after them."""
    configures = isinstance(plugin, Configures) and plugin.configures(grants)
    return configures or (isinstance(plugin, Tunes) and plugin.tunes(grants))


def was_configured(plugin: Plugin, record: Record) -> bool:
    """Return whether hardware may have been configured for a claim on record, so that it has to be restored."""
    return needs_configuring(plugin, record.grants) or (isinstance(plugin, Tunes) and was_tuned(plugin, record))


def was_tuned(plugin: Tunes, record: Record) -> bool:
    """Return whether a claim on record has a say in the machine's settings."""
    return plugin.tunes(record.grants) if record.grants else plugin.tuned(record)


# Decides which claims have a say in the machine's settings (`Tunes`) at which moment.  A claim is STARTED on record
# from before its settings are made until they are, and from before they are undone until it is forgotten. So all
# claims count when one more is prepared, and those that are COMPLETED at any other time: a claim whose Prepare was
# cut off gets its settings when kubelet repeats it.


def tuning_claims(plugin: Tunes, records: Iterable[Record], *, preparing: bool) -> tuple[Record, ...]:
    """Return the claims for which settings are to be made.

    Args:
        plugin: the driver.
        records: all claims on record.
        preparing: whether a claim that is STARTED is being prepared.
    """
    counting = (record for record in records if preparing or record.state is ClaimState.COMPLETED)
    return tuple(record for record in counting if was_tuned(plugin, record))
