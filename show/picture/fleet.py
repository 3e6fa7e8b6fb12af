"""The content of a picture: nodes with their devices, and the claims that hold them at one or two moments.

A single node is a fleet of one. `notes` and `remarks` say what was not read.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from dranode.api.names import qualified
from dranode.api.quantity import Quantity
from dranode.driver.claims.hooks import Layout

CPUS: Final = "CPUs"


class DeviceKey(NamedTuple):
    """The name of a device in a cluster."""

    driver: str
    pool: str
    device: str


class FleetDevice(msgspec.Struct, frozen=True):
    """A device with its NUMA node.

    Attributes:
        key: its name in the cluster.
        numa: its NUMA node; None if it does not report one.
        product: its product name, for people; empty if it does not report one.
        attributes: its attributes as text, by name.
        capacity: its capacity, by name.
        steps: the step of each capacity that has one.
        units: the unit of each capacity with a resource name: `memory`, `hugepages-2Mi`.
        shared: whether several claims may share it.
        taints: `key=value:effect` of each taint, followed by ` (rule NAME)` for a taint of a rule.
        published: False for a device that a claim holds but that is in no slice.
    """

    key: DeviceKey
    numa: int | None = None
    product: str = ""
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    steps: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    units: Mapping[str, str] = msgspec.field(default_factory=dict)
    shared: bool = False
    taints: tuple[str, ...] = ()
    published: bool = True

    def unit(self, capacity: str) -> str:
        """Return the unit of a capacity: its resource name, or its qualified name."""
        return self.units.get(capacity) or qualified(capacity, self.key.driver)

    @property
    def closed(self) -> bool:
        """Return whether a taint keeps claims away; the effect `None` is only informational."""
        return any(not taint.partition(" (rule ")[0].endswith(":None") for taint in self.taints)


class FleetNode(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        name: its name; empty for devices that several nodes can use.
        devices: its devices in the published order.
        layout: its CPUs in boxes; None if single CPUs are not known.
        remarks: short remarks about it, such as cordoned.
    """

    name: str
    devices: tuple[FleetDevice, ...] = ()
    layout: Layout | None = None
    remarks: tuple[str, ...] = ()


class DeviceShare(msgspec.Struct, frozen=True):
    """The share of a claim in a device.

    Attributes:
        device: the device.
        consumed: the consumed amount of each capacity; empty for the whole device.
        admin: whether it has admin access, in addition to the claim that holds the device.
    """

    device: DeviceKey
    consumed: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    admin: bool = False


class FleetClaim(msgspec.Struct, frozen=True):
    """A claim.

    Attributes:
        name: `<namespace>/<name>`.
        pods: `<namespace>/<name>` of the pods that may use it.
        shares: its devices; empty before it is allocated.
        cpus: its CPUs as a cpu-list, by node, if single CPUs are known.
        created: its creation time in the API's format; empty if unknown.
        remarks: short remarks about it, such as that its deletion began.
    """

    name: str
    pods: tuple[str, ...] = ()
    shares: tuple[DeviceShare, ...] = ()
    cpus: Mapping[str, str] = msgspec.field(default_factory=dict)
    created: str = ""
    remarks: tuple[str, ...] = ()


class FleetMoment(msgspec.Struct, frozen=True):
    """A fleet at one moment.

    Attributes:
        title: `now`, `before`, `after`.
        claims: all of them.
        blocked: devices that no claim holds and none can get, since others have what they draw on.
        unknown: the drivers for which it is unknown what claims hold, so that nothing of theirs is known to be free;
            CPUS for CPUs that are shown one by one.
        fragmented: by node, the units of which a whole box's amount is free, although no box is free.
    """

    title: str
    claims: tuple[FleetClaim, ...] = ()
    blocked: frozenset[DeviceKey] = frozenset()
    unknown: frozenset[str] = frozenset()
    fragmented: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class WaitingPod(msgspec.Struct, frozen=True):
    """A waiting pod, or a waiting claim without a pod.

    Attributes:
        name: `<namespace>/<name>`.
        claims: the names of the waiting claims.
        reasons: why it waits, one sentence each; empty if unknown.
    """

    name: str
    claims: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class FleetPicture(msgspec.Struct, frozen=True):
    """A fleet.

    Attributes:
        title: what it is.
        nodes: in order.
        moments: one, or two of the same nodes to compare.
        waiting: who waits, at the last moment.
        notes: one sentence each for what was not seen.
        facts: one sentence each for what else is to say of the whole.
        taken: when it was read, in ISO 8601; empty if not known.
    """

    title: str
    nodes: tuple[FleetNode, ...]
    moments: tuple[FleetMoment, ...]
    waiting: tuple[WaitingPod, ...] = ()
    notes: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    taken: str = ""
