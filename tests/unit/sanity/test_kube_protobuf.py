"""Kubernetes' protobuf, by a message that Go's library would write."""

from __future__ import annotations

from typing import Any

import pytest

from dranode.sanity.kube_protobuf import decode_body
from dranode.sanity.objects import StatusError


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def entry(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def envelope(kind: str, raw: bytes, version: str = "v1") -> bytes:
    type_meta = entry(1, f"resource.k8s.io/{version}") + entry(2, kind)
    return b"k8s\x00" + entry(1, type_meta) + entry(2, raw) + entry(3, "") + entry(4, "")


ATTRIBUTES = entry(1, "index") + entry(2, entry(2, -1))
CAPACITY = entry(1, "slots") + entry(2, entry(1, entry(1, "40")))
METADATA = entry(1, "") + entry(2, "0-d-") + entry(5, "") + entry(8, b"")
POOL = entry(1, "node") + entry(2, 1) + entry(3, 1)


def slice_of(device: bytes) -> bytes:
    spec = entry(1, "d.example.com") + entry(2, POOL) + entry(3, "node") + entry(5, 0) + entry(6, device)
    return entry(1, METADATA) + entry(2, spec)


def expected(device: dict[str, Any], version: str) -> dict[str, Any]:
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "pool": pool, "nodeName": "node", "devices": [device]}
    api = f"resource.k8s.io/{version}"
    return {"apiVersion": api, "kind": "ResourceSlice", "metadata": {"generateName": "0-d-"}, "spec": spec}


CONTENT = {"attributes": {"index": {"int": -1}}, "capacity": {"slots": {"value": "40"}}}


def test_a_slice_of_v1_is_read() -> None:
    device = entry(1, "dev-0") + entry(2, ATTRIBUTES) + entry(3, CAPACITY)
    assert decode_body(envelope("ResourceSlice", slice_of(device))) == expected({"name": "dev-0", **CONTENT}, "v1")


def test_a_slice_of_v1beta1_has_its_fields_under_basic() -> None:
    device = entry(1, "dev-0") + entry(2, entry(1, ATTRIBUTES) + entry(2, CAPACITY))
    body = envelope("ResourceSlice", slice_of(device), "v1beta1")
    assert decode_body(body) == expected({"name": "dev-0", "basic": CONTENT}, "v1beta1")


def test_another_kind_is_not_read() -> None:
    with pytest.raises(StatusError, match="reads no Pod in protobuf"):
        decode_body(envelope("Pod", b""))


@pytest.mark.parametrize("cut", range(4, 60, 7))
def test_a_damaged_body_is_refused(cut: int) -> None:
    body = envelope("ResourceSlice", slice_of(entry(1, "dev-0")))
    with pytest.raises(StatusError):
        decode_body(body[:-cut] if cut % 2 else body[:cut])
