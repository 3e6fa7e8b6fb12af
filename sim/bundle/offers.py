"""Makes the offers for a fleet: its bundles, and a proved claim template for each shape of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dranode.api.errors import number_of
from dranode.api.resource import DeviceClass, Node
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.outcome import AllocationError
from dranode.sim.allocator.pools import Content
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated
from dranode.sim.bundle.groups import NUMA_NODE, PCIE_ROOT, Bundle, BundledDevice, bundles
from dranode.sim.bundle.kinds import DeviceKind, Kinds
from dranode.sim.bundle.manifests import class_of
from dranode.sim.bundle.proof import Grounds, Proof, prove
from dranode.sim.bundle.shapes import (
    Shape,
    half_socket_notes,
    half_socket_shapes,
    left_out_notes,
    numa_shapes,
    share_shapes,
)
from dranode.sim.bundle.unplaced import unplaced_notes
from dranode.sim.cluster.pods import ClusterDocuments
from dranode.sim.cluster.views import NodeViews, View
from dranode.sim.cluster.workload import DEFAULT_CLASSES, default_class
from dranode.sim.fit.allocating import allocate_in_turn


@dataclass(frozen=True, slots=True)
class Offer:
    """A shape with its proof."""

    shape: Shape
    proof: Proof


@dataclass(frozen=True, slots=True)
class Offers:
    """The answer about a fleet.

    Attributes:
        bundles: all of them, by node, for each attribute.
        offers: the shapes.
        classes: the name of the DeviceClass of each kind of device.
        missing: the classes that the cluster does not have and the templates need.
        notes: what is in no bundle, one sentence each.
    """

    bundles: tuple[Bundle, ...]
    offers: tuple[Offer, ...]
    classes: Mapping[DeviceKind, str]
    missing: tuple[DeviceClass, ...]
    notes: tuple[str, ...]


def offers_for(cluster: ClusterDocuments, features: Features, single: frozenset[str] = frozenset()) -> Offers:
    """Return the bundles of the nodes, and templates with how many fit beside the claims that are allocated.

    Args:
        cluster: the slices, classes, nodes and claims.
        features: the feature gates that are on.
        single: the nodes of which it was seen that they have one NUMA node only; slices do not say it.
    """
    views = _views(_allocator(cluster, cluster.classes, features), cluster.nodes)
    candidates = [candidate for view in views for candidate in view.candidates]
    kinds = Kinds(candidates)
    there = {each.metadata.name for each in cluster.classes}
    defaults = {name: default_class(name) for name in DEFAULT_CLASSES if name not in there}
    classes = _existing_classes(kinds, views, cluster.classes, features)
    by_default = _existing_classes(kinds, views, defaults.values(), features)
    # A class of deploy/ is called so in tables too, whether the cluster has it or not.
    kinds = Kinds(candidates, by_default | {kind: name for kind, name in classes.items() if name in DEFAULT_CLASSES})
    classes = by_default | classes
    missing = tuple(
        defaults[classes[kind]] if kind in classes else class_of(kind, kinds)
        for kind in kinds
        if classes.get(kind) not in there
    )
    classes |= {kind: kind.name for kind in kinds if kind not in classes}
    allocator = _allocator(cluster, (*cluster.classes, *missing), features)
    views = _views(allocator, cluster.nodes)
    devices = {
        view.node.metadata.name: [BundledDevice.of(candidate, kinds) for candidate in view.candidates] for view in views
    }
    found = tuple(
        bundle
        for attribute in (NUMA_NODE, PCIE_ROOT)
        for node, its in devices.items()
        for bundle in bundles(node, its, attribute)
    )
    on_nodes = [bundle for bundle in found if bundle.attribute == NUMA_NODE]
    taken, waiting = _taken(cluster, features)
    grounds = Grounds(allocator, views, {each.name: each for its in devices.values() for each in its}, taken)

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
    return Offers(found, tuple(made), classes, missing, notes)


def _taken(cluster: ClusterDocuments, features: Features) -> tuple[Allocated, tuple[str, ...]]:
    """Return what claims have, once the pods that wait are placed, and a note on these."""
    numbers = itertools.count(1)
    pods = tuple(pod for pod in cluster.pods if pod.pod is not None or all(c.status.allocation for c in pod.claims))
    placed = allocate_in_turn(replace(cluster, pods=pods), pods, features, lambda: f"waiting-{next(numbers)}")
    made = [each.allocation for placement in placed for each in placement.outcomes if each.allocation is not None]
    claims = (claim for pod in cluster.pods for claim in pod.claims)
    counted = f"{number_of(len(made), 'claim')} of pods that wait {'counts' if len(made) == 1 else 'count'}"
    return Allocated.of(claims).with_allocations(made), (f"{counted} as allocated",) if made else ()


def _allocator(cluster: ClusterDocuments, classes: Sequence[DeviceClass], features: Features) -> Allocator:
    numbers = itertools.count(1)
    return Allocator(cluster.slices, classes, features, new_share_id=lambda: str(next(numbers)), rules=cluster.rules)


def _views(allocator: Allocator, nodes: Sequence[Node]) -> list[View]:
    numbered = NodeViews(allocator.inventory)
    return [numbered.view(node) for node in nodes]


def _existing_classes(
    kinds: Kinds, views: Iterable[View], classes: Iterable[DeviceClass], features: Features
) -> dict[DeviceKind, str]:
    """Return the classes of the cluster that select all devices of a kind and no other, the first by name."""
    by_kind: dict[DeviceKind, set[int]] = {kind: set() for kind in kinds}
    contents: dict[int, Content] = {}
    for view in views:
        for candidate in view.candidates:
            contents[candidate.content.number] = candidate.content
            by_kind[kinds.of(candidate)].add(candidate.content.number)
    selectors = Selectors(features)
    found: dict[DeviceKind, str] = {}
    for each in sorted(classes, key=lambda one: one.metadata.name):
        try:
            chosen = {number for number, content in contents.items() if selectors.in_class(each, content)}
        except AllocationError:
            continue  # no claim can use it
        for kind in kinds:
            if chosen == by_kind[kind] and not each.spec.config:
                found.setdefault(kind, each.metadata.name)
    return found


def _unusable(views: Iterable[View]) -> Iterator[str]:
    """Yield which pools nothing is taken from, as kube-scheduler takes nothing from them."""
    pools = {pool.id: pool for view in views for pool in view.pools if not pool.usable}
    for name, pool in sorted(pools.items()):
        why = pool.invalid or "not all of its slices were seen"
        yield f"the devices of pool {name} are in no bundle: {why}"
