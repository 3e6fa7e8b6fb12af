"""The documents of `resource.k8s.io/v1` as frozen values (KEP-4381 and those that extend it).

Field names are the API's, in snake case. A field that the API omits is None or empty here, and is omitted when the
value is written. Unknown fields are dropped, as Kubernetes does. `dranode.api.documents` reads and writes these values
and converts the beta versions of the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import field
from msgspec.structs import force_setattr

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity

# The API group of PodGroups.
SCHEDULING: Final = "scheduling.k8s.io"


class APIDocument(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The base of all API values: camel case in documents, and fields with defaults are omitted."""


class OwnerReference(APIDocument, frozen=True, kw_only=True):
    """`metadata.ownerReferences[]`."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(APIDocument, frozen=True, kw_only=True):
    """`metadata`, with the fields that a node driver or an allocator needs."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class APIObject(APIDocument, frozen=True, kw_only=True):
    """The base of all objects, and by itself an object of any kind of which only this is read."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# --- ResourceSlice ---


class DeviceAttribute(APIDocument, frozen=True, kw_only=True, rename={"int_": "int", "bool_": "bool"}):
    """One attribute value: exactly one field is set. List forms are alpha (DRAListTypeAttributes)."""

    # An empty list counts as set, and the API server refuses it. Absent is therefore None for lists too.
    int_: int | None = None
    bool_: bool | None = None
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRequestPolicyRange(APIDocument, frozen=True, kw_only=True):
    """`requestPolicy.validRange` (KEP-5075)."""

    min: Quantity
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(APIDocument, frozen=True, kw_only=True):
    """The valid amounts of a capacity, and the default for a request that names no amount (KEP-5075)."""

    # A request may name any amount. The scheduler rounds it up to the next valid one.
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(APIDocument, frozen=True, kw_only=True):
    """One capacity of a device."""

    value: Quantity
    request_policy: CapacityRequestPolicy | None = None

    @property
    def step(self) -> Quantity | None:
        """Return the smallest amount by which requests may differ; None if they may request any amount."""
        policy = self.request_policy
        if policy is None:
            return None
        return policy.valid_range.step if policy.valid_range is not None else min(policy.valid_values, default=None)

    def __post_init__(self) -> None:
        # The value is frozen, so this is the only way to convert what a driver's author wrote.
        force_setattr(self, "value", _quantity(self.value))

    # msgspec generates the constructor from the fields, so type checkers do not know that it accepts plain values too.
    if TYPE_CHECKING:

        def __init__(
            self, *, value: Quantity | str | int, request_policy: CapacityRequestPolicy | None = ...
        ) -> None: ...


class Counter(APIDocument, frozen=True, kw_only=True):
    """An amount of a shared counter."""

    value: Quantity

    def __post_init__(self) -> None:
        force_setattr(self, "value", _quantity(self.value))

    if TYPE_CHECKING:

        def __init__(self, *, value: Quantity | str | int) -> None: ...


def _quantity(value: Any) -> Any:
    """Convert an amount that a driver wrote. A value of a wrong type is kept, so that `check_plugin` can report it."""
    return Quantity(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else value


# What a driver may write for an attribute, a capacity or a counter of a device. The constructors below convert it.
PlainAttribute = DeviceAttribute | str | int | bool
PlainCapacity = DeviceCapacity | Quantity | str | int
PlainCounter = Counter | Quantity | str | int
Amount = TypeVar("Amount", DeviceCapacity, Counter)


def attributes_of(values: Mapping[str, Any], device: str) -> Mapping[str, DeviceAttribute]:
    """Convert the attributes that a driver wrote for a device; converted ones are returned unchanged.

    Raises:
        DocumentError: an attribute has a wrong type.
    """
    if _all_of(values, DeviceAttribute):
        return values
    return {name: _attribute(value, f"device {device}: attribute {name}") for name, value in values.items()}


def _attribute(value: object, place: str) -> DeviceAttribute:
    match value:
        case DeviceAttribute():
            return value
        # A bool is an int in Python, so it comes first.
        case bool():
            return DeviceAttribute(bool_=value)
        case int():
            return DeviceAttribute(int_=value)
        case str():
            return DeviceAttribute(string=value)
    raise DocumentError(f"{place} is {value!r}; write a str, an int, a bool or a DeviceAttribute, or leave it out")


def _amounts(kind: type[Amount], values: Mapping[str, Any], place: str) -> Mapping[str, Amount]:
    """Convert capacities or counters that a driver wrote; converted ones are returned unchanged."""
    if _all_of(values, kind):
        return values
    return {name: _amount(kind, value, f"{place} {name}") for name, value in values.items()}


def _amount(kind: type[Amount], value: object, place: str) -> Amount:
    match value:
        case _ if isinstance(value, kind):
            return value
        case Quantity() | str() | int() if not isinstance(value, bool):
            try:
                return kind(value=value)
            except ValueError as error:
                raise DocumentError(f"{place}: {error}") from error
    raise DocumentError(f'{place} is {value!r}; write an int, a quantity such as "16Gi" or a {kind.__name__}')


def _all_of(values: Mapping[str, Any], kind: object) -> bool:
    # This runs for every device of every slice that is read, so it has no loop in Python.
    return {*map(type, values.values())} <= {kind}


class CounterSet(APIDocument, frozen=True, kw_only=True):
    """A named set of counters that devices of the pool draw on (KEP-4815)."""

    name: str
    counters: Mapping[str, Counter] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "counters", _amounts(Counter, self.counters, f"counter set {self.name}: counter"))

    if TYPE_CHECKING:

        def __init__(self, *, name: str, counters: Mapping[str, PlainCounter] = ...) -> None: ...


class DeviceCounterConsumption(APIDocument, frozen=True, kw_only=True):
    """The amounts that an allocated device draws from one counter set (KEP-4815)."""

    # The counter set may be in another slice of the pool.
    counter_set: str
    counters: Mapping[str, Counter] = {}
    compatibility_groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        place = f"consumption of counter set {self.counter_set}: counter"
        force_setattr(self, "counters", _amounts(Counter, self.counters, place))

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            counter_set: str,
            counters: Mapping[str, PlainCounter] = ...,
            compatibility_groups: tuple[str, ...] = ...,
        ) -> None: ...


class DeviceTaint(APIDocument, frozen=True, kw_only=True):
    """A taint of a device (KEP-5055)."""

    key: str
    # Kubernetes may add effects, and consumers have to treat an unknown one like `None`, so this is not an enum.
    effect: str
    value: str = ""
    # The API server sets it if it is absent.
    time_added: str | None = None

    @property
    def text(self) -> str:
        """Return it in kubectl's format: `key=value:effect`, or `key:effect` without a value."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class DeviceToleration(APIDocument, frozen=True, kw_only=True):
    """A toleration of device taints (KEP-5055)."""

    # An empty key or effect matches all of them, and an empty operator is `Equal`.
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    # Only for NoExecute. Without it, the taint is tolerated forever.
    toleration_seconds: int | None = None


