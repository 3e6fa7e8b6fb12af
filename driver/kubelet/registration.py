"""The registration service (pluginregistration/v1): how kubelet finds a driver and answers whether it registered it.

Field numbers are those of proto/pluginregistration_v1.proto.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dranode.driver.core.claims.calls import Awaited, always
from dranode.driver.kubelet.methods import Method, Unary
from dranode.driver.kubelet.protobuf_wire import bytes_field, fields, text_field, utf8_text

# Newest first: kubelet takes the first of the plugin's list that it knows.
DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

_SERVICE: Final = "/pluginregistration.Registration/"

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
            f"{_SERVICE}GetInfo": Unary(fields, self._get_info, bytes),
            f"{_SERVICE}NotifyRegistrationStatus": Unary(read_status, self._notify, bytes),
        }

    def _get_info(self, request: object, awaited: Awaited = always) -> bytes:
        del request, awaited
        self.asked.set()
        return self._info

    def _notify(self, status: tuple[bool, str], awaited: Awaited = always) -> bytes:
        del awaited
        self.registered, error = status
        if self.registered:
            log.info("registered driver=%s", self._driver)
        else:
            self._rejected(f"kubelet turned the driver {self._driver} down: {error or 'it gave no reason'}")
        # A RegistrationStatusResponse has no field.
        return b""


def plugin_info(kind: str, name: str, endpoint: str, versions: Iterable[str]) -> bytes:
    """Return a PluginInfo: how kubelet calls a driver, newest version first."""
    named = text_field(1, kind) + text_field(2, name) + text_field(3, endpoint)
    return named + b"".join(bytes_field(4, version.encode()) for version in versions)


def read_status(data: bytes) -> tuple[bool, str]:
    """Return from a RegistrationStatus whether kubelet has registered the driver, and why not.

    Raises:
        MessageError: it is none.
    """
    registered, error = False, ""
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            registered = bool(value)
        elif number == 2 and isinstance(value, bytes):  # noqa: PLR2004 - see above
            error = utf8_text(value)
    return registered, error
