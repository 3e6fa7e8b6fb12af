"""Checks documents: the API server's rules, the selectors, the opaque configurations, and the use of quota.

A document is checked in its own API version, and paths are those of that version.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from dranode.api.documents import decode, to_v1
from dranode.api.errors import DocumentError
from dranode.api.field_errors import FieldError, description_errors, label_errors, metadata_errors
from dranode.api.manifests import SourceDocument, check_header, object_key
from dranode.api.names import is_dns_subdomain
from dranode.api.resource import (
    AllocationResult,
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dranode.api.slice_validation import slice_errors
from dranode.api.validation import BOTH_FORMS, claim_errors, class_errors, devices_by_class, pod_errors, template_errors
from dranode.driver.claims.grant import config_path, configs_of, results_of
from dranode.driver.claims.plugin import Plugin
from dranode.driver.machine.yaml_files import read_yaml
from dranode.driver.pinning.snapshot import Pins
from dranode.sim.allocator.taint_rules import DeviceTaintRule, rule_errors, rule_warnings
from dranode.sim.cel.costs import LIMIT
from dranode.sim.cel.declarations import KnownToCEL
from dranode.sim.cel.expression import compile_selector
from dranode.sim.cel.syntax import CELCompileError
from dranode.sim.cluster.across import (
    PublishedDevice,
    Surroundings,
    claim_warnings,
    pod_warnings,
    selector_warnings,
    surroundings,
)
from dranode.sim.cluster.controllers import POD_TEMPLATES, Controller, controller_errors, own_errors
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.manifests import CLUSTER, COMPLETE, check_cluster_object, unknown_in
from dranode.sim.cluster.sharing import ExclusiveUse, claims_in_use, container_conflicts, exclusive_use, pods_conflict
from dranode.sim.cluster.undecoded import all_problems, parameter_errors, unknown_pod_fields
from dranode.sim.cluster.workload import request_names
from dranode.sim.scheduler.amounts import DEFAULT_NAMESPACE, check_selectors, pod_scheduling_errors
from dranode.sim.scheduler.documents import SchedulingPod

NamedClaim = TypeVar("NamedClaim", ResourceClaim, ResourceClaimTemplate)

_KNOWN: Final = KnownToCEL()  # what the API server of the newest stable release accepts
# Returns what is wrong with a CEL expression, or None.
ExpressionProblem: TypeAlias = Callable[[str], str | None]
# The path of the pod template in each kind; a pod is its own template.
_POD_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {"Pod": (), **POD_TEMPLATES}
_DNS_LABELS: Final = ("Namespace", "Service")  # kinds whose names must be DNS labels
_V1BETA1: Final = "resource.k8s.io/v1beta1"
_EXACTLY: Final = re.compile(r"(requests\[[0-9]+\])\.exactly\b")
_BOTH: Final = "set either firstAvailable or the request's own class and count, not both"
_BASIC: Final = re.compile(r"(spec\.devices\[[0-9]+\])\.(?!name\b)")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one document.

    Attributes:
        file: the file.
        kind: the kind of the document.
        name: the name of the document.
        errors: every error.
        quota: the devices that the document counts against a quota, by class.
        warnings: parts that are valid, but do not match other documents or the devices.
    """

    file: str
    kind: str
    name: str
    errors: tuple[FieldError, ...] = ()
    quota: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[FieldError, ...] = ()