class NodeSelectorRequirement(APIDocument, frozen=True, kw_only=True):
    """One `matchExpressions` or `matchFields` entry."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(APIDocument, frozen=True, kw_only=True):
    """Requirements that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(APIDocument, frozen=True, kw_only=True):
    """Terms; at least one of them must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAllocatableMapping(APIDocument, frozen=True, kw_only=True):
    """The amounts by which a device counts against a node-allocatable resource (KEP-5517, alpha 1.37)."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableResource(APIDocument, frozen=True, kw_only=True):
    """One `nodeAllocatableResources` entry (KEP-5517, alpha 1.37)."""

    # The mapping counts once for a claim, the overhead once for each pod that uses it.
    mapping: NodeAllocatableMapping | None = None
    overhead: Mapping[str, Quantity] | None = None


class Device(APIDocument, frozen=True, kw_only=True):
    """A device as a driver publishes it.

    The constructor also takes a text, a whole number or a truth value for an attribute, and a whole number or the text
    of a quantity for a capacity: `Device(name="gpu-0", attributes={"model": "A100"}, capacity={"memory": "80Gi"})`.

    Raises:
        DocumentError: an attribute or a capacity has another type; names it and the device.
    """

    name: str
    attributes: Mapping[str, DeviceAttribute] = {}
    capacity: Mapping[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    # The nodes of the device, only with `per_device_node_selection` in its slice.
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    # The scheduler binds a pod only when all of these are True in the device's status. If one of the failure conditions
    # is True, binding has failed.
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    # If it is true, every capacity of the device can be consumed in shares, also one without a request policy.
    allow_multiple_allocations: bool | None = None
    node_allocatable_resources: Mapping[str, NodeAllocatableResource] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "attributes", attributes_of(self.attributes, self.name))
        force_setattr(self, "capacity", _amounts(DeviceCapacity, self.capacity, f"device {self.name}: capacity"))

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            attributes: Mapping[str, PlainAttribute] = ...,
            capacity: Mapping[str, PlainCapacity] = ...,
            **fields: Any,
        ) -> None: ...


