"""The messages of the DRA service by the numbers of their fields, as proto/dra_v1.proto has them.

Those of v1beta1 are the same, but for a device's share id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.record import PreparedDevice
from dranode.driver.kubelet.protobuf_wire import bytes_field, fields, text_field, utf8_text


def read_claims(data: bytes) -> tuple[ClaimRef, ...]:
    """Return the claims of a NodePrepareResourcesRequest or a NodeUnprepareResourcesRequest.

    Raises:
        MessageError: it is neither.
    """
    return tuple(_claim(value) for number, value in fields(data) if number == 1 and isinstance(value, bytes))


def _claim(data: bytes) -> ClaimRef:
    texts = {1: "", 2: "", 3: ""}
    for number, value in fields(data, level=1):
        if number in texts and isinstance(value, bytes):
            texts[number] = utf8_text(value)
    return ClaimRef(namespace=texts[1], uid=texts[2], name=texts[3])


def prepare_answer(devices: Iterable[PreparedDevice], *, shares: bool) -> bytes:
    """Return a NodePrepareResourceResponse of a claim's devices.

    Args:
        devices: the devices.
        shares: whether the version has share ids.
    """
    return b"".join(bytes_field(1, _device(device, shares=shares)) for device in devices)


def _device(device: PreparedDevice, *, shares: bool) -> bytes:
    named = bytes_field(1, device.request.encode()) + text_field(2, device.pool) + text_field(3, device.device)
    cdi = b"".join(bytes_field(4, each.encode()) for each in device.cdi)
    share = bytes_field(5, device.share_id.encode()) if shares and device.share_id is not None else b""
    return named + cdi + share


def prepare_failure(reason: str) -> bytes:
    """Return a NodePrepareResourceResponse that says why a claim is not prepared."""
    return text_field(2, reason)


def unprepare_answer(reason: str) -> bytes:
    """Return a NodeUnprepareResourceResponse that says why a claim is not unprepared, or with "" that it is."""
    return text_field(1, reason)


def by_claim(answers: Mapping[str, bytes]) -> bytes:
    """Return the answer to a call from those for its claims, by UID."""
    return b"".join(bytes_field(1, text_field(1, uid) + bytes_field(2, answer)) for uid, answer in answers.items())
