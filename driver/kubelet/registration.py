"""The registration service (pluginregistration/v1): how kubelet finds a driver and answers whether it registered it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dranode.driver.kubelet.methods import Method, service
from dranode.proto import pluginregistration_v1_pb2 as api

# Newest first: kubelet takes the first of the plugin's list that it knows.
DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """kubelet's last word; `reason` is empty when it took the driver."""

    ok: bool
    reason: str = ""


class Registration:
    """The registration of one driver.

    kubelet does not try again after it has turned a driver down, so a rejection goes to `rejected`, which ends the
    process with kubelet's reason.
    """

    def __init__(self, driver: str, endpoint: Path, versions: tuple[str, ...], rejected: Callable[[str], None]) -> None:
        """Register `driver`, served at `endpoint` in `versions` (newest first)."""
        self._info = api.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=list(versions)
        )
        self._rejected = rejected
        self._done = threading.Event()
        self.asked = threading.Event()
        self.status: RegistrationStatus | None = None

    def methods(self) -> dict[str, Method]:
        """The gRPC methods `GetInfo` and `NotifyRegistrationStatus`, by path (`/<service>/<method>`)."""
        handlers = {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notify}
        return service(api.DESCRIPTOR, "Registration", handlers)

    def _get_info(self, request: Any) -> Any:
        del request
        self.asked.set()
        return self._info

    def _notify(self, request: Any) -> Any:
        self.status = RegistrationStatus(request.plugin_registered, request.error)
        self._done.set()
        if request.plugin_registered:
            log.info("registered driver=%s", self._info.name)
        else:
            self._rejected(f"kubelet turned the driver {self._info.name} down: {request.error or 'it gave no reason'}")
        return api.RegistrationStatusResponse()

    def wait(self, seconds: float) -> bool:
        """Wait for kubelet's answer, be it a rejection; False if there was none in time."""
        return self._done.wait(seconds)
