"""The seam: what a node driver writes to become one.

A driver subclasses `Plugin`, writes `discover` and `grant`, and is found by the entry point group `dranode.plugins`;
the framework does the rest (sockets, ledger, CDI files, slices, health). `dranode.driver.testing.check_plugin` proves a
driver.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Protocol

import msgspec

from dranode.api.errors import ClaimError
from dranode.api.resource import CounterSet, Device
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.record import Record


class Inventory(msgspec.Struct, frozen=True):
    """The devices that a driver found on its node.

    Attributes:
        devices: in the order in which the scheduler should try them; names are unique.
        counters: the counter sets that the devices draw on (KEP-4815).
        hardware: whatever `grant` needs to decide; the framework hands it through and never looks inside.
        warnings: a sentence for each device that was left out because something about it is wrong.
        kept_back: a sentence for each device that is left out on purpose; `slices` shows them.
        sources: what devices are made of (`Plugin.sources`), by name; a device that is missing here is its own source.
    """

    devices: tuple[Device, ...]
    counters: tuple[CounterSet, ...] = ()
    hardware: Any = None
    warnings: tuple[str, ...] = ()
    kept_back: tuple[str, ...] = ()
    sources: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)

    def device(self, name: str) -> Device | None:
        """Return the device of that name; None if there is none."""
        return next((device for device in self.devices if device.name == name), None)

    def sources_of(self, name: str) -> frozenset[str]:
        """Return what the device of that name is made of."""
        return self.sources.get(name) or frozenset((name,))


class Health(Enum):
    """A device's health. Names and numbers are those of `HealthStatus` in kubelet's API dra-health."""

    # The default of protobuf: a health that was never set must not count as healthy.
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
        claim: the claim.
        reason: one word in camel case, for a condition or an Event.
        message: what is missing, in a sentence.
    """

    claim: ClaimRef
    reason: str
    message: str


# How often hardware is read again by a driver without a `watch` of its own.
RESCAN_SECONDS: Final = 60.0


class Stop(Protocol):
    """An event that ends a watch: a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the watch should end."""

    def wait(self, timeout: float) -> bool:
        """Wait for at most `timeout` seconds until the watch should end, and return whether it should."""


