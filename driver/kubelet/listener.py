"""Where one driver listens: its folder, its sockets, and who answers on them.

A node waits for its driver, so this is all that `serve` loads before it listens; hardware and ledger are read then, and
a call that comes earlier waits for them. The DRA socket is bound before the registration socket, so that kubelet never
meets an endpoint that is not there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import DranodeError, UsageError
from dranode.driver.kubelet.grpc_server import GrpcServer
from dranode.driver.kubelet.health import HEALTH_VERSIONS, HealthService
from dranode.driver.kubelet.registration import Registration
from dranode.driver.kubelet.service import SUPPORTED_VERSIONS, DRAService
from dranode.driver.kubelet.sockets import Sockets, bind, unbind
from dranode.driver.process.locks import FileLock
from dranode.driver.process.threads import Fatal

log = logging.getLogger(__name__)

_GRACE: Final = 10.0


class Listener:
    """The sockets of one driver.

    Attributes:
        driver: the driver's name.
        node_name: the node's name, and its pool's.
        data: the driver's folder for ledger and locks.
        sockets: where it listens.
        rolling: whether another instance may serve beside this one for a while, on sockets of its own.
        fatal: ends the process with a sentence.
        health: reports the health of the devices to kubelet.
        registration: registers the driver with kubelet.
        calls: passes kubelet's calls to the service that answers them.
    """

    def __init__(
        self, driver: str, node_name: str, sockets: Sockets, data: Path, fatal: Fatal, *, rolling: bool = False
    ) -> None:
        """Prepare to listen; nothing is opened yet."""
        self.driver = driver
        self.node_name = node_name
        self.data = data
        self.sockets = sockets
        self.rolling = rolling
        self.fatal = fatal
        self.health = HealthService(node_name, fatal)
        self.registration = Registration(driver, sockets.dra, SUPPORTED_VERSIONS + HEALTH_VERSIONS, fatal)
        self.calls = DRAService(driver)
        self._alone = FileLock(data / "active.lock")
        self._server: GrpcServer | None = None
        self._bound: list[Path] = []

    def start(self) -> None:
        """Make the driver's folder and listen; nothing happens if it listens already.

        Raises:
            UsageError: another process serves this driver here.
            DranodeError: a folder or a socket cannot be used.
        """
        if self._server is not None:
            return
        try:
            self._claim_folder()
            self._listen()
        except BaseException:
            self.close()
            self.release()
            raise

    def _claim_folder(self) -> None:
        try:
            self.data.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise DranodeError(f"the driver's folder {self.data} cannot be made: {error.strerror}") from error
        if not self.rolling and not self._alone.acquire(wait=False):
            raise UsageError(
                f"another process serves {self.driver} from {self.data}; stop it first, "
                "or give each its --pod-uid for a rolling update"
            )

    def _listen(self) -> None:
        # One server for both sockets: each server costs threads and memory of its own.
        methods = self.calls.methods() | self.health.methods() | self.registration.methods()
        self._server = GrpcServer(self.driver, methods, self.fatal)
        for path in (self.sockets.dra, self.sockets.registration):
            bind(self._server, path)
            self._bound.append(path)
        self._server.start()
        log.info("listening driver=%s dra=%s registration=%s", self.driver, *self._bound)

    def close(self) -> None:
        """End calls in flight, then close the sockets; may be called more than once."""
        self.health.stop()
        self.calls.stop()
        if self._server is not None:
            self._server.stop(_GRACE)
            self._server = None
        while self._bound:
            unbind(self._bound.pop())

    def release(self) -> None:
        """Let another process serve from the driver's folder."""
        self._alone.release()
