"""Kubernetes' protobuf, as k8s.io/apimachinery 0.36.4 writes two ResourceSlices (v1 and v1beta1)."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from dranode.sanity.kube_protobuf import decode_body
from dranode.sanity.objects import StatusError

SLICES = json.loads((Path(__file__).parents[2] / "vectors" / "slices_in_protobuf.json").read_text())
BODY = b64decode(SLICES[0]["protobuf"])


@pytest.mark.parametrize("sample", SLICES, ids=lambda sample: sample["json"]["apiVersion"])
def test_a_slice_is_read_as_its_json_is(sample: dict[str, Any]) -> None:
    assert decode_body(b64decode(sample["protobuf"])) == sample["json"]


def test_another_kind_is_not_read() -> None:
    with pytest.raises(StatusError, match='does not read "ResourceClaim" in protobuf'):
        decode_body(BODY.replace(b"ResourceSlice", b"ResourceClaim", 1))


@pytest.mark.parametrize("cut", range(4, 120, 7))
def test_a_damaged_body_is_refused(cut: int) -> None:
    with pytest.raises(StatusError):
        decode_body(BODY[:-cut] if cut % 2 else BODY[:cut])
