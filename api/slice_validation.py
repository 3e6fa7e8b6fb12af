"""The API server's rules for ResourceSlices and DeviceTaintRules.

Source: validation of `resource.k8s.io/v1` in Kubernetes 1.37.1 and 1.38.0-beta.0 (`pkg/apis/resource/validation`,
KEP-4381, 4815, 5055, 5075, 5517, 5945, 5963). Each function yields every error, with its path in the v1 form of the
document.
Drivers of this framework leave out of their slices what breaks a rule (`driver/slices/publishable.py`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from dranode.api.capacity_policy import policy_problems
from dranode.api.documents import is_time
from dranode.api.field_errors import FieldError, count_errors, label_errors, metadata_errors
from dranode.api.names import is_dns_subdomain, is_label_name, is_label_value
from dranode.api.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableResource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dranode.api.semver import has_short_numbers, is_semver

EFFECTS: Final = ("NoSchedule", "NoExecute", "None")
# The limits of the API (k8s.io/api/resource/v1, types.go of 1.37), the public ones with the names of their constants.
MAX_DEVICES: Final = 128  # ResourceSliceMaxDevices
# If any device has taints, counters or lists, the slice may hold only half as many.
MAX_LARGE_DEVICES: Final = 64  # ResourceSliceMaxDevicesWithAdvancedFeatures
MAX_COUNTER_SETS: Final = 8  # ResourceSliceMaxCounterSets
MAX_ENTRIES: Final = 32  # ResourceSliceMaxAttributesAndCapacitiesPerDevice
MAX_VALUES: Final = 48  # ResourceSliceMaxAttributeValuesPerDevice
MAX_STRING: Final = 64  # DeviceAttributeMaxValueLength, bytes of a string or version
DRIVER_NAME: Final = 63  # DriverNameMaxLength
_POOL: Final = 253
_COUNTERS: Final = 32
_CONSUMPTIONS: Final = 2
_GROUPS: Final = 2
_TAINTS: Final = 16
_CONDITIONS: Final = 4
_INT64: Final = range(-(1 << 63), 1 << 63)
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]{0,31}"
_LISTS: Final = ("ints", "bools", "strings", "versions")
_NODE_RESOURCE: Final = r"cpu|memory|hugepages-.*"
_SKIPPED: Final = ("*", "NodePrepareResources", "NodeUnprepareResources")
_Errors = Iterator[FieldError]


def slice_errors(slice_: ResourceSlice, *, newest: bool = True) -> _Errors:
    """Yield every error of a slice; without `newest`, only the errors that all API servers since 1.34 report."""
    yield from metadata_errors(slice_.metadata)
    yield from spec_errors(slice_.spec, newest=newest)


def spec_errors(spec: ResourceSliceSpec, *, newest: bool = True) -> _Errors:
    """Yield every error of a slice's `spec`, as `slice_errors` does."""
    yield from _driver(spec.driver, "spec.driver")
    yield from _pool(spec.pool)
    yield from _node_fields(spec, "spec", ("node_name", "node_selector", "all_nodes", "per_device_node_selection"))
    if spec.node_selector is not None and len(spec.node_selector.node_selector_terms) > 1:
        terms = len(spec.node_selector.node_selector_terms)
        yield FieldError("spec.nodeSelector.nodeSelectorTerms", f"there must be exactly one term, not {terms}")
    # Servers of 1.34 still accept both in one slice, and more counter sets.
    if newest and spec.shared_counters and spec.devices:
        problem = "only one of sharedCounters and devices is allowed; publish the counters in a separate slice"
        yield FieldError("spec", problem)
    # One such device lowers the limit for the whole slice.
    most = MAX_LARGE_DEVICES if newest and any(map(is_large, spec.devices)) else MAX_DEVICES
    yield from count_errors(spec.devices, most, "spec.devices")
    yield from _duplicates([device.name for device in spec.devices], "spec.devices", ".name")
    own_nodes = spec.per_device_node_selection is True
    for index, device in enumerate(spec.devices):
        yield from device_errors(device, f"spec.devices[{index}]", own_nodes=own_nodes, newest=newest)
    yield from count_errors(spec.shared_counters, MAX_COUNTER_SETS if newest else _COUNTERS, "spec.sharedCounters")
    yield from _duplicates([counter_set.name for counter_set in spec.shared_counters], "spec.sharedCounters", ".name")
    for index, counter_set in enumerate(spec.shared_counters):
        yield from counter_set_errors(counter_set, f"spec.sharedCounters[{index}]")
    yield from _partition_type(spec)
    yield from _skipped(spec.skip_node_operations, "spec.skipNodeOperations")


