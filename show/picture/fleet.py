"""A fleet as a picture shows it: nodes and their devices, and at one moment or two which claims hold what of them.

A node alone is a fleet of one. Everything is what was seen: what was not is said in `notes` and `remarks`.
"""

from __future__ import annotations

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
    """A device where it sits.

    Attributes:
        key: what names it.
        numa: its NUMA node; None if it does not say.
        product: what it is, for people; empty if it does not say.
        attributes: as text, by name.
        capacity: how much of what it has.
        steps: by which amounts claims share that out, of what has such.
        units: what a capacity is an amount of, where that has a name of its own: `memory`, `hugepages-2Mi`.
        shared: whether several claims may have it.
        taints: `key=value:effect` of each taint, one of a rule with ` (rule NAME)`.
        published: False for a device that a claim holds and no slice has.
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
        """Return what a capacity is an amount of: its own name, or its qualified name."""
        return self.units.get(capacity) or qualified(capacity, self.key.driver)

    @property
    def closed(self) -> bool:
        """Return whether a taint keeps claims away that do not tolerate it; the effect `None` only says something."""
        return any(not taint.partition(" (rule ")[0].endswith(":None") for taint in self.taints)


class FleetNode(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        name: empty for devices that several nodes reach.
        devices: in the order in which they were published.
        layout: its CPUs in boxes; None where they are not known one by one.
        remarks: what is odd about it, in a few words each.
    """

    name: str
    devices: tuple[FleetDevice, ...] = ()
    layout: Layout | None = None
    remarks: tuple[str, ...] = ()


class DeviceShare(msgspec.Struct, frozen=True):
    """The part that a claim has of a device.

    Attributes:
        device: the device.
        consumed: how much of which capacity; empty if it has all of it.
        admin: whether it has admin access, beside the claim that holds the device.
    """

    device: DeviceKey
    consumed: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    admin: bool = False


class FleetClaim(msgspec.Struct, frozen=True):
    """A claim.

    Attributes:
        name: `<namespace>/<name>`.
        pods: `<namespace>/<name>` of the pods that may use it.
        shares: what it has; nothing before it is allocated.
        cpus: the CPUs that it holds, as a cpu-list by node; only where they are known one by one.
        created: when, as the API writes it; empty if not known.
        remarks: what is odd about it.
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
    """A pod, or a claim without one, that waits.

    Attributes:
        name: `<namespace>/<name>`.
        claims: the names of the claims that wait.
        reasons: one sentence each; empty if none is known.
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
