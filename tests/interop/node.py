"""A node: a real containerd, the driver in a pod as its DaemonSet runs it, and a stand-in for kubelet."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record
from dranode.driver.local.store import Store
from dranode.proto import podresources_v1_pb2 as podresources
from dranode.show.ledger_reading import read_ledger
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.fakes.grpc_server import service
from tests.interop.cri import CGROUP, Pod, wait_until
from tests.interop.pod import DriverPod
from tests.interop.runtime import Runtime

DRIVER = "dra.cpu"
CPU_ALONE = {"cpu": DRIVER}
PROGRAM = Path(sys.executable).with_name("dranode")
# What an instance logs when it begins to publish, verify and pin.
ACTIVE = "this instance publishes and pins"
UNIFIED = Path("/sys/fs/cgroup/cgroup.controllers").exists()
"""Whether this machine has cgroup v2 and nothing beside it."""
ONLINE = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip())


class PodResources:
    """A stand-in for kubelet's pod-resources API; it lists what a test puts into `pods`."""

    def __init__(self, socket: Path) -> None:
        self.pods: list[podresources.PodResources] = []
        socket.parent.mkdir(parents=True, exist_ok=True)
        methods = {"List": self._list, "Get": self._list}
        handler = service(podresources.DESCRIPTOR, "PodResourcesLister", methods)
        self._server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[handler])
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def _list(self, _request: Any, _context: grpc.ServicerContext) -> podresources.ListPodResourcesResponse:
        return podresources.ListPodResourcesResponse(pod_resources=self.pods)

    def give(self, pod: Pod, container: str, claim: str, cdi: tuple[str, ...]) -> None:
        """List the claim for the pod's container."""
        said = podresources.PodResources(name=pod.name, namespace=pod.namespace)
        dynamic = said.containers.add(name=container).dynamic_resources.add(claim_name=claim, claim_namespace="default")
        dynamic.claim_resources.add(driver_name=DRIVER, cdi_devices=[{"name": name} for name in cdi])
        self.pods.append(said)

    def show(self, pod: Pod) -> None:
        """List the pod without claims."""
        self.pods.append(podresources.PodResources(name=pod.name, namespace=pod.namespace))

    def close(self) -> None:
        self._server.stop(None).wait()


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path, because paths of sockets are limited to 107 bytes; it is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dn-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def started(node: Node) -> Iterator[Node]:
    """Yield the node with runtime and driver started and the containers' image loaded; it is closed afterwards."""
    try:
        node.runtime.start()
        node.runtime.load_image()
        node.start_driver()
        yield node
    finally:
        node.close()


