"""The resource pools that a node can use: the newest generation of each, with its devices in search order.

Source: KEP-4381, KEP-4815, KEP-5963; `GatherPools` of kube-scheduler decides which slices count and in which order.
Attributes that no claim reads, such as serial numbers, do not distinguish devices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, groupby
from math import factorial, prod
from typing import Final, TypeVar

import msgspec

from dranode.api.documents import encode_json
from dranode.api.names import is_label_name, is_label_value
from dranode.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceSelector,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PoolID,
    ResourceSlice,
    ResourceSliceSpec,
    newest_slices,
)
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import Change
from dranode.sim.cel.declarations import KnownToCEL
from dranode.sim.cel.expression import AttributeName, attributes_read, split_name


@dataclass(frozen=True, slots=True)
class AttributesRead:
    """The attributes that selectors and constraints read.

    Attributes:
        names: domain and identifier of each attribute; None if any attribute may be read.
    """

    names: frozenset[AttributeName] | None

    @classmethod
    def of(cls, claims: Iterable[DeviceClaim], classes: Iterable[DeviceClass], declared: KnownToCEL) -> AttributesRead:
        """Collect the attributes of claims and classes; `declared` is what their expressions may use."""
        names: set[AttributeName] = set()
        for device_class in classes:
            if not _collect(names, device_class.spec.selectors, declared):
                return cls(None)
        for claim in claims:
            if not _collect_from_claim(names, claim, declared):
                return cls(None)
        return cls(frozenset(names))

    def covers(self, claim: DeviceClaim, declared: KnownToCEL) -> bool:
        """Return whether the claim reads no other attribute."""
        if self.names is None:
            return True
        names: set[AttributeName] = set()
        return _collect_from_claim(names, claim, declared) and names <= self.names

    def distinguishing(self, device: Device, driver: str) -> Device:
        """Return the device without its name and without the attributes that are not read.

        Lists, versions and attributes without a value remain, because their mere presence can fail an evaluation.
        """
        if self.names is None:
            return msgspec.structs.replace(device, name="")
        names = self.names
        attributes = {
            name: attribute
            for name, attribute in device.attributes.items()
            if not _is_plain(attribute) or split_name(name, driver) in names or ("", name.rpartition("/")[2]) in names
        }
        return msgspec.structs.replace(device, name="", attributes=attributes)


def _collect_from_claim(names: set[AttributeName], claim: DeviceClaim, declared: KnownToCEL) -> bool:
    """Add the attributes that a claim reads; return False if it may read any attribute."""
    for constraint in claim.constraints:
        for name in (constraint.match_attribute, constraint.distinct_attribute):
            if name is not None:
                domain, _, identifier = name.rpartition("/")
                names.add((domain, identifier))
    options = (option for request in claim.requests for option in request.options.values())
    return all(not option.derived_attributes and _collect(names, option.selectors, declared) for option in options)


def _collect(names: set[AttributeName], selectors: Iterable[DeviceSelector], declared: KnownToCEL) -> bool:
    for selector in selectors:
        read = attributes_read(selector.cel.expression, declared) if selector.cel is not None else frozenset()
        if read is None:
            return False
        names |= read
    return True


def _is_plain(attribute: DeviceAttribute) -> bool:
    return any(value is not None for value in (attribute.int_, attribute.bool_, attribute.string)) and not any(
        value is not None
        for value in (attribute.version, attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    )


# The declared feature of nodes that can skip calls to a driver.
_OPTIONAL_OPERATIONS: Final = "DRAOptionalNodeOperations"
_ALL_READ: Final = AttributesRead(None)


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that distinguishes a device from others, apart from its name.

    Attributes:
        number: equal for equal contents of one `PoolIndex`.
        driver: the driver.
        device: one device with this content; others may differ in attributes that are not read.
    """

    number: int
    driver: str
    device: Device


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that the search for a node considers.

    Attributes:
        pool: its pool.
        device: the published device.
        slice: the slice with the device.
        content: the device apart from its name.
        reachable: whether the node can use it; only False with per-device node selection.
        servable: whether the node can skip the calls to the driver that the slice skips (KEP-5945).
    """

    pool: PoolID
    device: Device
    slice: ResourceSliceSpec
    content: Content
    reachable: bool = True
    servable: bool = True


@dataclass(frozen=True)
class Pool:
    """A pool, for one node.

    Attributes:
        id: driver and name.
        candidates: its devices in slices for the node, in search order.
        elsewhere: its devices in slices for other nodes, which draw on the same counters.
        counters: the counter sets by name.
        incomplete: whether slices are missing, so that no device may be taken; the pool may be invalid as well.
        partial: whether the node does not see all slices; in 1.34, that only fails requests for all devices.
        invalid: why no device may be taken; empty if the pool is valid.
    """

    id: PoolID
    candidates: tuple[Candidate, ...] = ()
    elsewhere: tuple[Device, ...] = ()
    counters: Mapping[str, CounterSet] = field(default_factory=dict)
    incomplete: bool = False
    partial: bool = False
    invalid: str = ""

    @property
    def usable(self) -> bool:
        """Return whether devices may be taken from the pool."""
        return not self.incomplete and not self.invalid

    @cached_property
    def binds(self) -> bool:
        """Return whether a device has binding conditions; such pools are searched last."""
        return any(candidate.device.binding_conditions for candidate in self.candidates)


class PoolIndex:
    """The slices of a cluster, indexed to find the pools of a node.

    Attributes:
        slices: the slices that the release knows, in the given order.
    """

    def __init__(self, slices: Iterable[ResourceSlice], features: Features, read: AttributesRead = _ALL_READ) -> None:
        """Index the slices; hidden ones (of a disabled feature) only count for the completeness of their pool.

        Devices that differ only in attributes that are not read have the same content.
        """
        self._read = read
        self._features = features
        everything = tuple(slices)
        self._position = {id(slice_): position for position, slice_ in enumerate(everything)}
        self._foreign = features.stable or not features.has(Change.FOREIGN_COUNTERS)
        self._counters_apart = features.has(Change.COUNTER_SLICES_APART) and not features.oldest
        self.slices = tuple(slice_ for slice_ in everything if self._known(slice_.spec))
        self._of_node: dict[str, list[ResourceSlice]] = defaultdict(list)
        self._of_all: list[ResourceSlice] = []
        self._of_pool: dict[PoolID, list[ResourceSlice]] = defaultdict(list)
        self._counters: list[ResourceSlice] = []
        self._contents: dict[bytes, Content] = {}
        # Identical machines of a fleet share device objects, so most are found by identity. The entry keeps the device
        # alive, so that its identity is not reused.
        self._content_of: dict[tuple[str, int], tuple[Device, Content]] = {}
        for slice_ in everything:
            self._of_pool[PoolID(slice_.spec.driver, slice_.spec.pool.name)].append(slice_)
        for slice_ in self.slices:
            spec = slice_.spec
            if spec.node_name:
                self._of_node[spec.node_name].append(slice_)
            else:
                self._of_all.append(slice_)
            if spec.shared_counters and self._counters_apart:
                self._counters.append(slice_)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Return the node names in the slices, in order and without repetition."""
        return tuple(self._of_node)

    def pools(self, node: Node) -> tuple[Pool, ...]:
        """Return the pools that the node can use, in search order."""
        newest = newest_slices(self._relevant(node))
        pools = [pool for pool_id, slices in newest.items() if (pool := self._pool(pool_id, slices, node)) is not None]
        return tuple(sorted(pools, key=lambda pool: (pool.binds, pool.id)))

    def _known(self, spec: ResourceSliceSpec) -> bool:
        if not self._features.partitionable_devices and (
            spec.per_device_node_selection is not None or (spec.shared_counters and self._counters_apart)
        ):
            return False
        return not self._hidden(spec)

    def _hidden(self, spec: ResourceSliceSpec) -> bool:
        """Return whether the slice has compatibility groups although the feature is off, which hides the slice."""
        return (
            not self._features.device_compatibility_groups
            and self._features.release.gate("DRADeviceCompatibilityGroups") is not None
            and _uses_groups(spec)
        )

    def _relevant(self, node: Node) -> list[ResourceSlice]:
        """Return the slices for the node in kube-scheduler's order; the first slice of a pool sets its slice count."""
        of_node = self._of_node.get(node.metadata.name, ())
        if not self._features.fixed_order:
            # These releases search in random order (the order of Go maps); here it is the order of the documents.
            relevant = (*of_node, *(slice_ for slice_ in self._of_all if _targets(slice_.spec, node)), *self._counters)
            by_position = {self._position[id(slice_)]: slice_ for slice_ in relevant}
            in_order = [by_position[position] for position in sorted(by_position)]
            # All but the stable allocator of these releases search slices with binding conditions last.
            return sorted(in_order, key=_has_binding_devices) if self._features.beyond_stable else in_order
        if not self._foreign:
            return [*of_node, *(slice_ for slice_ in self._of_all if _targets(slice_.spec, node))]
        later = [slice_ for slice_ in self._of_all if slice_.spec.shared_counters or _targets(slice_.spec, node)]
        later += (slice_ for slice_ in of_node if slice_.spec.shared_counters)
        later += (slice_ for slice_ in self._foreign_counters if slice_.spec.node_name != node.metadata.name)
        later.sort(key=lambda slice_: self._position[id(slice_)])
        return [*(slice_ for slice_ in of_node if not slice_.spec.shared_counters), *later]

    @cached_property
    def _foreign_counters(self) -> tuple[ResourceSlice, ...]:
        """Return the slices with counters of a single node that matter for other nodes as well.

        Until 1.36, slices with counters apply to every node. That makes a difference only if their pool is incomplete,
        invalid or spread over several nodes.
        """
        foreign = []
        for slice_ in self._counters:
            pool = PoolID(slice_.spec.driver, slice_.spec.pool.name)
            if not slice_.spec.node_name:
                continue
            spread = any(sibling.spec.node_name != slice_.spec.node_name for sibling in self._of_pool[pool])
            alone = self._pool(pool, [slice_], None)
            if spread or (alone is not None and not alone.usable):
                foreign.append(slice_)
        return tuple(foreign)

    def _pool(self, pool: PoolID, slices: list[ResourceSlice], node: Node | None) -> Pool | None:
        """Return the pool with the slices for the node; None if other slices have a newer generation."""
        count, generation = slices[0].spec.pool.resource_slice_count, slices[0].spec.pool.generation
        if not self._features.has(Change.INCOMPLETE_POOLS_UNUSED):
            pool_seen = self._complete_pool(pool, sorted(slices, key=lambda slice_: slice_.metadata.name), [], node)
            return replace(pool_seen, partial=len(slices) != count)
        others: list[ResourceSlice] = []
        if len(slices) != count:
            everything = self._of_pool[pool]
            if any(slice_.spec.pool.generation > generation for slice_ in everything):
                return None
            same = [
                slice_
                for slice_ in everything
                if slice_.spec.pool.generation == generation and not self._hidden(slice_.spec)
            ]
            if len(same) != count:
                return Pool(pool, incomplete=True, invalid=self._invalid_though_incomplete(slices))
            others = [slice_ for slice_ in same if not any(slice_ is own for own in slices)]
        return self._complete_pool(pool, sorted(slices, key=lambda slice_: slice_.metadata.name), others, node)

    def _invalid_though_incomplete(self, slices: list[ResourceSlice]) -> str:
        # Only the oldest allocator validates an incomplete pool.
        if not self._features.oldest:
            return ""
        return _duplicate(device for slice_ in slices for device in slice_.spec.devices)

    def _complete_pool(
        self, pool: PoolID, slices: list[ResourceSlice], others: list[ResourceSlice], node: Node | None
    ) -> Pool:
        candidates = tuple(
            Candidate(
                pool,
                device,
                slice_.spec,
                self._content(pool.driver, device),
                reachable=node is None or not slice_.spec.per_device_node_selection or _targets(device, node),
                servable=self._servable(slice_.spec, node),
            )
            for slice_ in slices
            if self._holds_devices(slice_.spec)
            for device in slice_.spec.devices
        )
        elsewhere = tuple(
            device for slice_ in others if self._holds_devices(slice_.spec) for device in slice_.spec.devices
        )
        counters: dict[str, CounterSet] = {}
        for slice_ in (*slices, *others) if self._features.partitionable_devices else ():
            for counter_set in slice_.spec.shared_counters:
                if counter_set.name in counters:
                    return Pool(pool, invalid=f"duplicate counter set name {counter_set.name}")
                counters[counter_set.name] = counter_set
        checked = slices if self._foreign else [slice_ for slice_ in slices if self._holds_devices(slice_.spec)]
        invalid = _duplicate(candidate.device for candidate in candidates) or (
            _unknown_counter((*(device for slice_ in checked for device in slice_.spec.devices), *elsewhere), counters)
            if self._features.partitionable_devices
            else ""
        )
        return Pool(pool, invalid=invalid) if invalid else Pool(pool, candidates, elsewhere, counters)

    def _holds_devices(self, spec: ResourceSliceSpec) -> bool:
        """Return whether devices of the slice count; since 1.35, devices next to counters in a slice do not."""
        return not (spec.shared_counters and self._counters_apart and self._features.partitionable_devices)

    def _servable(self, spec: ResourceSliceSpec, node: Node | None) -> bool:
        # Allocators without this gate ignore the field.
        known = self._features.release.gate(_OPTIONAL_OPERATIONS) is not None
        if not spec.skip_node_operations or not self._features.experimental or not known:
            return True
        declared = node.status.declared_features if node is not None else ()
        return self._features.optional_node_operations and _OPTIONAL_OPERATIONS in declared

    def _content(self, driver: str, device: Device) -> Content:
        entry = self._content_of.get((driver, id(device)))
        if entry is None:
            key = b"%s %s" % (driver.encode(), encode_json(self._read.distinguishing(device, driver)))
            content = self._contents.setdefault(key, Content(len(self._contents), driver, device))
            entry = self._content_of[driver, id(device)] = (device, content)
        return entry[1]


