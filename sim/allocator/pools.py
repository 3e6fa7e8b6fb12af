"""Resource pools as one node sees them: the newest generation, complete and consistent, devices in the order of search.

Source: KEP-4381, KEP-4815, KEP-5963; `GatherPools` of kube-scheduler says which slices count and in which order.
Attributes that no claim reads, such as serial numbers, do not tell devices apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from math import factorial, prod
from typing import Final, TypeVar

import msgspec

from dranode.api.documents import encode_json
from dranode.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourceSlice,
    ResourceSliceSpec,
)
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.state import PoolID
from dranode.sim.cel.declarations import KnownToCEL
from dranode.sim.cel.expression import AttributeName, attributes_read, split_name


@dataclass(frozen=True, slots=True)
class AttributesRead:
    """The attributes that selectors and constraints look at.

    Attributes:
        names: domain and identifier of each; None if it may be any.
    """

    names: frozenset[AttributeName] | None

    @classmethod
    def of(cls, claims: Iterable[DeviceClaim], classes: Iterable[DeviceClass], declared: KnownToCEL) -> AttributesRead:
        """Look at claims and classes, whose expressions may use what is declared."""
        names: set[AttributeName] = set()
        for device_class in classes:
            if not _enter(names, device_class.spec.selectors, declared):
                return cls(None)
        for claim in claims:
            if not _enter_claim(names, claim, declared):
                return cls(None)
        return cls(frozenset(names))

    def covers(self, claim: DeviceClaim, declared: KnownToCEL) -> bool:
        """Return whether the claim looks at nothing else."""
        if self.names is None:
            return True
        names: set[AttributeName] = set()
        return _enter_claim(names, claim, declared) and names <= self.names

    def distinguishing(self, device: Device, driver: str) -> Device:
        """Return the device without its name, and without attributes that nobody looks at.

        Those remain whose mere presence may end an evaluation: lists, versions, and what has no value.
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


def _enter_claim(names: set[AttributeName], claim: DeviceClaim, declared: KnownToCEL) -> bool:
    """Add what a claim looks at; False if it may be any attribute."""
    for constraint in claim.constraints:
        for name in (constraint.match_attribute, constraint.distinct_attribute):
            if name is not None:
                domain, _, identifier = name.rpartition("/")
                names.add((domain, identifier))
    return all(
        not request.derived_attributes and _enter(names, request.selectors, declared)
        for request in _exact_requests(claim)
    )


def _exact_requests(claim: DeviceClaim) -> Iterator[ExactDeviceRequest | DeviceSubRequest]:
    for request in claim.requests:
        if request.exactly is not None:
            yield request.exactly
        yield from request.first_available


def _enter(names: set[AttributeName], selectors: Iterable[DeviceSelector], declared: KnownToCEL) -> bool:
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


# What a node declares that can leave out calls to a driver.
_OPTIONAL_OPERATIONS: Final = "DRAOptionalNodeOperations"
_ALL_READ: Final = AttributesRead(None)


@dataclass(frozen=True, slots=True)
class Content:
    """The attributes of a device that selectors see, and all else but its name that distinguishes it from others.

    Attributes:
        number: equal for equal contents of one `PoolIndex`.
        driver: the driver.
        device: one device of that content; another one may have other attributes, at which nobody looks.
    """

    number: int
    driver: str
    device: Device


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that can be searched for a node.

    Attributes:
        pool: its pool.
        device: as it was published.
        slice: the slice that holds it.
        content: what it is apart from its name.
        reachable: whether the node can use it; only False with per-device node selection.
        servable: whether the node can leave out the calls to the driver that the slice leaves out (KEP-5945).
    """

    pool: PoolID
    device: Device
    slice: ResourceSliceSpec
    content: Content
    reachable: bool = True
    servable: bool = True


@dataclass(frozen=True)
class Pool:
    """A pool as a node sees it.

    Attributes:
        id: driver and name.
        candidates: its devices on slices that are for the node, in the order of search.
        elsewhere: devices of the pool on slices for other nodes; they draw on the same counters.
        counters: the counter sets by name.
        incomplete: slices are missing, so nothing is taken from it; it may be invalid, too.
        partial: the node does not see all slices, which only keeps requests for all devices away (until 1.34).
        invalid: why nothing is taken from it, or nothing.
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
        """Return whether devices may be taken from it."""
        return not self.incomplete and not self.invalid

    @cached_property
    def binds(self) -> bool:
        """Return whether a device has binding conditions, which puts the pool behind all that have none."""
        return any(candidate.device.binding_conditions for candidate in self.candidates)


