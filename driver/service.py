"""One driver as kubelet sees it: its node, its sockets, its slices; started and stopped in order.

It listens first and reads hardware and ledger then, since a node waits for its driver; the DRA service listens before
the registration service does, so that kubelet never meets an endpoint that is not there. On stop, calls in flight end
first, then the sockets go; slices stay.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import grpc

from dranode.driver.core.errors import DranodeError, UsageError
from dranode.driver.core.events import Occurrence
from dranode.driver.core.held import ClaimRef
from dranode.driver.core.plugin import DeviceHealth, Health, Inventory, Plugin
from dranode.driver.kubelet.health import HEALTH_VERSIONS, MAX_STREAMS, HealthService
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.registration import Registration
from dranode.driver.kubelet.service import SUPPORTED_VERSIONS, Claims, DRAService, Preparer
from dranode.driver.kubelet.sockets import Sockets, bind, unbind
from dranode.driver.locks import FileLock
from dranode.driver.machine.root import Root
from dranode.driver.node import Node
from dranode.driver.threads import Fatal

if TYPE_CHECKING:
    from dranode.driver.lifecycle.lifecycle import Lifecycle
    from dranode.driver.lifecycle.tell import Tell
    from dranode.driver.lifecycle.witnesses import Witnesses
    from dranode.driver.pinning import Pinning

log = logging.getLogger(__name__)

# Decisions are made one at a time, so a few threads carry all calls; open health streams hold one each.
_CALL_THREADS: Final = 4
_GRACE: Final = 10.0


class Publisher(Protocol):
    """Whoever keeps the driver's ResourceSlices as the inventory is."""

    def publish(self, driver: str, inventory: Inventory) -> None:
        """This is the whole inventory now."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Who is met beyond kubelet: the API server, or a folder in its place.

    Attributes:
        claims: where claims come from.
        publisher: where slices go.
        pod_resources: kubelet's word on which containers have which claims; None if it cannot be asked.
        nri_socket: the runtime's NRI socket; None if containers are not to be pinned.
        root: where the cgroups of containers are read.
        report: puts a witness before a node, who tells the cluster what became of claims; None if nobody is told.
        tell: tells people of what happened to the driver of that name unasked; None if nobody is told.
    """

    claims: Claims
    publisher: Publisher
    pod_resources: PodResources | None = None
    nri_socket: str | None = None
    root: Root | None = None
    report: Callable[[Node], Preparer] | None = None
    tell: Callable[[str, Occurrence], None] | None = None