def contradictions(slices: Iterable[ResourceSlice]) -> Iterator[str]:
    """Yield a sentence for each pool whose slices disagree on their number (kubernetes/kubernetes#141117)."""
    for pool, newest in newest_slices(slices).items():
        counts = sorted({slice_.spec.pool.resource_slice_count for slice_ in newest})
        if len(counts) > 1:
            yield (
                f"the slices of pool {pool} say {' and '.join(map(str, counts))} as resourceSliceCount, so whether "
                "kube-scheduler uses it depends on which it sees first; here, that is the first document"
            )


def _has_binding_devices(slice_: ResourceSlice) -> bool:
    return any(device.binding_conditions for device in slice_.spec.devices)


def _uses_groups(spec: ResourceSliceSpec) -> bool:
    return any(consumption.compatibility_groups for device in spec.devices for consumption in device.consumes_counters)


def _targets(place: ResourceSliceSpec | Device, node: Node) -> bool:
    """Return whether the slice or device is for the node; without any known field, it is for no node."""
    if place.node_name:
        return place.node_name == node.metadata.name
    if place.all_nodes:
        return True
    if place.node_selector is not None:
        return selects(place.node_selector, node)
    return isinstance(place, ResourceSliceSpec) and any(
        _targets(device, node) for device in place.devices if place.per_device_node_selection
    )


