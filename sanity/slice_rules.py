"""The rules by which kube-apiserver refuses a ResourceSlice, and those by which a scheduler ignores a pool.

Source: `k8s.io/api/resource/v1/types.go` and the validation of `resource.k8s.io/v1` in Kubernetes 1.37. These
rules judge documents from the wire and share no code with the checks of this project's own drivers before they publish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dranode.api.capacity_policy import policy_problems
from dranode.api.documents import decode
from dranode.api.errors import DocumentError, number_of
from dranode.api.names import (
    is_dns_label,
    is_dns_subdomain,
    is_label_name,
    is_label_value,
    is_qualified_name,
)
from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy
from dranode.api.semver import is_semver

DRIVER_NAME: Final = 63
POOL_NAME: Final = 253
_DEVICES: Final = 128
_LARGE_DEVICES: Final = 64
_COUNTER_SETS: Final = 8
_COUNTERS: Final = 32
_CONSUMPTIONS: Final = 2
_ENTRIES: Final = 32
_VALUES: Final = 48
_TAINTS: Final = 16
_CONDITIONS: Final = 4
_TEXT: Final = 64
_LISTS: Final = ("ints", "bools", "strings", "versions")
_FORMS: Final = ("int", "bool", "string", "version", *_LISTS)
_EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
_SELECTIONS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_INT64: Final = range(-(1 << 63), 1 << 63)

_Problems = Iterator[str]


def slice_refusals(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why kube-apiserver refuses a slice in its v1 form, each with its path; none if it accepts it."""
    spec = document.get("spec")
    return tuple(_spec(spec)) if isinstance(spec, Mapping) else ("spec: is required",)


