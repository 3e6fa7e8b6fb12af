"""Decides what claims to offer for a fleet: one for a whole NUMA node, for half a socket, for a GPU with its share.

A shape is made for the bundles that have the same devices and much the same amounts, and asks for what the smallest of
them has, so that it fits on all of them. It is written as ResourceClaimTemplates with the DeviceClasses that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from dranode.api.resource import (
    CapacityRequirements,
    CELSelector,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ObjectMeta,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from dranode.sim.bundle.groups import NUMA_NODE, PCIE_ROOT, Bundle, DeviceAmount, DeviceKind, quantity, selector_of

# Bundles whose amounts differ by no more than a tenth get one shape.
_ALIKE: Final = Fraction(9, 10)
_SOCKET: Final = "socketID"
_PCI: Final = frozenset(("pciBusID", "pcieRoot"))
# A claim has at most so many devices (`AllocationResultsMaxSize` of resource.k8s.io/v1).
_MOST_DEVICES: Final = 32


@dataclass(frozen=True, slots=True)
class Want:
    """One request of a shape.

    Attributes:
        name: the request's name.
        kind: what it asks for.
        amount: how many devices, or how much of the capacity of one.
    """

    name: str
    kind: DeviceKind
    amount: Fraction

    @property
    def count(self) -> int:
        """Return how many devices it asks for."""
        return 1 if self.kind.capacity else int(self.amount)


@dataclass(frozen=True, slots=True)
class Alignment:
    """An attribute whose value the devices of these requests share."""

    attribute: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A claim to offer.

    Attributes:
        name: of the ResourceClaimTemplate.
        title: what it is, for people.
        wants: its requests.
        alignments: its constraints.
        left_out: kinds of the bundle of which it would ask for less than can be asked for.
    """

    name: str
    title: str
    wants: tuple[Want, ...]
    alignments: tuple[Alignment, ...]
    left_out: tuple[DeviceKind, ...] = ()

    @property
    def problem(self) -> str:
        """Return why no claim can ask for it; empty if one can."""
        count = sum(want.count for want in self.wants)
        return f"it has {count} devices; a claim can have at most {_MOST_DEVICES}" if count > _MOST_DEVICES else ""


def numa_shapes(bundles: Iterable[Bundle]) -> Iterator[Shape]:
    """Yield a shape for everything of one NUMA node, by what NUMA nodes have."""
    yield from _numbered("numa-node", "everything of one NUMA node", _alike(bundles), lambda _, whole: whole)


