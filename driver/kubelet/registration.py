"""The registration service (pluginregistration/v1): how kubelet finds a driver and answers whether it registered it.

A starting node waits for the answer to GetInfo, so that is put together without protobuf, which is loaded meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from dranode.driver.core.claims.calls import Awaited, always
from dranode.driver.kubelet.methods import Method, Unary

# Newest first: kubelet takes the first of the plugin's list that it knows.
DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

_SERVICE: Final = "/pluginregistration.Registration/"
# The fields of PluginInfo, by number; all are texts.
_TYPE, _NAME, _ENDPOINT, _VERSION = 1, 2, 3, 4
# How many bits of a number go into a byte of protobuf.
_BITS: Final = 7

log = logging.getLogger(__name__)


class Registration:
    """The registration of one driver.

    kubelet does not try again after it has turned a driver down, so a rejection goes to `rejected`, which ends the
    process with kubelet's reason.

    Attributes:
        asked: whether kubelet has asked for the driver.
        registered: whether it has registered the driver, by its last word.
    """

    def __init__(self, driver: str, endpoint: Path, versions: tuple[str, ...], rejected: Callable[[str], None]) -> None:
        """Register `driver`, served at `endpoint` in `versions` (newest first)."""
        self._driver = driver
        self._info = plugin_info("DRAPlugin", driver, str(endpoint), versions)
        self._rejected = rejected
        self.asked = threading.Event()
        self.registered = False

    def methods(self) -> dict[str, Method]:
        """The gRPC methods `GetInfo` and `NotifyRegistrationStatus`, by path (`/<service>/<method>`)."""
        return {
            f"{_SERVICE}GetInfo": Unary(_nothing, self._get_info, bytes),
            f"{_SERVICE}NotifyRegistrationStatus": Unary(_status, self._notify, bytes),
        }

    def _get_info(self, request: object, awaited: Awaited = always) -> bytes:
        del request, awaited
        self.asked.set()
        return self._info

    def _notify(self, request: Any, awaited: Awaited = always) -> bytes:
        del awaited
        self.registered = request.plugin_registered
        if self.registered:
            log.info("registered driver=%s", self._driver)
        else:
            self._rejected(f"kubelet turned the driver {self._driver} down: {request.error or 'it gave no reason'}")
        # A RegistrationStatusResponse has no field.
        return b""


def plugin_info(kind: str, name: str, endpoint: str, versions: Iterable[str]) -> bytes:
    """Return a PluginInfo as it travels (protobuf.dev/programming-guides/encoding)."""
    fields = ((_TYPE, kind), (_NAME, name), (_ENDPOINT, endpoint), *((_VERSION, version) for version in versions))
    return b"".join(_field(number, text.encode()) for number, text in fields)


def _field(number: int, text: bytes) -> bytes:
    # Wire type 2: a length and as many bytes.
    return bytes((number << 3 | 2,)) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    rest, low = number >> _BITS, number & (1 << _BITS) - 1
    return bytes((low | 1 << _BITS,)) + _varint(rest) if rest else bytes((low,))


def _nothing(data: bytes) -> None:
    """Take in an InfoRequest, which has no field; what there is nevertheless has to be protobuf."""
    if data:
        from dranode.proto import pluginregistration_v1_pb2 as api  # noqa: PLC0415 - see above

        api.InfoRequest.FromString(data)


def _status(data: bytes) -> Any:
    from dranode.proto import pluginregistration_v1_pb2 as api  # noqa: PLC0415 - see above

    return api.RegistrationStatus.FromString(data)
