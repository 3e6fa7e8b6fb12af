"""Decodes the Kubernetes protobuf that drivers send: ResourceSlices and DeleteOptions.

Source: `generated.proto` of `k8s.io/api/resource` (v1, v1beta1, v1beta2), `k8s.io/apimachinery/pkg/apis/meta/v1` and
`pkg/runtime` (the envelope: four bytes, then `Unknown`). The tables below give the number of each field of a message,
its name in JSON and its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dranode.sanity.kinds import KubeDocument
from dranode.sanity.objects import StatusError

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_PREFIX: Final = b"k8s\x00"
_SIGN: Final = 1 << 63

# A type is a scalar in small letters, a message, `*X` for a list of X, or `{X` for a map from strings to X.
_FIELDS: Final[Mapping[str, Mapping[int, tuple[str, str]]]] = {
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "bytes")},
    "TypeMeta": {1: ("apiVersion", "text"), 2: ("kind", "text")},
    "ResourceSlice": {1: ("metadata", "ObjectMeta"), 2: ("spec", "ResourceSliceSpec")},
    "DeleteOptions": {2: ("preconditions", "Preconditions"), 5: ("dryRun", "*text")},
    "Preconditions": {1: ("uid", "text"), 2: ("resourceVersion", "text")},
    "ObjectMeta": {
        1: ("name", "text"), 2: ("generateName", "text"), 3: ("namespace", "text"), 5: ("uid", "text"),
        6: ("resourceVersion", "text"), 8: ("creationTimestamp", "Time"), 11: ("labels", "{text"),
        12: ("annotations", "{text"), 13: ("ownerReferences", "*OwnerReference"), 14: ("finalizers", "*text"),
    },
    "OwnerReference": {
        1: ("kind", "text"), 3: ("name", "text"), 4: ("uid", "text"), 5: ("apiVersion", "text"),
        6: ("controller", "bool"), 7: ("blockOwnerDeletion", "bool"),
    },
    "ResourceSliceSpec": {
        1: ("driver", "text"), 2: ("pool", "ResourcePool"), 3: ("nodeName", "text"),
        4: ("nodeSelector", "NodeSelector"), 5: ("allNodes", "flag"), 6: ("devices", "*Device"),
        7: ("perDeviceNodeSelection", "bool"), 8: ("sharedCounters", "*CounterSet"),
        9: ("partitionTypeAttribute", "text"), 10: ("skipNodeOperations", "*text"),
    },
    "ResourcePool": {1: ("name", "text"), 2: ("generation", "int"), 3: ("resourceSliceCount", "int")},
    "NodeSelector": {1: ("nodeSelectorTerms", "*NodeSelectorTerm")},
    "NodeSelectorTerm": {1: ("matchExpressions", "*Requirement"), 2: ("matchFields", "*Requirement")},
    "Requirement": {1: ("key", "text"), 2: ("operator", "text"), 3: ("values", "*text")},
    "DeviceAttribute": {
        2: ("int", "int"), 3: ("bool", "bool"), 4: ("string", "value"), 5: ("version", "value"), 6: ("ints", "*int"),
        7: ("bools", "*bool"), 8: ("strings", "*value"), 9: ("versions", "*value"),
    },
    "DeviceCapacity": {1: ("value", "Quantity"), 2: ("requestPolicy", "CapacityRequestPolicy")},
    "CapacityRequestPolicy": {
        1: ("default", "Quantity"), 3: ("validValues", "*Quantity"), 4: ("validRange", "CapacityRequestPolicyRange"),
    },
    "CapacityRequestPolicyRange": {1: ("min", "Quantity"), 2: ("max", "Quantity"), 3: ("step", "Quantity")},
    "Counter": {1: ("value", "Quantity")},
    "CounterSet": {1: ("name", "text"), 2: ("counters", "{Counter")},
    "DeviceCounterConsumption": {
        1: ("counterSet", "text"), 2: ("counters", "{Counter"), 3: ("compatibilityGroups", "*text"),
    },
    "DeviceTaint": {1: ("key", "text"), 2: ("value", "text"), 3: ("effect", "text"), 4: ("timeAdded", "Time")},
    "NodeAllocatableResource": {3: ("mapping", "NodeAllocatableMapping"), 4: ("overhead", "NodeAllocatableOverhead")},
    "NodeAllocatableMapping": {
        1: ("capacityKey", "text"), 2: ("capacityMultiplier", "Quantity"), 3: ("deviceMultiplier", "Quantity"),
    },
    "NodeAllocatableOverhead": {1: ("perPod", "Quantity"), 2: ("perContainer", "Quantity")},
    "Quantity": {1: ("string", "value")},
    "Time": {1: ("seconds", "int"), 2: ("nanos", "int")},
}  # fmt: skip
# The fields of a device, which are in a message of their own in v1beta1, with other numbers.
_DEVICE: Final = (
    ("attributes", "{DeviceAttribute"), ("capacity", "{DeviceCapacity"),
    ("consumesCounters", "*DeviceCounterConsumption"), ("nodeName", "text"), ("nodeSelector", "NodeSelector"),
    ("allNodes", "bool"), ("taints", "*DeviceTaint"), ("bindsToNode", "bool"), ("bindingConditions", "*text"),
    ("bindingFailureConditions", "*text"), ("allowMultipleAllocations", "bool"),
)  # fmt: skip
_ALLOCATABLE: Final = {14: ("nodeAllocatableResources", "{NodeAllocatableResource")}
_BASIC: Final = {**dict(enumerate(_DEVICE, 1)), **_ALLOCATABLE}
_V1: Final = {**_FIELDS, "Device": {1: ("name", "text"), **dict(enumerate(_DEVICE, 2)), **_ALLOCATABLE}}
_V1BETA1: Final = {**_FIELDS, "Device": {1: ("name", "text"), 2: ("basic", "BasicDevice")}, "BasicDevice": _BASIC}


def decode_body(raw: bytes) -> KubeDocument:
    """Decode a body; returns the document.

    Raises:
        StatusError: the body is damaged (400), or of a kind that is not supported here (415).
    """
    if not raw.startswith(_PREFIX):
        raise StatusError(400, "BadRequest", "the body is not Kubernetes' protobuf")
    try:
        envelope = _message(raw[len(_PREFIX) :], "Unknown", _FIELDS)
        kind = envelope["typeMeta"].get("kind", "")
        if kind not in ("ResourceSlice", "DeleteOptions"):
            raise StatusError(415, "UnsupportedMediaType", f"this server reads no {kind} in protobuf")
        tables = _V1BETA1 if envelope["typeMeta"]["apiVersion"].endswith("/v1beta1") else _V1
        return {**envelope["typeMeta"], **_message(envelope.get("raw", b""), kind, tables)}
    except (IndexError, KeyError, ValueError) as error:
        raise StatusError(400, "BadRequest", f"the body is damaged: {error!r}") from error


def _message(data: bytes, name: str, tables: Mapping[str, Mapping[int, tuple[str, str]]]) -> KubeDocument:
    document: KubeDocument = {}
    for number, raw in _wire(data):
        field, kind = tables[name].get(number, ("", ""))
        if kind.startswith("*"):
            document.setdefault(field, []).append(_value(raw, kind[1:], tables))
        elif kind.startswith("{"):
            entry = dict(_wire(raw if isinstance(raw, bytes) else b""))
            key = _value(entry.get(1, b""), "text", tables)
            document.setdefault(field, {})[key] = _value(entry.get(2, b""), kind[1:], tables)
        elif kind:
            document[field] = _value(raw, kind, tables)
    # Go writes empty strings and false flags too.
    unset = {field for field, kind in tables[name].values() if kind in ("text", "flag", "Time")}
    return {field: value for field, value in document.items() if value or field not in unset}


def _value(raw: bytes | int, kind: str, tables: Mapping[str, Mapping[int, tuple[str, str]]]) -> Any:
    if isinstance(raw, int):
        return bool(raw) if kind in ("bool", "flag") else raw - (raw >= _SIGN) * 2 * _SIGN
    if kind in ("text", "value"):
        return raw.decode()
    if kind == "bytes":
        return raw
    message = _message(raw, kind, tables)
    if kind == "Quantity":
        return message.get("string", "0")
    if kind == "Time":
        seconds = message.get("seconds")
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else ""
    return message


def _wire(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field: an integer, or the bytes of anything else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                number, at = _varint(data, at)
                yield tag >> 3, number
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case form:
                raise ValueError(f"wire type {form}")
        if at + size > len(data):
            raise ValueError("cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return value, at