def check(
    documents: Iterable[SourceDocument],
    plugins: Mapping[str, Plugin],
    published: Sequence[PublishedDevice] = (),
    known: KnownToCEL = _KNOWN,
) -> Iterator[CheckResult]:
    """Yield a verdict on each claim, template, class, pod and opaque configuration, and on each invalid document.

    Pods and pod templates are checked against the claims among the documents. `plugins` are the installed drivers by
    name. Without ResourceSlices, claims are compared with the sample devices in `published`. `known` is what selectors
    may use.
    """
    documents = tuple(documents)
    problem = partial(_expression_problem, known)
    declared = {driver: plugin.attribute_names() for driver, plugin in plugins.items()}
    around = surroundings(documents, published, declared)
    claims, templates = _named(documents, ResourceClaim), _named(documents, ResourceClaimTemplate)
    keys: set[tuple[str, ...]] = set()
    pinning = frozenset(driver for driver, plugin in plugins.items() if isinstance(plugin, Pins))
    sharing = _Sharing(claims, templates, around, pinning)
    for source in documents:
        group = str(source.document.get("apiVersion", "")).partition("/")[0]
        if group in plugins:
            errors = tuple(parameter_errors(plugins[group], "FromClaim", source.document, ""))
            yield CheckResult(source.file, str(source.document["kind"]), source.name, errors)
            continue
        try:
            _check_head(source)
        except DocumentError as error:
            yield CheckResult(source.file, source.kind, source.name, (_field_error(error),))
            continue
        duplicates = tuple(_name_errors(source, keys))
        results = [
            replace(result, errors=(*duplicates, *(error for error in result.errors if error not in duplicates)))
            for result in _verdict(source, plugins, around, problem, (claims, templates, sharing))
        ]
        yield from results or ([CheckResult(source.file, source.kind, source.name, duplicates)] if duplicates else [])


def _check_head(source: SourceDocument) -> None:
    """Check kind, version and metadata, without which nothing else can be checked."""
    document = source.document
    check_header(document)
    if not document.get("apiVersion"):
        raise DocumentError("apiVersion is required", "apiVersion")
    to_v1(document)  # refuses versions that the kind does not have


def _name_errors(source: SourceDocument, seen: set[tuple[str, ...]]) -> Iterator[FieldError]:
    """Yield the errors of an object's metadata, and that of a key that is already in `seen`; add the key."""
    key = object_key(source.document)
    if key in seen:
        yield FieldError("metadata.name", f"there is already a {source.kind} with this name")
    if key is not None:
        seen.add(key)
    if (source.kind in _POD_TEMPLATES or source.kind in CLUSTER) and source.kind not in COMPLETE:
        with contextlib.suppress(DocumentError):  # its verdict reports the error
            metadata = decode(ObjectMeta, source.document.get("metadata") or {})
            yield from metadata_errors(metadata)
            if source.kind in _DNS_LABELS and is_dns_subdomain(metadata.name):
                yield from label_errors(metadata.name, "metadata.name")


def _verdict(
    source: SourceDocument,
    plugins: Mapping[str, Plugin],
    around: Surroundings,
    problem: ExpressionProblem,
    named: tuple[Mapping[ClaimKey, ResourceClaim], Mapping[ClaimKey, ResourceClaimTemplate], _Sharing],
) -> Iterator[CheckResult]:
    if source.kind in COMPLETE:
        yield _checked(source, plugins, around, problem)
    elif source.kind in _POD_TEMPLATES:
        yield from _pod(source, *named)
    else:
        yield from _cluster_object(source)


def _cluster_object(source: SourceDocument) -> Iterator[CheckResult]:
    """Yield the verdict on an invalid object that decides where pods run, such as a Node."""

    def check_document(document: Mapping[str, Any]) -> list[FieldError]:
        check_cluster_object(SourceDocument(source.file, source.index, dict(document)))
        return []

    errors = all_problems(check_document, source.document)
    if errors:
        yield CheckResult(source.file, source.kind, source.name, tuple(errors))


def nothing_checked(files: Iterable[str]) -> CheckResult:
    """Return the verdict on files without anything to check."""
    message = "holds no claim, template, class, pod or opaque configuration to check"
    return CheckResult(", ".join(files), "", "", (FieldError("", message),))


def _named(documents: Iterable[SourceDocument], kind: type[NamedClaim]) -> dict[ClaimKey, NamedClaim]:
    """Return the documents of a kind that decode, by namespace and name."""
    named: dict[ClaimKey, NamedClaim] = {}
    for source in documents:
        if source.kind == kind.__name__:
            with contextlib.suppress(DocumentError):  # its own verdict reports the error
                value = decode(kind, to_v1(source.document))
                named[ClaimKey(value.metadata.namespace or DEFAULT_NAMESPACE, value.metadata.name)] = value
    return named


