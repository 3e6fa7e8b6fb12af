"""Registration's messages, which are made without protobuf, as protobuf reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranode.driver.core.claims.calls import always
from dranode.driver.kubelet.methods import Unary
from dranode.driver.kubelet.protobuf_wire import MessageError
from dranode.driver.kubelet.registration import Registration, plugin_info, read_status
from dranode.proto import pluginregistration_v1_pb2 as api
from tests.fakes.protobuf_bytes import MESSAGES, read_by_protobuf

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.integers(120, 20_000).map(lambda size: "x" * size)


@given(TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=3))
def test_the_answer_to_getinfo_is_what_protobuf_reads(kind: str, name: str, endpoint: str, versions: list[str]) -> None:
    info = api.PluginInfo(type=kind, name=name, endpoint=endpoint, supported_versions=versions)
    assert api.PluginInfo.FromString(plugin_info(kind, name, endpoint, versions)) == info


def method(name: str, rejected: list[str]) -> Unary:
    service = api.DESCRIPTOR.services_by_name["Registration"]
    methods = Registration("a.example.com", Path("/s.sock"), ("v1.DRAPlugin",), rejected.append).methods()
    assert methods.keys() == {f"/{service.full_name}/{each.name}" for each in service.methods}
    found = methods[f"/{service.full_name}/{name}"]
    assert isinstance(found, Unary)
    return found


def test_the_methods_are_those_of_the_contract() -> None:
    ask = method("GetInfo", [])
    answer = ask.encode(ask.handle(ask.decode(api.InfoRequest().SerializeToString()), always))
    assert api.PluginInfo.FromString(answer) == api.PluginInfo(
        type="DRAPlugin", name="a.example.com", endpoint="/s.sock", supported_versions=["v1.DRAPlugin"]
    )
    with pytest.raises(MessageError):
        ask.decode(b"\xff\xff")


@pytest.mark.parametrize("registered", [True, False])
def test_kubelets_word_is_taken_in(*, registered: bool) -> None:
    rejected: list[str] = []
    notify = method("NotifyRegistrationStatus", rejected)
    status = api.RegistrationStatus(plugin_registered=registered, error="" if registered else "no such version")
    answer = notify.encode(notify.handle(notify.decode(status.SerializeToString()), always))
    assert api.RegistrationStatusResponse.FromString(answer) == api.RegistrationStatusResponse()
    assert rejected == ([] if registered else ["kubelet turned the driver a.example.com down: no such version"])


@given(MESSAGES)
def test_a_status_is_read_as_protobuf_reads_it(data: bytes) -> None:
    status = read_by_protobuf(api.RegistrationStatus, data)
    if status is None:
        with pytest.raises(MessageError):
            read_status(data)
    else:
        assert read_status(data) == (status.plugin_registered, status.error)
