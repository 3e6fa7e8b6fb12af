"""One driver's folder and sockets, and the services on them.

The driver listens before it reads hardware and ledger, so that kubelet finds it at once; calls that come earlier wait.
The DRA socket is bound before the registration socket, because kubelet connects to it as soon as it knows the driver.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.kubelet.health import MAX_STREAMS, HealthService
from dranode.driver.kubelet.service import DRAService
from dranode.driver.kubelet.sockets import FileIdentity, Sockets, bind, identity, remove_dead, unbind
from dranode.driver.process.locks import FileLock
from dranode.driver.process.threads import DaemonPool, Fatal
from dranode.proto import pluginregistration_v1_pb2 as api
from dranode.proto.pluginregistration_v1_pb2_grpc import add_RegistrationServicer_to_server

log = logging.getLogger(__name__)


# The registration service (pluginregistration/v1), by which kubelet finds a driver and says whether it is registered.

# Newest first: kubelet uses the first version in the list that it knows.
DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class Registration:
    """The registration of one driver, as a servicer of `pluginregistration_v1_pb2_grpc`.

    kubelet does not try again after it has rejected a driver, so a rejection goes to `rejected`, which ends the process
    with kubelet's reason.

    Attributes:
        asked: whether kubelet has asked for the driver.
        registered: whether kubelet has registered the driver, according to its last notification.
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

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> api.RegistrationStatusResponse:  # noqa: N802 - the contract's name
        """Note whether kubelet has registered the driver."""
        del context
        self.registered = request.plugin_registered
        if self.registered:
            log.info("registered driver=%s", self._driver)
        else:
            self._rejected(f"kubelet rejected the driver {self._driver}: {request.error or 'it gave no reason'}")
        return api.RegistrationStatusResponse()


# Decisions are made one at a time, so a few threads carry all calls.
_CALLS: Final = 4
# A connection may have 100 calls at a time, as HTTP/2 recommends; further ones wait with their caller. Without a limit
# gRPC cancels calls once 1,000 wait; with overload protection it counts calls that have just ended, and refuses others.
_OPTIONS: Final = (("grpc.max_concurrent_streams", 100), ("grpc.http.overload_protection", 0))
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
        calls: the DRA service.
        health: reports the health of the devices to kubelet.
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
        self.calls = DRAService(driver)
        self.health = HealthService(node_name)
        self._alone = FileLock(data / "active.lock")
        self._server: grpc.Server | None = None
        self._threads: DaemonPool | None = None
        self._bound: dict[Path, FileIdentity] = {}
        self._made: tuple[Path, ...] = ()

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
            # A failed start must not leave a socket behind, which kubelet would go on connecting to.
            self.undo()
            raise

    def _claim_folder(self) -> None:
        try:
            self._made = tuple(folder for folder in (self.data, *self.data.parents) if not folder.exists())
            self.data.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise DranodeError(f"the driver's folder {self.data} cannot be created: {error.strerror}") from error
        # Without --pod-uid, both instances would have the same socket paths.
        if not self.rolling and not self._alone.acquire(seconds=0):
            raise UsageError(
                f"another process serves {self.driver} from {self.data}; stop it first, "
                "or give each its --pod-uid for a rolling update"
            )

    def _listen(self) -> None:
        # One server for both sockets: each server costs threads and memory of its own.
        self._threads = DaemonPool(f"{self.driver}-rpc", _CALLS + MAX_STREAMS, self.fatal)
        self._server = grpc.server(self._threads, options=_OPTIONS)
        add_RegistrationServicer_to_server(self.registration, self._server)
        self.calls.add_to(self._server)
        self.health.add_to(self._server)
        for path in (self.sockets.dra, self.sockets.registration):
            self._bound[path] = bind(self._server, path)
        self._server.start()
        remove_dead(self.sockets, self.driver)
        log.info("listening driver=%s dra=%s registration=%s", self.driver, *self._bound)

    def close(self) -> None:
        """End calls in flight, then close the sockets; may be called more than once."""
        # Health streams and calls that wait for `answer_with` would not end by themselves within the grace period.
        self.health.stop()
        self.calls.stop()
        if self._server is not None:
            # Calls that are not done by then are cancelled: their `awaited` is False, so they begin nothing more.
            self._server.stop(_GRACE).wait()
            self._server = None
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
        while self._bound:
            unbind(*self._bound.popitem())

    def removed(self) -> Path | None:
        """Return a socket of this driver that was removed or replaced, so that kubelet cannot reach it; else None."""
        for path, bound in tuple(self._bound.items()):
            try:
                if identity(path) != bound:
                    return path
            except (FileNotFoundError, NotADirectoryError):
                return path
            except OSError:
                continue  # a socket that cannot be checked may exist
        return None

    def undo(self) -> None:
        """Close, and remove the folders that `start` created if they are empty."""
        self.close()
        if self._made and self._alone.is_mine:
            # A process that waits for the lock checks afterwards whether the file still exists.
            self._alone.path.unlink(missing_ok=True)
        self.release()
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def release(self) -> None:
        """Release the lock on the driver's folder, so that another process may serve from it."""
        self._alone.release()