def pool_problems(slices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return why a scheduler ignores a pool with these slices, all of one generation."""
    name = slices[0]["spec"]["pool"]["name"]
    counts = {document["spec"]["pool"]["resourceSliceCount"] for document in slices}
    problems = []
    if counts != {len(slices)}:
        said = ", ".join(map(str, sorted(counts)))
        problems.append(f'pool "{name}" has {number_of(len(slices), "slice")}, but resourceSliceCount is {said}')
    devices = [device for document in slices for device in document["spec"].get("devices") or ()]
    problems += _twice("device", name, (device["name"] for device in devices))
    sets = [counters for document in slices for counters in document["spec"].get("sharedCounters") or ()]
    problems += _twice("counter set", name, (counters["name"] for counters in sets))
    known = {(counters["name"], counter) for counters in sets for counter in counters.get("counters") or ()}
    for device in devices:
        for used in device.get("consumesCounters") or ():
            missing = {(used["counterSet"], counter) for counter in used.get("counters") or ()} - known
            problems += [
                f'device "{device["name"]}" consumes counter "{counter}" of set "{group}", which pool "{name}" lacks'
                for group, counter in sorted(missing)
            ]
    return tuple(problems)


def _twice(what: str, pool: str, names: Iterable[str]) -> list[str]:
    return [f'{what} "{name}" is listed twice in pool "{pool}"' for name, times in Counter(names).items() if times > 1]


def _spec(spec: Mapping[str, Any]) -> _Problems:
    if not is_dns_subdomain(str(spec.get("driver", "")), DRIVER_NAME):
        yield f'spec.driver: "{spec.get("driver", "")}" is not a DNS subdomain of at most {DRIVER_NAME} characters'
    yield from _pool(spec.get("pool") or {})
    selections = [field for field in _SELECTIONS if spec.get(field)]
    if len(selections) != 1:
        yield f"spec: exactly one of {', '.join(_SELECTIONS)} is required, not {len(selections)}"
    devices, sets = spec.get("devices") or (), spec.get("sharedCounters") or ()
    if devices and sets:
        yield "spec: devices and sharedCounters cannot share a slice"
    most = _LARGE_DEVICES if any(map(_large, devices)) else _DEVICES
    if len(devices) > most:
        yield f"spec.devices: {len(devices)} are more than {most}"
    yield from (
        f'spec.devices: "{name}" is listed twice'
        for name, times in Counter(device.get("name") for device in devices).items()
        if times > 1
    )
    if len(sets) > _COUNTER_SETS:
        yield f"spec.sharedCounters: {len(sets)} are more than {_COUNTER_SETS}"
    for index, counters in enumerate(sets):
        yield from _counters(counters, "name", f"spec.sharedCounters[{index}]")
    for index, device in enumerate(devices):
        yield from _device(device, f"spec.devices[{index}]", selected="perDeviceNodeSelection" in selections)


def _pool(pool: Mapping[str, Any]) -> _Problems:
    name = str(pool.get("name", ""))
    if not 0 < len(name) <= POOL_NAME or not all(map(is_dns_subdomain, name.split("/"))):
        yield f'spec.pool.name: "{name}" is not made of DNS subdomains, at most {POOL_NAME} characters'
    if not _is_int(pool.get("generation", 0)) or pool.get("generation", 0) < 0:
        yield f"spec.pool.generation: {pool.get('generation')} is less than 0"
    if not _is_int(pool.get("resourceSliceCount")) or pool["resourceSliceCount"] < 1:
        yield f"spec.pool.resourceSliceCount: {pool.get('resourceSliceCount')} is less than 1"


def _device(device: Mapping[str, Any], path: str, *, selected: bool) -> _Problems:
    if not is_dns_label(str(device.get("name", ""))):
        yield f'{path}.name: "{device.get("name", "")}" is not a DNS label'
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > _ENTRIES:
        yield f"{path}: {len(attributes) + len(capacity)} attributes and capacities are more than {_ENTRIES}"
    values = sum(max([len(attribute.get(form) or ()) for form in _LISTS], default=0) or 1
                 for attribute in attributes.values())  # fmt: skip
    if values > _VALUES:
        yield f"{path}.attributes: {values} values are more than {_VALUES}"
    for name in (*attributes, *capacity):
        if not is_qualified_name(name):
            yield f'{path}: "{name}" is not [<DNS subdomain of 63>/]<C identifier of 32>'
    for name, attribute in attributes.items():
        yield from _attribute(attribute, f"{path}.attributes[{name}]")
    for name, amount in capacity.items():
        shared = bool(device.get("allowMultipleAllocations"))
        yield from _capacity(amount, f"{path}.capacity[{name}]", shared=shared)
    yield from _consumptions(device.get("consumesCounters") or (), path)
    yield from _taints(device.get("taints") or (), path)
    yield from _conditions(device, path)
    here = [field for field in _SELECTIONS[:3] if device.get(field)]
    if len(here) != int(selected):
        yield f"{path}: {len(here)} of nodeName, nodeSelector and allNodes are set, and {int(selected)} must be"


def _attribute(attribute: Mapping[str, Any], path: str) -> _Problems:
    forms = [form for form in _FORMS if attribute.get(form) is not None]
    if len(forms) != 1:
        yield f"{path}: exactly one value is required, not {len(forms)}"
        return
    (form,) = forms
    items = attribute[form] if form in _LISTS else [attribute[form]]
    if not items:
        yield f"{path}.{form}: a list must not be empty"
    for item in items:
        if form.startswith("int") and (not _is_int(item) or item not in _INT64):
            yield f"{path}.{form}: {item} is not a 64-bit integer"
        if form.startswith("version") and not is_semver(str(item)):
            yield f'{path}.{form}: "{item}" is not a semantic version 2.0.0'
        if form.startswith(("string", "version")) and len(str(item).encode()) > _TEXT:
            yield f"{path}.{form}: {len(str(item).encode())} bytes are more than {_TEXT}"


def _capacity(amount: Mapping[str, Any], path: str, *, shared: bool) -> _Problems:
    try:
        value = Quantity(amount.get("value", ""))
    except ValueError as error:
        yield f"{path}.value: {error}"
        return
    policy = amount.get("requestPolicy")
    if policy is None:
        return
    if not shared:
        yield f"{path}.requestPolicy: needs allowMultipleAllocations"
    try:
        yield from (
            f"{path}.requestPolicy: {problem}"
            for problem in policy_problems(value, decode(CapacityRequestPolicy, policy))
        )
    except DocumentError as error:
        yield f"{path}.requestPolicy: {error}"


def _counters(counters: Mapping[str, Any], key: str, path: str) -> _Problems:
    values = counters.get("counters") or {}
    if not is_dns_label(str(counters.get(key, ""))):
        yield f'{path}.{key}: "{counters.get(key, "")}" is not a DNS label'
    if not 0 < len(values) <= _COUNTERS:
        yield f"{path}.counters: {len(values)} are not 1 to {_COUNTERS}"
    for name, counter in values.items():
        if not is_dns_label(name):
            yield f'{path}.counters: "{name}" is not a DNS label'
        try:
            Quantity(counter.get("value", ""))
        except ValueError as error:
            yield f"{path}.counters[{name}].value: {error}"


def _consumptions(consumptions: Sequence[Mapping[str, Any]], path: str) -> _Problems:
    if len(consumptions) > _CONSUMPTIONS:
        yield f"{path}.consumesCounters: {len(consumptions)} are more than {_CONSUMPTIONS}"
    for index, consumption in enumerate(consumptions):
        yield from _counters(consumption, "counterSet", f"{path}.consumesCounters[{index}]")


def _taints(taints: Sequence[Mapping[str, Any]], path: str) -> _Problems:
    if len(taints) > _TAINTS:
        yield f"{path}.taints: {len(taints)} are more than {_TAINTS}"
    for index, taint in enumerate(taints):
        if not is_label_name(str(taint.get("key", ""))):
            yield f'{path}.taints[{index}].key: "{taint.get("key", "")}" is not a label name'
        if not is_label_value(str(taint.get("value", ""))):
            yield f'{path}.taints[{index}].value: "{taint["value"]}" is not a label value'
        if taint.get("effect") not in _EFFECTS:
            yield f'{path}.taints[{index}].effect: "{taint.get("effect", "")}" is not one of {", ".join(_EFFECTS)}'


def _conditions(device: Mapping[str, Any], path: str) -> _Problems:
    ready, failed = device.get("bindingConditions") or (), device.get("bindingFailureConditions") or ()
    if bool(ready) != bool(failed):
        yield f"{path}: bindingConditions and bindingFailureConditions are both required, or neither"
    for field, names in (("bindingConditions", ready), ("bindingFailureConditions", failed)):
        if len(names) > _CONDITIONS:
            yield f"{path}.{field}: {len(names)} are more than {_CONDITIONS}"
    if both := set(ready) & set(failed):
        yield f"{path}: {', '.join(sorted(both))} is in both lists of conditions"


def _large(device: Mapping[str, Any]) -> bool:
    attributes = (device.get("attributes") or {}).values()
    return bool(device.get("taints") or device.get("consumesCounters")) or any(
        attribute.get(form) for attribute in attributes for form in _LISTS
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
