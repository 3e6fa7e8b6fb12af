"""The rules by which the API server accepts or refuses claims, templates, DeviceClasses, and a pod's use of claims.

Source: validation of `resource.k8s.io/v1` in Kubernetes 1.34 to 1.37 (KEP-4381, 4816, 5018, 5055, 5075). Each function
yields every error, with its path in the v1 form of the document.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from dranode.api.field_errors import FieldError, count_errors, description_errors, label_errors, metadata_errors
from dranode.api.names import is_dns_label, is_dns_subdomain, is_label_name, is_label_value, is_qualified_name
from dranode.api.resource import (
    ContainerClaim,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    Pod,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimTemplate,
)
from dranode.api.slice_validation import EFFECTS

MAX_ENTRIES: Final = 32  # requests, constraints, configurations, selectors, names in a list of requests
MAX_ALTERNATIVES: Final = 8
MAX_PARAMETERS: Final = 10 * 1024
MAX_RESULTS: Final = 32  # devices that one claim can be given
# The error of a v1 request with both forms; v1beta1 has no `exactly`.
BOTH_FORMS: Final = "exactly one of exactly and firstAvailable is required, but both are set"
_MODES: Final = ("ExactCount", "All")

T = TypeVar("T")
CheckExpression: TypeAlias = Callable[[str], str | None]


def claim_errors(claim: ResourceClaim, check_expression: CheckExpression) -> tuple[FieldError, ...]:
    """Return every error of a claim; `check_expression` returns the error in a CEL selector, or None."""
    rules = _Rules(check_expression)
    return (*metadata_errors(claim.metadata), *rules.devices(claim.spec.devices, "spec.devices"))


def template_errors(template: ResourceClaimTemplate, check_expression: CheckExpression) -> tuple[FieldError, ...]:
    """Return every error of a template."""
    rules = _Rules(check_expression)
    return (
        *metadata_errors(template.metadata),
        *description_errors(template.spec.metadata, "spec.metadata"),
        *rules.devices(template.spec.spec.devices, "spec.spec.devices"),
    )


def class_errors(device_class: DeviceClass, check_expression: CheckExpression) -> tuple[FieldError, ...]:
    """Return every error of a class."""
    rules = _Rules(check_expression)
    spec = device_class.spec
    return (
        *metadata_errors(device_class.metadata),
        *rules.selectors(spec.selectors, "spec.selectors"),
        *count_errors(spec.config, MAX_ENTRIES, "spec.config"),
        *(error for index, config in enumerate(spec.config) for error in _opaque(config, f"spec.config[{index}]")),
        *_extended_resource(spec.extended_resource_name, "spec.extendedResourceName"),
    )


class _Rules:
    def __init__(self, check_expression: CheckExpression) -> None:
        self.check_expression = check_expression

    def devices(self, devices: DeviceClaim, path: str) -> Iterator[FieldError]:
        # Constraints and configurations refer to requests by these names.
        names = _request_names(devices)
        yield from _set([request.name for request in devices.requests], MAX_ENTRIES, f"{path}.requests", ".name")
        for index, request in enumerate(devices.requests):
            yield from self.request(request, f"{path}.requests[{index}]")
        yield from count_errors(devices.constraints, MAX_ENTRIES, f"{path}.constraints")
        for index, constraint in enumerate(devices.constraints):
            yield from _constraint(constraint, names, f"{path}.constraints[{index}]")
        yield from count_errors(devices.config, MAX_ENTRIES, f"{path}.config")
        for index, config in enumerate(devices.config):
            yield from _references(config.requests, names, f"{path}.config[{index}].requests")
            yield from _opaque(config, f"{path}.config[{index}]")

    def request(self, request: DeviceRequest, path: str) -> Iterator[FieldError]:
        yield from label_errors(request.name, f"{path}.name")
        if request.exactly is not None and request.first_available:
            yield FieldError(path, BOTH_FORMS)
        elif request.exactly is not None:
            yield from self.class_request(request.exactly, f"{path}.exactly")
        elif request.first_available:
            listed = f"{path}.firstAvailable"
            names = [alternative.name for alternative in request.first_available]
            yield from _set(names, MAX_ALTERNATIVES, listed, ".name")
            for index, alternative in enumerate(request.first_available):
                yield from label_errors(alternative.name, f"{listed}[{index}].name")
                yield from self.class_request(alternative, f"{listed}[{index}]")
        else:
            yield FieldError(path, "exactly one of exactly and firstAvailable is required")

    def class_request(self, request: ExactDeviceRequest | DeviceSubRequest, path: str) -> Iterator[FieldError]:
        name = request.device_class_name
        if not name:
            yield FieldError(f"{path}.deviceClassName", "a device class is required")
        elif not is_dns_subdomain(name):
            yield FieldError(f"{path}.deviceClassName", f'"{name}" is not a DNS subdomain')
        yield from self.selectors(request.selectors, f"{path}.selectors")
        yield from _amount(request, path)
        for index, toleration in enumerate(request.tolerations):
            yield from toleration_errors(toleration, f"{path}.tolerations[{index}]", EFFECTS)
        # No API server checks these names, but no device can have a capacity with an invalid one.
        for name in request.capacity.requests if request.capacity is not None else ():
            if not is_qualified_name(name):
                yield FieldError(f"{path}.capacity.requests[{name}]", f'"{name}" is not a qualified name')

    def selectors(self, selectors: Sequence[DeviceSelector], path: str) -> Iterator[FieldError]:
        yield from count_errors(selectors, MAX_ENTRIES, path)
        for index, selector in enumerate(selectors):
            if selector.cel is None:
                yield FieldError(f"{path}[{index}].cel", "a CEL expression is required")
                continue
            problem = self.check_expression(selector.cel.expression)
            if problem is not None:
                yield FieldError(f"{path}[{index}].cel.expression", problem)


def _amount(request: ExactDeviceRequest | DeviceSubRequest, path: str) -> Iterator[FieldError]:
    mode = request.allocation_mode or "ExactCount"
    if mode not in _MODES:
        yield FieldError(f"{path}.allocationMode", f'"{mode}" is neither ExactCount nor All')
    elif mode == "All" and request.count:
        yield FieldError(f"{path}.count", f"{request.count} must not be set when allocationMode is All")
    elif request.count is not None and request.count < 0:  # the API server changes 0 to 1
        yield FieldError(f"{path}.count", f"{request.count} must be greater than zero")
    elif request.count is not None and request.count >= 1 << 63:  # Python's integers have no limit
        yield FieldError(f"{path}.count", f"{request.count} does not fit in 64 bits")


def toleration_errors(toleration: DeviceToleration, path: str, effects: Sequence[str]) -> Iterator[FieldError]:
    """Yield every error of a toleration, of devices or of nodes, which have different effects."""
    if toleration.key and not is_label_name(toleration.key):
        yield FieldError(f"{path}.key", f'"{toleration.key}" is not a label name')
    match toleration.operator:
        case "Exists":
            if toleration.value:
                yield FieldError(f"{path}.value", f'"{toleration.value}" must be empty when the operator is Exists')
        case "" | "Equal":
            if not is_label_value(toleration.value):
                yield FieldError(f"{path}.value", f'"{toleration.value}" is not a label value')
        case operator:
            yield FieldError(f"{path}.operator", f'"{operator}" is neither Exists nor Equal')
    if toleration.effect not in ("", *effects):
        yield FieldError(f"{path}.effect", f'"{toleration.effect}" is not one of {", ".join(effects)}')


def _constraint(constraint: DeviceConstraint, names: frozenset[str], path: str) -> Iterator[FieldError]:
    yield from _references(constraint.requests, names, f"{path}.requests")
    given = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    attributes = {field: name for field, name in given.items() if name is not None}
    if len(attributes) != 1:
        yield FieldError(path, f"one of matchAttribute and distinctAttribute is required, not {len(attributes)}")
    # A constraint belongs to no driver whose domain could complete the name.
    for field, name in attributes.items():
        if "/" not in name or not is_qualified_name(name):
            yield FieldError(f"{path}.{field}", f'"{name}" is not a fully-qualified name such as example.com/model')


def _request_names(devices: DeviceClaim) -> frozenset[str]:
    # A reference may be to a request with all of its alternatives, or to one of these.
    return frozenset(name for request in devices.requests for name in (request.name, *request.options))


def _references(requests: Sequence[str], names: frozenset[str], path: str) -> Iterator[FieldError]:
    yield from _set(requests, MAX_ENTRIES, path)
    for index, name in enumerate(requests):
        if name not in names:
            yield FieldError(
                f"{path}[{index}]", f'"{name}" is neither a request of the claim nor <request>/<subrequest>'
            )


def _opaque(config: DeviceClaimConfiguration | DeviceClassConfiguration, path: str) -> Iterator[FieldError]:
    if config.opaque is None:
        yield FieldError(f"{path}.opaque", "opaque parameters are required")
        return
    if not is_dns_subdomain(config.opaque.driver.lower(), 63):  # as in slices, upper case is accepted
        yield FieldError(f"{path}.opaque.driver", f'"{config.opaque.driver}" is not a DNS subdomain of 63 characters')
    path, parameters = f"{path}.opaque.parameters", config.opaque.parameters
    if parameters is None:
        yield FieldError(path, "parameters are required")
    elif not isinstance(parameters, dict):
        yield FieldError(path, f"parameters must be a JSON object, not {json.dumps(parameters)[:40]}")
    else:
        # The server counts the bytes of the JSON that it gets, and kubectl sends compact JSON.
        size = len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode())
        if size > MAX_PARAMETERS:
            yield FieldError(path, f"{size} bytes of parameters are more than {MAX_PARAMETERS}")


def _extended_resource(name: str | None, path: str) -> Iterator[FieldError]:
    if name is None:
        return
    # Names in kubernetes.io are Kubernetes's own resources, and `requests.*` are names in a quota.
    domain, slash, _ = name.partition("/")
    if not slash or "kubernetes.io" in domain or name.startswith("requests.") or not is_label_name(name):
        yield FieldError(path, f'"{name}" is not the name of an extended resource such as example.com/gpu')


def _set(names: Iterable[str], most: int, path: str, field: str = "") -> Iterator[FieldError]:
    """Yield the errors of a list of names: more than `most`, or duplicates."""
    listed = list(names)
    yield from count_errors(listed, most, path)
    for index, name in enumerate(listed):
        if name in listed[:index]:
            yield FieldError(f"{path}[{index}]{field}", f'"{name}" is a duplicate')


# How a pod may use ResourceClaims, and whether the requests that it names exist.
#
# Source: validation of `v1` Pods in Kubernetes 1.36 (`spec.resourceClaims`, `resources.claims`). No part of a cluster
# checks that a request exists: a container that names an unknown request gets no device from kubelet.

RequestsOf: TypeAlias = Callable[[PodResourceClaim], Collection[str] | None]
"""Returns the requests of the claim or template behind an entry, or None if that is unknown."""


def pod_errors(pod: Pod, requests_of: RequestsOf) -> Iterator[FieldError]:
    """Yield every error in how the pod uses claims; the rest of the pod is not checked."""
    spec = pod.spec
    entries: dict[str, PodResourceClaim] = {}
    for index, entry in enumerate(spec.resource_claims):
        yield from _entry(entry, entries, f"spec.resourceClaims[{index}]")
        # A duplicate is an error already; containers mean the first entry.
        entries.setdefault(entry.name, entry)
    # The resources of a whole pod (KEP-2837) have no claims.
    if spec.resources.claims:
        yield FieldError("spec.resources.claims", "claims may not be set for a whole pod; name them in its containers")
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            path = f"spec.{field}[{index}].resources.claims"
            yield from _uses(container.resources.claims, entries, requests_of, path)


def _entry(entry: PodResourceClaim, known: Collection[str], path: str) -> Iterator[FieldError]:
    if entry.name in known:
        yield FieldError(f"{path}.name", f'"{entry.name}" is a duplicate')
    elif not is_dns_label(entry.name):
        yield FieldError(f"{path}.name", f'"{entry.name}" is not a DNS label')
    given = [name for name in (entry.resource_claim_name, entry.resource_claim_template_name) if name is not None]
    if len(given) != 1:
        have = "both are set" if given else "none is set"
        yield FieldError(
            path, f"exactly one of resourceClaimName and resourceClaimTemplateName is required, but {have}"
        )
    elif not is_dns_subdomain(given[0]):
        field = "resourceClaimName" if entry.resource_claim_name is not None else "resourceClaimTemplateName"
        yield FieldError(f"{path}.{field}", f'"{given[0]}" is not a DNS subdomain')


def _uses(
    uses: Sequence[ContainerClaim], entries: dict[str, PodResourceClaim], requests_of: RequestsOf, path: str
) -> Iterator[FieldError]:
    seen: set[tuple[str, str]] = set()
    for index, use in enumerate(uses):
        use_path = f"{path}[{index}]"
        # An entry without a request stands for all requests of the claim, so it collides with every other one.
        if any(
            name == use.name and (not request or request == use.request or not use.request) for name, request in seen
        ):
            yield FieldError(use_path, f'"{use.name}" is already used by an earlier entry; keep one of them')
        seen.add((use.name, use.request))
        if use.name not in entries:
            known = ", ".join(entries) or "none"
            problem = f'"{use.name}" is not an entry of spec.resourceClaims; there are: {known}'
            yield FieldError(f"{use_path}.name", problem)
            continue
        requests = requests_of(entries[use.name])
        if use.request and not is_dns_label(use.request):
            more = ": name the request; the scheduler chooses the alternative" if "/" in use.request else ""
            yield FieldError(f"{use_path}.request", f'"{use.request}" is not a DNS label{more}')
        elif use.request and requests is not None and use.request not in requests:
            known = ", ".join(requests) or "none"
            yield FieldError(f"{use_path}.request", f'the claim has no request "{use.request}"; there are: {known}')


# How much of the ResourceQuota `<class>.deviceclass.resource.k8s.io/devices` a claim uses (KEP-4381, KEP-4816). Every
# alternative of a prioritized list counts, because the scheduler may choose any of them. If several have the same
# class, the largest counts. A request for all devices counts as many devices as a claim can have.


def devices_by_class(devices: DeviceClaim) -> dict[str, int]:
    """Return how many devices of each class the claim uses of a quota."""
    total: dict[str, int] = {}
    for request in devices.requests:
        for name, count in _most_devices(request).items():
            total[name] = total.get(name, 0) + count
    return total


def _most_devices(request: DeviceRequest) -> dict[str, int]:
    most: dict[str, int] = {}
    for wanted in request.options.values():
        name = wanted.device_class_name
        most[name] = max(most.get(name, 0), _devices(wanted))
    return most


def _devices(request: ExactDeviceRequest | DeviceSubRequest) -> int:
    return MAX_RESULTS if request.allocation_mode == "All" else request.count or 1