def _pod(
    source: SourceDocument,
    claims: Mapping[ClaimKey, ResourceClaim],
    templates: Mapping[ClaimKey, ResourceClaimTemplate],
    sharing: _Sharing,
) -> Iterator[CheckResult]:
    """Yield the verdict on a pod; for a controller, only if it uses claims or has errors or warnings."""
    path = _POD_TEMPLATES[source.kind]
    head = "".join(f"{name}." for name in path)
    namespace = str((source.document.get("metadata") or {}).get("namespace") or DEFAULT_NAMESPACE)

    def check_document(document: Mapping[str, Any]) -> list[FieldError]:
        owner = decode(Controller, document)  # of a pod, only the metadata is checked
        errors = [*own_errors(owner), *controller_errors(owner)]
        check_cluster_object(SourceDocument(source.file, source.index, dict(document)))
        pod = _pod_in(document, path)
        check_selectors(pod, head)
        pod_problems = [*pod_errors(pod, lambda entry: request_names(entry, namespace, claims, templates))]
        pod_problems += [*pod_scheduling_errors(pod), *sharing.errors(source, pod, namespace)]
        if not pod.spec.containers:
            pod_problems.append(FieldError("spec.containers", "a container is required"))
        pod_problems += description_errors(pod.metadata, "metadata") if path else ()
        return [*errors, *(FieldError(f"{head}{error.path}", error.message) for error in pod_problems)]

    errors = all_problems(check_document, source.document)
    warnings = [*unknown_pod_fields(source.document, source.kind, path)]
    uses_claims = False
    if not errors:
        entries = _pod_in(source.document, path).spec.resource_claims
        uses_claims = bool(entries)
        lacking = pod_warnings(entries, namespace, claims, templates)
        warnings += (FieldError(f"{head}{warning.path}", warning.message) for warning in lacking)
    if errors or warnings or uses_claims or source.kind == "Pod":
        yield CheckResult(source.file, source.kind, source.name, tuple(errors), warnings=tuple(warnings))


def _pod_in(document: Mapping[str, Any], path: Sequence[str]) -> SchedulingPod:
    """Return the pod of a document, or of the pod template at a path in it.

    Raises:
        DocumentError: it does not decode; with the path in the document.
    """
    template: Any = document
    for name in path:
        template = template.get(name) if isinstance(template, Mapping) else None
    template = template if template is not None else {}
    if path and isinstance(template, Mapping):
        template = {name: template[name] for name in ("metadata", "spec") if name in template}
    return decode(SchedulingPod, template, ".".join(path))


class _Sharing:
    """Finds containers and pods that share a claim although its driver does not allow that, document by document."""

    def __init__(
        self,
        claims: Mapping[ClaimKey, ResourceClaim],
        templates: Mapping[ClaimKey, ResourceClaimTemplate],
        around: Surroundings,
        pinning: Collection[str],
    ) -> None:
        specs = {key: claim.spec.devices for key, claim in claims.items()}
        self._claims = {key: exclusive_use(devices, around.classes, pinning) for key, devices in specs.items()}
        template_specs = {key: template.spec.spec.devices for key, template in templates.items()}
        self._templates = {
            key: exclusive_use(devices, around.classes, pinning) for key, devices in template_specs.items()
        }
        self._users: dict[ClaimKey, str] = {}

    def errors(self, source: SourceDocument, pod: SchedulingPod, namespace: str) -> Iterator[FieldError]:
        """Yield the errors of a pod that the API server and the scheduler accept, but a driver that pins refuses."""
        in_use = claims_in_use(pod)
        uses: dict[str, ExclusiveUse] = {}
        for index, entry in enumerate(pod.spec.resource_claims):
            key = ClaimKey(namespace, entry.resource_claim_name or entry.resource_claim_template_name or "")
            use = self._claims.get(key) if entry.resource_claim_name else self._templates.get(key)
            if use is None or entry.name not in in_use:
                continue
            uses[entry.name] = use
            if entry.resource_claim_name:
                user = f"{source.kind} {namespace}/{source.name}"
                first = self._users.setdefault(key, user)
                if first != user or _pods_of(source) > 1:
                    where = f"spec.resourceClaims[{index}].resourceClaimName"
                    yield FieldError(where, pods_conflict(first, user if first != user else "another pod of it"))
        yield from (conflict for _, conflict in container_conflicts(pod, uses))


