"""Taints and tolerations of devices, and the DeviceTaintRules with which administrators add taints (KEP-5055).

Source: `resource.k8s.io/v1`, and the tracker of k8s.io/dynamic-resource-allocation, which merges rules into slices.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.field_errors import FieldError, metadata_errors
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, APIObject, Device, DeviceTaint, DeviceToleration, ResourceSlice
from dranode.api.slice_validation import EFFECTS, selection_errors, taint_errors
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import Change

# Other effects, such as None, do not keep pods away.
_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def untolerated(taints: Iterable[DeviceTaint], tolerations: Collection[DeviceToleration]) -> DeviceTaint | None:
    """Return the first taint of a device or a node that keeps claims or pods with these tolerations away, or None."""
    for taint in taints:
        if taint.effect in _EFFECTS and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Return whether a toleration tolerates a taint, of a device or of a node.

    An empty effect or key means any; the operator is Exists or, by default, Equal. The operators Lt and Gt
    (KEP-5471) are alpha, so they tolerate no taint here.
    """
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case _:
            return False


class DeviceTaintSelector(APIDocument, frozen=True, kw_only=True):
    """The devices that a rule taints: every field that is set has to match, so an empty selector matches all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    # Only in v1alpha3 of Kubernetes 1.33 and 1.34.
    device_class_name: str | None = None
    selectors: tuple[msgspec.Raw, ...] = ()


class DeviceTaintRuleSpec(APIDocument, frozen=True, kw_only=True):
    """`DeviceTaintRule.spec`."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(APIObject, frozen=True, kw_only=True):
    """`DeviceTaintRule` of any served version."""

    spec: DeviceTaintRuleSpec


def taint_rules(documents: Iterable[SourceDocument]) -> tuple[DeviceTaintRule, ...]:
    """Return the rules among the documents.

    Raises:
        DocumentError: a rule does not decode, or selects by class or expression; names the place.
    """
    return tuple(_placed_rule(source) for source in documents if source.kind == "DeviceTaintRule")


def with_rule_taints(
    slices: Iterable[ResourceSlice], rules: Sequence[DeviceTaintRule], features: Features
) -> Iterator[ResourceSlice]:
    """Yield the slices as the scheduler sees them: with the taints of the rules, if their gate is on."""
    if not features.device_taint_rules or not rules:
        yield from slices
        return
    for slice_ in slices:
        spec = slice_.spec
        devices = tuple(
            _with_taints(device, rules_on(rules, spec.driver, spec.pool.name, device.name, features))
            for device in spec.devices
        )
        yield msgspec.structs.replace(slice_, spec=msgspec.structs.replace(spec, devices=devices))


def taint_rule(source: SourceDocument) -> DeviceTaintRule:
    """Return the rule in a document.

    Raises:
        DocumentError: it does not decode, or selects by class or expression; with the path in the document.
    """
    rule = decode(DeviceTaintRule, source.document)
    if rule.spec.taint.effect not in EFFECTS:
        raise DocumentError(f'"{rule.spec.taint.effect}" is not one of {", ".join(EFFECTS)}', "spec.taint.effect")
    selector = rule.spec.device_selector
    if selector is not None and (selector.device_class_name is not None or selector.selectors):
        raise DocumentError(
            "deviceClassName and selectors were removed in Kubernetes 1.35; select by driver, pool and device",
            "spec.deviceSelector",
        )
    return rule


def rule_errors(rule: DeviceTaintRule) -> Iterator[FieldError]:
    """Yield every error for which the API server would reject a rule."""
    yield from metadata_errors(rule.metadata)
    selector = rule.spec.device_selector
    if selector is not None:
        yield from selection_errors(selector.driver, selector.pool, selector.device, "spec.deviceSelector")
    yield from taint_errors(rule.spec.taint, "spec.taint")


def rule_warnings(rule: DeviceTaintRule) -> Iterator[FieldError]:
    """Yield that a rule selects all devices of the cluster, or none, which a field left out by mistake would do."""
    selector = rule.spec.device_selector
    if selector is None:
        yield FieldError(
            "spec.deviceSelector",
            "a rule without it selects no device, and before Kubernetes 1.37.1 every device for kube-scheduler",
        )
    elif selector.driver is None and selector.pool is None and selector.device is None:
        evicted = ", and evicts all pods that use one" if rule.spec.taint.effect == "NoExecute" else ""
        yield FieldError("spec.deviceSelector", f"it is empty, so the rule taints every device of the cluster{evicted}")


def _placed_rule(source: SourceDocument) -> DeviceTaintRule:
    with source.names_errors():
        return taint_rule(source)


def rules_on(
    rules: Iterable[DeviceTaintRule], driver: str, pool: str, device: str, features: Features
) -> Iterator[DeviceTaintRule]:
    """Yield the rules that taint a device."""
    for rule in rules:
        selector = rule.spec.device_selector
        if selector is None:
            if not features.has(Change.RULES_NEED_SELECTOR):
                yield rule
        elif selector.driver in (None, driver) and selector.pool in (None, pool) and selector.device in (None, device):
            yield rule


def _with_taints(device: Device, rules: Iterable[DeviceTaintRule]) -> Device:
    taints = tuple(rule.spec.taint for rule in rules)
    return msgspec.structs.replace(device, taints=device.taints + taints) if taints else device
