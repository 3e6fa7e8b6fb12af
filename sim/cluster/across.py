"""Compares claims, classes, pods and devices that are valid by themselves with each other.

The results are warnings, because Kubernetes accepts such documents, and the missing one may only be in the cluster. A
missing class, claim or template is only reported if the files have others of its kind. An attribute that no device has
is reported if its driver declares its attributes (`Plugin.attribute_names`), or if there are ResourceSlices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from dranode.api.documents import decode, to_v1
from dranode.api.errors import DocumentError
from dranode.api.field_errors import FieldError
from dranode.api.manifests import SourceDocument
from dranode.api.names import qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dranode.sim.cel.expression import compile_selector, names_read
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError
from dranode.sim.cluster.workload import DEFAULT_CLASSES, default_class

_STANDARD: Final = "resource.kubernetes.io"
# The attributes that Kubernetes defines (k8s.io/dynamic-resource-allocation/deviceattribute 0.37).
_STANDARD_NAMES: Final = frozenset(f"{_STANDARD}/{name}" for name in ("numaNode", "pciBusID", "pcieRoot"))
_SIMILAR_NAMES: Final = 0.85


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of the attributes and capacities of devices.

    Attributes:
        attributes: qualified names of attributes.
        capacities: qualified names of capacities.
        domains: the domains of which all attributes are known.
        capacity_domains: the domains of which all capacities are known.
        published: whether the names come from ResourceSlices, so that no device has any others.
        of_drivers: the attributes of each driver, if all are known.
    """

    attributes: frozenset[str] = _STANDARD_NAMES
    capacities: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset((_STANDARD,))
    capacity_domains: frozenset[str] = frozenset()
    published: bool = False
    of_drivers: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, declared: Mapping[str, frozenset[str]], devices: Sequence[tuple[str, Device]]) -> KnownNames:
        """Return the names that drivers declare, and those of devices, each given with its driver."""
        of_drivers = {driver: set(names) for driver, names in declared.items() if names}
        for driver, device in devices:
            of_drivers.setdefault(driver, set()).update(qualified(name, driver) for name in device.attributes)
        capacities = {qualified(name, driver) for driver, device in devices for name in device.capacity}
        drivers = {driver for driver, _ in devices}
        return cls(
            _STANDARD_NAMES.union(*of_drivers.values()),
            frozenset(capacities),
            frozenset((_STANDARD, *of_drivers)),
            frozenset(drivers),
            bool(devices),
            {driver: frozenset(names) for driver, names in of_drivers.items()},
        )

    def among(self, drivers: Collection[str]) -> KnownNames:
        """Return the names for devices of these drivers only, if all of their attributes are known."""
        if not drivers or not all(driver in self.of_drivers for driver in drivers):
            return self
        return replace(self, attributes=_STANDARD_NAMES.union(*(self.of_drivers[driver] for driver in drivers)))


def selector_warnings(selectors: Iterable[DeviceSelector], path: str, known: KnownNames) -> Iterator[FieldError]:
    """Yield a warning for each name in an expression that no device has."""
    for index, selector in enumerate(selectors):
        if selector.cel is not None:
            for kind, domain, name in sorted(set(names_read(selector.cel.expression))):
                problem = _problem(kind, domain, name, known)
                if problem:
                    yield FieldError(f"{path}[{index}].cel.expression", problem)


