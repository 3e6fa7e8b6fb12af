"""Starts a node for the local run: the real service, with stand-ins for the API server, the scheduler and kubelet.

A store of YAML files takes the API server's place, the allocator that of kube-scheduler, and a kubelet that registers,
prepares and unprepares over the real sockets with real gRPC that of kubelet. What is between them is what `serve` runs.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.claims.plugin import Plugin
from dranode.driver.kubelet import service as kubelet_service
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.cluster import FolderCluster
from dranode.driver.local.store import Store
from dranode.driver.serve.service import DriverService
from dranode.sim.allocator.features import Features
from dranode.sim.local.kubelet import StandInKubelet
from dranode.sim.local.run import LocalRun, Progress

# Every unix has it, and no path is shorter; $TMPDIR may well be too long for a socket.
_SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it


@contextlib.contextmanager
def local_run(
    plugins: Iterable[Plugin], node_name: str, state: Path | None, features: Features, progress: Progress
) -> Iterator[LocalRun]:
    """A node with these drivers, registered and with their slices published; stopped at the end.

    Args:
        plugins: the drivers.
        node_name: the node.
        state: where everything is kept, in `store`, `kubelet` and `cdi`; None for a temporary folder that is removed.
        features: the allocator's feature gates.
        progress: called with a sentence on what happens next.

    Raises:
        DranodeError: a folder cannot be written, or a driver does not start.
    """
    reasons: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = (state if state is not None else _temporary(stack)).absolute()
        root = folder / "kubelet"
        _make(folder / "store", root / "plugins_registry", folder / "cdi")
        drivers = tuple(plugins)
        sockets = _socket_root(root, drivers, stack)
        store = Store(folder / "store")
        cluster = FolderCluster(store, node_name)
        stack.enter_context(_answers_unlogged())
        services: dict[str, DriverService] = {}
        for plugin in drivers:
            progress(f"starting {plugin.driver}")
            _make(sockets / "plugins" / plugin.driver)
            paths, data = socket_paths(sockets, plugin.driver), root / "plugins" / plugin.driver
            listener = Listener(plugin.driver, node_name, paths, data, reasons.append)
            service = services[plugin.driver] = DriverService(plugin, cluster, listener, cdi=folder / "cdi")
            # The run's own kubelet unprepares nothing while it waits for a Prepare.
            service.node.conflict_wait = 0.0
            service.start()
            stack.callback(service.stop)
        kubelet = StandInKubelet(sockets / "plugins_registry")
        stack.callback(kubelet.close)
        kubelet.register(services)
        yield LocalRun(node_name, features, store, kubelet, services)
    if reasons:
        raise DranodeError(reasons[0])


@contextlib.contextmanager
def _answers_unlogged() -> Iterator[None]:
    """Keep what a claim was answered out of the log: the run shows it."""
    log = logging.getLogger(kubelet_service.__name__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _temporary(stack: contextlib.ExitStack, parent: str | None = None) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="dranode-", dir=parent))
    except OSError as error:
        where, remedy = (
            ("", "set TMPDIR to one that can be written")
            if parent is None
            else (f" in {parent}", "name a short one with --state")
        )
        raise DranodeError(f"a temporary folder cannot be made{where}: {error.strerror}; {remedy}") from error
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _make(*folders: Path) -> None:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DranodeError(f"{folder} cannot be made: {error.strerror}; choose another --state") from error


def _socket_root(root: Path, plugins: Iterable[Plugin], stack: contextlib.ExitStack) -> Path:
    """Kubelet's root for the sockets: the state's own, or a short temporary one where a path would be too long."""
    try:
        for plugin in plugins:
            socket_paths(root, plugin.driver)
    except UsageError:
        short = _temporary(stack, _SHORT)
        _make(short / "plugins_registry")
        return short
    return root