def counter_set_errors(counter_set: CounterSet, path: str) -> _Errors:
    """Yield every error of a counter set."""
    yield from label_errors(counter_set.name, f"{path}.name")
    yield from _counters(counter_set.counters, f"{path}.counters")


def taint_errors(taint: DeviceTaint, path: str) -> _Errors:
    """Yield every error of a taint."""
    if not is_label_name(taint.key):
        yield FieldError(f"{path}.key", f'"{taint.key}" is not a label name' if taint.key else "a key is required")
    if not is_label_value(taint.value):
        yield FieldError(f"{path}.value", f'"{taint.value}" is not a label value')
    if taint.time_added is not None and not is_time(taint.time_added):
        yield FieldError(f"{path}.timeAdded", f'"{taint.time_added}" is not a time such as 2026-01-31T12:00:00Z')
    if taint.effect not in EFFECTS:
        yield FieldError(f"{path}.effect", f'"{taint.effect}" is not one of {", ".join(EFFECTS)}')


def selection_errors(driver: str | None, pool: str | None, device: str | None, path: str) -> _Errors:
    """Yield every error of the names that select devices, as far as they are set."""
    if driver is not None:
        yield from _driver(driver, f"{path}.driver")
    if pool is not None:
        yield from _pool_name(pool, f"{path}.pool")
    if device is not None:
        yield from label_errors(device, f"{path}.device")


def _driver(name: str, path: str) -> _Errors:
    # The API server accepts upper case here, unlike in other DNS subdomains.
    if not is_dns_subdomain(name.lower(), DRIVER_NAME):
        yield FieldError(path, f'"{name}" is not a DNS subdomain of at most {DRIVER_NAME} characters')


def _pool(pool: ResourcePool) -> _Errors:
    yield from _pool_name(pool.name, "spec.pool.name")
    # Both numbers are int64 in Go, and Python's have no limit.
    if pool.resource_slice_count <= 0 or pool.resource_slice_count not in _INT64:
        yield FieldError("spec.pool.resourceSliceCount", f"{pool.resource_slice_count} must be greater than zero")
    if pool.generation < 0 or pool.generation not in _INT64:
        yield FieldError("spec.pool.generation", f"{pool.generation} must be 0 or greater")


def _pool_name(name: str, path: str) -> _Errors:
    if len(name) > _POOL or not all(map(is_dns_subdomain, name.split("/"))):
        yield FieldError(path, f'"{name}" is not DNS subdomains with "/" between them, of at most {_POOL} characters')


def _duplicates(names: Sequence[str], path: str, field: str = "") -> _Errors:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield FieldError(f"{path}[{index}]{field}", f'"{name}" is a duplicate')
        seen.add(name)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return "".join((first, *(word.title() for word in rest)))


def _node_fields(owner: ResourceSliceSpec | Device, path: str, fields: Sequence[str]) -> _Errors:
    """Yield the errors of the fields that say on which nodes the devices are: exactly one must be set."""
    given = [name for name in fields if getattr(owner, name) is not None]
    for name in given:
        value = getattr(owner, name)
        if value is False:
            yield FieldError(f"{path}.{_camel(name)}", "it must be left out or true")
        elif isinstance(value, NodeSelector):
            yield from selector_errors(value, f"{path}.{_camel(name)}")
        elif isinstance(value, str) and not is_dns_subdomain(value):
            yield FieldError(f"{path}.{_camel(name)}", f'"{value}" is not the name of a node')
    # False and an empty name select no node, so they do not count.
    selecting = [name for name in given if getattr(owner, name) not in (False, "")]
    if len(selecting) != 1:
        allowed = ", ".join(map(_camel, fields))
        state = f"{', '.join(map(_camel, selecting))} are set" if selecting else "none is set"
        yield FieldError(path, f"exactly one of {allowed} is required, but {state}")


def selector_errors(selector: NodeSelector, path: str) -> _Errors:
    """Yield every error of a node selector, of a slice or of a pod's affinity."""
    if not selector.node_selector_terms:
        yield FieldError(f"{path}.nodeSelectorTerms", "a term is required")
    for number, term in enumerate(selector.node_selector_terms):
        yield from term_errors(term, f"{path}.nodeSelectorTerms[{number}]")


