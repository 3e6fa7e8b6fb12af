"""Decides which claims to offer for a fleet: for a whole NUMA node, for half a socket, and for a GPU with its share.

A shape covers all bundles with the same devices and similar amounts. It requests what the smallest of them has, so that
it fits on each. It becomes a ResourceClaimTemplate with the DeviceClasses that it names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from dranode.api.resource import (
    CapacityRequirements,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    ExactDeviceRequest,
    ObjectMeta,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from dranode.sim.bundle.groups import NUMA_NODE, PCIE_ROOT, Bundle, DeviceKind, quantity, selector_of
from dranode.sim.cluster.workload import class_selecting

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
        kind: the kind of device.
        amount: the number of devices, or the amount of capacity from one device.
    """

    name: str
    kind: DeviceKind
    amount: Fraction

    @property
    def count(self) -> int:
        """Return the number of requested devices."""
        return 1 if self.kind.capacity else int(self.amount)


@dataclass(frozen=True, slots=True)
class Alignment:
    """An attribute that has the same value for the devices of these requests."""

    attribute: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A claim to offer.

    Attributes:
        name: the name of the ResourceClaimTemplate.
        title: a description for people.
        wants: its requests.
        alignments: its constraints.
        left_out: kinds of the bundle whose share would be smaller than the minimum request.
    """

    name: str
    title: str
    wants: tuple[Want, ...]
    alignments: tuple[Alignment, ...]
    left_out: tuple[DeviceKind, ...] = ()

    @property
    def problem(self) -> str:
        """Return why a claim cannot have this shape; empty if it can."""
        count = sum(want.count for want in self.wants)
        return f"it has {count} devices; a claim can have at most {_MOST_DEVICES}" if count > _MOST_DEVICES else ""


def numa_shapes(bundles: Iterable[Bundle]) -> Iterator[Shape]:
    """Yield shapes for everything of one NUMA node."""
    yield from _numbered("numa-node", "everything of one NUMA node", _alike(bundles), lambda _, amount: amount)


def half_socket_shapes(bundles: Iterable[Bundle]) -> Iterator[Shape]:
    """Yield shapes for half a socket: half of its only NUMA node, or half of its NUMA nodes if their number is even."""
    sockets = _by_socket(bundles).values()
    single = [socket[0] for socket in sockets if len(socket) == 1]
    title = "half of a socket, on one NUMA node"
    yield from _numbered("half-socket", title, _alike(single), lambda _, amount: amount / 2)
    even = [socket for socket in sockets if len(socket) > 1 and len(socket) % 2 == 0]
    # Half of two NUMA nodes is one NUMA node, which has a shape already.
    for half in sorted({len(socket) // 2 for socket in even} - {1}):
        groups = _alike(bundle for socket in even if len(socket) == 2 * half for bundle in socket)
        for shape in _numbered(f"half-socket-{half}-nodes", "half of a socket", groups, lambda _, amount: amount):
            yield _repeated(shape, half, _socket_attributes(bundle for socket in even for bundle in socket))


def half_socket_notes(bundles: Iterable[Bundle]) -> Iterator[str]:
    """Yield a sentence for each reason why sockets have no shape for one half."""
    sizes = {len(socket) for socket in _by_socket(bundles).values()}
    if 2 in sizes:  # noqa: PLR2004 - two halves
        yield "half of a socket with two NUMA nodes is one NUMA node"
    if any(size > 1 and size % 2 for size in sizes):
        yield "sockets with an odd number of NUMA nodes have no half that ends at a NUMA node"


def left_out_notes(shapes: Iterable[Shape]) -> Iterator[str]:
    """Yield a sentence for each shape that leaves out kinds because their share is too small."""
    for shape in shapes:
        if shape.left_out:
            names = ", ".join(kind.name for kind in shape.left_out)
            yield f"{shape.name} asks for no {names}: its share is smaller than the minimum request"


def share_shapes(bundles: Iterable[Bundle]) -> Iterator[tuple[Shape, Shape]]:
    """Yield, for every kind of PCI device, shapes for one device with its share of the rest of its NUMA node.

    The first shape of each pair also requires the other PCI devices to be below the same PCIe root.
    """
    bundles = tuple(bundles)
    pci_kinds = frozenset(
        device.kind for bundle in bundles for device in bundle.devices if _on_pci(bundle, device.kind)
    )
    for kind in sorted(pci_kinds):
        groups = _alike(bundle for bundle in bundles if bundle.amounts().get(kind))
        near = pci_kinds - {kind}

        def share(bundle: Bundle, amount: Fraction, kind: DeviceKind = kind) -> Fraction:
            return amount / bundle.amounts()[kind]

        for shape in _numbered(f"one-{kind.request}", f"one {kind.name} with its share of a NUMA node", groups, share):
            requests = tuple(want.name for want in shape.wants if want.kind == kind or want.kind in near)
            below = (Alignment(PCIE_ROOT, requests),) if len(requests) > 1 else ()
            closer = replace(shape, alignments=(*shape.alignments, *below))
            yield closer, shape


def _alike(bundles: Iterable[Bundle]) -> list[list[Bundle]]:
    """Group bundles with the same devices and similar amounts, the largest first."""
    groups: list[list[Bundle]] = []
    for bundle in sorted(bundles, key=lambda item: sorted(item.amounts().items()), reverse=True):
        for group in groups:
            if _similar(group[0].amounts(), bundle.amounts()):
                group.append(bundle)
                break
        else:
            groups.append([bundle])
    return groups


def _similar(first: Mapping[DeviceKind, Fraction], second: Mapping[DeviceKind, Fraction]) -> bool:
    return first.keys() == second.keys() and all(
        min(first[kind], second[kind]) >= max(first[kind], second[kind]) * (_ALIKE if kind.capacity else 1)
        for kind in first
    )


def _numbered(
    name: str, title: str, groups: Sequence[Sequence[Bundle]], part: Callable[[Bundle, Fraction], Fraction]
) -> Iterator[Shape]:
    """Yield the shape of each group of bundles; `part` returns how much of an amount it requests."""
    shapes = [shape for group in groups if (shape := _shape(name, title, group, part)).wants]
    for number, shape in enumerate(shapes):
        suffix = "" if len(shapes) == 1 else f"-{number + 1}"
        yield replace(shape, name=f"{name}{suffix}")


def _shape(name: str, title: str, bundles: Sequence[Bundle], part: Callable[[Bundle, Fraction], Fraction]) -> Shape:
    amounts = {kind: min(_requested(bundle, kind, part) for bundle in bundles) for kind in sorted(bundles[0].amounts())}
    wants = tuple(Want(kind.request, kind, amount) for kind, amount in amounts.items() if amount)
    requests = tuple(want.name for want in wants)
    left_out = tuple(kind for kind, amount in amounts.items() if not amount)
    return Shape(name, title, wants, (Alignment(NUMA_NODE, requests),) if requests else (), left_out)


def _requested(bundle: Bundle, kind: DeviceKind, part: Callable[[Bundle, Fraction], Fraction]) -> Fraction:
    """Return how much of a kind to request from a bundle: whole devices, or an allowed amount of a capacity."""
    share = part(bundle, bundle.amounts()[kind])
    if not kind.capacity:
        return Fraction(int(share))
    # A request for capacity is served by a single device.
    amounts = [device.amount for device in bundle.devices if device.kind == kind]
    return max(amounts, key=lambda amount: amount.value).rounded(share)


def _repeated(shape: Shape, times: int, sockets: Mapping[DeviceKind, str]) -> Shape:
    """Return the shape for several NUMA nodes of one socket; `sockets` has the socket attribute of each kind."""
    wants = tuple(Want(f"{want.name}-{n}", want.kind, want.amount) for n in range(times) for want in shape.wants)
    nodes = tuple(
        Alignment(alignment.attribute, tuple(f"{request}-{n}" for request in alignment.requests))
        for n in range(times)
        for alignment in shape.alignments
    )
    together: dict[str, list[str]] = {}
    for want in wants:
        if want.kind in sockets:
            together.setdefault(sockets[want.kind], []).append(want.name)
    of_socket = tuple(Alignment(attribute, tuple(requests)) for attribute, requests in together.items())
    return replace(shape, title=f"{shape.title}: {times} NUMA nodes", wants=wants, alignments=(*nodes, *of_socket))


def _socket_attributes(bundles: Iterable[Bundle]) -> dict[DeviceKind, str]:
    """Return the qualified name of the socket attribute of each kind."""
    return {
        device.kind: name if "/" in name else f"{device.kind.driver}/{name}"
        for bundle in bundles
        for device in bundle.devices
        for name in device.device.attributes
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
    """Return the sockets in the attributes of a bundle's devices."""
    return frozenset(
        value
        for device in bundle.devices
        for name in device.device.attributes
        if name.rpartition("/")[2] == _SOCKET
        for value in device.values(name)
    )


def _on_pci(bundle: Bundle, kind: DeviceKind) -> bool:
    identifiers = (
        name.rpartition("/")[2] for device in bundle.devices if device.kind == kind for name in device.device.attributes
    )
    return not kind.capacity and not _PCI.isdisjoint(identifiers)


_API: str = "resource.k8s.io/v1"


def class_of(kind: DeviceKind, kinds: Iterable[DeviceKind]) -> DeviceClass:
    """Return a class that selects the devices of a kind, and none of the other `kinds`."""
    return class_selecting(kind.name, selector_of(kind, kinds))


def spec_of(shape: Shape, classes: Mapping[DeviceKind, str]) -> ResourceClaimSpec:
    """Return the spec of a claim of this shape; `classes` has the class of each kind."""
    return ResourceClaimSpec(
        devices=DeviceClaim(
            requests=tuple(_request(want, classes[want.kind]) for want in shape.wants),
            constraints=tuple(
                DeviceConstraint(match_attribute=alignment.attribute, requests=alignment.requests)
                for alignment in shape.alignments
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
