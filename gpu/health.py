"""The health of GPUs: the causes that make a GPU unhealthy, and how long they last.

    cause           seen as                                    ends
    aer-fatal       PCI AER counter of fatal errors grew       after 10 minutes without, or when bound again
    aer-nonfatal    the same of uncorrected, non-fatal errors  after 10 minutes without, or when bound again
    wedged          DRM's uevent WEDGED=<methods>              with WEDGED=none, or when bound again
    xid             an XID error from NVML, unless it is one   after an hour without, or when bound again
                    that programs cause, or the driver says
                    that the GPU needs nothing
    recovery        NVIDIA's driver (565) says that the GPU    when it no longer says so, or when bound again
                    must be reset, or it fell off the bus
    gone            was published, and is gone now             when it is back

Errors that were counted before the first reading are ignored. While the counters cannot be read, the health of a GPU
without troubles is unknown. The troubles of a physical function are also those of its parts. This module only works on
values: `dranode.gpu.plugin` reads the counters and passes the events.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.resource import DeviceTaint
from dranode.driver.claims.plugin import DeviceHealth, Health
from dranode.gpu.inventory import GPU, GPUInventory, GPUKind

TAINT_KEY: Final = "dra.gpu/unhealthy"


class Cause(StrEnum):
    """The reasons why a GPU is unhealthy; also the taint's value."""

    AER_FATAL = "aer-fatal"
    AER_NONFATAL = "aer-nonfatal"
    WEDGED = "wedged"
    XID = "xid"
    RECOVERY = "recovery"
    GONE = "gone"


# Seconds without another event after which a cause ends. Other causes last until an event ends them.
_QUIET: Final[Mapping[Cause, float]] = {Cause.AER_FATAL: 600.0, Cause.AER_NONFATAL: 600.0, Cause.XID: 3600.0}

# XIDs after which it is enough to start the program again: graphics exception, MMU fault, stopped channel, preemptive
# cleanup, video exceptions, contained memory error.
_PROGRAM_XIDS: Final = frozenset({13, 31, 43, 45, 68, 94})

# Actions of the kernel that end the troubles of a function.
_RECOVERING: Final = frozenset({"add", "bind"})


class AERCounts(msgspec.Struct, frozen=True):
    """A function's AER totals since boot."""

    fatal: int = 0
    nonfatal: int = 0


class Trouble(msgspec.Struct, frozen=True):
    """One cause at one PCI function.

    Attributes:
        detail: a description for people.
        since: when it began, seconds since 1970.
        last: when it was last seen.
    """

    detail: str
    since: float
    last: float


class GPUCondition(msgspec.Struct, frozen=True):
    """The condition of all GPUs.

    Attributes:
        troubles: by PCI address and cause.
        counts: AER totals of the last reading, by PCI address.
        unread: why AER totals could not be read the last time, by PCI address.
        seen: every GPU that was ever present, by device name.
    """

    troubles: Mapping[tuple[str, Cause], Trouble] = msgspec.field(default_factory=dict)
    counts: Mapping[str, AERCounts] = msgspec.field(default_factory=dict)
    unread: Mapping[str, str] = msgspec.field(default_factory=dict)
    seen: Mapping[str, GPU] = msgspec.field(default_factory=dict)

    def of(self, gpu: GPU) -> tuple[tuple[Cause, Trouble], ...]:
        """Return the troubles of a GPU and of its parent, by cause."""
        addresses = (gpu.address, gpu.parent)
        return tuple(
            (cause, trouble) for (address, cause), trouble in sorted(self.troubles.items()) if address in addresses
        )


def counted(condition: GPUCondition, address: str, counts: AERCounts, now: float) -> GPUCondition:
    """Return the condition after a reading of a function's AER counters; lower counters mean that they were reset."""
    before = condition.counts.get(address, counts)
    condition = replace(condition, counts={**condition.counts, address: counts})
    for cause, new, old in (
        (Cause.AER_FATAL, counts.fatal, before.fatal),
        (Cause.AER_NONFATAL, counts.nonfatal, before.nonfatal),
    ):
        if new > old:
            detail = f"{new - old} uncorrected PCIe {'fatal' if cause is Cause.AER_FATAL else 'non-fatal'} errors"
            condition = _began(condition, address, cause, detail, now)
    return condition


def wedged(condition: GPUCondition, address: str, methods: str, now: float) -> GPUCondition:
    """Return the condition after DRM reported how to recover a GPU (`rebind,bus-reset`), or that it works (`none`)."""
    if methods == "none":
        return _ended(condition, (address,), (Cause.WEDGED,))
    return _began(condition, address, Cause.WEDGED, f"the GPU hangs; it can be recovered by {methods}", now)


