"""The errors of documents that cannot be decoded."""

from typing import Any

import msgspec
import pytest

from dranode.api.documents import decode, decode_json
from dranode.api.errors import DocumentError
from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.cdi.spec import Spec
from dranode.cpu.config import CPUConfig
from dranode.gpu.config import GPUConfig
from dranode.memory.config import MemoryConfig
from dranode.sim.cluster.node_kinds import NodeKind

MEMORY = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig"}
GPU = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig"}
CPU_FIELDS = "cpuset, threads, l3, spread, sharing, cfsQuota, memory"
EDITED = {"cdiVersion": "0.6.0", "kind": "a/b", "devices": [{"name": "d", "containerEdits": {"environment": []}}]}


@pytest.mark.parametrize(
    ("kind", "document", "message"),
    [
        (CPUConfig, {"treads": "any"}, f"contains unknown field treads; there are {CPU_FIELDS}"),
        (CPUConfig, {"spread": {"polcy": 1}}, "spread: contains unknown field polcy; there are policy, group"),
        (CPUConfig | None, {"treads": "any"}, f"contains unknown field treads; there are {CPU_FIELDS}"),
        (dict[str, CPUConfig], {"a": {"x": 1}}, f"[a]: contains unknown field x; there are {CPU_FIELDS}"),
        (tuple[CPUConfig, ...], [{}, {"x": 1}], f"[1]: contains unknown field x; there are {CPU_FIELDS}"),
        (
            GPUConfig,
            {**GPU, "sharing": {"memory": 1}},
            "sharing: contains unknown field memory; there are strategy, memoryLimit",
        ),
        (NodeKind, {"name": "n", "machines": "x"}, "contains unknown field machines; there are name, machine, slices"),
        (Spec, EDITED, "devices[0].containerEdits: contains unknown field environment; there are env, deviceNodes"),
    ],
)
def test_an_unknown_field_is_refused_with_the_known_ones(kind: Any, document: Any, message: str) -> None:
    for read in (decode, lambda kind, document: decode_json(kind, msgspec.json.encode(document))):
        with pytest.raises(DocumentError) as raised:
            read(kind, document)
        assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "document", "message"),
    [
        (MemoryConfig, {**MEMORY, "policy": "strict"}, "'strict' is not bind or interleave or weighted or preferred"),
        (MemoryConfig, {**MEMORY, "kind": "CPUConfig"}, "'CPUConfig' is not MemoryConfig"),
        (dict[str, MemoryConfig], {"a": {**MEMORY, "sharing": "all"}}, "'all' is not container or pod"),
    ],
)
def test_an_unknown_value_is_refused_with_the_known_ones(kind: Any, document: Any, message: str) -> None:
    for read in (decode, lambda kind, document: decode_json(kind, msgspec.json.encode(document))):
        with pytest.raises(DocumentError) as raised:
            read(kind, document)
        assert str(raised.value).endswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"name": "\x9f"}', "a string in it is not UTF-8: invalid start byte at its byte 0"),
        (b'{"spread": ' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"spread": ', "Input data was truncated"),
    ],
)
# The text is read to its end even if a value before does not fit.
@pytest.mark.parametrize("kind", [dict[str, Any], ResourceClaim])
def test_json_that_is_not_text_is_refused_as_a_document(kind: Any, text: bytes, message: str) -> None:
    with pytest.raises(DocumentError) as raised:
        decode_json(kind, text.replace(b"{", b'{"metadata": 1, ', 1))
    assert str(raised.value) == message


def test_a_null_of_the_api_server_means_absent() -> None:
    document = {
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": None}},
        "status": {"allocation": {"devices": {"results": None}, "nodeSelector": None}},
    }
    for read in (decode(ResourceClaim, document), decode_json(ResourceClaim, msgspec.json.encode(document))):
        assert read.spec.devices.requests == ()
        assert read.status.allocation == AllocationResult()


def test_a_null_for_a_required_field_is_an_error() -> None:
    with pytest.raises(DocumentError, match=r"spec.devices.requests\[0\]: .*name"):
        decode(ResourceClaim, {"spec": {"devices": {"requests": [{"name": None}]}}})