def _pods_of(source: SourceDocument) -> int:
    """Return how many pods of a document run at the same time, according to its replicas or parallelism."""
    spec = source.document.get("spec")
    counts = [spec.get(field) for field in ("replicas", "parallelism")] if isinstance(spec, Mapping) else []
    return max((count for count in counts if isinstance(count, int)), default=1)


def _field_error(error: DocumentError) -> FieldError:
    return FieldError(error.path, error.problem)


def check_parameters(file: str, plugins: Mapping[str, Plugin]) -> CheckResult | None:
    """Return the verdict on a file with only the opaque parameters of a claim; None if it cannot be one.

    Parameters do not name their driver. They are valid if one driver accepts them; else every driver reports errors.
    """
    try:
        document = read_yaml(file)
    except DocumentError:
        return None
    if not isinstance(document, Mapping) or not document or "kind" in document:
        return None
    errors = [FieldError("", "is neither a Kubernetes document with a kind nor parameters of a driver")]
    for plugin in plugins.values():
        problems = tuple(parameter_errors(plugin, "FromClaim", document, ""))
        if not problems:
            return CheckResult(file, "", "")
        errors += [FieldError(error.path, f"{plugin.driver}: {error.message}") for error in problems]
    return CheckResult(file, "", "", tuple(errors))


def _checked(
    source: SourceDocument, plugins: Mapping[str, Plugin], around: Surroundings, problem: ExpressionProblem
) -> CheckResult:
    errors: list[FieldError] = []
    quota: dict[str, int] = {}
    try:
        document = to_v1(source.document)
        errors += [
            FieldError(field.path, f"there is no such field{_alternatives(source, field.known)}")
            for field in unknown_in(source.kind, document)
        ]
        try:
            problems, quota = _errors_and_quota(source.kind, document, plugins, problem)
        except DocumentError:
            problems = all_problems(lambda part: _errors_and_quota(source.kind, part, plugins, problem)[0], document)
        errors += problems
    except DocumentError as error:
        errors.append(_field_error(error))
    if source.document.get("apiVersion") == _V1BETA1:
        errors = [FieldError(_as_v1beta1(error.path), error.message.replace(BOTH_FORMS, _BOTH)) for error in errors]
    warnings = () if errors else tuple(_warnings(source, around))
    return CheckResult(source.file, source.kind, source.name, tuple(errors), quota, warnings)


def _warnings(source: SourceDocument, around: Surroundings) -> Iterator[FieldError]:
    document = to_v1(source.document)
    match source.kind:
        case "ResourceClaim":
            warnings = claim_warnings(decode(ResourceClaim, document).spec.devices, "spec.devices", around)
        case "ResourceClaimTemplate":
            devices = decode(ResourceClaimTemplate, document).spec.spec.devices
            warnings = claim_warnings(devices, "spec.spec.devices", around)
        case "DeviceClass":
            selectors = decode(DeviceClass, document).spec.selectors
            warnings = selector_warnings(selectors, "spec.selectors", around.known)
        case "DeviceTaintRule":
            warnings = rule_warnings(decode(DeviceTaintRule, document))
        case _:
            return
    flat = source.document.get("apiVersion") == _V1BETA1
    for warning in warnings:
        yield FieldError(_as_v1beta1(warning.path) if flat else warning.path, warning.message)