class Node:
    """All programs and files of one node, in one folder."""

    def __init__(self, runtime: Runtime, drivers: Mapping[str, str] = CPU_ALONE, options: Sequence[str] = ()) -> None:
        """`drivers` are those that run: what each publishes under, by its short name; `options` are of `serve`."""
        self.runtime = runtime
        self.drivers, self._options = drivers, options
        self.folder = runtime.folder
        self.registry = self.folder / "kubelet" / "plugins_registry"
        for folder in (self.registry, self.folder / "kubelet" / "plugins", self.folder / "store"):
            folder.mkdir(parents=True)
        self.pod_resources = PodResources(self.folder / "kubelet" / "pod-resources" / "kubelet.sock")
        self.kubelet = StandInKubelet(self.registry)
        self.process: DriverPod | None = None
        self._store = Store(self.folder / "store")

    # --- the driver ---

    def start_driver(self, pod_uid: str = "") -> None:
        """Start the driver, and wait until the runtime has synchronized with it.

        With `pod_uid` it is an instance of a rolling update, and one that already runs continues.
        """
        folder = self.folder
        arguments: list[str | Path] = [
            "--store",
            folder / "store",
            "--kubelet-root",
            folder / "kubelet",
            "--cdi-dir",
            folder / "cdi",
        ]
        arguments += ["--nri-socket", self.runtime.nri_socket, "--node-name", "node", "--http-address", "none", "-v"]
        arguments += ["--pod-uid", pod_uid] if pod_uid else []
        arguments += ["--drivers", ",".join(self.drivers), *self._options]
        before = self.synchronizations()
        with (self.folder / "driver.log").open("ab") as log:
            self.process = DriverPod(folder, [PROGRAM, "serve", *arguments], log)
        self.kubelet.restart()
        wait_until(self._registered, f"the driver registers: {self.driver_log[-2000:]}")
        wait_until(lambda: self.synchronizations() > before, "the driver is synchronized")

    def _registered(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.driver_log[-3000:]
        try:
            self.kubelet.register(list(self.drivers.values()), 0.2)
        except KubeletError:
            return False
        return True

    def hand_over(self, pod_uid: str) -> None:
        """Start another instance beside the driver; once it is active, end the older one as a DaemonSet does."""
        older = self.process
        before = self.driver_log.count(ACTIVE)
        self.start_driver(pod_uid)
        # kubelet keeps looking for sockets, and the newer instance waits to be registered.
        wait_until(
            lambda: self._registered() and self.driver_log.count(ACTIVE) > before,
            "authority passes to the newer instance",
        )
        self.end(older)

    @staticmethod
    def end(process: DriverPod | None) -> None:
        """Stop a driver gracefully, which removes its sockets."""
        assert process is not None
        assert process.end(signal.SIGTERM) == 0

    def kill_driver(self) -> None:
        """Kill the driver."""
        assert self.process is not None
        self.process.end(signal.SIGKILL)

    @property
    def driver_log(self) -> str:
        path = self.folder / "driver.log"
        return path.read_text() if path.exists() else ""

    def synchronizations(self) -> int:
        """Return how often the runtime has synchronized with the driver."""
        return self.driver_log.count("synchronized driver=")

    # --- kubelet ---

    def claim(
        self,
        name: str,
        *pods: Pod,
        config: dict[str, Any] | None = None,
        device: str = "cpudevnuma000",
        cpus: int = 1,
    ) -> tuple[CPUSet, tuple[str, ...]]:
        """Allocate and prepare a claim for CPUs of a device for the pods; returns its CPUs and its CDI devices.

        Raises:
            KubeletError: the driver refuses.
        """
        (cdi,) = self.claim_of_requests(name, {"cpu": cpus}, *pods, config=config, device=device).values()
        (spec,) = (self.folder / "cdi").glob(f"*uid-{name}.json")
        env = json.loads(spec.read_text())["devices"][0]["containerEdits"]["env"]
        (cpus_of_claim,) = (text.partition("=")[2] for text in env if text.startswith("DRA_CPUSET_"))
        return CPUSet.parse(cpus_of_claim), cdi

    def claim_of_requests(
        self,
        name: str,
        requests: dict[str, int],
        *pods: Pod,
        config: dict[str, Any] | None = None,
        device: str = "cpudevnuma000",
    ) -> dict[str, tuple[str, ...]]:
        """Allocate and prepare a claim by CPUs for each request; returns the CDI devices of each request.

        Raises:
            KubeletError: the driver refuses.
        """
        results = {request: (DRIVER, device, {"dra.cpu/cpu": str(count)}) for request, count in requests.items()}
        return self.claim_of_results(name, results, *pods, configs={DRIVER: config} if config else {})

    def claim_of_results(
        self,
        name: str,
        results: Mapping[str, tuple[str, str, dict[str, str]]],
        *pods: Pod,
        configs: Mapping[str, dict[str, Any]] | None = None,
    ) -> dict[str, tuple[str, ...]]:
        """Allocate and prepare a claim; returns the CDI devices of each request.

        Args:
            name: the claim's.
            results: driver, device and consumed capacity, by request.
            pods: who may use it.
            configs: opaque parameters by driver.

        Raises:
            KubeletError: a driver refuses.
        """
        ref = ClaimRef("default", name, f"uid-{name}")
        allocated = [
            {
                "request": request,
                "driver": driver,
                "pool": "node",
                "device": device,
                "shareID": f"share-{name}-{request}",
                "consumedCapacity": consumed,
            }
            for request, (driver, device, consumed) in results.items()
        ]
        opaque = [
            {"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}
            for driver, parameters in (configs or {}).items()
        ]
        document = {
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "status": {
                "allocation": {"devices": {"results": allocated, "config": opaque}},
                "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in pods],
            },
        }
        self._store.put(decode(ResourceClaim, document))
        answer = self.kubelet.prepare({ref: frozenset(self.drivers.values())})[ref]
        if isinstance(answer, Refused):
            raise KubeletError(answer.reason)
        return {device.request: device.cdi for device in answer.devices}

    def release(self, name: str) -> None:
        """Unprepare a claim."""
        self.kubelet.unprepare({ClaimRef("default", name, f"uid-{name}"): frozenset(self.drivers.values())})

    def records(self) -> tuple[Record, ...]:
        """Return the claims that the driver has on record."""
        return read_ledger(self.folder / "kubelet" / "plugins" / DRIVER / "ledger.db").records

    def quota(self, container: str) -> int:
        """Return a container's CFS quota in microseconds; -1 if there is none."""
        quota = _cgroup_file(container, "cpu.cfs_quota_us", "cpu.max").read_text().split()[0]
        return -1 if quota == "max" else int(quota)

    def effective(self, container: str, name: str = "cpuset.cpus") -> CPUSet:
        """Return a container's effective `cpuset.cpus` or `cpuset.mems`."""
        file = _cgroup_file(container, f"{name}.effective", f"{name.replace('.', '.effective_')}")
        return CPUSet.parse(file.read_text().strip())

    def memory_limits(self, container: str) -> tuple[int, int]:
        """Return a container's limits of memory, and of memory and swap together, in bytes."""
        names = ("max", "swap.max") if UNIFIED else ("limit_in_bytes", "memsw.limit_in_bytes")
        memory, swap = (int(_cgroup_file(container, f"memory.{name}").read_text()) for name in names)
        return memory, memory + swap if UNIFIED else swap

    def page_limit(self, container: str, size: str) -> int:
        """Return a container's limit for huge pages of a size such as `2MB`, in bytes; -1 if there is none."""
        text = _cgroup_file(container, *_page_limit_files(size)).read_text().strip()
        return -1 if text == "max" or int(text) >= 1 << 62 else int(text)

    def overwrite_cpuset(self, container: str, cpus: str) -> None:
        """Set a container's CPUs directly in its cgroup, as systemd does when it reloads its units."""
        _cgroup_file(container, "cpuset.cpus").write_text(cpus)

    def overwrite_page_limit(self, container: str, size: str, limit: int) -> None:
        """Set a container's limit for huge pages of a size directly in its cgroup."""
        _cgroup_file(container, *_page_limit_files(size)).write_text(str(limit))

    def restart_runtime(self) -> None:
        """Kill the runtime and wait until the driver has found the new one."""
        before = self.synchronizations()
        self.runtime.kill()
        self.runtime.start()
        wait_until(lambda: self.synchronizations() > before, "the driver finds the runtime again")

    def close(self) -> None:
        """Stop everything and remove it."""
        if self.process is not None:
            self.process.end(signal.SIGTERM)
        self.kubelet.close()
        self.pod_resources.close()
        self.runtime.close()


def _page_limit_files(size: str) -> tuple[str, str]:
    return f"hugetlb.{size}.limit_in_bytes", f"hugetlb.{size}.max"


def _cgroup_file(container: str, *names: str) -> Path:
    """Return a file of a container's cgroup, by its name in cgroup v1 or v2."""
    files = (folder / name for name in names for folder in _cgroup_folders(container))
    return next(file for file in files if file.exists())


@cache
def _cgroup_folders(container: str) -> tuple[Path, ...]:
    """Return the cgroup folders of a container, one in each hierarchy; they are cached, because the search is slow."""
    hierarchies = Path("/sys/fs/cgroup")
    return tuple(folder for place in ("", "*/") for folder in hierarchies.glob(f"{place}{CGROUP}/*/{container}"))