def node_place(candidate: Candidate) -> tuple[str | None, NodeSelector | None]:
    """Return the node name and the node selector that apply to the device."""
    place = candidate.device if candidate.slice.per_device_node_selection else candidate.slice
    return place.node_name, place.node_selector


def _duplicate(devices: Iterable[Device]) -> str:
    names: set[str] = set()
    for device in devices:
        if device.name in names:
            return f"duplicate device name {device.name}"
        names.add(device.name)
    return ""


def _unknown_counter(devices: Iterable[Device], counters: Mapping[str, CounterSet]) -> str:
    for device in devices:
        for consumption in device.consumes_counters:
            counter_set = counters.get(consumption.counter_set)
            if counter_set is None:
                return f"counter set {consumption.counter_set} not found"
            for name in consumption.counters:
                if name not in counter_set.counters:
                    return f"counter {name} not found in counter set {counter_set.name}"
    return ""


# Releases without a fixed search order iterate over Go maps, whose order is random. If there are more orders than this,
# so many are sampled evenly.
MAX_ORDERS: Final = 24

T = TypeVar("T")


def orders(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """Yield the pools in other orders than the given one, about `MAX_ORDERS` at most."""
    slices = [_slices(pool) for pool in pools]
    count = factorial(len(pools)) * prod(factorial(len(of_pool)) for of_pool in slices)
    step = count // MAX_ORDERS | 1 if count > MAX_ORDERS else 1
    for number in range(step, count, step):
        remaining, reordered = number, []
        for pool, of_pool in zip(pools, slices, strict=True):
            remaining, inside = divmod(remaining, factorial(len(of_pool)))
            reordered.append(replace(pool, candidates=tuple(chain.from_iterable(_permutation(of_pool, inside)))))
        yield tuple(_permutation(reordered, remaining))


def _permutation(items: Sequence[T], number: int) -> list[T]:
    """Return the permutation with this number, from 0 to n! - 1; number 0 keeps the order."""
    remaining, permuted = list(items), []
    for size in range(len(items), 0, -1):
        number, index = divmod(number, size)
        permuted.append(remaining.pop(index))
    return permuted


def _slices(pool: Pool) -> list[tuple[Candidate, ...]]:
    return [tuple(group) for _, group in groupby(pool.candidates, key=lambda candidate: id(candidate.slice))]


# Node selectors: which nodes they match (k8s.io/component-helpers nodeaffinity), and their union in an allocation.


def selects(selector: NodeSelector, node: Node) -> bool:
    """Return whether any term matches the node; a term without requirements matches no node."""
    return any(_term_holds(term, node) for term in selector.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    labels = node.metadata.labels
    return all(
        _parses(expression) and requirement_holds(expression, labels) for expression in term.match_expressions
    ) and all(requirement_holds(requirement, fields) for requirement in term.match_fields)


@lru_cache(maxsize=4096)
def _parses(expression: NodeSelectorRequirement) -> bool:
    # kube-scheduler skips a term that it cannot parse. API servers before 1.33 stored any values.
    return is_label_name(expression.key) and all(map(is_label_value, expression.values))


def requirement_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Return whether labels or fields satisfy one requirement; an unknown operator is never satisfied."""
    check = _OPERATORS.get(requirement.operator)
    return check is not None and check(labels.get(requirement.key), requirement.values)


def _number(text: str | None) -> int | None:
    # Python's int() also reads 1_000, which may be the value of a label.
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) else None


def _greater(value: str | None, values: tuple[str, ...]) -> bool:
    number, limit = _number(value), _number(values[0] if values else None)
    return number is not None and limit is not None and number > limit


def _less(value: str | None, values: tuple[str, ...]) -> bool:
    number, limit = _number(value), _number(values[0] if values else None)
    return number is not None and limit is not None and number < limit


_OPERATORS: Final[dict[str, Callable[[str | None, tuple[str, ...]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value is None or value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _greater,
    "Lt": _less,
}


def only(node: str) -> NodeSelector:
    """Return the selector of one node."""
    requirement = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(requirement,)),))


def union(selectors: Iterable[NodeSelector]) -> NodeSelector | None:
    """Return one term with the requirements of the first term of each selector, without repetition; None if empty."""
    terms = [term for selector in selectors for term in selector.node_selector_terms[:1]]
    fields = _distinct(requirement for term in terms for requirement in term.match_fields)
    expressions = _distinct(requirement for term in terms for requirement in term.match_expressions)
    if not fields and not expressions:
        return None
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=fields, match_expressions=expressions),))


def _distinct(requirements: Iterable[NodeSelectorRequirement]) -> tuple[NodeSelectorRequirement, ...]:
    distinct: dict[tuple[str, str, frozenset[str]], NodeSelectorRequirement] = {}
    for requirement in requirements:
        distinct.setdefault((requirement.key, requirement.operator, frozenset(requirement.values)), requirement)
    return tuple(distinct.values())