def xid(condition: GPUCondition, address: str, number: int, now: float) -> GPUCondition:
    """Return the condition after NVIDIA's driver reported an XID error."""
    if number in _PROGRAM_XIDS:
        return condition
    return _began(condition, address, Cause.XID, f"NVIDIA XID {number}", now)


def needs(condition: GPUCondition, address: str, need: str, now: float) -> GPUCondition:
    """Return the condition after NVIDIA's driver said what a GPU needs to work again; nothing if it works."""
    if need:
        return _began(_ended(condition, (address,), (Cause.XID,)), address, Cause.RECOVERY, need, now)
    return _ended(condition, (address,), (Cause.XID, Cause.RECOVERY))


def handled(condition: GPUCondition, action: str, address: str) -> GPUCondition:
    """Return the condition after the kernel added a function or bound it to a driver, which ends its troubles."""
    return _ended(condition, (address,), Cause) if action in _RECOVERING else condition


def present(condition: GPUCondition, inventory: GPUInventory, now: float) -> GPUCondition:
    """Return the condition after the machine was read: a GPU that vanished is in trouble until it is back.

    A part that vanished while its GPU stayed is not in trouble: an administrator has divided the GPU differently.
    """
    here = {gpu.address for gpu in inventory.gpus}
    seen = dict(condition.seen)
    for name, gpu in condition.seen.items():
        if name in inventory.by_name:
            continue
        if gpu.kind is not GPUKind.GPU and gpu.parent in here:
            del seen[name]
        else:
            detail = inventory.left_out.get(gpu.address, "the GPU vanished from the PCI bus")
            condition = _began(condition, gpu.address, Cause.GONE, detail, now)
    condition = _ended(condition, here, (Cause.GONE,))
    served = {name: gpu for name, gpu in inventory.by_name.items() if name in seen or not gpu.unserved}
    return replace(condition, seen={**seen, **served})


def expired(condition: GPUCondition, now: float) -> GPUCondition:
    """Return the condition without the troubles that have been quiet for long enough."""
    return replace(
        condition,
        troubles={
            key: trouble
            for key, trouble in condition.troubles.items()
            if key[1] not in _QUIET or now - trouble.last < _QUIET[key[1]]
        },
    )


def report(condition: GPUCondition) -> tuple[DeviceHealth, ...]:
    """Return the health of every GPU that was ever published."""
    return tuple(_health(gpu, condition) for gpu in condition.seen.values())


def taints(condition: GPUCondition) -> dict[str, tuple[DeviceTaint, ...]]:
    """Return a NoSchedule taint for every unhealthy GPU, by device name, with the time of its first trouble."""
    tainted: dict[str, tuple[DeviceTaint, ...]] = {}
    for name, gpu in condition.seen.items():
        troubles = condition.of(gpu)
        if troubles:
            cause, first = min(troubles, key=lambda item: item[1].since)
            tainted[name] = (
                DeviceTaint(key=TAINT_KEY, value=cause, effect="NoSchedule", time_added=_timestamp(first.since)),
            )
    return tainted


def _health(gpu: GPU, condition: GPUCondition) -> DeviceHealth:
    troubles = condition.of(gpu)
    if troubles:
        message = "; ".join(f"{trouble.detail} (since {_timestamp(trouble.since)})" for _, trouble in troubles)
        return DeviceHealth(gpu.name, Health.UNHEALTHY, message)
    if gpu.unserved:
        return DeviceHealth(gpu.name, Health.UNHEALTHY, gpu.unserved)
    unread = next((reason for address, reason in condition.unread.items() if address in (gpu.address, gpu.parent)), "")
    return DeviceHealth(gpu.name, Health.UNKNOWN if unread else Health.HEALTHY, unread)


def _began(condition: GPUCondition, address: str, cause: Cause, detail: str, now: float) -> GPUCondition:
    before = condition.troubles.get((address, cause))
    trouble = Trouble(detail, now if before is None else before.since, now)
    return replace(condition, troubles={**condition.troubles, (address, cause): trouble})


def _ended(condition: GPUCondition, addresses: Iterable[str], causes: Iterable[Cause]) -> GPUCondition:
    over = {(address, cause) for address in addresses for cause in causes}
    return replace(condition, troubles={key: trouble for key, trouble in condition.troubles.items() if key not in over})


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