def term_errors(term: NodeSelectorTerm, path: str) -> _Errors:
    """Yield every error of one term of a node selector."""
    for index, requirement in enumerate(term.match_expressions):
        yield from _requirement(requirement, f"{path}.matchExpressions[{index}]")
    for index, requirement in enumerate(term.match_fields):
        yield from _field_requirement(requirement, f"{path}.matchFields[{index}]")


def _requirement(requirement: NodeSelectorRequirement, path: str) -> _Errors:
    count, operator = len(requirement.values), requirement.operator
    match operator:
        case "In" | "NotIn" if not count:
            yield FieldError(f"{path}.values", f"values are required with {operator}")
        case "Exists" | "DoesNotExist" if count:
            yield FieldError(f"{path}.values", f"there must be no values with {operator}")
        case "Gt" | "Lt" if count != 1:
            yield FieldError(f"{path}.values", f"exactly one value is required with {operator}, not {count}")
        case "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt":
            pass
        case _:
            yield FieldError(
                f"{path}.operator", f'"{operator}" is not one of In, NotIn, Exists, DoesNotExist, Gt and Lt'
            )
    if not is_label_name(requirement.key):
        yield FieldError(f"{path}.key", f'"{requirement.key}" is not a label name')
    for index, value in enumerate(requirement.values):
        if not is_label_value(value):
            yield FieldError(f"{path}.values[{index}]", f'"{value}" is not a label value')


def _field_requirement(requirement: NodeSelectorRequirement, path: str) -> _Errors:
    # A node can be selected by only one of its fields, its name.
    if requirement.operator not in ("In", "NotIn"):
        yield FieldError(f"{path}.operator", f'"{requirement.operator}" is neither In nor NotIn')
    elif len(requirement.values) != 1:
        yield FieldError(f"{path}.values", f"exactly one value is required, not {len(requirement.values)}")
    if requirement.key != "metadata.name":
        yield FieldError(f"{path}.key", f'"{requirement.key}" is not metadata.name')
    for index, value in enumerate(requirement.values):
        if not is_dns_subdomain(value):
            yield FieldError(f"{path}.values[{index}]", f'"{value}" is not the name of a node')


def is_large(device: Device) -> bool:
    """Return whether the device is large, so that its slice may have only half as many devices."""
    return bool(device.taints or device.consumes_counters) or any(map(is_list, device.attributes.values()))


def is_list(attribute: DeviceAttribute) -> bool:
    """Return whether the attribute has a list type (DRAListTypeAttributes)."""
    return any(getattr(attribute, name) is not None for name in _LISTS)


def device_errors(device: Device, path: str, *, own_nodes: bool = False, newest: bool = True) -> _Errors:
    """Yield every error of a device; with `own_nodes` it must say on which nodes it is."""
    yield from label_errors(device.name, f"{path}.name")
    # Attributes and capacities share one limit.
    entries = len(device.attributes) + len(device.capacity)
    if entries > MAX_ENTRIES:
        yield FieldError(path, f"{entries} attributes and capacities are more than {MAX_ENTRIES}")
    # A list counts as many values as it has, so long lists of few attributes are limited too.
    values = sum(map(value_count, device.attributes.values()))
    if values > MAX_VALUES:
        yield FieldError(path, f"{values} values of attributes are more than {MAX_VALUES}")
    for name, attribute in device.attributes.items():
        yield from attribute_errors(name, attribute, f"{path}.attributes", newest=newest)
    yield from _capacities(device, f"{path}.capacity", newest=newest)
    yield from count_errors(device.taints, _TAINTS, f"{path}.taints")
    for index, taint in enumerate(device.taints):
        yield from taint_errors(taint, f"{path}.taints[{index}]")
    yield from _consumptions(device, path, newest=newest)
    if own_nodes:
        yield from _node_fields(device, path, ("node_name", "node_selector", "all_nodes"))
    elif (device.node_name, device.node_selector, device.all_nodes) != (None, None, None):
        yield FieldError(path, "nodeName, nodeSelector and allNodes need perDeviceNodeSelection: true in the slice")
    yield from _conditions(device, path)
    for name, resource in device.node_allocatable_resources.items():
        yield from _node_resource(device, name, resource, f"{path}.nodeAllocatableResources[{name}]")


