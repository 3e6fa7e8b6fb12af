"""The registration service (pluginregistration/v1): how kubelet finds a driver and answers whether it registered it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dranode.proto import pluginregistration_v1_pb2 as api

# Newest first: kubelet takes the first of the plugin's list that it knows.
DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

log = logging.getLogger(__name__)


class Registration:
    """The registration of one driver, as a servicer of `pluginregistration_v1_pb2_grpc`.

    kubelet does not try again after it has turned a driver down, so a rejection goes to `rejected`, which ends the
    process with kubelet's reason.

    Attributes:
        asked: whether kubelet has asked for the driver.
        registered: whether it has registered the driver, by its last word.
    """

    def __init__(self, driver: str, endpoint: Path, versions: tuple[str, ...], rejected: Callable[[str], None]) -> None:
        """Register `driver`, served at `endpoint` in `versions` (newest first)."""
        self._driver = driver
        self._info = api.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=list(versions)
        )
        self._rejected = rejected
        self.asked = threading.Event()
        self.registered = False

    def GetInfo(self, request: Any, context: Any) -> api.PluginInfo:  # noqa: N802 - the contract's name
        """Return how kubelet calls the driver."""
        del request, context
        self.asked.set()
        return self._info

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> api.RegistrationStatusResponse:  # noqa: N802 - likewise
        """Take in whether kubelet has registered the driver."""
        del context
        self.registered = request.plugin_registered
        if self.registered:
            log.info("registered driver=%s", self._driver)
        else:
            self._rejected(f"kubelet turned the driver {self._driver} down: {request.error or 'it gave no reason'}")
        return api.RegistrationStatusResponse()
