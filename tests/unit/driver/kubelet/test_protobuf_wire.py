"""What is written is what protobuf reads, and what is read; the messages' own tests compare what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranode.driver.kubelet.protobuf_wire import MessageError, bytes_field, fields, number_field, text_field, utf8_text
from dranode.proto import drahealth_v1_pb2 as api


@given(st.text(st.characters(codec="utf-8"), max_size=300), st.integers(0, (1 << 63) - 1))
def test_what_is_written_is_what_protobuf_reads(said: str, number: int) -> None:
    data = text_field(5, said) + number_field(3, number) + bytes_field(1, text_field(2, said))
    whole = api.DeviceHealth(message=said, last_updated_time=number, device=api.DeviceIdentifier(device_name=said))
    assert api.DeviceHealth.FromString(data) == whole


@given(st.text(st.characters(codec="utf-8"), max_size=300), st.integers(1, (1 << 64) - 1))
def test_what_is_written_is_read(said: str, number: int) -> None:
    message = bytes_field(1, said.encode()) + number_field(1 << 20, number)
    (first, value), second = fields(message)
    assert isinstance(value, bytes)
    assert (first, utf8_text(value), second) == (1, said, (1 << 20, number))


def test_a_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(MessageError, match="no UTF-8"):
        utf8_text(b"\xed\xa0\x80")
