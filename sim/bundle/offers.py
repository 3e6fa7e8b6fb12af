"""Makes the offers for a fleet: its bundles, and a claim template for each shape, proved on the fleet.

To prove a shape, its claims are allocated until no more fit, and the devices of each are checked. Devices that do not
report their location are noted, because nothing can be aligned with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dranode.api.errors import number_of
from dranode.api.resource import AllocationResult, DeviceClass, Node, ObjectMeta, ResourceClaim
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Content
from dranode.sim.allocator.requests import AllocationError
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated, PoolState
from dranode.sim.bundle.groups import (
    NUMA_NODE,
    PCIE_ROOT,
    Bundle,
    BundledDevice,
    DeviceKind,
    Kinds,
    bundles,
    shared_values,
)
from dranode.sim.bundle.shapes import (
    Shape,
    class_of,
    half_socket_notes,
    half_socket_shapes,
    left_out_notes,
    numa_shapes,
    share_shapes,
    spec_of,
)
from dranode.sim.cluster.devices import NodeViews, View
from dranode.sim.cluster.pods import ClusterDocuments
from dranode.sim.cluster.workload import DEFAULT_CLASSES, default_class
from dranode.sim.fit.allocating import allocate_in_turn

_PCI_ADDRESS: Final = "pciBusID"
# How many devices of a kind are named; the others are counted.
_MOST_NAMED: Final = 4


def unplaced_notes(devices: Mapping[str, Sequence[BundledDevice]], single: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each kind with devices that are in no bundle, because they do not report their location.

    Args:
        devices: the devices of each node.
        single: the nodes with a single NUMA node, where all devices are near each other.
    """
    doubtful: dict[DeviceKind, list[str]] = {}
    near: dict[DeviceKind, list[str]] = {}
    rootless: dict[DeviceKind, list[str]] = {}
    for node, of_node in devices.items():
        for device in of_node:
            name = f"{node}/{device.device.name}"
            if not device.values(NUMA_NODE):
                (near if node in single else doubtful).setdefault(device.kind, []).append(name)
            if _on_pci(device) and not device.values(PCIE_ROOT):
                rootless.setdefault(device.kind, []).append(name)
    for kind, names in sorted(doubtful.items()):
        words = _Words.of(names, kind)
        yield (
            f"{words.subject} not report {words.their} NUMA node, so {words.they} in no bundle of a NUMA node and in "
            f"no template; a NUMA node may have more devices than shown"
        )
    for kind, names in sorted(near.items()):
        words = _Words.of(names, kind)
        yield (
            f"{words.subject} not report {words.their} NUMA node, so {words.they} in no bundle of a NUMA node and in "
            f"no template; the node has only one, so request {words.them} without a constraint by NUMA node"
        )
    for kind, names in sorted(rootless.items()):
        words = _Words.of(names, kind)
        yield (f"{words.subject} not report {words.their} PCIe root, so {words.they} in no bundle of a PCIe root")


