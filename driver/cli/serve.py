"""`dranode serve`: the node driver."""

import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.claims.plugin import Plugin
from dranode.driver.cli.options import DriverCommand, driver_options, machine_option, serve_options, store_option
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.server import Credentials
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.machine.root import Root, boot_id
from dranode.driver.pinning.snapshot import Pins
from dranode.driver.plugins import load_plugins
from dranode.driver.process.logs import set_up
from dranode.driver.process.threads import Fatal
from dranode.driver.serve.announcer import Cluster
from dranode.driver.serve.nri_plugin import ContainerAccess
from dranode.driver.serve.pinning import PinningTogether
from dranode.driver.serve.probes import Probes
from dranode.driver.serve.service import DriverService

# A driver at rest has about 30 files open; each connection, health stream and kubelet call takes more.
_LEAST_FILES: Final = 128
# Python lets a busy thread run for 5 ms before it switches, which would delay each step of an answer.
_SWITCH_SECONDS: Final = 0.0005

log = logging.getLogger(__name__)


class _Stop:
    """The reason why the process ends: a signal, or an error in one sentence.

    Python runs signal handlers only in the main thread, and does not wake it for a signal that the kernel delivered to
    another thread. The main thread therefore waits at a pipe, into which Python writes the number of every signal.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._ended, self._end = os.pipe()
        # Python requires that the write does not block. A full pipe has woken the main thread anyway.
        os.set_blocking(self._end, False)
        signal.set_wakeup_fd(self._end)
        # Python writes only the numbers of signals that have a handler; without one, the kernel ends the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)

    def fatal(self, reason: str) -> None:
        """End the process with an error; if there are several, the first one is reported."""
        self.reason = self.reason or reason
        # No signal has the number 0.
        os.write(self._end, b"\0")

    def wait(self) -> None:
        """Wait for a signal or an error."""
        (number,) = os.read(self._ended, 1)
        if number:
            log.info("stopping signal=%s", signal.Signals(number).name)


@click.command(cls=DriverCommand, short_help="Run the node driver, as the DaemonSet does.")
@machine_option
@driver_options
@serve_options
@store_option
def command(**options: Any) -> None:
    """Serve kubelet's calls for the claims of this node's pods.

    \b
    Example:
      dranode serve --node-name worker --log-format json
      dranode serve --kubeconfig ~/.kube/config --kubelet-root state/kubelet --cdi-dir state/cdi
      dranode serve --store state/store --kubelet-root state/kubelet --cdi-dir state/cdi
    """
    serve(**options)


def _check_file_limit() -> None:
    """Refuse a limit on open files that is too low for sockets, health streams, the ledger and the API server.

    gRPC ends the process without a message if it cannot open a file.

    Raises:
        UsageError: the limit is too low.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_FILES:
        raise UsageError(
            f"this process may open {limit} files and needs {_LEAST_FILES}; raise RLIMIT_NOFILE (ulimit -n, or "
            "LimitNOFILE= of the container runtime's systemd unit)"
        )


def serve(root: Root, drivers: tuple[str, ...], node_name: str, store: str, **options: Any) -> None:
    """Serve until a signal comes or a thread dies.

    Raises:
        UsageError: an option is invalid, or another process serves already.
        DranodeError: a part of the node that the driver needs is missing, or a thread died.
    """
    _check_file_limit()
    stay_small()
    sys.setswitchinterval(_SWITCH_SECONDS)
    set_up(options["log_format"], options["verbosity"])
    # Sockets and the ledger are for root alone; files for others get their mode explicitly.
    os.umask(0o077)
    stop = _Stop()
    kubelet_root = Path(options["kubelet_root"]).absolute()
    nri_socket = None if options["nri_socket"] == "none" else options["nri_socket"]
    origin = store or Credentials(options["kubeconfig"])
    # Checked before anything is created, so that a wrong option leaves nothing behind.
    if isinstance(origin, Credentials):
        origin.check()
        if origin.kubeconfig:
            from dranode.driver.kube.kubeconfig import check_kubeconfig  # PyYAML, which a pod does not need

            check_kubeconfig(origin.kubeconfig)
    # Without NRI, containers without claims stay on all CPUs, so none has to be kept for them.
    plugins = load_plugins(drivers, root, {**options, "keep_shared": nri_socket is not None})
    # Callbacks run in reverse order: first the services stop, then the cluster and the listeners close, and the probes
    # answer until the end.
    with contextlib.ExitStack() as stack:
        # The address is bound first, so that nothing starts if another process has it.
        probes = Probes(options["http_address"], options["metrics_address"], lambda: stop.reason, stop.fatal)
        stack.callback(probes.stop)
        listeners = [_listener(plugin, node_name, kubelet_root, options, stop.fatal) for plugin in plugins]
        for listener in listeners:
            stack.callback(listener.release)
            stack.callback(listener.close)
            stack.push(_undone_after_error(listener))
            listener.start()
        asked = PodResources(Path(options["pod_resources_socket"] or kubelet_root / "pod-resources" / "kubelet.sock"))
        cluster = _cluster(origin, node_name, options, stop.fatal, stack)
        containers = None if nri_socket is None else ContainerAccess(nri_socket, root, options["pod_uid"])
        together = PinningTogether(sum(isinstance(plugin, Pins) for plugin in plugins))
        for plugin, listener in zip(plugins, listeners, strict=True):
            service = DriverService(
                plugin,
                cluster,
                listener,
                cdi=Path(options["cdi_dir"]).absolute(),
                pod_resources=asked,
                containers=containers,
                together=together,
                taints=options["device_taints"],
            )
            service.counters = probes.count(service)
            service.start(boot_id(root))
            stack.callback(service.stop)
        probes.start()
        # The objects that exist now live as long as the process, so the garbage collector may skip them.
        gc.freeze()
        stop.wait()
    if stop.reason is not None:
        raise DranodeError(stop.reason)


def _undone_after_error(listener: Listener) -> Callable[..., None]:
    """Return a callback that undoes the start of a listener if a later step of the start fails."""

    def leave(error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            listener.undo()

    return leave


def _listener(plugin: Plugin, node_name: str, kubelet_root: Path, options: Mapping[str, Any], fatal: Fatal) -> Listener:
    sockets = socket_paths(kubelet_root, plugin.driver, options["pod_uid"])
    data = kubelet_root / "plugins" / plugin.driver
    return Listener(plugin.driver, node_name, sockets, data, fatal, rolling=bool(options["pod_uid"]))


def _cluster(
    origin: str | Credentials, node_name: str, options: Mapping[str, Any], fatal: Fatal, stack: contextlib.ExitStack
) -> Cluster:
    if isinstance(origin, Credentials):
        cluster = KubeCluster(origin, node_name, claim_status=options["claim_status"] == "on", fatal=fatal)
        stack.callback(cluster.close)
        # The first Prepare then need not wait for TLS and discovery.
        cluster.connect()
        return cluster
    from dranode.driver.local.cluster import FolderCluster  # PyYAML, which a driver in a cluster does not need
    from dranode.driver.local.store import Store  # PyYAML too

    return FolderCluster(Store(Path(origin)), node_name)


# <malloc.h> of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_ARENA_MAX: Final = -8
_TRIM_FROM: Final = 128 * 1024


def stay_small() -> None:
    """Make all threads share one arena, and return memory to the kernel after a burst (a large LIST takes tens of MiB).

    Call it before the first thread starts. Other C libraries lack these settings, and nothing changes there.
    """
    # glibc makes up to eight arenas per CPU by default (mallopt(3)), and each keeps free memory for itself.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM)
