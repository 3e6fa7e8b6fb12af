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
        cpus: the CPUs that should not be disturbed.
        interrupts: how often devices interrupted them, by number and name of the interrupt: `36 virtio1-req.0`; only
            interrupts that occurred. None if the kernel does not count them, or did not when the claim began.
        kernel: the same for the kernel's own interrupts, such as its timer: `LOC Local timer interrupts`.
        busy: how many seconds tasks ran on them, the claim's own and others; None if the kernel does not count that.
        processes: the threads of other programs that ran there last, with their names and processes, the busiest first.
            A driver leaves it empty; commands that read processes fill it in.
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
    """A driver that configures hardware for a claim; the ledger records whether that is complete.

    The claim is on record as started before `configure` is called and until `restore` has returned. So hardware is
    never configured without a record that says so, and after a crash the driver can continue. Both methods write
    through the `Root` of the driver, which rejects writes if the machine is captured or simulated.
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

        Called in Prepare, after the claim was recorded and before its CDI spec is written. No container of the claim
        runs yet. A call may be interrupted at any point and is then repeated from the beginning, so set the hardware to
        a value instead of changing it by an amount.

        Example:
            for grant in grants:
                self.root.write(f"sys/class/fans/{grant.device}/speed", str(grant.state))

        Raises:
            ClaimError: the hardware cannot be configured; says what to do. Kubelet calls Prepare again.
        """

    @abstractmethod
    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        """Undo `configure`.

        Called in Unprepare, after kubelet has stopped the claim's containers and before its CDI spec is removed. Other
        claims get the devices only afterwards. It must succeed if the hardware is gone or was never configured, because
        a pod whose claim cannot be unprepared never terminates.

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
        """Return why `read` may not have the last written notes; empty if it has, and after the next `write`."""

    def read(self) -> Any:
        """Return the last written notes, as plain JSON; None if there are none, or if they are damaged."""

    def write(self, notes: Any) -> None:
        """Replace the notes with plain JSON; they are durable on return. None deletes them.

        Raises:
            LedgerError: they cannot be written.
        """


# Holds the lock on decisions, and returns the claims whose settings count and the driver's notes.
LockedTuning = Callable[[], "AbstractContextManager[tuple[Collection[Record], Notes]]"]


class Tunes(ABC):
    """A driver that changes settings of the machine which depend on all its claims.

    `Configures` is for hardware that belongs to one claim. A setting has one value for all claims, so it is decided
    from all of them and from its value before the first one, which the driver notes before it changes anything. So
    claims may start and end in any order. It writes through the `Root` of the driver.
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
        """Change the machine's settings to what these claims need together.

        Called in Prepare with one more claim and in Unprepare with one less, while the claim is on record as started.
        Also called when a container with such a claim starts (if NRI is on), and every ten seconds while there are
        claims or notes, because other programs may have changed the settings. Without claims, every setting gets the
        value again that it had before the first claim.

        A call can be interrupted at any point and is then repeated, perhaps by another version, so the machine may be
        in any state. Therefore note the original value before you write. `Notes.lost` says whether notes were lost;
        note that too, because `unrestorable` has to report it.

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
        """Tell other processes of the node about the claims, and return whether `tune` must be called again.

        Called after `tune`, by one thread at a time. The lock on decisions is not held, because another process may
        answer slowly and kubelet must not wait for that. Read and write notes in `locked`, which holds the lock, and
        leave it as soon as possible.

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
        """Return what is known to have disturbed the CPUs of these claims since they began.

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
        """Return why settings that claims have changed cannot be restored, in one sentence; empty if all can.

        Called by commands, perhaps in another process and with other options. Only the driver can say it, because
        after a note is lost, the original value of a setting is stored nowhere.

        Args:
            notes: what `tune` noted, as plain JSON.
        """
        return ""


class Recovers(ABC):
    """A driver whose CDI specs have a prescribed form from which one can read what claims were given.

    Used if there is no record: a row is damaged, the ledger is corrupt, or this driver replaces another one. For all
    other drivers the framework writes a copy of the record into every spec and reads that. It also does so for claims
    without edits or with several requests.
    """

    @abstractmethod
    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        """Return what claim `uid` was given, by a CDI spec on the node; None if the spec is not this driver's.

        Called when the ledger is opened, for each spec without a record. Until the next Prepare, the answer is all that
        is known about the claim: what it says is held, and anything else may be given to others. `grants` may be empty
        if the spec says `cpus`. A spec also mounts device metadata (KEP-5304); that is not part of the claim's edits.

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
        """Return which other driver publishes this device under the same name, if its claims cannot be taken over.

        Called at a start, for the devices of claims that have a CDI spec on the node and no complete record. The answer
        appears in the message that says why the claim is not taken over.
        """
        return ""


def plain_grants(claim: AllocatedClaim) -> tuple[Grant, ...]:
    """Return a grant for each result, without edits or state."""
    return tuple(Grant.of(result.result) for result in claim.results)