class ResourcePool(APIDocument, frozen=True, kw_only=True, omit_defaults=False):
    """The pool that a slice belongs to."""

    # The API requires all three fields, so they are written even with their defaults. The scheduler uses only slices
    # of the highest generation, and compares their number with the count to know whether it has all of them.
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(APIDocument, frozen=True, kw_only=True):
    """`ResourceSlice.spec`."""

    # Driver, pool name and node name are immutable: to change one, delete the slice and create another.
    driver: str
    pool: ResourcePool
    # Exactly one of these four is set.
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    # A slice has either devices or shared counters.
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()


class ResourceSlice(APIObject, frozen=True, kw_only=True):
    """A part of a pool's devices."""

    spec: ResourceSliceSpec


class PoolID(NamedTuple):
    """The driver and the name of a pool; pools of different drivers may have the same name."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


def newest_slices(slices: Iterable[ResourceSlice]) -> dict[PoolID, list[ResourceSlice]]:
    """Return the slices of each pool's newest generation (`spec.pool.generation`), the only ones that count."""
    newest: dict[PoolID, list[ResourceSlice]] = {}
    for slice_ in slices:
        pool = PoolID(slice_.spec.driver, slice_.spec.pool.name)
        generation = slice_.spec.pool.generation
        known = newest[pool][0].spec.pool.generation if pool in newest else None
        if known is None or generation > known:
            newest[pool] = [slice_]
        elif generation == known:
            newest[pool].append(slice_)
    return newest


# --- DeviceClass, ResourceClaim ---


class CELSelector(APIDocument, frozen=True, kw_only=True):
    """A CEL expression over `device`."""

    expression: str


class DeviceSelector(APIDocument, frozen=True, kw_only=True):
    """One selector; CEL is the only kind that exists."""

    cel: CELSelector | None = None


class OpaqueDeviceConfiguration(APIDocument, frozen=True, kw_only=True):
    """Parameters for one driver. Only this driver may decode and validate them."""

    driver: str
    parameters: Any = None


class DeviceClassConfiguration(APIDocument, frozen=True, kw_only=True):
    """`DeviceClass.spec.config[]`."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(APIDocument, frozen=True, kw_only=True):
    """`DeviceClass.spec`."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(APIObject, frozen=True, kw_only=True):
    """A class of devices, which requests name."""

    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(APIDocument, frozen=True, kw_only=True):
    """The requested amounts, by the qualified name of the capacity."""

    requests: Mapping[str, Quantity] = {}


class DeviceDerivedAttribute(APIDocument, frozen=True, kw_only=True):
    """An attribute for constraints that an expression computes from a device's attributes (KEP-6080)."""

    name: str
    expression: str


class ExactDeviceRequest(APIDocument, frozen=True, kw_only=True):
    """`requests[].exactly`."""

    device_class_name: str
    selectors: tuple[DeviceSelector, ...] = ()
    # An empty mode is ExactCount, whose count is 1 by default. Kubernetes may add modes, and a client has to refuse
    # those that it does not know.
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceSubRequest(APIDocument, frozen=True, kw_only=True):
    """One alternative of `requests[].firstAvailable` (KEP-4816)."""

    # The fields of an exact request, without admin access, which alternatives cannot have.
    name: str
    device_class_name: str
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceRequest(APIDocument, frozen=True, kw_only=True):
    """One request: exactly one of `exactly` and `first_available` is set."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()

    @property
    def options(self) -> dict[str, ExactDeviceRequest | DeviceSubRequest]:
        """Return what it can be given, by the names that results have: `<request>` or `<request>/<subrequest>`."""
        exact = {} if self.exactly is None else {self.name: self.exactly}
        return {**exact, **{f"{self.name}/{alternative.name}": alternative for alternative in self.first_available}}


class DeviceConstraint(APIDocument, frozen=True, kw_only=True):
    """An attribute that the devices of several requests must share, or must not share."""

    # Empty for all requests of the claim. A request with alternatives stands for all of them; `request/alternative` is
    # only one.
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(APIDocument, frozen=True, kw_only=True):
    """`ResourceClaim.spec.devices.config[]`."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(APIDocument, frozen=True, kw_only=True):
    """`ResourceClaim.spec.devices`."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()

    @property
    def classes(self) -> frozenset[str]:
        """Return the DeviceClasses that the requests name, those of alternatives included."""
        options = (option for request in self.requests for option in request.options.values())
        return frozenset(option.device_class_name for option in options)


class ResourceClaimSpec(APIDocument, frozen=True, kw_only=True):
    """`ResourceClaim.spec`."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(APIDocument, frozen=True, kw_only=True):
    """One device, or a share of one, given to a request; `request` is `<request>` or `<request>/<subrequest>`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    # Tolerations and conditions are copies from the time of the allocation.
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    # Camel case would make it `shareId`.
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: Mapping[str, Quantity] = {}
    skip_node_operations: tuple[str, ...] = ()


class DeviceAllocationConfiguration(APIDocument, frozen=True, kw_only=True):
    """A configuration in the allocation: entries of classes come first, then those of the claim."""

    source: Literal["FromClass", "FromClaim"]
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(APIDocument, frozen=True, kw_only=True):
    """`status.allocation.devices`. A driver decodes only its own entries (`driver/claims/grant.py`).

    Attributes:
        results: `DeviceRequestAllocationResult`s or plain documents.
        config: `DeviceAllocationConfiguration`s or plain documents.
    """

    # The configuration also has entries for drivers without a result.
    results: tuple[Any, ...] = ()
    config: tuple[Any, ...] = ()


class AllocationResult(APIDocument, frozen=True, kw_only=True):
    """`status.allocation`."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    # Without a selector the devices are available on all nodes.
    node_selector: NodeSelector | None = None
    # May be absent even if the claim is allocated.
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(APIDocument, frozen=True, kw_only=True):
    """An object that may use the claim: `status.reservedFor[]`. It is a pod, or a PodGroup for its pods (KEP-5729)."""

    resource: str
    name: str
    # A pod that was created again under the same name is another consumer.
    uid: str
    api_group: str = ""

    @property
    def is_pod(self) -> bool:
        """Return whether it is a pod."""
        return (self.api_group, self.resource) == ("", "pods")

    @property
    def is_pod_group(self) -> bool:
        """Return whether it is a PodGroup."""
        return (self.api_group, self.resource) == (SCHEDULING, "podgroups")

    def __str__(self) -> str:
        """Return a pod's name, `podgroup NAME`, or for anything else `RESOURCE NAME`."""
        return self.name if self.is_pod else f"{'podgroup' if self.is_pod_group else self.resource} {self.name}"


