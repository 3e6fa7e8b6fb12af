"""The simulated releases of Kubernetes: their feature gates with defaults, and what each changed in the allocator.

`docs/fleet.md` shows the same table; a test compares the two. A change that was backported also names the patch release
of the earlier minor release.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Final

from dranode.api.errors import UsageError


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A change to the answers of the allocator.

    Attributes:
        since: the first releases with the change; later patch releases and minor releases have it too.
        pull_request: its number in kubernetes/kubernetes; None if it is only known from the sources.
        text: what the change does.
    """

    since: tuple[str, ...]
    pull_request: int | None
    text: str


class Change(Enum):
    """A change that a release made to the answers of the allocator."""

    INCOMPLETE_POOLS_UNUSED = ReleaseRecord(
        ("1.35",),
        None,
        "incomplete and invalid pools are skipped; before, incomplete ones were used, invalid ones ended the attempt",
    )
    COUNTER_SLICES_APART = ReleaseRecord(
        ("1.35",),
        None,
        "slices with counters have no devices and apply to every node, or to none if their gate is off; before, they "
        "applied like devices",
    )
    TOLERATIONS_IN_RESULT = ReleaseRecord(
        ("1.35",), None, "a device's result lists its request's tolerations; before, eviction did not see them"
    )
    DISTINCT_COMPARES = ReleaseRecord(
        ("1.35",), None, "distinctAttribute compares values; before, any two devices counted as different"
    )
    ALTERNATIVES_SCORED = ReleaseRecord(
        ("1.35",), 134711, "of nodes that fit, those with earlier alternatives score higher; before, none did"
    )
    FIXED_ORDER = ReleaseRecord(
        ("1.36",), None, "pools and slices are searched in the order of their names; before, in no fixed order"
    )
    ALTERNATIVES_APART = ReleaseRecord(
        ("1.36",),
        None,
        "All in a later alternative takes its own devices; before, it took those of the first alternative",
    )
    COUNT_BY_REQUEST = ReleaseRecord(
        ("1.34.12", "1.35.9", "1.36.5", "1.37.1", "1.38"),
        None,
        "more than 32 devices end the attempt at the request that asks for them; before, after the last request",
    )
    RULES_NEED_SELECTOR = ReleaseRecord(
        ("1.37.1", "1.38"),
        141648,
        "a DeviceTaintRule without deviceSelector matches no device; before, it matched all devices",
    )
    COUNTERS_BY_POOL_ID = ReleaseRecord(
        ("1.36.4", "1.37"), 140435, "counters are kept by driver and pool; before, pools with the same name shared them"
    )
    COUNTERS_RETURN = ReleaseRecord(
        ("1.36.3", "1.37"),
        None,
        "a rejected device returns its counters; before, they stayed in use for the rest of the attempt",
    )
    ALL_WITH_COUNTERS = ReleaseRecord(
        ("1.35.6", "1.36.2", "1.37"), None, "All may take devices with counters; before, kube-scheduler panicked"
    )
    DISTINCT_COMPARES_ALL = ReleaseRecord(
        ("1.37",), 140600, "distinctAttribute compares all devices; before, it remembered one value for each request"
    )
    CONFIGS_ONCE = ReleaseRecord(
        ("1.37",),
        139731,
        "a claim's configuration is listed once, without requests if it applies to all; before, once for each request",
    )
    LISTS_COMPARED = ReleaseRecord(
        ("1.37",),
        None,
        "constraints compare lists if the gate of list attributes is on; before, only CEL saw the gate",
    )
    INCLUDES_COMPILES = ReleaseRecord(
        ("1.36",), None, "stored selectors may use includes() even if the gate of list attributes is off"
    )
    LISTS_COMPILE = ReleaseRecord(
        ("1.37",), None, "stored selectors may treat attributes as lists even if their gate is off"
    )
    CEL_GO_29 = ReleaseRecord(
        ("1.37",), None, "cel-go 0.29: names in backticks, lists.range() with a bound, no duration() of an integer"
    )
    LISTS_ALWAYS_SEEN = ReleaseRecord(
        ("1.37",), None, "selectors see list attributes even if their gate is off; before, such a device was an error"
    )
    OVERFLOW_ENDS = ReleaseRecord(
        ("1.37",), 140442, "an amount beyond 64 bits, or below 0, ends the attempt; before, it wrapped around"
    )
    ALL_NEEDS_EVERY_DEVICE = ReleaseRecord(
        ("1.37",), 140769, "All fails if a matching shared device is used up; before, it took only the others"
    )
    SHARES_WITHOUT_CAPACITY = ReleaseRecord(
        ("1.37",), 140437, "a share without capacity keeps its device's counters, so a later share needs no more"
    )
    FOREIGN_COUNTERS = ReleaseRecord(
        ("1.37",), 138917, "counter sets of other nodes' pools are ignored; before, damaged ones were an error"
    )
    STEPS_KEEP_SUFFIX = ReleaseRecord(
        ("1.37",), 140161, "an amount that is rounded to a step has the step's format; before, always Ki, Mi ..."
    )
    CAPACITY_NAMES = ReleaseRecord(
        ("1.38",),
        142202,
        "a request names a capacity with or without the driver's domain; before, only as it is published",
    )


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate.

    Attributes:
        field: the field of `Features` that it sets; None if its effect is not simulated.
        defaults: the release that introduced it and those that changed its default, with the new default.
        locked: the first release in which it cannot be changed.
        needs: the gate that it depends on; since 1.35, Kubernetes does not start without it.
    """

    field: str | None
    defaults: tuple[tuple[str, bool], ...]
    locked: str | None = None
    needs: str | None = None


_ALPHA_36: Final = (("1.36", False),)
_ALPHA_37: Final = (("1.37", False),)
_BETA_36: Final = (("1.34", False), ("1.36", True))

GATES: Final[Mapping[str, Gate]] = MappingProxyType(
    {
        "DRAAdminAccess": Gate("admin_access", (("1.34", True),), locked="1.36"),
        "DRAConsumableCapacity": Gate("consumable_capacity", _BETA_36),
        "DRADerivedAttributes": Gate("derived_attributes", _ALPHA_37),
        "DRADeviceBindingConditions": Gate("device_binding_conditions", _BETA_36, needs="DRAResourceClaimDeviceStatus"),
        "DRADeviceCompatibilityGroups": Gate("device_compatibility_groups", _ALPHA_37, needs="DRAPartitionableDevices"),
        "DRADeviceTaintRules": Gate(
            "device_taint_rules", (("1.35", False), ("1.37", True)), locked="1.38", needs="DRADeviceTaints"
        ),
        "DRADeviceTaints": Gate("device_taints", _BETA_36, locked="1.38"),
        "DRAExtendedResource": Gate("extended_resource", _BETA_36, locked="1.37"),
        "DRAFractionalCapacityRange": Gate(
            "fractional_capacity_range", (("1.37", True),), needs="DRAConsumableCapacity"
        ),
        "DRAListTypeAttributes": Gate("list_type_attributes", _ALPHA_36),
        "DRANodeAllocatableResources": Gate("node_allocatable_resources", _ALPHA_36),
        "DRAOptionalNodeOperations": Gate("optional_node_operations", _ALPHA_37),
        "DRAPartitionableDevices": Gate("partitionable_devices", _BETA_36),
        "DRAPartitionableDevicesType": Gate(None, _ALPHA_37),
        "DRAPrioritizedList": Gate("prioritized_list", (("1.34", True),), locked="1.37"),
        "DRAResourceClaimDeviceStatus": Gate("resource_claim_device_status", (("1.34", True),), locked="1.37"),
        "DRAResourceClaimGranularStatusAuthorization": Gate(None, (("1.36", True),)),
        "DRAResourcePoolStatus": Gate(None, _ALPHA_36),
        "DRASchedulerFilterTimeout": Gate(None, (("1.34", True),)),
        "DRAWorkloadResourceClaims": Gate("workload_resource_claims", _ALPHA_36, needs="GenericWorkload"),
        "GenericWorkload": Gate("generic_workload", (("1.35", False),)),
    }
)


@dataclass(frozen=True, slots=True)
class Defect:
    """Behavior of some patch releases that is not simulated.

    Attributes:
        since: the first release with the defect.
        fixed: the first releases without it.
        pull_request: the number of the fix in kubernetes/kubernetes.
        text: what the affected releases do.
    """

    since: str
    fixed: tuple[str, ...]
    pull_request: int | None
    text: str


DEFECTS: Final = (
    Defect(
        "1.34",
        ("1.37",),
        140556,
        "add() and sub() of a selector also change the quantity itself if it has more than 18 digits or parts below 1n",
    ),
    Defect(
        "1.34",
        ("1.34.2", "1.35"),
        None,
        "an allocation has a class's configurations once for each request of the class, without the request's name",
    ),
    Defect(
        "1.35",
        ("1.35.6", "1.36.2", "1.37"),
        139017,
        "a pod with one allocated and one unallocated claim stays pending if several nodes fit",
    ),
    Defect(
        "1.36",
        ("1.36.2", "1.37"),
        139040,
        "the counters of a shared device are free again for later pods, so its partitions are handed out twice",
    ),
)
# The newest patch release of each minor release whose sources were compared.
_NEWEST_READ: Final[Mapping[str, int]] = MappingProxyType({"1.34": 13, "1.35": 10, "1.36": 5, "1.37": 2})


@dataclass(frozen=True)
class Release:
    """A release of Kubernetes.

    Attributes:
        name: the minor release: `1.37`.
        version: the exact version whose behavior is simulated.
    """

    name: str
    version: str

    @cached_property
    def number(self) -> tuple[int, int]:
        """Return the minor and the patch version."""
        return _number(self.version)

    @cached_property
    def changes(self) -> frozenset[Change]:
        """Return the changes that the release has."""
        return frozenset(change for change in Change if any(map(self._includes, change.value.since)))

    @cached_property
    def differences(self) -> tuple[str, ...]:
        """Return the differences from the modeled release of its minor version, one phrase each."""
        modeled = RELEASES[self.name]
        if self.version == modeled.version:
            return ()
        newest = _NEWEST_READ.get(self.name)
        unknown = newest is not None and self.number[1] > newest
        return (
            *(f"has: {change.value.text}" for change in Change if change in self.changes - modeled.changes),
            *(f"does not have: {change.value.text}" for change in Change if change in modeled.changes - self.changes),
            *(f"is not simulated: {defect.text}" for defect in DEFECTS if self._has(defect)),
            *((f"is not known: what changed after {self.name}.{newest}",) if unknown else ()),
        )

    def gate(self, name: str) -> bool | None:
        """Return the default of the gate; None if the release does not know it."""
        defaults = [default for since, default in GATES[name].defaults if self._reaches(since)]
        return defaults[-1] if defaults else None

    def locks(self, name: str) -> bool:
        """Return whether the gate cannot be changed."""
        locked = GATES[name].locked
        return locked is not None and self._reaches(locked)

    def _includes(self, since: str) -> bool:
        """Return whether the release has what `since` introduced; a patch release counts only for its minor release."""
        minor, patch = _number(since)
        return self.number[0] == minor and self.number[1] >= patch if patch else self._reaches(since)

    def _has(self, defect: Defect) -> bool:
        return self._reaches(defect.since) and not any(map(self._includes, defect.fixed))

    def _reaches(self, since: str) -> bool:
        return self.number >= _number(since)


RELEASES: Final[Mapping[str, Release]] = MappingProxyType(
    {
        name: Release(name, version)
        for name, version in (
            ("1.34", "1.34.13"),
            ("1.35", "1.35.10"),
            ("1.36", "1.36.3"),
            ("1.37", "1.37.2"),
            ("1.38-alpha", "1.38.0-alpha.2"),
        )
    }
)
NEWEST_STABLE: Final = RELEASES["1.37"]
_VERSION: Final = re.compile(r"1\.(\d{1,3})(?:\.(\d{1,3}))?(?:-alpha.*)?", re.ASCII)


def release(name: str) -> Release:
    """Return the release with this name; a patch release (`1.36.4`) includes what was backported to it.

    Raises:
        UsageError: the release is not simulated.
    """
    modeled = RELEASES.get(name)
    if modeled is not None:
        return modeled
    match = _VERSION.fullmatch(name)
    minor = f"1.{match[1]}" if match else ""
    if match is None or match[2] is None or minor not in RELEASES:
        raise UsageError(
            f'Kubernetes "{name}" is not simulated; choose {", ".join(RELEASES)} or one of their patch releases'
        )
    return Release(minor, name)


def _number(version: str) -> tuple[int, int]:
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f'"{version}" is not a version of Kubernetes')
    return int(match[1]), int(match[2] or 0)