def half_socket_shapes(bundles: Iterable[Bundle]) -> Iterator[Shape]:
    """Yield a shape for half a socket: half of its only NUMA node, or half of its NUMA nodes where they are even."""
    of_socket = _by_socket(bundles)
    alone = [its[0] for its in of_socket.values() if len(its) == 1]
    yield from _numbered("half-socket", "half of a socket, on one NUMA node", _alike(alone), lambda _, whole: whole / 2)
    several = [its for its in of_socket.values() if len(its) > 1 and len(its) % 2 == 0]
    # Half of two NUMA nodes is one of them, which has a shape already.
    for half in sorted({len(its) // 2 for its in several} - {1}):
        groups = _alike(bundle for its in several if len(its) == 2 * half for bundle in its)
        for shape in _numbered(f"half-socket-{half}-nodes", "half of a socket", groups, lambda _, whole: whole):
            yield _repeated(shape, half, _socket_attributes(bundle for its in several for bundle in its))


def half_socket_notes(bundles: Iterable[Bundle]) -> Iterator[str]:
    """Yield why some sockets have no shape for half of them, one sentence each."""
    sizes = {len(its) for its in _by_socket(bundles).values()}
    if 2 in sizes:  # noqa: PLR2004 - two halves
        yield "half of a socket with two NUMA nodes is one NUMA node"
    if any(size > 1 and size % 2 for size in sizes):
        yield "sockets with an odd number of NUMA nodes have no half that ends at a NUMA node"


def left_out_notes(shapes: Iterable[Shape]) -> Iterator[str]:
    """Yield what shapes do not ask for, since their part of it is less than one can ask for, one sentence each."""
    for shape in shapes:
        if shape.left_out:
            names = ", ".join(kind.name for kind in shape.left_out)
            yield f"{shape.name} asks for no {names}: its share is smaller than the minimum request"


def share_shapes(bundles: Iterable[Bundle]) -> Iterator[tuple[Shape, Shape]]:
    """Yield, for every kind of PCI device, a shape for one of them with its share of everything else of its NUMA node.

    The first of each pair asks besides that other PCI devices sit below the same PCIe root; the second does without.
    """
    bundles = tuple(bundles)
    for kind in sorted({each.kind for bundle in bundles for each in bundle.devices if _on_pci(bundle, each.kind)}):
        groups = _alike(bundle for bundle in bundles if bundle.amounts().get(kind))
        near = tuple(sorted(other for other in _pci_kinds(bundles) if other != kind))

        def share(bundle: Bundle, whole: Fraction, kind: DeviceKind = kind) -> Fraction:
            return whole / bundle.amounts()[kind]

        for shape in _numbered(f"one-{kind.request}", f"one {kind.name} with its share of a NUMA node", groups, share):
            requests = tuple(want.name for want in shape.wants if want.kind == kind or want.kind in near)
            below = (Alignment(PCIE_ROOT, requests),) if len(requests) > 1 else ()
            closer = replace(shape, alignments=(*shape.alignments, *below))
            yield closer, shape


def _alike(bundles: Iterable[Bundle]) -> list[list[Bundle]]:
    """Group bundles of the same devices and much the same amounts, those with most first."""
    groups: list[list[Bundle]] = []
    for bundle in sorted(bundles, key=lambda one: sorted(one.amounts().items()), reverse=True):
        for group in groups:
            if _similar(group[0].amounts(), bundle.amounts()):
                group.append(bundle)
                break
        else:
            groups.append([bundle])
    return groups


def _similar(first: Mapping[DeviceKind, Fraction], other: Mapping[DeviceKind, Fraction]) -> bool:
    return first.keys() == other.keys() and all(
        min(first[kind], other[kind]) >= max(first[kind], other[kind]) * (_ALIKE if kind.capacity else 1)
        for kind in first
    )


def _numbered(
    name: str, title: str, groups: Sequence[Sequence[Bundle]], part: Callable[[Bundle, Fraction], Fraction]
) -> Iterator[Shape]:
    """Yield the shape of each group of bundles, of which `part` says how much of an amount it asks for."""
    shapes = [shape for group in groups if (shape := _shape(name, title, group, part)).wants]
    for number, shape in enumerate(shapes):
        suffix = "" if len(shapes) == 1 else f"-{number + 1}"
        yield replace(shape, name=f"{name}{suffix}")


def _shape(name: str, title: str, bundles: Sequence[Bundle], part: Callable[[Bundle, Fraction], Fraction]) -> Shape:
    asked = {kind: min(_asked(bundle, kind, part) for bundle in bundles) for kind in sorted(bundles[0].amounts())}
    wants = tuple(Want(kind.request, kind, amount) for kind, amount in asked.items() if amount)
    requests = tuple(want.name for want in wants)
    left_out = tuple(kind for kind, amount in asked.items() if not amount)
    return Shape(name, title, wants, (Alignment(NUMA_NODE, requests),) if requests else (), left_out)


def _asked(bundle: Bundle, kind: DeviceKind, part: Callable[[Bundle, Fraction], Fraction]) -> Fraction:
    """Return how much of a kind a bundle can be asked for: whole devices, or an amount that its device may be."""
    wanted = part(bundle, bundle.amounts()[kind])
    if not kind.capacity:
        return Fraction(int(wanted))
    # A request for a part of a capacity is met by one device.
    largest: DeviceAmount = max(
        (each.amount for each in bundle.devices if each.kind == kind), key=lambda one: one.value
    )
    return largest.rounded(wanted)


def _repeated(shape: Shape, times: int, sockets: Mapping[DeviceKind, str]) -> Shape:
    """Return the shape for so many NUMA nodes of one socket; `sockets` names each kind's attribute of the socket."""
    wants = tuple(Want(f"{want.name}-{n}", want.kind, want.amount) for n in range(times) for want in shape.wants)
    nodes = tuple(
        Alignment(each.attribute, tuple(f"{request}-{n}" for request in each.requests))
        for n in range(times)
        for each in shape.alignments
    )
    together: dict[str, list[str]] = {}
    for want in wants:
        if want.kind in sockets:
            together.setdefault(sockets[want.kind], []).append(want.name)
    of_socket = tuple(Alignment(attribute, tuple(requests)) for attribute, requests in together.items())
    return replace(shape, title=f"{shape.title}: {times} NUMA nodes", wants=wants, alignments=(*nodes, *of_socket))


def _socket_attributes(bundles: Iterable[Bundle]) -> dict[DeviceKind, str]:
    """Return, by kind, the qualified name of the attribute that names the socket."""
    return {
        each.kind: name if "/" in name else f"{each.kind.driver}/{name}"
        for bundle in bundles
        for each in bundle.devices
        for name in each.device.attributes
        if name.rpartition("/")[2] == _SOCKET
    }


def _by_socket(bundles: Iterable[Bundle]) -> dict[tuple[str, object], list[Bundle]]:
    """Return the bundles of each socket of each node."""
    of_socket: dict[tuple[str, object], list[Bundle]] = {}
    for bundle in bundles:
        for socket in _sockets(bundle):
            of_socket.setdefault((bundle.node, socket), []).append(bundle)
    return of_socket


def _sockets(bundle: Bundle) -> frozenset[object]:
    """Return the sockets that the devices of a bundle name."""
    return frozenset(
        value
        for each in bundle.devices
        for name in each.device.attributes
        if name.rpartition("/")[2] == _SOCKET
        for value in each.values(name)
    )


def _on_pci(bundle: Bundle, kind: DeviceKind) -> bool:
    identifiers = (
        name.rpartition("/")[2] for each in bundle.devices if each.kind == kind for name in each.device.attributes
    )
    return not kind.capacity and not _PCI.isdisjoint(identifiers)


def _pci_kinds(bundles: Iterable[Bundle]) -> frozenset[DeviceKind]:
    return frozenset(each.kind for bundle in bundles for each in bundle.devices if _on_pci(bundle, each.kind))


_API: str = "resource.k8s.io/v1"


def class_of(kind: DeviceKind, kinds: Iterable[DeviceKind]) -> DeviceClass:
    """Return a class that selects the devices of a kind, and of `kinds` no other."""
    selector = DeviceSelector(cel=CELSelector(expression=selector_of(kind, kinds)))
    return DeviceClass(
        api_version=_API,
        kind="DeviceClass",
        metadata=ObjectMeta(name=kind.name),
        spec=DeviceClassSpec(selectors=(selector,)),
    )


def spec_of(shape: Shape, classes: Mapping[DeviceKind, str]) -> ResourceClaimSpec:
    """Return what a claim of the shape asks for; `classes` has the class of each kind."""
    return ResourceClaimSpec(
        devices=DeviceClaim(
            requests=tuple(_request(want, classes[want.kind]) for want in shape.wants),
            constraints=tuple(
                DeviceConstraint(match_attribute=each.attribute, requests=each.requests) for each in shape.alignments
            ),
        )
    )


def template_of(shape: Shape, classes: Mapping[DeviceKind, str]) -> ResourceClaimTemplate:
    """Return the template of the shape."""
    return ResourceClaimTemplate(
        api_version=_API,
        kind="ResourceClaimTemplate",
        metadata=ObjectMeta(name=shape.name),
        spec=ResourceClaimTemplateSpec(spec=spec_of(shape, classes)),
    )


def _request(want: Want, device_class: str) -> DeviceRequest:
    if want.kind.capacity:
        capacity = CapacityRequirements(requests={want.kind.capacity: quantity(want.amount)})
        exactly = ExactDeviceRequest(device_class_name=device_class, capacity=capacity)
    else:
        exactly = ExactDeviceRequest(device_class_name=device_class, count=want.count)
    return DeviceRequest(name=want.name, exactly=exactly)
