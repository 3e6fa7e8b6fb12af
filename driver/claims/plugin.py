"""The seam: what a node driver writes to become one.

A driver subclasses `Plugin`, writes `discover` and `grant`, and is found by the entry point group `dranode.plugins`;
the framework does the rest (sockets, ledger, CDI files, slices, health). `dranode.driver.testing.check_plugin` proves a
driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Protocol

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.inventory import Inventory
from dranode.driver.claims.record import Record

# The boxes in which a node's CPUs lie, for pictures: packages and NUMA nodes around caches, caches around cores.


class Box(msgspec.Struct, frozen=True):
    """CPUs that belong together.

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


# The health of devices, and the claims that have less than they were given.


class Health(Enum):
    """A device's health, in the words of DRAResourceHealth."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


class DeviceHealth(msgspec.Struct, frozen=True):
    """The health of a device, and its reason in a sentence of at most 1,024 bytes."""

    device: str
    health: Health
    message: str = ""


class Impairment(msgspec.Struct, frozen=True):
    """A claim that has less at the moment than it was given.

    Attributes:
        claim: whose.
        reason: one word in camel case, for a condition or an Event.
        message: what is missing, in a sentence.
    """

    claim: ClaimRef
    reason: str
    message: str


# The words of a driver about its hardware beside its devices: what is wrong, and what it says at the moment.


class HardwareProblem(msgspec.Struct, frozen=True):
    """A problem of the node, which keeps a driver from working or from working well, as `dranode doctor` reports it.

    Attributes:
        code: a stable name for it, in lower case with dashes.
        what: what is wrong, with value and place, in one sentence without a full stop.
        fix: what to do, likewise.
        stops: whether claims fail by it; else it is a warning.
    """

    code: str
    what: str
    fix: str
    stops: bool = False


class HardwareReadings(msgspec.Struct, frozen=True):
    """A table of what the hardware says at the moment, as `dranode topology` shows it.

    Attributes:
        title: what it is about, in a few words.
        rows: each with the same names, in the order of the columns; None is what could not be read.
        remarks: a sentence for each thing that the table does not say.
    """

    title: str
    rows: tuple[Mapping[str, str | int | None], ...]
    remarks: tuple[str, ...] = ()


# How often a machine is read again that sends no notification when it changes.
RESCAN_SECONDS: Final = 60.0


class Stop(Protocol):
    """An event that ends a watch: a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the watch should end."""

    def wait(self, timeout: float) -> bool:
        """Wait until it should end, for `timeout` seconds at most; whether it should."""


class Plugin(ABC):
    """A node driver. `discover` and `grant` are yours; every other method has a default that does nothing.

    A driver that changes hardware for a claim is a `Configures` as well, one that changes settings of the whole machine
    a `Tunes`, one whose CDI specs have a given form a `Recovers`, and one that holds containers to CPUs or memory a
    `Pins`. All names that a driver needs come from `dranode.driver`.

    Attributes:
        driver: the driver's name: a DNS subdomain of at most 63 characters, also `ResourceSlice.spec.driver`.
        cdi_kind: vendor and class of the CDI devices that are written; `<driver>/claim` if left empty.
        by_amounts: whether claims share devices by `Grant.amount`, so that metrics say how much they hold of each.
    """

    driver: ClassVar[str]
    cdi_kind: ClassVar[str] = ""
    by_amounts: ClassVar[bool] = False

    @abstractmethod
    def discover(self) -> Inventory:
        """Read the hardware.

        Raises:
            MachineError, OSError: the hardware's files cannot be read or contradict each other.
        """

    @abstractmethod
    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Decide what the claim is given: a function of its arguments alone, called again after a crash.

        `held` is what all other claims hold; configurations have been through `parse_config`. What another claim holds
        whole is refused by the framework, and so is a whole device of which others hold some; admin access is not.

        Raises:
            ClaimConflictError: what the claim needs is held by other claims.
            ClaimError: the claim cannot be prepared as it is.
        """

    def sources(self, device: str, state: Any) -> frozenset[str] | None:  # noqa: ARG002 - subclasses use it
        """Return what a device that was granted is made of, by names that no option of the driver changes.

        For drivers whose devices have other names with other options: a claim that was granted one keeps it, so what
        other claims get is decided by sources, not by names. `Inventory.sources` has those of devices that are
        published. By default a device is its own source.

        Args:
            device: the name that it had.
            state: its `Grant.state`, perhaps of another version; None if it is not known.

        Returns:
            The sources; None if they cannot be told, which stands for all.
        """
        return frozenset((device,))

    def attribute_names(self) -> frozenset[str]:
        """Return the names, each with its domain, of all attributes that devices may have, whatever the options are.

        `dranode check` warns about expressions and constraints that name another attribute of the driver. It warns
        about none if the driver does not say, which is the default.
        """
        return frozenset()

    def parse_config(self, config: Config) -> Any:
        """Decode opaque parameters; `grant` finds what this returns in `Config.parameters`.

        Raises:
            ClaimError: the parameters are not valid; says where.
        """
        raise ClaimError(f"{config.path}: {self.driver} takes no configuration; remove this one")

    def complete(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:  # noqa: ARG002 - subclasses use it
        """Fill in edits that only the live machine knows (device numbers), just before the CDI spec is written.

        Called on every Prepare, a repeated one too; what it returns goes into the spec and nowhere else.

        Raises:
            ClaimError: something that the grants need is not there; names it.
        """
        return grants

    @classmethod
    def completes(cls) -> bool:
        """Return whether the driver has a `complete` of its own, so that its specs depend on the live machine."""
        return cls.complete is not Plugin.complete

    def describe(self, grant: Grant, record: Record, inventory: Inventory) -> Mapping[str, Any]:  # noqa: ARG002 - subclasses use it
        """Return `status.devices[].data` for a grant of the claim on record: a plain JSON object, 10 KiB at most."""
        return {}

    def layout(self, inventory: Inventory) -> Layout | None:  # noqa: ARG002 - subclasses use it
        """Return the boxes in which the node's CPUs lie, for pictures; None if the driver's devices are no CPUs.

        Devices that are no CPUs need nothing: their attribute `numaNode`, in any domain, puts them into their box.
        """
        return None

    def health(self, inventory: Inventory) -> Iterable[DeviceHealth]:  # noqa: ARG002 - subclasses use it
        """Return the health of every device; devices left out are healthy."""
        return ()

    def impairments(self, inventory: Inventory, records: Iterable[Record]) -> Iterable[Impairment]:  # noqa: ARG002 - subclasses use it
        """Return the claims on record that have less at the moment than they were given."""
        return ()

    def problems(self, inventory: Inventory) -> Iterable[HardwareProblem]:  # noqa: ARG002 - subclasses use it
        """Return what `doctor` should report about the node besides what keeps `discover` from reading it."""
        return ()

    def readings(self, inventory: Inventory) -> Iterable[HardwareReadings]:  # noqa: ARG002 - subclasses use it
        """Return what the hardware says at the moment, in tables for `topology`: nothing that is published."""
        return ()

    def watch(self, stop: Stop) -> Iterator[None]:
        """Yield whenever `discover` may answer otherwise than before, until `stop` is set; blocks in between."""
        while not stop.wait(RESCAN_SECONDS):
            yield