def _capacities(device: Device, path: str, *, newest: bool) -> _Errors:
    for name, capacity in device.capacity.items():
        yield from _qualified(name, path, newest=newest)
        policy, policy_path = capacity.request_policy, f"{path}[{name}].requestPolicy"
        # A policy is about shares of a capacity, which only a device that is allocated several times has.
        if policy is not None and device.allow_multiple_allocations is not True:
            yield FieldError(policy_path, "it needs allowMultipleAllocations: true")
        elif policy is not None:
            for problem in policy_problems(capacity.value, policy):
                yield FieldError(policy_path, f"it {problem}")


def _consumptions(device: Device, path: str, *, newest: bool) -> _Errors:
    path = f"{path}.consumesCounters"
    yield from count_errors(device.consumes_counters, _CONSUMPTIONS if newest else _COUNTERS, path)
    yield from _duplicates([consumption.counter_set for consumption in device.consumes_counters], path, ".counterSet")
    for index, consumption in enumerate(device.consumes_counters):
        yield from label_errors(consumption.counter_set, f"{path}[{index}].counterSet")
        yield from _counters(consumption.counters, f"{path}[{index}].counters")
        groups = f"{path}[{index}].compatibilityGroups"
        yield from count_errors(consumption.compatibility_groups, _GROUPS, groups)
        yield from _duplicates(consumption.compatibility_groups, groups)
        for number, group in enumerate(consumption.compatibility_groups):
            yield from label_errors(group, f"{groups}[{number}]")


def _counters(counters: Mapping[str, Counter], path: str) -> _Errors:
    # The same rules apply to the counters of a set and to those that a device consumes.
    if not counters:
        yield FieldError(path, "a counter is required")
    if len(counters) > _COUNTERS:
        yield FieldError(path, f"{len(counters)} entries are more than {_COUNTERS}")
    for name in counters:
        yield from label_errors(name, f"{path}[{name}]")


def _qualified(name: str, path: str, *, newest: bool = True) -> _Errors:
    domain, slash, identifier = name.rpartition("/")
    # API servers before 1.38 do not check a name with more than one slash.
    if "/" in domain and not newest:
        return
    named = re.fullmatch(_IDENTIFIER, identifier, re.ASCII) is not None
    if not named or (slash and not is_dns_subdomain(domain.lower(), DRIVER_NAME)):
        yield FieldError(f"{path}[{name}]", f'"{name}" is not [<DNS subdomain of 63>/]<C identifier of 32>')


def value_count(attribute: DeviceAttribute) -> int:
    """Return how many values of the limit on a device's values the attribute counts as."""
    return sum(len(getattr(attribute, name) or ()) for name in _LISTS) or 1


def attribute_errors(name: str, attribute: DeviceAttribute, path: str, *, newest: bool = True) -> _Errors:
    """Yield every error of an attribute and its name; `path` is that of the attributes."""
    yield from _qualified(name, path, newest=newest)
    path = f"{path}[{name}]"
    # The fields for Python's keywords and types, `int_` and `bool_`, have their API names in errors.
    given = {form.rstrip("_"): getattr(attribute, form) for form in attribute.__struct_fields__}
    given = {form: value for form, value in given.items() if value is not None}
    if len(given) != 1:
        yield FieldError(path, f"exactly one value is required, not {', '.join(given) or 'none'}")
    for form, value in given.items():
        if value == ():
            yield FieldError(f"{path}.{form}", "a list must have a value")
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            # A list of `ints` has the rules of `int`.
            problem = _PROBLEMS[form.rstrip("s")](item)
            if not problem and newest and form.startswith("version") and not has_short_numbers(item):
                problem = f'"{item}" has a number of more than 18 digits, which Kubernetes refuses since 1.38'
            if problem:
                yield FieldError(f"{path}.{form}" + (f"[{index}]" if isinstance(value, tuple) else ""), problem)


def _int_problem(value: int) -> str:
    return "" if value in _INT64 else f"{value} does not fit in 64 bits"


def _text_problem(value: str) -> str:
    # Go counts bytes. JSON can escape half of a surrogate pair, which plain UTF-8 refuses.
    size = len(value.encode(errors="surrogatepass"))
    return "" if size <= MAX_STRING else f'"{value}" has {size} bytes, more than {MAX_STRING}'


def _version_problem(value: str) -> str:
    return _text_problem(value) if is_semver(value) else f'"{value}" is not a semantic version 2.0.0 such as 1.2.3'