class ResourceClaimStatus(APIDocument, frozen=True, kw_only=True):
    """`ResourceClaim.status`; the entries of `devices` are not decoded, because they belong to their drivers."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()
    devices: tuple[Any, ...] = ()


class ResourceClaim(APIObject, frozen=True, kw_only=True):
    """A claim to devices."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(APIDocument, frozen=True, kw_only=True):
    """`ResourceClaimTemplate.spec`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(APIObject, frozen=True, kw_only=True):
    """The template from which Kubernetes creates a claim for each pod."""

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# --- Pod and Node, with the fields that claims need ---


class PodResourceClaim(APIDocument, frozen=True, kw_only=True):
    """`pod.spec.resourceClaims[]`: exactly one of the two sources is set."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ContainerClaim(APIDocument, frozen=True, kw_only=True):
    """`resources.claims[]` of a container; without `request` it means all requests of the claim."""

    name: str
    request: str = ""


class ContainerResources(APIDocument, frozen=True, kw_only=True):
    """`resources` of a container."""

    claims: tuple[ContainerClaim, ...] = ()
    requests: Mapping[str, Quantity] = {}
    limits: Mapping[str, Quantity] = {}


class PodContainer(APIDocument, frozen=True, kw_only=True):
    """A container of a pod."""

    name: str
    resources: ContainerResources = ContainerResources()


class SchedulingGroup(APIDocument, frozen=True, kw_only=True):
    """`pod.spec.schedulingGroup`: the PodGroup that the pod belongs to."""

    pod_group_name: str | None = None


class PodSpec(APIDocument, frozen=True, kw_only=True):
    """`pod.spec`."""

    node_name: str = ""
    scheduling_group: SchedulingGroup | None = None
    node_selector: Mapping[str, str] = {}
    resource_claims: tuple[PodResourceClaim, ...] = ()
    init_containers: tuple[PodContainer, ...] = ()
    containers: tuple[PodContainer, ...] = ()
    resources: ContainerResources = ContainerResources()

    @property
    def pod_group(self) -> str:
        """Return the name of the PodGroup that the pod belongs to; empty for none."""
        return (self.scheduling_group.pod_group_name if self.scheduling_group is not None else None) or ""


class Pod(APIObject, frozen=True, kw_only=True):
    """A pod, with the fields about its claims."""

    spec: PodSpec = PodSpec()


class NodeStatus(APIDocument, frozen=True, kw_only=True):
    """`Node.status`, with the fields that are read."""

    declared_features: tuple[str, ...] = ()


class Node(APIObject, frozen=True, kw_only=True):
    """A node, with the fields by which slices select it."""

    status: NodeStatus = NodeStatus()