class DriverService:
    """One driver, serving."""

    def __init__(
        self,
        plugin: Plugin,
        edges: Edges,
        *,
        node_name: str,
        sockets: Sockets,
        data: Path,
        cdi: Path,
        fatal: Fatal,
    ) -> None:
        """Prepare to serve; nothing is opened yet.

        Args:
            plugin: the driver.
            edges: where claims come from and slices go.
            node_name: the node, also the pool's name.
            sockets: where to listen.
            data: the driver's folder for ledger and locks.
            cdi: the CDI directory.
            fatal: ends the process with a sentence.
        """
        self.plugin = plugin
        self.node = Node(plugin, data, cdi, in_use=self._in_use)
        self.pinning: Pinning | None = None
        self.lifecycle: Lifecycle | None = None
        self.health = HealthService(node_name)
        self.registration = Registration(plugin.driver, sockets.dra, SUPPORTED_VERSIONS + HEALTH_VERSIONS, fatal)
        preparer = self.node if edges.report is None else edges.report(self.node)
        self._service = DRAService(plugin.driver, edges.claims, preparer)
        self._sockets = sockets
        self._data = data
        self._edges = edges
        self._fatal = fatal
        self._alone = FileLock(data / "active.lock")
        self._stops: list[Callable[[], None]] = []

    def start(self, boot_id: str = "") -> None:
        """Listen, read hardware and ledger, and have the slices published; calls that come first wait for the ledger.

        Raises:
            UsageError: another process serves this driver here.
            DranodeError: a folder, a socket or the hardware cannot be used, or another driver has to drain the node.
        """
        try:
            self._claim_folder()
            self._listen(self._sockets.dra, (*self._service.handlers(), *self.health.handlers()), "dra", MAX_STREAMS)
            self._listen(self._sockets.registration, (self.registration.handler(),), "registration")
            self.node.open(boot_id)
            witnesses = self._take_over()
            self._pin()
            self._service.ready.set()
        except BaseException:
            self.stop()
            raise
        self.refresh()
        self._look_after(witnesses)

    def _claim_folder(self) -> None:
        try:
            self._data.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise DranodeError(f"the driver's folder {self._data} cannot be made: {error.strerror}") from error
        if not self._alone.acquire(wait=False):
            raise UsageError(
                f"another process serves {self.plugin.driver} from {self._data}; stop it first, "
                "or give each its --pod-uid for a rolling update"
            )
        self._stops.append(self._alone.release)
        self._stops.append(self.node.close)

    def _listen(self, path: Path, handlers: tuple[grpc.GenericRpcHandler, ...], name: str, streams: int = 0) -> None:
        pool = futures.ThreadPoolExecutor(_CALL_THREADS + streams, thread_name_prefix=f"{self.plugin.driver}-{name}")
        server = grpc.server(pool, handlers=handlers, options=[("grpc.so_reuseport", 0)])
        bind(server, path)
        server.start()

        def stop() -> None:
            server.stop(_GRACE).wait()
            unbind(path)

        self._stops.append(stop)
        log.info("listening driver=%s %s=%s", self.plugin.driver, name, path)

    def _pin(self) -> None:
        edges = self._edges
        if edges.nri_socket is None or edges.root is None or edges.pod_resources is None:
            return
        if self.plugin.adjust(self.node.inventory, ()) is None:
            return
        from dranode.driver.pinning import Pinning  # noqa: PLC0415 - listen first, load what enforces then

        self.pinning = Pinning(self.node, edges.nri_socket, edges.root, edges.pod_resources, self._fatal)
        self.pinning.start()
        self._stops.append(self.pinning.stop)

    def _take_over(self) -> Witnesses:
        from dranode.driver.lifecycle.takeover import take_over  # noqa: PLC0415 - listen first, see above
        from dranode.driver.lifecycle.witnesses import Witnesses  # noqa: PLC0415 - likewise

        kind, edges = self.node.specs.kind, self._edges
        witnesses = Witnesses(self.plugin.driver, kind, edges.claims, edges.pod_resources, self._running)
        take_over(self.node, witnesses)
        return witnesses

    def _running(self) -> frozenset[str] | None:
        # Without enforcement nobody but kubelet knows of containers.
        return frozenset() if self.pinning is None else self.pinning.claims_in_use()

    def _look_after(self, witnesses: Witnesses) -> None:
        from dranode.driver.lifecycle.lifecycle import Lifecycle  # noqa: PLC0415 - likewise
        from dranode.driver.lifecycle.tell import nobody  # noqa: PLC0415 - likewise

        told = self._edges.tell
        tell: Tell = nobody if told is None else functools.partial(told, self.plugin.driver)
        self.lifecycle = Lifecycle(
            self.node, witnesses, publish=self.refresh, report=self._report_health, tell=tell, fatal=self._fatal
        )
        self.lifecycle.start()
        self._stops.append(self.lifecycle.stop)

    def _in_use(self, ref: ClaimRef) -> bool | None:
        if self.pinning is not None:
            return self.pinning.in_use(ref)
        asked = self._edges.pod_resources
        return asked.in_use(self.plugin.driver, ref) if asked is not None else None

    def refresh(self) -> None:
        """Say again what there is and how it is: to the publisher and to open health streams."""
        self._edges.publisher.publish(self.plugin.driver, self.node.inventory)
        self._report_health()

    def _report_health(self) -> None:
        inventory = self.node.inventory
        devices = {device.name: DeviceHealth(device.name, Health.HEALTHY) for device in inventory.devices}
        # A device that is published no more may still be a pod's.
        devices.update((device.device, device) for device in self.plugin.health(inventory))
        self.health.report(devices.values())

    def stop(self) -> None:
        """End calls in flight, close the sockets and the ledger; slices stay."""
        self.health.stop()
        while self._stops:
            self._stops.pop()()
