"""The DRA service's messages, which are made and read without protobuf, as protobuf reads and makes them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.record import PreparedDevice
from dranode.driver.kubelet.dra_messages import by_claim, prepare_answer, prepare_failure, read_claims, unprepare_answer
from dranode.driver.kubelet.protobuf_wire import MessageError
from dranode.driver.kubelet.service import DRAService
from dranode.proto import dra_v1_pb2, dra_v1beta1_pb2
from tests.fakes.protobuf_bytes import MESSAGES, read_by_protobuf

APIS = (dra_v1_pb2, dra_v1beta1_pb2)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.integers(120, 20_000).map(lambda size: "x" * size)
CLAIMS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=9)
NESTED = 100


def _refs(request: Any) -> tuple[ClaimRef, ...]:
    return tuple(ClaimRef(each.namespace, each.name, each.uid) for each in request.claims)


@pytest.mark.parametrize("api", APIS)
@given(claims=CLAIMS)
def test_claims_of_a_request_are_read_as_protobuf_wrote_them(api: ModuleType, claims: list[tuple[str, ...]]) -> None:
    named = [api.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
    for kind in (api.NodePrepareResourcesRequest, api.NodeUnprepareResourcesRequest):
        request = kind(claims=named)
        assert read_claims(request.SerializeToString()) == _refs(request)


def _in_claim(data: bytes) -> bytes:
    return b"\x0a" + bytes((len(data) & 127 | 128, len(data) >> 7)) + data


@given(data=MESSAGES | MESSAGES.map(_in_claim))
@example(_in_claim(b"\x2b" * (NESTED - 1) + b"\x2c" * (NESTED - 1)))
@example(_in_claim(b"\x2b" * NESTED + b"\x2c" * NESTED))
@example(b"\x00\x00")
@example(b"\x0e")
@example(b"\x10" + b"\xff" * 9 + b"\x7f")
@example(b"\x10" + b"\xff" * 10 + b"\x01")
@example(b"\x13" * NESTED + b"\x14" * NESTED)
@example(b"\x13" * (NESTED + 1) + b"\x14" * (NESTED + 1))
@example(b"\xf8\xff\xff\xff\x0f\x00")
@example(b"\xf8\xff\xff\xff\x1f\x00")
@example(b"\x0a\x80\x80\x80\x80\x00")
@example(b"\x0a\x80\x80\x80\x80\x80\x00")
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x0a\x03\x0a\x01\xff")
@example(b"\x0b\x0c\x08\x01")
@example(b"\x0b\x01\x00\x00\x00\x00\x00\x00\x00\x00\x0c")
@example(b"\x0a\x04\x0a\x00\x0a\x00")
def test_any_bytes_are_read_as_protobuf_reads_them(data: bytes) -> None:
    request = read_by_protobuf(dra_v1_pb2.NodePrepareResourcesRequest, data)
    if request is None:
        with pytest.raises(MessageError):
            read_claims(data)
    else:
        assert read_claims(data) == _refs(request)


DEVICES = st.builds(
    PreparedDevice,
    request=TEXTS,
    pool=TEXTS,
    device=TEXTS,
    cdi=st.lists(TEXTS, max_size=3).map(tuple),
    share_id=st.none() | TEXTS,
)


@pytest.mark.parametrize("api", APIS)
@given(answers=st.dictionaries(TEXTS, st.lists(DEVICES, max_size=3) | TEXTS, max_size=4))
def test_protobuf_reads_the_answer_to_a_prepare(
    api: ModuleType, answers: dict[str, list[PreparedDevice] | str]
) -> None:
    shares = api is dra_v1_pb2
    data = by_claim(
        {
            uid: prepare_failure(each) if isinstance(each, str) else prepare_answer(each, shares=shares)
            for uid, each in answers.items()
        }
    )
    whole = api.NodePrepareResourcesResponse(
        claims={
            uid: api.NodePrepareResourceResponse(error=each)
            if isinstance(each, str)
            else api.NodePrepareResourceResponse(devices=[_device(api, device) for device in each])
            for uid, each in answers.items()
        }
    )
    assert api.NodePrepareResourcesResponse.FromString(data) == whole


def _device(api: ModuleType, device: PreparedDevice) -> Any:
    made = api.Device(
        request_names=[device.request], pool_name=device.pool, device_name=device.device, cdi_device_ids=device.cdi
    )
    if api is dra_v1_pb2 and device.share_id is not None:
        made.share_id = device.share_id
    return made


@pytest.mark.parametrize("api", APIS)
@given(answers=st.dictionaries(TEXTS, TEXTS, max_size=4))
def test_protobuf_reads_the_answer_to_an_unprepare(api: ModuleType, answers: dict[str, str]) -> None:
    data = by_claim({uid: unprepare_answer(reason) for uid, reason in answers.items()})
    responses = {uid: api.NodeUnprepareResourceResponse(error=reason) for uid, reason in answers.items()}
    assert api.NodeUnprepareResourcesResponse.FromString(data) == api.NodeUnprepareResourcesResponse(claims=responses)


def test_the_methods_are_those_of_the_contracts() -> None:
    services = [api.DESCRIPTOR.services_by_name["DRAPlugin"] for api in APIS]
    paths = {f"/{each.full_name}/{method.name}" for each in services for method in each.methods}
    assert DRAService("dra.example").methods.keys() == paths