def constraint_warnings(devices: DeviceClaim, path: str, known: KnownNames) -> Iterator[FieldError]:
    """Yield a warning for each attribute in a constraint that no device has."""
    options = (option for request in devices.requests for option in request.options.values())
    derived = {attribute.name for option in options for attribute in option.derived_attributes}
    for index, constraint in enumerate(devices.constraints):
        for kind, name in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        ):
            if name is None or name in known.attributes or name in derived:
                continue
            domain, _, identifier = name.rpartition("/")
            problem = _problem("attributes", domain, identifier, known)
            if problem or known.published:
                near = get_close_matches(name, known.attributes, 1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                yield FieldError(f"{path}.constraints[{index}].{kind}", f'no device publishes "{name}"{hint}')


def _problem(kind: str, domain: str, name: str, known: KnownNames) -> str:
    """Return why no device has an attribute or a capacity; empty if a device may have it."""
    attribute = kind == "attributes"
    names = known.attributes if attribute else known.capacities
    domains = known.domains if attribute else known.capacity_domains
    if f"{domain}/{name}" in names:
        return ""
    noun = "attribute" if attribute else "capacity"
    if domain not in domains:
        near = get_close_matches(domain, domains, 1, _SIMILAR_NAMES)
        return f'no driver "{domain}" is known; did you mean "{near[0]}"?' if near else ""
    of_domain = sorted(
        known_name.removeprefix(f"{domain}/") for known_name in names if known_name.startswith(f"{domain}/")
    )
    hint = _nearest(name, of_domain)
    # The name is right and the domain is wrong. A similar name of the driver would lead further away.
    if attribute and f"{_STANDARD}/{name}" in names:
        hint = f"; did you mean that of {_STANDARD}?"
    return f'no device has the {noun} "{name}" of {domain}{hint}'


_RESEMBLES: Final = 0.8


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a ResourceSlice among the documents, or one that an installed driver would publish."""

    driver: str
    device: Device


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The documents to compare with.

    Attributes:
        classes: the classes by name.
        classes_written: whether the documents have classes, so that a missing one may be a typo.
        devices: the devices.
        classes_used: whether a claim of the documents names a known class.
        known: the names of attributes and capacities.
    """

    classes: Mapping[str, DeviceClass]
    classes_written: bool
    devices: Sequence[PublishedDevice]
    classes_used: bool
    known: KnownNames


def surroundings(
    documents: Iterable[SourceDocument],
    published: Sequence[PublishedDevice],
    declared: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> Surroundings:
    """Return everything that these documents are compared with.

    `published` are the devices to use without ResourceSlices; `declared` are the attributes of drivers by name.
    """
    used: set[str] = set()
    classes: list[DeviceClass] = []
    devices: list[PublishedDevice] = []
    for source in documents:
        with contextlib.suppress(DocumentError):  # its own verdict reports the error
            if source.kind == "DeviceClass":
                classes.append(decode(DeviceClass, to_v1(source.document)))
            elif source.kind == "ResourceSlice":
                spec = decode(ResourceSlice, to_v1(source.document)).spec
                devices += [PublishedDevice(spec.driver, device) for device in spec.devices]
            elif source.kind in ("ResourceClaim", "ResourceClaimTemplate"):
                used |= _classes_of(to_v1(source.document), source.kind)
    by_name = {item.metadata.name: item for item in (*map(default_class, DEFAULT_CLASSES), *classes)}
    known = KnownNames.of(declared, [(item.driver, item.device) for item in devices])
    return Surroundings(by_name, bool(classes), devices or published, not used.isdisjoint(by_name), known)


def _classes_of(document: Mapping[str, Any], kind: str) -> frozenset[str]:
    """Return the classes that a claim or a template names."""
    if kind == "ResourceClaim":
        return decode(ResourceClaim, document).spec.devices.classes
    return decode(ResourceClaimTemplate, document).spec.spec.devices.classes


def claim_warnings(devices: DeviceClaim, path: str, around: Surroundings) -> Iterator[FieldError]:
    """Yield a warning for each part of the claim's requests that does not match the classes and devices.

    `path` is the path of `devices` in the document (`spec.devices`, or `spec.spec.devices` in a template).
    """
    for index, request in enumerate(devices.requests):
        where = f"{path}.requests[{index}]"
        if request.exactly is not None:
            yield from _request_warnings(request.exactly, f"{where}.exactly", around)
        for number, alternative in enumerate(request.first_available):
            yield from _request_warnings(alternative, f"{where}.firstAvailable[{number}]", around)
    yield from constraint_warnings(devices, path, around.known)


def pod_warnings(
    entries: Iterable[PodResourceClaim],
    namespace: str,
    claims: Collection[tuple[str, str]],
    templates: Collection[tuple[str, str]],
) -> Iterator[FieldError]:
    """Yield a warning for each claim and template that a pod names and the documents (namespace, name) lack."""
    for index, entry in enumerate(entries):
        for source, kind, name, known in (
            ("resourceClaimName", "ResourceClaim", entry.resource_claim_name, claims),
            ("resourceClaimTemplateName", "ResourceClaimTemplate", entry.resource_claim_template_name, templates),
        ):
            if name is not None and known and (namespace, name) not in known:
                near = _nearest(name, [known_name for space, known_name in known if space == namespace])
                yield FieldError(
                    f"spec.resourceClaims[{index}].{source}", f'no {kind} "{namespace}/{name}" is in these files{near}'
                )


def _request_warnings(
    requested: ExactDeviceRequest | DeviceSubRequest, where: str, around: Surroundings
) -> Iterator[FieldError]:
    for index, toleration in enumerate(requested.tolerations):
        if not toleration.key and toleration.operator != "Exists":
            message = (
                f'without a key it tolerates every taint with the value "{toleration.value}"; Exists tolerates all'
            )
            yield FieldError(f"{where}.tolerations[{index}].operator", message)
    name = requested.device_class_name
    device_class = around.classes.get(name)
    if device_class is None:
        if around.classes_written or around.classes_used or get_close_matches(name, around.classes, 1, _RESEMBLES):
            near = _nearest(name, list(around.classes))
            yield FieldError(f"{where}.deviceClassName", f'no DeviceClass "{name}" is in these files{near}')
        yield from selector_warnings(requested.selectors, f"{where}.selectors", around.known)
        return
    of_class = [published for published in around.devices if _chooses(device_class, published)]
    known = around.known.among({published.driver for published in of_class})
    yield from selector_warnings(requested.selectors, f"{where}.selectors", known)
    chosen = [published.device for published in of_class]
    if not chosen:
        return
    capacities: Mapping[str, Quantity] = requested.capacity.requests if requested.capacity is not None else {}
    published = sorted({capacity for device in chosen for capacity in device.capacity})
    for capacity in capacities:
        if capacity not in published:
            hint = f"they have {', '.join(published)}" if published else "they have none"
            yield FieldError(
                f"{where}.capacity.requests", f'no device of class "{name}" has a capacity "{capacity}"; {hint}'
            )
    count = requested.count or 1
    shared = _shared_capacity(chosen, capacities)
    if count > 1 and requested.allocation_mode in ("", "ExactCount") and shared is not None:
        capacity, default = shared
        yield FieldError(
            f"{where}.count",
            f"this asks for {count} devices with {default} of {capacity} each, the default; for {count} of {capacity} "
            f'from one device, remove count and set capacity: {{requests: {{{capacity}: "{count}"}}}}',
        )


def _shared_capacity(devices: Sequence[Device], requests: Mapping[str, Quantity]) -> tuple[str, Quantity] | None:
    """Return a shared capacity and its default, if all devices have it and the request does not set it."""
    for name, capacity in devices[0].capacity.items():
        policy = capacity.request_policy
        if name in requests or policy is None or policy.default is None:
            continue
        if all(device.allow_multiple_allocations and name in device.capacity for device in devices):
            return name, policy.default
    return None


def _chooses(device_class: DeviceClass, published: PublishedDevice) -> bool:
    """Return whether the class selects the device; a failing selector is reported elsewhere, or fits other devices."""
    try:
        return all(
            selector.cel is not None
            and compile_selector(selector.cel.expression).matches(published.driver, published.device)
            for selector in device_class.spec.selectors
        )
    except (CELCompileError, CELRuntimeError):
        return False


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(sorted(known))}" if known else ""
