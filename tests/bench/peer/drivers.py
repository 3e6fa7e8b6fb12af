"""The two drivers as their DaemonSets run them, and kubelet's calls to them.

Each runs in a mount namespace of its own. In it `/run` is empty except for the folders of CDI, NRI and the service
account, and `/sys/devices/system` is the made-up machine's. All of these have fixed paths, as in a pod. CDI specs are
in memory, as on a host.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dranode.proto import dra_v1_pb2 as dra
from dranode.proto import pluginregistration_v1_pb2 as registration
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub
from tests.bench.compiled import environment
from tests.bench.peer.surroundings import Api, uid
from tests.bench.peer.usage import Usage, usage

_SECONDS = 60
# The variables of the image, from the Dockerfile, and of deploy/daemonset.yaml.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072", "DRANODE_LOG_FORMAT": "json"}
# Short, so that the paths of this benchmark's sockets are within the limit.
_POD = "0f3c7f0c"
_NAMESPACE = """
pod=/run/secrets/kubernetes.io/serviceaccount
mount -t tmpfs tmpfs /run && mkdir -p /run/cdi /run/nri $pod && mount --bind "$1/account" $pod &&
mount --bind "$1/machine/sys/devices/system" /sys/devices/system &&
mount --bind "$1/cdi" /run/cdi && mount --bind "$1/nri" /run/nri && shift && exec "$@"
"""

# What the console script `dranode` runs.
_PROGRAM = "from dranode.driver.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Command:
    """How a driver is started.

    Attributes:
        arguments: its command line, from its folder and its group of devices.
        environment: its environment variables.
    """

    arguments: Callable[[Path, str], Sequence[str]]
    environment: Mapping[str, str]


def dranode(python: Path) -> Command:
    """This project's driver, in the environment of a Python interpreter."""
    # Another environment has its own bytecode, so the prefix is unset, which an empty value does.
    own = {} if python == Path(sys.executable) else {"PYTHONPYCACHEPREFIX": ""}

    def arguments(folder: Path, group_by: str) -> Sequence[str]:
        program = [str(python), "-c", _PROGRAM, "serve"]
        where = ["--drivers=cpu", "--node-name", "node", "--kubelet-root", str(folder / "kubelet")]
        pod = ["--pod-uid", _POD, "--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
        return [*program, *where, *pod, "--group-by", group_by, "--reserved-cpus", "0"]

    return Command(arguments, {**_ENVIRONMENT, **own})


def peer(program: Path) -> Command:
    """dra-driver-cpu, as a program with these options."""

    def arguments(folder: Path, group_by: str) -> Sequence[str]:
        host = [str(program), "--kubeconfig", str(folder / "kubeconfig")]
        where = ["--hostname-override", "node", "--kubelet-root-dir", str(folder / "kubelet")]
        return [*host, *where, "--bind-address", "127.0.0.1:0", "--group-by", group_by, "--reserved-cpus", "0"]

    return Command(arguments, {})


@dataclass(slots=True)
class Driver:
    """A running driver.

    Attributes:
        pid: its process ID.
        started: its start-up times.
    """

    pid: int
    started: Started
    _prepare: Callable[..., Any]
    _unprepare: Callable[..., Any]

    def prepare(self, numbers: Sequence[int]) -> float:
        """Prepare these claims in one call; return the milliseconds."""
        return _timed(self._prepare, dra.NodePrepareResourcesRequest(claims=_claims(numbers)))

    def unprepare(self, numbers: Sequence[int]) -> float:
        """Unprepare these claims in one call; return the milliseconds."""
        return _timed(self._unprepare, dra.NodeUnprepareResourcesRequest(claims=_claims(numbers)))

    def usage(self) -> Usage:
        """Return its usage so far."""
        return usage(self.pid)


@dataclass(slots=True)
class Started:
    """Start-up times: milliseconds since exec, and of CPU, until GetInfo's answer and until the first Prepare's."""

    info: float
    info_cpu: float
    prepared: float = 0.0
    prepared_cpu: float = 0.0


def _claims(numbers: Sequence[int]) -> list[Any]:
    return [dra.Claim(namespace="default", name=f"claim-{number}", uid=uid(number)) for number in numbers]


def _timed(call: Callable[..., Any], request: Any) -> float:
    began = time.perf_counter()
    answer = call(request, timeout=_SECONDS, wait_for_ready=True)
    took = (time.perf_counter() - began) * 1000
    if errors := [each.error for each in answer.claims.values() if each.error]:
        raise RuntimeError(errors[0])
    return took


@contextlib.contextmanager
def serving(
    command: Command, folder: Path, machine: Path, api: Api, *, group_by: str, first: Sequence[int]
) -> Iterator[Driver]:
    """Run a driver, register it as kubelet does, and prepare the claims `first` in its first call."""
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True, exist_ok=True)
    (folder / "nri").mkdir(exist_ok=True)
    if not (folder / "cdi").exists():
        (folder / "cdi").symlink_to(tempfile.mkdtemp(dir=folder.parent / "memory"))
    api.kubeconfig(folder / "kubeconfig")
    api.account(folder / "account")
    (folder / "machine").unlink(missing_ok=True)
    (folder / "machine").symlink_to(machine)
    within = ["unshare", "-m", "--propagation", "private", "sh", "-c", _NAMESPACE, "sh", str(folder)]
    with (folder / "log").open("ab") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*within, *command.arguments(folder, group_by)],
            cwd=folder,
            stderr=log,
            stdout=log,
            env=_environment(api, command.environment),
        )
        try:
            started, endpoint = _registered(process, folder, began)
            with grpc.insecure_channel(f"unix:{folder / endpoint}") as channel:
                driver = Driver(
                    process.pid,
                    started,
                    DRAPluginStub(channel).NodePrepareResources,
                    DRAPluginStub(channel).NodeUnprepareResources,
                )
                if first:
                    driver.prepare(first)
                    started.prepared = (time.perf_counter() - began) * 1000
                    started.prepared_cpu = driver.usage().cpu / 1000
                yield driver
        finally:
            process.terminate()
            process.wait(20)


def _environment(api: Api, own: Mapping[str, str]) -> dict[str, str]:
    return {**environment(KUBERNETES_SERVICE_HOST="127.0.0.1", KUBERNETES_SERVICE_PORT=str(api.port)), **own}


def _registered(process: subprocess.Popen[bytes], folder: Path, began: float) -> tuple[Started, str]:
    """Return the start-up time until GetInfo's answer, and the socket that the answer names."""
    ends = time.monotonic() + _SECONDS
    registry = folder / "kubelet" / "plugins_registry"
    while not (sockets := tuple(registry.glob("*.sock"))):
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"the driver does not listen in {registry}; {folder}/log says why")
        time.sleep(0.001)
    with grpc.insecure_channel(f"unix:{sockets[0]}") as channel:
        ask = RegistrationStub(channel).GetInfo
        info = ask(registration.InfoRequest(), timeout=_SECONDS, wait_for_ready=True)
        started = Started((time.perf_counter() - began) * 1000, usage(process.pid).cpu / 1000)
        notify = RegistrationStub(channel).NotifyRegistrationStatus
        notify(registration.RegistrationStatus(plugin_registered=True), timeout=_SECONDS)
    return started, info.endpoint