def _as_v1beta1(path: str) -> str:
    """Return a v1 path in v1beta1, where requests have no `exactly`, and devices have their fields in `basic`."""
    return _BASIC.sub(r"\1.basic.", _EXACTLY.sub(r"\1", path))


def _alternatives(source: SourceDocument, known: Sequence[str]) -> str:
    # The known names are those of v1; v1beta1 has some fields in other places.
    return f"; the fields are {', '.join(known)}" if source.document.get("apiVersion") != _V1BETA1 else ""


def _errors_and_quota(
    kind: str, document: Mapping[str, Any], plugins: Mapping[str, Plugin], problem: ExpressionProblem
) -> tuple[list[FieldError], dict[str, int]]:
    """Return the errors of an object of resource.k8s.io, and the devices that it counts by class."""
    match kind:
        case "ResourceClaim":
            claim = decode(ResourceClaim, document)
            devices = claim.spec.devices
            errors = [*claim_errors(claim, problem), *_configs(devices.config, plugins, "spec.devices.config")]
            for plugin in plugins.values():
                errors += _allocated(claim.status.allocation, plugin)
            return errors, devices_by_class(devices)
        case "ResourceClaimTemplate":
            template = decode(ResourceClaimTemplate, document)
            devices = template.spec.spec.devices
            configs = _configs(devices.config, plugins, "spec.spec.devices.config")
            return [*template_errors(template, problem), *configs], devices_by_class(devices)
        case "DeviceClass":
            device_class = decode(DeviceClass, document)
            configs = _configs(device_class.spec.config, plugins, "spec.config")
            return [*class_errors(device_class, problem), *configs], {}
        case "ResourceSlice":
            return [*slice_errors(decode(ResourceSlice, document)), *_written(document)], {}
        case _:
            return [*rule_errors(decode(DeviceTaintRule, document))], {}


def _written(document: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the errors in empty lists and nulls of a slice, which the API server counts as set."""
    spec = document["spec"]
    if (
        spec.get("devices") is not None
        and spec.get("sharedCounters") is not None
        and not (spec["devices"] and spec["sharedCounters"])
    ):
        yield FieldError("spec", "only one of sharedCounters and devices is allowed, even if one of them is empty")
    for index, device in enumerate(spec.get("devices") or ()):
        for name, value in (device.get("attributes") or {}).items():
            if value is None:
                yield FieldError(f"spec.devices[{index}].attributes[{name}]", "exactly one value is required, not none")


def _expression_problem(known: KnownToCEL, expression: str) -> str | None:
    try:
        selector = compile_selector(expression, known)
    except CELCompileError as error:
        return str(error)
    if selector.max_cost > LIMIT:
        return f"too complex, exceeds cost limit: it can cost up to {selector.max_cost:,}, but the limit is {LIMIT:,}"
    return None


def _configs(
    configs: Iterable[DeviceClaimConfiguration | DeviceClassConfiguration], plugins: Mapping[str, Plugin], path: str
) -> Iterator[FieldError]:
    """Yield the errors that the installed drivers find in their configurations; those of other drivers are skipped."""
    for index, config in enumerate(configs):
        if config.opaque is None or config.opaque.driver not in plugins or config.opaque.parameters is None:
            continue
        origin = "FromClaim" if isinstance(config, DeviceClaimConfiguration) else "FromClass"
        where = f"{path}[{index}].opaque.parameters"
        yield from parameter_errors(plugins[config.opaque.driver], origin, config.opaque.parameters, where)


def _allocated(allocation: AllocationResult | None, plugin: Plugin) -> Iterator[FieldError]:
    """Yield the errors that a driver finds in its part of an allocation."""
    try:
        results_of(allocation, plugin.driver)
        for index, config, opaque in configs_of(allocation.devices.config if allocation else (), plugin.driver):
            yield from parameter_errors(
                plugin, config.source, opaque.parameters, f"{config_path(index)}.opaque.parameters"
            )
    except DocumentError as error:
        yield _field_error(error)
