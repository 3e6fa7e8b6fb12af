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
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import ClaimState, Record


class Disturbance(msgspec.Struct, frozen=True):
    """The disturbances on the CPUs of a claim since it began.

    Attributes:
        claim: the claim.
        cpus: the CPUs that are to be quiet.
        interrupts: how often devices interrupted them, by number and name of the interrupt: `36 virtio1-req.0`; without
            those that did not. None if the kernel does not say, or did not when the claim began.
        kernel: the same for what the kernel itself interrupts with, such as its timer: `LOC Local timer interrupts`.
        busy: how many seconds tasks ran on them, the claim's own and others; None if the kernel does not say.
        processes: the threads of others that ran there last, by names and processes, the busiest first; a driver
            leaves it empty, and the commands that read processes fill it in.
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
    """A driver that brings hardware into a state for a claim; the ledger keeps how far that has come.

    The claim is on record as started before `configure` is called, and until `restore` has returned. So whenever
    hardware may be configured, a claim on record says so, and a driver that died in between goes on where it was.
    Both write through the `Root` that the driver was made for, which refuses on a captured or made-up machine.
    """

    @abstractmethod
    def configures(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether these grants need `configure` and `restore`.

        Called with the answer of `grant` and with grants on record. The answer depends on the grants alone, because
        Unprepare has to find what Prepare has configured, also in a newer version of the driver.

        Example:
            return any(grant.state for grant in grants)
        """

    @abstractmethod
    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        """Bring the hardware into the state that the grants need.

        Called in Prepare, after the claim has gone on record and before its CDI spec is written. No container of the
        claim runs yet. It can be called again from the beginning, because a call may be cut off at any point: set the
        hardware to a value, and do not change it by an amount.

        Example:
            for grant in grants:
                self.root.write(f"sys/class/fans/{grant.device}/speed", str(grant.state))

        Raises:
            ClaimError: the hardware cannot be configured; says what to do. Kubelet calls Prepare again.
        """

    @abstractmethod
    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        """Undo `configure`.

        Called in Unprepare, when kubelet has stopped the claim's containers and before its CDI spec is removed. Only
        then may others get the devices. It succeeds when the hardware is gone or was never configured, because a claim
        that cannot be unprepared keeps its pod from ending.

        Example:
            for grant in grants:
                if self.root.exists(f"sys/class/fans/{grant.device}/speed"):
                    self.root.write(f"sys/class/fans/{grant.device}/speed", "0")

        Raises:
            ClaimError: it cannot be undone now. The claim stays on record, and kubelet calls Unprepare again.
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
LockedTuning = Callable[[], "AbstractContextManager[tuple[Collection[Record], Notes]]"]


class Tunes(ABC):
    """A driver that changes settings of the machine in which all its claims have a say.

    `Configures` is for hardware that one claim has for itself. A setting has one value for all claims, so it is decided
    from all of them and from its value before the first, which the driver notes before it changes anything. Then
    claims may come and go in any order. It writes through the `Root` that the driver was made for.
    """

    @abstractmethod
    def tunes(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether these grants need `tune`.

        Called with the answer of `grant` and with grants on record. The answer depends on the grants alone.

        Example:
            return any(grant.state == "quiet" for grant in grants)
        """

    @abstractmethod
    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        """Bring the machine's settings into the state that these claims need together.

        Called in Prepare with one claim more and in Unprepare with one less, while the claim is on record as started.
        Also when a container with such a claim starts (where NRI is on), and every ten seconds while there are claims
        or notes, because other programs may have changed the settings since. Without claims, every setting goes back
        to its value before the first claim.

        It may be called in any state of the machine, because a call can be cut off at any point and is then repeated,
        perhaps by another version. So note the original value first, then write. `Notes.lost` says whether notes are
        lost; note that too, because `unrestorable` has to report it.

        Example:
            before = notes.read() or {"speed": self.speed()}
            notes.write(before)
            self.set_speed(0 if claims else before["speed"])
            if not claims:
                notes.write(None)

        Args:
            claims: those on record that need it.
            notes: what the driver noted before, which outlives the process.

        Raises:
            ClaimError: the settings cannot be changed; says what to do.
        """

    must_notify: bool = False
    """Whether `notify` has something to do after the last `tune`."""

    def notify(self, locked: LockedTuning) -> bool:  # noqa: ARG002 - subclasses use it
        """Have other processes of the node heed the claims, and return whether `tune` is to be called again.

        Called after `tune`, by one thread at a time and without the lock on decisions, because another process may take
        its time and kubelet does not wait for it. What has to be read or noted is done in `locked`, which holds that
        lock: as short as can be.

        Example:
            with locked() as (claims, notes):
                quiet = CPUSet.union(claim.cpus for claim in claims)
            self.daemon.ban(quiet)
            return False

        Raises:
            ClaimError, LedgerError: something cannot be decided or noted; says what to do.
        """
        return False

    def disturbances(self, claims: Collection[Record], notes: Any) -> Iterable[Disturbance]:  # noqa: ARG002 - subclasses use it
        """Return what has disturbed the CPUs of these claims since they began, as far as it is known.

        Called for metrics and by commands, perhaps in another process and with other options. It changes nothing.

        Args:
            claims: all on record.
            notes: what `tune` noted, as plain JSON.
        """
        return ()

    def tuned(self, record: Record) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether settings were changed for a record without grants, which is known only by its CDI spec.

        Called in place of `tunes` for claims that were recovered. True keeps the claim's settings until it is
        unprepared or its grants are known again.
        """
        return False

    def unrestorable(self, notes: Any) -> str:  # noqa: ARG002 - subclasses use it
        """Return why settings that claims have changed cannot be put back, in one sentence; empty if all can.

        Called by commands, perhaps in another process and with other options. Nobody else knows: after a lost note the
        original value of a setting is found nowhere.

        Args:
            notes: what `tune` noted, as plain JSON.
        """
        return ""


class Recovers(ABC):
    """A driver whose CDI specs have a form that is given, and say what claims were given.

    Used where the record is lost: a damaged row, a corrupt ledger, another driver whose place this one takes. For any
    other driver the framework keeps a copy of the record in every spec and reads that. It does the same where a claim
    has no edits or several requests.
    """

    @abstractmethod
    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        """Return what claim `uid` was given, by a CDI spec on the node; None if the spec is not this driver's.

        Called when the ledger is opened, for each spec without a record. Until the next Prepare, the answer is all that
        is known of the claim: what it says is held, and anything else may be given to others. `grants` may be empty if
        the spec says `cpus`. Besides the claim's edits, a spec mounts device metadata (KEP-5304), which is none of
        them.

        Example:
            env = spec.devices[0].container_edits.env
            cpus = [entry.removeprefix("CPUS=") for entry in env if entry.startswith("CPUS=")]
            return ClaimGrant((), cpus=CPUSet.parse(cpus[0]), held=CPUSet.parse(cpus[0])) if cpus else None
        """

    def adopted(self, claim: AllocatedClaim, recovered: ClaimGrant, inventory: Inventory) -> tuple[Grant, ...]:  # noqa: ARG002 - subclasses use it
        """Return the grants of a claim for which `recover` found CPUs but no grants: what `grant` would have noted.

        Called in the next Prepare of the claim. Nothing is decided, because its containers may run already: what the
        claim holds is what was recovered.

        Raises:
            ClaimError: the claim's configurations contradict the machine.
        """
        return plain_grants(claim)

    def foreign(self, device: str) -> str:  # noqa: ARG002 - subclasses use it
        """Return who hands out devices under this driver's name if its claims cannot be taken over; else empty.

        Called at a start, for the devices of claims that have a CDI spec on the node and no complete record. People
        read the answer as the reason why the claim is not taken over.
        """
        return ""


def plain_grants(claim: AllocatedClaim) -> tuple[Grant, ...]:
    """A grant for each result, with nothing particular to it."""
    return tuple(Grant.of(result.result) for result in claim.results)


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


# `Reports` and its values: problems for `dranode doctor`, readings for `dranode topology`, the boxes that CPUs lie in.


class HardwareProblem(msgspec.Struct, frozen=True):
    """A problem of the node, which keeps a driver from working or from working well, as `dranode doctor` reports it.

    Attributes:
        code: a stable name for it, in lower case with dashes.
        what: what is wrong, with value and place, in one sentence without a full stop.
        fix: what to do, in one sentence without a full stop.
        stops: whether claims fail by it; else it is a warning.
    """

    code: str
    what: str
    fix: str
    stops: bool = False


class HardwareReadings(msgspec.Struct, frozen=True):
    """A table of current values of the hardware, as `dranode topology` shows it.

    Attributes:
        title: what it is about, in a few words.
        rows: each with the same names, in the order of the columns; None is what could not be read.
        remarks: a sentence for each thing that the table does not say.
    """

    title: str
    rows: tuple[Mapping[str, str | int | None], ...]
    remarks: tuple[str, ...] = ()


class Box(msgspec.Struct, frozen=True):
    """CPUs that belong together: a package or a NUMA node around caches, a cache around cores.

    Attributes:
        title: for people: `package 0`, `part of NUMA 1`, `L3`; empty for CPUs that belong to nothing.
        cpus: the CPUs in it.
        framed: whether it is drawn as a frame around what is in it; else as rows of cores.
        numa: the NUMA node that it is, or is a part of; None if it is none.
        boxes: what is in it, in order.
        cores: where no box is in it, its physical cores: of each core the threads that are in the box.
    """

    title: str
    cpus: CPUSet
    framed: bool = False
    numa: int | None = None
    boxes: tuple[Box, ...] = ()
    cores: tuple[CPUSet, ...] = ()


class Layout(msgspec.Struct, frozen=True):
    """A node's CPUs, from the outermost boxes in.

    Attributes:
        title: how many of what, in one line.
        boxes: the outermost ones.
        facts: what is odd, each in a few words: `offline 6-7`.
        isolated: CPUs kept from the kernel's load balancing.
        warnings: one sentence each.
    """

    title: str
    boxes: tuple[Box, ...]
    facts: tuple[str, ...] = ()
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    warnings: tuple[str, ...] = ()

    @property
    def cpus(self) -> CPUSet:
        """All CPUs of the picture."""
        return CPUSet.union(box.cpus for box in self.boxes)


class Reports(ABC):  # noqa: B024 - each method has a default
    """A driver that tells people more about the node than its devices.

    Commands call these methods, `serve` never does. They are called after `discover`, with its answer, in a process
    that may run as another user and beside the serving driver, perhaps on a captured or made-up machine. So they only
    read, through the `Root` that the driver was made for.
    """

    def problems(self, inventory: Inventory) -> Iterable[HardwareProblem]:  # noqa: ARG002 - subclasses use it
        """Return what keeps claims from being prepared, or from working well, on this node.

        Called by `dranode doctor`. What keeps `discover` from reading the hardware, and `Inventory.warnings`, are
        reported already. Give a problem the same `code` on every node, because alerts and scripts compare it.

        Example:
            return [HardwareProblem("fans-dusty", "fan-0 turns at 200 of 800 rounds a minute", "clean it")]
        """
        return ()

    def readings(self, inventory: Inventory) -> Iterable[HardwareReadings]:  # noqa: ARG002 - subclasses use it
        """Return current values of the hardware as tables.

        Called by `dranode topology`. Nothing of it is published, so values may change from one call to the next. A
        value that cannot be read is None and never 0, because people take 0 for a measured value.

        Example:
            return [HardwareReadings("Fans", ({"fan": "fan-0", "speed": 800}, {"fan": "fan-1", "speed": None}))]
        """
        return ()

    def layout(self, inventory: Inventory) -> Layout | None:  # noqa: ARG002 - subclasses use it
        """Return the boxes in which the node's CPUs lie; None if the driver's devices are no CPUs.

        Called where a picture of the node is drawn. Devices that are no CPUs need nothing: their attribute `numaNode`,
        in any domain, puts them into their box.

        Example:
            return Layout("4 CPUs", (Box("package 0", CPUSet.parse("0-3"), framed=True, numa=0),))
        """
        return None