class PoolIndex:
    """The slices of a cluster, indexed for the question which pools a node sees.

    Attributes:
        slices: all slices, in the order given.
    """

    def __init__(self, slices: Iterable[ResourceSlice], features: Features, read: AttributesRead = _ALL_READ) -> None:
        """Index the slices; those that a gate hides make their pool complete, and nothing else.

        Devices that differ only in attributes that are not read are of one content.
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
        # A fleet of equal machines shares its devices, so most are looked up by identity (the list keeps them alive).
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
        """The node names of the slices, each once, in order."""
        return tuple(self._of_node)

    def pools(self, node: Node) -> tuple[Pool, ...]:
        """The pools that the node sees, in the order of search."""
        newest: dict[PoolID, list[ResourceSlice]] = {}
        for slice_ in self._relevant(node):
            pool_id = PoolID(slice_.spec.driver, slice_.spec.pool.name)
            known = newest.get(pool_id)
            generation = slice_.spec.pool.generation
            if known is None or generation > known[0].spec.pool.generation:
                newest[pool_id] = [slice_]
            elif generation == known[0].spec.pool.generation:
                known.append(slice_)
        pools = [pool for pool_id, slices in newest.items() if (pool := self._pool(pool_id, slices, node)) is not None]
        return tuple(sorted(pools, key=lambda pool: (pool.binds, pool.id)))

    def _known(self, spec: ResourceSliceSpec) -> bool:
        if not self._features.partitionable_devices and (
            spec.per_device_node_selection is not None or (spec.shared_counters and self._counters_apart)
        ):
            return False
        return not self._hidden(spec)

    def _hidden(self, spec: ResourceSliceSpec) -> bool:
        """Return whether the slice has compatibility groups while these have no meaning; its pool is then not used."""
        return (
            not self._features.device_compatibility_groups
            and self._features.release.gate("DRADeviceCompatibilityGroups") is not None
            and _uses_groups(spec)
        )

    def _relevant(self, node: Node) -> list[ResourceSlice]:
        """The slices for the node, in the order in which they are met: the first one's count is the pool's."""
        mine = self._of_node.get(node.metadata.name, ())
        if not self._features.fixed_order:
            # Here it is the order in which the slices are given; in a cluster, it is none.
            seen = (*mine, *(slice_ for slice_ in self._of_all if _targets(slice_.spec, node)), *self._counters)
            once = {self._position[id(slice_)]: slice_ for slice_ in seen}
            in_order = [once[position] for position in sorted(once)]
            # The newer allocators of these releases look at slices with devices that bind to their node last.
            return sorted(in_order, key=_has_binding_devices) if self._features.beyond_stable else in_order
        if not self._foreign:
            return [*mine, *(slice_ for slice_ in self._of_all if _targets(slice_.spec, node))]
        others = [slice_ for slice_ in self._of_all if slice_.spec.shared_counters or _targets(slice_.spec, node)]
        others += (slice_ for slice_ in mine if slice_.spec.shared_counters)
        others += (slice_ for slice_ in self._foreign_counters if slice_.spec.node_name != node.metadata.name)
        others.sort(key=lambda slice_: self._position[id(slice_)])
        return [*(slice_ for slice_ in mine if not slice_.spec.shared_counters), *others]

    @cached_property
    def _foreign_counters(self) -> tuple[ResourceSlice, ...]:
        """Slices with counters, of single nodes, whose pool is incomplete, invalid or not of that node alone.

        Slices with counters count for every node until 1.36, which matters only where their pool is not in order.
        """
        foreign = []
        for slice_ in self._counters:
            pool = PoolID(slice_.spec.driver, slice_.spec.pool.name)
            if not slice_.spec.node_name:
                continue
            spread = any(other.spec.node_name != slice_.spec.node_name for other in self._of_pool[pool])
            made = self._pool(pool, [slice_], None)
            if spread or (made is not None and not made.usable):
                foreign.append(slice_)
        return tuple(foreign)

    def _pool(self, pool: PoolID, slices: list[ResourceSlice], node: Node | None) -> Pool | None:
        """The pool made of the slices that are for the node; None if a newer generation is there."""
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
            others = [slice_ for slice_ in same if not any(slice_ is mine for mine in slices)]
        return self._complete_pool(pool, sorted(slices, key=lambda slice_: slice_.metadata.name), others, node)

    def _invalid_though_incomplete(self, slices: list[ResourceSlice]) -> str:
        # All others do not look into a pool that is incomplete.
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
        """Return whether devices of the slice count; since 1.35 none do beside counters, which 1.34 stored so."""
        return not (spec.shared_counters and self._counters_apart and self._features.partitionable_devices)

    def _servable(self, spec: ResourceSliceSpec, node: Node | None) -> bool:
        # The allocators that do not know of the gate do not look either.
        known = self._features.release.gate(_OPTIONAL_OPERATIONS) is not None
        if not spec.skip_node_operations or not self._features.experimental or not known:
            return True
        declared = node.status.declared_features if node is not None else ()
        return self._features.optional_node_operations and _OPTIONAL_OPERATIONS in declared

    def _content(self, driver: str, device: Device) -> Content:
        known = self._content_of.get((driver, id(device)))
        if known is None:
            key = b"%s %s" % (driver.encode(), encode_json(self._read.distinguishing(device, driver)))
            content = self._contents.setdefault(key, Content(len(self._contents), driver, device))
            known = self._content_of[driver, id(device)] = (device, content)
        return known[1]


def _has_binding_devices(slice_: ResourceSlice) -> bool:
    return any(device.binding_conditions for device in slice_.spec.devices)


def _uses_groups(spec: ResourceSliceSpec) -> bool:
    return any(consumption.compatibility_groups for device in spec.devices for consumption in device.consumes_counters)


def _targets(place: ResourceSliceSpec | Device, node: Node) -> bool:
    """Return whether the slice or device is for the node; one that says nothing known is for none."""
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
    """The node name and the node selector that hold for the device."""
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
            known = counters.get(consumption.counter_set)
            if known is None:
                return f"counter set {consumption.counter_set} not found"
            for name in consumption.counters:
                if name not in known.counters:
                    return f"counter {name} not found in counter set {known.name}"
    return ""


# Releases without a fixed order of search range over Go maps, in another order each time.
# Of more orders than these, as many are taken, evenly.
MAX_ORDERS: Final = 24

T = TypeVar("T")


def orders(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """The pools in other orders than the one given: all, or `MAX_ORDERS` of them."""
    slices = [_slices(pool) for pool in pools]
    count = factorial(len(pools)) * prod(factorial(len(each)) for each in slices)
    step = count // MAX_ORDERS | 1 if count > MAX_ORDERS else 1
    for number in range(step, count, step):
        rest, made = number, []
        for pool, each in zip(pools, slices, strict=True):
            rest, inside = divmod(rest, factorial(len(each)))
            made.append(replace(pool, candidates=tuple(chain.from_iterable(_permutation(each, inside)))))
        yield tuple(_permutation(made, rest))


def _permutation(items: Sequence[T], number: int) -> list[T]:
    """The permutation of that number, of as many as there are; number 0 leaves the items as they are."""
    left, made = list(items), []
    for size in range(len(items), 0, -1):
        number, index = divmod(number, size)
        made.append(left.pop(index))
    return made


def _slices(pool: Pool) -> list[tuple[Candidate, ...]]:
    return [tuple(group) for _, group in groupby(pool.candidates, key=lambda candidate: id(candidate.slice))]


# Node selectors: which nodes they choose (k8s.io/component-helpers nodeaffinity), and their union in an allocation.


def selects(selector: NodeSelector, node: Node) -> bool:
    """Return whether any term holds; a term without requirements holds for no node."""
    return any(_term_holds(term, node) for term in selector.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(requirement_holds(each, node.metadata.labels) for each in term.match_expressions) and all(
        requirement_holds(each, fields) for each in term.match_fields
    )


def requirement_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Return whether labels, or fields, satisfy one requirement; an unknown operator holds for none."""
    check = _OPERATORS.get(requirement.operator)
    return check is not None and check(labels.get(requirement.key), requirement.values)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


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
    """The selector of one node."""
    requirement = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(requirement,)),))


def union(selectors: Iterable[NodeSelector]) -> NodeSelector | None:
    """One term with the requirements of the single terms of all, equal ones once; None if there are none."""
    terms = [term for selector in selectors for term in selector.node_selector_terms[:1]]
    fields = _distinct(each for term in terms for each in term.match_fields)
    expressions = _distinct(each for term in terms for each in term.match_expressions)
    if not fields and not expressions:
        return None
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=fields, match_expressions=expressions),))


def _distinct(requirements: Iterable[NodeSelectorRequirement]) -> tuple[NodeSelectorRequirement, ...]:
    seen: dict[tuple[str, str, frozenset[str]], NodeSelectorRequirement] = {}
    for each in requirements:
        seen.setdefault((each.key, each.operator, frozenset(each.values)), each)
    return tuple(seen.values())