_PROBLEMS: Final[Mapping[str, Callable[..., str]]] = {
    "int": _int_problem,
    "bool": lambda _: "",
    "string": _text_problem,
    "version": _version_problem,
}


def _conditions(device: Device, path: str) -> _Errors:
    binding, failure = device.binding_conditions, device.binding_failure_conditions
    for name, conditions in (("bindingConditions", binding), ("bindingFailureConditions", failure)):
        yield from count_errors(conditions, _CONDITIONS, f"{path}.{name}")
        yield from _duplicates(conditions, f"{path}.{name}")
        for index, condition in enumerate(conditions):
            if not is_label_name(condition):
                yield FieldError(f"{path}.{name}[{index}]", f'"{condition}" is not a label name')
    for index, condition in enumerate(failure):
        if condition in binding:
            problem = f'"{condition}" is also one of the bindingConditions'
            yield FieldError(f"{path}.bindingFailureConditions[{index}]", problem)
    if bool(binding) != bool(failure):
        lacking = "bindingFailureConditions" if binding else "bindingConditions"
        yield FieldError(f"{path}.{lacking}", "bindingConditions and bindingFailureConditions need each other")


def _node_resource(device: Device, name: str, resource: NodeAllocatableResource, path: str) -> _Errors:
    if re.fullmatch(_NODE_RESOURCE, name) is None:
        yield FieldError(path, f'"{name}" is not one of cpu, memory and hugepages-<size>')
    if resource.mapping is None and resource.overhead is None:
        yield FieldError(path, "mapping or overhead is required")
    if resource.mapping is not None:
        yield from _mapping(device, resource.mapping, f"{path}.mapping")
    if resource.overhead is not None:
        if not {"perPod", "perContainer"} & resource.overhead.keys():
            yield FieldError(f"{path}.overhead", "perPod or perContainer is required")
        for key, amount in resource.overhead.items():
            if amount.value < 0:
                yield FieldError(f"{path}.overhead.{key}", f"{amount} must not be negative")


def _mapping(device: Device, mapping: NodeAllocatableMapping, path: str) -> _Errors:
    key = mapping.capacity_key
    # The amount follows either from the consumed capacity or from the number of devices.
    if (key is None) == (mapping.device_multiplier is None):
        yield FieldError(path, "exactly one of capacityKey and deviceMultiplier is required")
    if key is not None and key not in device.capacity:
        yield FieldError(f"{path}.capacityKey", f'the device has no capacity "{key}"')
    if (key is None) != (mapping.capacity_multiplier is None):
        lacking = "capacityKey" if key is None else "capacityMultiplier"
        yield FieldError(f"{path}.{lacking}", "capacityKey and capacityMultiplier need each other")
    for field, amount in (
        ("capacityMultiplier", mapping.capacity_multiplier),
        ("deviceMultiplier", mapping.device_multiplier),
    ):
        if amount is not None and amount.value <= 0:
            yield FieldError(f"{path}.{field}", f"{amount} must be positive")


def _partition_type(spec: ResourceSliceSpec) -> _Errors:
    name = spec.partition_type_attribute
    if name is None:
        return
    path = "spec.partitionTypeAttribute"
    if "/" not in name or any(_qualified(name, path)):
        yield FieldError(path, f'"{name}" is not a fully-qualified name such as example.com/profile')
    elif not any(device.consumes_counters for device in spec.devices):
        yield FieldError(path, "it needs devices that consume counters")
    else:
        # A slice may name the driver's own attributes without the domain.
        bare = name.removeprefix(f"{spec.driver}/")
        for index, device in enumerate(spec.devices):
            attribute = device.attributes.get(name, device.attributes.get(bare))
            if device.consumes_counters and (attribute is None or attribute.string is None):
                problem = "a string is required, because partitionTypeAttribute names this attribute"
                yield FieldError(f"spec.devices[{index}].attributes[{name}]", problem)


def _skipped(operations: Iterable[str], path: str) -> _Errors:
    operations = tuple(operations)
    yield from _duplicates(operations, path)
    for index, operation in enumerate(operations):
        if operation not in _SKIPPED:
            yield FieldError(f"{path}[{index}]", f'"{operation}" is not one of {", ".join(_SKIPPED)}')
    if "NodePrepareResources" in operations and not {"NodeUnprepareResources", "*"} & {*operations}:
        yield FieldError(path, "NodePrepareResources can only be skipped with NodeUnprepareResources")
