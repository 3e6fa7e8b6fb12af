"""The place where one driver listens: its folder, its sockets, and the services on them.

A node waits for its driver, so this is all that `serve` loads before it listens; hardware and ledger are read then, and
a call that comes earlier waits for them. The DRA socket is bound before the registration socket, so that kubelet never
meets an endpoint that is not there.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dranode.driver.core.api.errors import DranodeError, UsageError
from dranode.driver.kubelet.grpc_server import GrpcServer
from dranode.driver.kubelet.methods import Method
from dranode.driver.kubelet.registration import DRA_VERSIONS, HEALTH_VERSIONS, Registration
from dranode.driver.kubelet.sockets import Sockets, bind, unbind
from dranode.driver.process.locks import FileLock
from dranode.driver.process.threads import Fatal

if TYPE_CHECKING:
    from dranode.driver.kubelet.health import HealthService
    from dranode.driver.kubelet.service import DRAService

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
        registration: registers the driver with kubelet.
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
        self.registration = Registration(driver, sockets.dra, DRA_VERSIONS + HEALTH_VERSIONS, fatal)
        self._loaded: tuple[DRAService, HealthService] | None = None
        self._methods: dict[str, Method] = {}
        self._loading = threading.Lock()
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
        self._methods |= self.registration.methods()
        self._server = GrpcServer(self.driver, self._method, self.fatal)
        for path in (self.sockets.dra, self.sockets.registration):
            bind(self._server, path)
            self._bound.append(path)
        self._server.start()
        log.info("listening driver=%s dra=%s registration=%s", self.driver, *self._bound)

    @property
    def calls(self) -> DRAService:
        """The DRA service."""
        return self._services()[0]

    @property
    def health(self) -> HealthService:
        """Return what reports the health of the devices to kubelet."""
        return self._services()[1]

    def _services(self) -> tuple[DRAService, HealthService]:
        """Return what answers besides registration.

        Loaded at the first use, so that kubelet finds the driver before that.
        """
        with self._loading:
            if self._loaded is None:
                from dranode.driver.kubelet.health import HealthService  # noqa: PLC0415 - listen first
                from dranode.driver.kubelet.service import DRAService  # noqa: PLC0415 - listen first

                self._loaded = calls, health = DRAService(self.driver), HealthService(self.node_name, self.fatal)
                self._methods |= calls.methods | health.methods()
            return self._loaded

    def _method(self, path: str) -> Method | None:
        if path not in self._methods:
            self._services()
        return self._methods.get(path)

    def close(self) -> None:
        """End calls in flight, then close the sockets; may be called more than once."""
        with self._loading:
            loaded = self._loaded
        if loaded is not None:
            calls, health = loaded
            health.stop()
            calls.stop()
        if self._server is not None:
            self._server.stop(_GRACE)
            self._server = None
        while self._bound:
            unbind(self._bound.pop())

    def release(self) -> None:
        """Release the lock on the driver's folder, so that another process may serve from it."""
        self._alone.release()
