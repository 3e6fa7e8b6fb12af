"""What gRPC says over HTTP/2, as values (PROTOCOL-HTTP2.md of gRPC)."""

from __future__ import annotations

import pytest

from dranode.driver.kubelet.grpc_values import (
    RPCError,
    Status,
    decoded_reason,
    encoded_reason,
    timeout,
    with_length,
    without_length,
)


@pytest.mark.parametrize("message", [b"", b"a", b"\0" * 70_000])
def test_a_message_has_its_length_before_it(message: bytes) -> None:
    assert with_length(message)[:5] == b"\0" + len(message).to_bytes(4, "big")
    assert without_length(with_length(message)) == message


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\0\0\0\0\2a", b"\0\0\0\0\1ab", with_length(b"a") + with_length(b"b")]
)
def test_what_is_not_one_whole_message_is_refused_with_its_size(data: bytes) -> None:
    with pytest.raises(RPCError, match=f"^{len(data)} bytes came, which are not one whole message$") as refused:
        without_length(data)
    assert refused.value.status is Status.INTERNAL


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(RPCError, match="compressed") as refused:
        without_length(b"\1\0\0\0\1a")
    assert refused.value.status is Status.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        (b"", None),
        (b"1", None),
        (b"S", None),
        (b"1x", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"\xb2S", None),
        (b"123456789S", None),
        (b"0n", 0),
        (b"2H", 7200),
        (b"3M", 180),
        (b"45S", 45),
        (b"500m", 0.5),
        (b"44999831u", 44.999831),
        (b"99999999n", 0.099999999),
    ],
)
def test_timeouts_have_a_unit_and_at_most_eight_digits(header: bytes | None, seconds: float | None) -> None:
    assert timeout(header) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("reason", "header"),
    [
        ("plain: 100", b"plain: 100"),
        ("100 %", b"100 %25"),
        ("für\n", b"f%C3%BCr%0A"),
        ("水", b"%E6%B0%B4"),
        ("~ ", b"~ "),
        ("\x7f", b"%7F"),
    ],
)
def test_a_reason_is_percent_encoded_utf_8(reason: str, header: bytes) -> None:
    assert encoded_reason(reason) == header
    assert decoded_reason(header) == reason


def test_a_reason_of_any_kind_fits_into_a_header() -> None:
    assert encoded_reason("bad \ud800") == b"bad ?"
    assert len(encoded_reason("水" * 5000)) == 9000
    assert decoded_reason(b"50% of \xff%ff") == "50% of \u00ff\ufffd"