class Plugin(ABC):
    """A node driver. `discover` and `grant` are yours; every other method has a default that does nothing.

    A driver inherits from further classes for more abilities: `Configures` if it changes hardware for a claim, `Tunes`
    if it changes settings of the whole machine, `Recovers` if another program prescribes the form of its CDI specs,
    `Pins` if it restricts containers to CPUs or memory, and `Reports` if it tells people more than the devices.

    The framework serves kubelet, keeps the record of claims and writes CDI specs and slices. It calls the methods that
    decide (`grant`, `configure`, `restore`, `tune`) one at a time, also while two instances of the driver run during a
    rolling update. Kubelet waits for them, so they should return within a second.

    Attributes:
        driver: the driver's name: a DNS subdomain of at most 63 characters, also `ResourceSlice.spec.driver`.
        cdi_kind: vendor and class of the CDI devices that are written; `<driver>/claim` if left empty.
        by_amounts: whether claims share devices by `Grant.amount`, so that metrics say how much they hold of each.
    """

    driver: ClassVar[str]
    cdi_kind: ClassVar[str] = ""
    by_amounts: ClassVar[bool] = False

    @property
    def claim_kind(self) -> str:
        """The kind of the CDI devices of its claims: `cdi_kind`, or `<driver>/claim`."""
        return self.cdi_kind or f"{self.driver}/claim"

    @abstractmethod
    def discover(self) -> Inventory:
        """Read the hardware.

        Called at the start, whenever `watch` yields, every second while the last call has failed, and by commands. One
        thread calls it at a time. A new answer is published as slices, and the next `grant` gets it.

        Unchanged hardware has the same devices in the same order, because every difference is published. Hardware
        that cannot be read is an error, not an inventory without devices: with an error, claims stay as they are and
        reading is tried again, while devices that are missing count as removed.

        Example:
            names = self.root.listdir("sys/class/fans")
            return Inventory(tuple(Device(name=name, attributes={"blades": 7}) for name in names))

        Raises:
            MachineError, OSError: the hardware's files cannot be read or contradict each other.
        """

    @abstractmethod
    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Decide what a claim gets: one `Grant` for each of its results, in their order.

        Called in Prepare for a claim that is not on record yet. The framework has checked that the claim is allocated
        from this node's pool, that its devices are in the inventory, and that no other claim holds them as a whole.
        Its configurations have been through `parse_config`. A result with admin access is not compared with other
        claims, and its grant holds nothing.

        The answer goes on record before anything is done by it. It depends on the arguments alone, because after a
        crash, or in the other instance, the same claim is decided again and has to get the same. What `configure` and
        `restore` need to know goes into `Grant.state`: they are called with the grants and nothing else.

        Example:
            grants = (
                Grant.of(result.result, edits=ContainerEdits(env=(f"FAN={result.result.device}",)))
                for result in claim.results
            )
            return ClaimGrant(tuple(grants))

        Args:
            claim: what was allocated to the claim from this driver, with its configurations.
            held: what all other claims hold; it may only be read.
            inventory: what `discover` found last.

        Raises:
            ClaimConflictError: other claims hold what the claim needs. Prepare waits for them a while.
            ClaimError: the claim cannot be prepared as it is. Its pod's events show the sentence.
        """

    def sources(self, device: str, state: Any) -> frozenset[str] | None:  # noqa: ARG002 - subclasses use it
        """Return what a granted device is made of, by names that no option of the driver changes.

        Called for every grant on record, when the ledger is opened and when a claim is added or removed. A claim keeps
        the name that a device had when it was granted. If an option changes names, the framework compares sources, so
        that nothing is given out twice under two names. `Inventory.sources` has the sources of the current devices.
        By default a device is its own source.

        The state may be one that an older or a newer version wrote: read the few fields that are needed, and return
        None if they are missing.

        Example:
            return frozenset(f"fan-{number}" for number in state["fans"]) if state else None

        Args:
            device: the name that it had.
            state: its `Grant.state`; None if it is not known.

        Returns:
            The sources; None if they are not known. The claim then counts as a holder of everything.
        """
        return frozenset((device,))

    def attribute_names(self) -> frozenset[str]:
        """Return the names of all attributes that devices may have, each with its domain, whatever the options are.

        Called by `dranode check`, also on machines without the hardware. It warns about expressions and constraints
        that name any other attribute of the driver, because they never match. If the answer is empty, it warns about
        none.

        Example:
            return frozenset(("fans.example.com/blades",))
        """
        return frozenset()

    def parse_config(self, config: Config) -> Any:
        """Decode opaque parameters; `grant` finds what this returns in `Config.parameters`.

        Called in every Prepare, before anything is decided, for each configuration that applies to a result of this
        driver; also by commands, without hardware. The answer depends on the configuration alone. An unknown field is
        an error, because otherwise a field with a typing error would be ignored silently.

        Example:
            match config.parameters:
                case {"speed": int(speed), **others} if not others:
                    return speed
            raise ClaimError(f"{config.path}: expected a speed, not {config.parameters!r}")

        Raises:
            ClaimError: the parameters are not valid; begins with `config.path`.
        """
        raise ClaimError(f"{config.path}: {self.driver} takes no configuration; remove this one")

    def complete(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:  # noqa: ARG002 - subclasses use it
        """Fill in edits that only the running machine knows, such as the numbers of device nodes.

        Called before a CDI spec is written, after `configure`: in every Prepare, a repeated one too, and when a spec
        has to be written again, for example after a reboot. The answer has the same grants in the same order, with
        more edits. It goes into the spec and is never recorded, because it may be wrong after the next boot.

        Example:
            node = DeviceNode(path="/dev/fan0", type="c", major=240, minor=0)
            return tuple(replace(grant, edits=ContainerEdits(device_nodes=(node,))) for grant in grants)

        Raises:
            ClaimError: something that the grants need is missing; names it. The claim is not prepared.
        """
        return grants

    @classmethod
    def completes(cls) -> bool:
        """Return whether the driver has a `complete` of its own, so that its specs depend on the running machine."""
        return cls.complete is not Plugin.complete

    def describe(self, grant: Grant, record: Record, inventory: Inventory) -> Mapping[str, Any]:  # noqa: ARG002 - subclasses use it
        """Return `status.devices[].data` for a grant of a claim on record: a plain JSON object, 10 KiB at most.

        Called when the status of a claim is written, a second or so after its Prepare and when the claim is impaired or
        restored. No call of kubelet waits for it.

        Example:
            return {"speed": grant.state[0]} if grant.state else {}
        """
        return {}

    def health(self, inventory: Inventory) -> Iterable[DeviceHealth]:  # noqa: ARG002 - subclasses use it
        """Return the health of devices; those left out are healthy.

        Called after every `discover` and when devices are published. Kubelet shows the answer in the status of pods,
        and an unhealthy device gets a taint if `--device-taints` is on. If the health of some
        devices cannot be read, it is `Health.UNKNOWN`; after a MachineError or an OSError it is unknown for all.

        Example:
            return [DeviceHealth("fan-0", Health.UNHEALTHY, "it has stopped")]
        """
        return ()

    def impairments(self, inventory: Inventory, records: Iterable[Record]) -> Iterable[Impairment]:  # noqa: ARG002 - subclasses use it
        """Return which of these claims have less at the moment than they were given.

        Called after every `discover` with all claims on record, and with a single one when its status is written. The
        driver logs when an impairment begins or ends, and when one begins, the pods of its claim get an Event.

        Example:
            lost = [record for record in records if not {*record.devices} <= {d.name for d in inventory.devices}]
            return [Impairment(record.ref, "FanRemoved", "its fan was removed") for record in lost]
        """
        return ()

    def watch(self, stop: Stop) -> Iterator[None]:
        """Yield whenever `discover` may have a new answer.

        Called once, in its own thread, so it may block. It must end soon after `stop` is set, because the driver waits
        for it before it exits. By default it yields once a minute.

        Example:
            while not stop.wait(5.0):
                yield
        """
        while not stop.wait(RESCAN_SECONDS):
            yield
