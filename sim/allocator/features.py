"""The feature gates that change answers of the allocator, with the defaults of a release."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dranode.api.errors import UsageError
from dranode.sim.allocator.releases import GATES, NEWEST_STABLE, Change, Release
from dranode.sim.cel.declarations import KnownToCEL


@dataclass(frozen=True, slots=True)
class Features:
    """One field per feature gate, named after it without the prefix DRA; the defaults are those of `NEWEST_STABLE`.

    Attributes:
        release: the release whose allocator answers.
    """

    release: Release = NEWEST_STABLE
    admin_access: bool = True
    consumable_capacity: bool = True
    derived_attributes: bool = False
    device_binding_conditions: bool = True
    device_compatibility_groups: bool = False
    device_taint_rules: bool = True
    device_taints: bool = True
    extended_resource: bool = True
    fractional_capacity_range: bool = True
    generic_workload: bool = False
    list_type_attributes: bool = False
    node_allocatable_resources: bool = False
    optional_node_operations: bool = False
    partitionable_devices: bool = True
    prioritized_list: bool = True
    resource_claim_device_status: bool = True
    workload_resource_claims: bool = False

    @classmethod
    def of(cls, release: Release, gates: Mapping[str, bool] | None = None) -> Self:
        """Return the defaults of the release with these gates changed."""
        values: dict[str, Any] = {"release": release}
        for name, gate in GATES.items():
            if gate.field is not None:
                values[gate.field] = (gates or {}).get(name, bool(release.gate(name)))
        return cls(**values)

    @classmethod
    def parse(cls, text: str, release: Release = NEWEST_STABLE) -> Self:
        """Read `NAME=BOOL,...` with the names of `--feature-gates`.

        Raises:
            UsageError: a gate is unknown to the release, locked, or needs another one; its value is neither true nor
                false; or its effect is not simulated.
        """
        gates: dict[str, bool] = {}
        for item in filter(None, text.split(",")):
            name, _, value = item.partition("=")
            if value not in _BOOLEANS and name in GATES:
                raise UsageError(f'the feature gate {name} is true or false, not "{value}"')
            gates[name] = _setting(name, release, value=_BOOLEANS.get(value, False))
        _check_needs(gates, release)
        return cls.of(release, gates)

    def has(self, change: Change) -> bool:
        """Return whether the release has the change."""
        return change in self.release.changes

    @property
    def binding(self) -> bool:
        """Return whether devices with binding conditions are allocated, which needs two gates."""
        return self.device_binding_conditions and self.resource_claim_device_status

    @property
    def stable(self) -> bool:
        """Return whether Kubernetes uses the stable variant of its allocators."""
        return not (self.consumable_capacity or self.binding or self.fractional_capacity_range or self.experimental)

    @property
    def beyond_stable(self) -> bool:
        """Return whether Kubernetes uses an allocator with more features than the stable variant.

        These are devices that bind to their node, `distinctAttribute`, `allowMultipleAllocations` in selectors, and
        capacity requests, which are refused while their gate is off. In 1.34, the gate for device status already
        selects the experimental variant.
        """
        return not self.stable or (self.resource_claim_device_status and not self.has(Change.COUNTER_SLICES_APART))

    @property
    def oldest(self) -> bool:
        """Return whether Kubernetes uses the stable variant of 1.34 and 1.35 with all of its gates off.

        It builds pools like 1.34, but takes no device from an incomplete pool.
        """
        knows_gates = self.admin_access or self.prioritized_list or self.partitionable_devices or self.device_taints
        return self.stable and not knows_gates and not self.has(Change.FIXED_ORDER)

    @property
    def lists_compared(self) -> bool:
        """Return whether constraints compare lists; for selectors, the gate alone is enough."""
        return self.list_type_attributes and self.has(Change.LISTS_COMPARED)

    @property
    def fixed_order(self) -> bool:
        """Return whether pools and slices are searched in a fixed order."""
        return self.has(Change.FIXED_ORDER) and not self.stable

    @property
    def stored_expressions(self) -> KnownToCEL:
        """Return what the scheduler accepts in stored expressions: everything the release knows, whatever the gates."""
        lists = self.list_type_attributes
        return KnownToCEL(
            lists=lists or self.has(Change.LISTS_COMPILE),
            includes=lists or self.has(Change.INCLUDES_COMPILES),
            cel_go_29=self.has(Change.CEL_GO_29),
        )

    @property
    def new_expressions(self) -> KnownToCEL:
        """Return what the API server accepts in new expressions."""
        lists = self.list_type_attributes
        shares = self.consumable_capacity
        return KnownToCEL(lists=lists, includes=lists, shares=shares, cel_go_29=self.has(Change.CEL_GO_29))

    @property
    def experimental(self) -> bool:
        """Return whether a gate is on that makes Kubernetes use the experimental variant of its allocators."""
        return (
            self.derived_attributes
            or self.device_compatibility_groups
            or self.lists_compared
            or self.optional_node_operations
        )


_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def _check_needs(gates: Mapping[str, bool], release: Release) -> None:
    """Fail like Kubernetes at start-up if a gate is on while the one that it needs is off."""
    on = {name: gates.get(name, release.gate(name)) for name in GATES}
    for name, gate in GATES.items():
        if gate.needs is not None and on[name] and not on[gate.needs]:
            raise UsageError(f"the feature gate {name} of Kubernetes {release.name} needs {gate.needs}, which is off")


def _setting(name: str, release: Release, *, value: bool) -> bool:
    default = release.gate(name) if name in GATES else None
    if default is None:
        known = ", ".join(gate for gate in GATES if release.gate(gate) is not None)
        raise UsageError(
            f'the feature gate "{name}" is not simulated for Kubernetes {release.name}; leave it out, or set {known}'
        )
    if value != default and release.locks(name):
        raise UsageError(f"the feature gate {name} is locked to {str(default).lower()} in Kubernetes {release.name}")
    if value and not default and Change.FIXED_ORDER not in release.changes:
        raise UsageError(f"the alpha feature gate {name} of Kubernetes {release.name} is not simulated; leave it out")
    if value != default and GATES[name].field is None:
        raise UsageError(
            f"the feature gate {name} cannot be changed, because its effect is not simulated; leave it out"
        )
    return value