@dataclass(frozen=True, slots=True)
class _Words:
    """The words for one device or several."""

    subject: str
    their: str
    them: str
    they: str

    @classmethod
    def of(cls, names: Sequence[str], kind: DeviceKind) -> _Words:
        named = ", ".join(names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        if len(names) == 1:
            return cls(f"1 device of {kind.name} ({named}) does", "its", "it", "it is")
        return cls(f"{len(names)} devices of {kind.name} ({named}{more}) do", "their", "them", "they are")


def _on_pci(device: BundledDevice) -> bool:
    return any(name.rpartition("/")[2] == _PCI_ADDRESS for name in device.device.attributes)


# More claims on one node are not realistic, and each costs a search.
_MOST_ON_A_NODE: Final = 512


@dataclass(frozen=True, slots=True)
class Grounds:
    """The fleet that shapes are proved on.

    Attributes:
        allocator: the fleet's allocator.
        views: its nodes.
        devices: its devices by driver, pool and name.
        allocated: the devices that are already allocated.
    """

    allocator: Allocator
    views: Sequence[View]
    devices: Mapping[tuple[str, str, str], BundledDevice]
    allocated: Allocated


@dataclass(frozen=True, slots=True)
class Proof:
    """The allocator's answer about a shape.

    Attributes:
        nodes: how many claims fit on each node at the same time; nodes without any are left out.
        problem: why the shape is not proved; empty if it is.
        capped: whether counting stopped at the limit on a node.
    """

    nodes: Mapping[str, int]
    problem: str = ""
    capped: bool = False

    @property
    def count(self) -> int:
        """Return how many claims fit at the same time."""
        return sum(self.nodes.values())


def prove(shape: Shape, classes: Mapping[DeviceKind, str], grounds: Grounds) -> Proof:
    """Allocate claims of the shape on one node after another; `classes` has the class of each kind of device."""
    allocated = grounds.allocated
    nodes: dict[str, int] = {}
    counts: dict[int, int] = {}
    why = ""
    claim = ResourceClaim(metadata=ObjectMeta(name=shape.name, namespace="default"), spec=spec_of(shape, classes))
    for view in grounds.views:
        # Identical nodes have room for the same number of claims.
        alike = not view.shared and not any(allocated.pool(pool.id) != PoolState() for pool in view.pools)
        if not alike or view.kind not in counts:
            count, after = 0, allocated
            while count < _MOST_ON_A_NODE:
                (outcome,) = grounds.allocator.allocate([claim], view.node, after)
                if outcome.allocation is None:
                    why = outcome.error or why
                    break
                problem = _misaligned(shape, outcome.allocation, grounds.devices)
                if problem:
                    return Proof({}, problem)
                count, after = count + 1, after.with_allocations([outcome.allocation])
            counts[view.kind] = count
            if view.shared:
                allocated = after
        if counts[view.kind]:
            nodes[view.node.metadata.name] = counts[view.kind]
    return Proof(nodes, "" if nodes else why, capped=_MOST_ON_A_NODE in nodes.values())


def _misaligned(
    shape: Shape, allocation: AllocationResult, devices: Mapping[tuple[str, str, str], BundledDevice]
) -> str:
    """Return the alignment that the devices of an allocation violate; empty if they satisfy all."""
    by_request: dict[str, list[BundledDevice]] = {}
    for result in readable_results(allocation):
        by_request.setdefault(result.request, []).append(devices[result.driver, result.pool, result.device])
    for alignment in shape.alignments:
        together = [device for request in alignment.requests for device in by_request.get(request, ())]
        if not shared_values(together, alignment.attribute):
            return f"the devices that it got do not share {alignment.attribute}"
    return ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A shape with its proof."""

    shape: Shape
    proof: Proof


@dataclass(frozen=True, slots=True)
class Offers:
    """The answer about a fleet.

    Attributes:
        bundles: all bundles, by attribute and node.
        offers: the shapes with their proofs.
        classes: the name of the DeviceClass of each kind of device.
        missing: the classes that the templates need and the cluster lacks.
        notes: one sentence for everything that is in no bundle.
    """

    bundles: tuple[Bundle, ...]
    offers: tuple[Offer, ...]
    classes: Mapping[DeviceKind, str]
    missing: tuple[DeviceClass, ...]
    notes: tuple[str, ...]


def offers_for(cluster: ClusterDocuments, features: Features, single: frozenset[str] = frozenset()) -> Offers:
    """Return the bundles of the nodes, and templates with how many fit in addition to the allocated claims.

    Args:
        cluster: the slices, classes, nodes and claims.
        features: the feature gates.
        single: the nodes that are known to have a single NUMA node; slices do not report it.
    """
    views = _views(_allocator(cluster, cluster.classes, features), cluster.nodes)
    candidates = [candidate for view in views for candidate in view.candidates]
    kinds = Kinds(candidates)
    existing = {item.metadata.name for item in cluster.classes}
    defaults = {name: default_class(name) for name in DEFAULT_CLASSES if name not in existing}
    classes = _existing_classes(kinds, views, cluster.classes, features)
    by_default = _existing_classes(kinds, views, defaults.values(), features)
    # Tables use the name of a class in deploy/ even if the cluster does not have it.
    kinds = Kinds(candidates, by_default | {kind: name for kind, name in classes.items() if name in DEFAULT_CLASSES})
    classes = by_default | classes
    missing = tuple(
        defaults[classes[kind]] if kind in classes else class_of(kind, kinds)
        for kind in kinds
        if classes.get(kind) not in existing
    )
    classes |= {kind: kind.name for kind in kinds if kind not in classes}
    allocator = _allocator(cluster, (*cluster.classes, *missing), features)
    views = _views(allocator, cluster.nodes)
    devices = {
        view.node.metadata.name: [BundledDevice.of(candidate, kinds) for candidate in view.candidates] for view in views
    }
    all_bundles = tuple(
        bundle
        for attribute in (NUMA_NODE, PCIE_ROOT)
        for node, of_node in devices.items()
        for bundle in bundles(node, of_node, attribute)
    )
    on_nodes = [bundle for bundle in all_bundles if bundle.attribute == NUMA_NODE]
    allocated, waiting = _allocated(cluster, features)
    by_name = {device.name: device for of_node in devices.values() for device in of_node}
    grounds = Grounds(allocator, views, by_name, allocated)

    def offered(shape: Shape) -> Offer:
        problem = shape.problem
        return Offer(shape, Proof({}, problem) if problem else prove(shape, classes, grounds))

    made = [offered(shape) for shape in (*numa_shapes(on_nodes), *half_socket_shapes(on_nodes))]
    for closer, shape in share_shapes(on_nodes):
        near, far = offered(closer), offered(shape)
        made.append(near if near.proof.count and near.proof.count == far.proof.count else far)
    notes = (
        *waiting,
        *_unusable(views),
        *unplaced_notes(devices, single),
        *half_socket_notes(on_nodes),
        *left_out_notes(offer.shape for offer in made),
    )
    return Offers(all_bundles, tuple(made), classes, missing, notes)


def _allocated(cluster: ClusterDocuments, features: Features) -> tuple[Allocated, tuple[str, ...]]:
    """Return the allocated devices after placing the waiting pods, and a note on those."""
    numbers = itertools.count(1)
    pods = tuple(pod for pod in cluster.pods if pod.pod is not None or all(c.status.allocation for c in pod.claims))
    placed = allocate_in_turn(replace(cluster, pods=pods), pods, features, lambda: f"waiting-{next(numbers)}")
    allocations = [
        outcome.allocation for placement in placed for outcome in placement.outcomes if outcome.allocation is not None
    ]
    claims = (claim for pod in cluster.pods for claim in pod.claims)
    counted = (
        f"{number_of(len(allocations), 'claim')} of pods that wait {'counts' if len(allocations) == 1 else 'count'}"
    )
    return Allocated.of(claims).with_allocations(allocations), (f"{counted} as allocated",) if allocations else ()


def _allocator(cluster: ClusterDocuments, classes: Sequence[DeviceClass], features: Features) -> Allocator:
    numbers = itertools.count(1)
    return Allocator(cluster.slices, classes, features, new_share_id=lambda: str(next(numbers)), rules=cluster.rules)


def _views(allocator: Allocator, nodes: Sequence[Node]) -> list[View]:
    numbered = NodeViews(allocator.inventory)
    return [numbered.view(node) for node in nodes]


def _existing_classes(
    kinds: Kinds, views: Iterable[View], classes: Iterable[DeviceClass], features: Features
) -> dict[DeviceKind, str]:
    """Return for each kind the first class by name that selects exactly its devices."""
    by_kind: dict[DeviceKind, set[int]] = {kind: set() for kind in kinds}
    contents: dict[int, Content] = {}
    for view in views:
        for candidate in view.candidates:
            contents[candidate.content.number] = candidate.content
            by_kind[kinds.of(candidate)].add(candidate.content.number)
    selectors = Selectors(features)
    names: dict[DeviceKind, str] = {}
    for device_class in sorted(classes, key=lambda item: item.metadata.name):
        try:
            chosen = {number for number, content in contents.items() if selectors.in_class(device_class, content)}
        except AllocationError:
            continue  # claims cannot use this class
        for kind in kinds:
            if chosen == by_kind[kind] and not device_class.spec.config:
                names.setdefault(kind, device_class.metadata.name)
    return names


def _unusable(views: Iterable[View]) -> Iterator[str]:
    """Yield a note on each pool from which kube-scheduler does not allocate."""
    pools = {pool.id: pool for view in views for pool in view.pools if not pool.usable}
    for name, pool in sorted(pools.items()):
        why = pool.invalid or "not all of its slices were seen"
        yield f"the devices of pool {name} are in no bundle: {why}"