def needs_configuring(plugin: Plugin, grants: tuple[Grant, ...]) -> bool:
    """Return whether hardware is configured for these grants, and restored after them."""
    # Settings of the machine count too. So such a claim is STARTED on record while they change, and a crash in between
    # leaves it there for the next call.
    configures = isinstance(plugin, Configures) and plugin.configures(grants)
    return configures or (isinstance(plugin, Tunes) and plugin.tunes(grants))


def was_configured(plugin: Plugin, record: Record) -> bool:
    """Return whether hardware may have been configured for a claim on record, so that it has to be restored."""
    return needs_configuring(plugin, record.grants) or (isinstance(plugin, Tunes) and was_tuned(plugin, record))


def was_tuned(plugin: Tunes, record: Record) -> bool:
    """Return whether the machine's settings depend on a claim on record."""
    # A record that was recovered from a CDI spec may have no grants to ask about.
    return plugin.tunes(record.grants) if record.grants else plugin.tuned(record)


# Which claims count for the machine's settings (`Tunes`). A claim is STARTED on record while its settings are being
# made or undone. So all claims count while one is being prepared, and otherwise only those that are COMPLETED: a claim
# whose Prepare was interrupted gets its settings when kubelet repeats it.


def tuning_claims(plugin: Tunes, records: Iterable[Record], *, preparing: bool) -> tuple[Record, ...]:
    """Return the claims whose settings count.

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
        what: what is wrong, with the value and where it was found, in one sentence without a period.
        fix: what to do, in one sentence without a period.
        stops: whether claims fail because of it; otherwise it is a warning.
    """

    code: str
    what: str
    fix: str
    stops: bool = False


class HardwareReadings(msgspec.Struct, frozen=True):
    """A table of current values of the hardware, as `dranode topology` shows it.

    Attributes:
        title: a few words.
        rows: all with the same keys, in the order of the columns; a value is None if it could not be read.
        remarks: sentences that explain what the table does not say.
    """

    title: str
    rows: tuple[Mapping[str, str | int | None], ...]
    remarks: tuple[str, ...] = ()


class Box(msgspec.Struct, frozen=True):
    """CPUs that belong together: a package or a NUMA node around caches, a cache around cores.

    Attributes:
        title: what people read: `package 0`, `part of NUMA 1`, `L3`; empty for CPUs that belong to no such group.
        cpus: the CPUs in it.
        framed: whether it is drawn as a frame around its content; otherwise as rows of cores.
        numa: its NUMA node, if it is one or a part of one; else None.
        boxes: the boxes in it, in order.
        cores: its physical cores if there are no boxes in it: for each core, the threads that are in this box.
    """

    title: str
    cpus: CPUSet
    framed: bool = False
    numa: int | None = None
    boxes: tuple[Box, ...] = ()
    cores: tuple[CPUSet, ...] = ()


class Layout(msgspec.Struct, frozen=True):
    """A node's CPUs as nested boxes.

    Attributes:
        title: the numbers of CPUs and boxes, in one line.
        boxes: the outermost boxes.
        facts: what is unusual, each in a few words: `offline 6-7`.
        isolated: CPUs that the kernel's load balancing leaves out.
        warnings: one sentence each.
    """

    title: str
    boxes: tuple[Box, ...]
    facts: tuple[str, ...] = ()
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    warnings: tuple[str, ...] = ()

    @property
    def cpus(self) -> CPUSet:
        """Return all CPUs in the boxes."""
        return CPUSet.union(box.cpus for box in self.boxes)


class Reports(ABC):  # noqa: B024 - each method has a default
    """A driver that tells people more about the node than its devices.

    Commands call these methods, `serve` never does. They are called after `discover`, with its answer, in a process
    that may run as another user and at the same time as the driver, perhaps on a captured or simulated machine. So they
    only read, through the `Root` of the driver.
    """

    def problems(self, inventory: Inventory) -> Iterable[HardwareProblem]:  # noqa: ARG002 - subclasses use it
        """Return the problems of this node because of which claims fail or do not work well.

        Called by `dranode doctor`, which reports errors of `discover` and `Inventory.warnings` itself. Give a problem
        the same `code` on every node, because alerts and scripts compare it.

        Example:
            return [HardwareProblem("fans-dusty", "fan-0 turns at 200 of 800 rounds a minute", "clean it")]
        """
        return ()

    def readings(self, inventory: Inventory) -> Iterable[HardwareReadings]:  # noqa: ARG002 - subclasses use it
        """Return current values of the hardware as tables.

        Called by `dranode topology`. These values are not published, so they may differ in every call. A value that
        cannot be read is None and never 0, because people take 0 for a measured value.

        Example:
            return [HardwareReadings("Fans", ({"fan": "fan-0", "speed": 800}, {"fan": "fan-1", "speed": None}))]
        """
        return ()

    def layout(self, inventory: Inventory) -> Layout | None:  # noqa: ARG002 - subclasses use it
        """Return the node's CPUs in boxes; None if the driver's devices are not CPUs.

        Called by commands that draw the node. Other devices are drawn in the box of the NUMA node that their attribute
        `numaNode` names, in any domain.

        Example:
            return Layout("4 CPUs", (Box("package 0", CPUSet.parse("0-3"), framed=True, numa=0),))
        """
        return None
