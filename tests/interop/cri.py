"""A client of the container runtime interface (CRI), in kubelet's place."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc  # type: ignore[import-untyped]

from tests.interop.image import IMAGE

_HOST = 2
# How many IDs kubelet gives to each pod with a user namespace.
_IDS = 65536
CGROUP = "dranode-test"


# An emulated machine is slow, and slower on a busy host.
PATIENCE = int(os.environ.get("INTEROP_PATIENCE", "180"))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@cache
def _service() -> Mapping[str, tuple[Any, Any]]:
    """Return the request and response class of every method, by its name."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cri.pb"
        status = protoc.main(["protoc", f"-I{here}", f"--descriptor_set_out={out}", str(here / "cri.proto")])
        assert status == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    service = pool.FindServiceByName("runtime.v1.RuntimeService")
    return {
        method.name: (
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
        )
        for method in service.methods
    }


@dataclass(frozen=True)
class Pod:
    """A pod as kubelet creates it."""

    name: str
    uid: str
    namespace: str = "default"
    first_host_id: int = 0
    """The user of the node that root is in the pod's own user namespace; 0 if the pod has none."""

    def namespaces(self) -> dict[str, Any]:
        """Return the namespaces that the sandbox and its containers share with the node."""
        if not self.first_host_id:
            return {"network": _HOST}
        # In a user namespace, /sys can only be mounted together with an own network namespace.
        ids = [{"host_id": self.first_host_id, "container_id": 0, "length": _IDS}]
        return {"userns_options": {"mode": 0, "uids": ids, "gids": ids}}

    def config(self) -> dict[str, Any]:
        return {
            "metadata": {"name": self.name, "uid": self.uid, "namespace": self.namespace},
            "labels": {
                "io.kubernetes.pod.name": self.name,
                "io.kubernetes.pod.namespace": self.namespace,
                "io.kubernetes.pod.uid": self.uid,
            },
            "linux": {
                "cgroup_parent": f"/{CGROUP}/pod{self.uid}",
                "security_context": {"namespace_options": self.namespaces()},
            },
        }


@dataclass
class CRI:
    """A client of the runtime's socket."""

    socket: Path
    sandboxes: dict[Pod, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._channel = grpc.insecure_channel(f"unix:{self.socket}")

    def close(self) -> None:
        self._channel.close()

    def call(self, rpc: str, *, patience: float = PATIENCE, **fields: Any) -> Any:
        """Call a method.

        Raises:
            grpc.RpcError: the runtime refuses.
        """
        request, response = _service()[rpc]
        method = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{rpc}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return method(request(**fields), timeout=patience, wait_for_ready=True)

    def ready(self, condition: str = "RuntimeReady") -> bool:
        with contextlib.suppress(grpc.RpcError):
            conditions = self.call("Status", patience=10.0).status.conditions
            return any(each.type == condition and each.status for each in conditions)
        return False

    def sandbox(self, pod: Pod) -> str:
        """Return the pod's sandbox, which is created if need be."""
        if pod not in self.sandboxes:
            self.sandboxes[pod] = self.call("RunPodSandbox", config=pod.config()).pod_sandbox_id
        return self.sandboxes[pod]

    def create(
        self,
        pod: Pod,
        name: str,
        *,
        cdi: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        quota: int = 0,
        pages: Mapping[str, int] | None = None,
        resources: Mapping[str, int] | None = None,
        attempt: int = 0,
        image: str = IMAGE,
    ) -> str:
        """Create a container.

        Raises:
            grpc.RpcError: the runtime refuses.
        """
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": image, "user_specified_image": image},
            "command": list(command),
            "envs": [{"key": key, "value": value} for key, value in (env or {}).items()],
            "labels": {"io.kubernetes.container.name": name, **pod.config()["labels"]},
            "CDI_devices": [{"name": device} for device in cdi],
            "linux": {
                "resources": {
                    "cpu_shares": 2,
                    "cpu_quota": quota,
                    "cpu_period": 100_000 if quota else 0,
                    "hugepage_limits": [{"page_size": size, "limit": limit} for size, limit in (pages or {}).items()],
                    **(resources or {}),
                },
                "security_context": {"namespace_options": pod.namespaces()},
            },
        }
        sandbox = self.sandbox(pod)
        made = self.call("CreateContainer", pod_sandbox_id=sandbox, config=config, sandbox_config=pod.config())
        return str(made.container_id)

    def run(self, pod: Pod, name: str, **options: Any) -> str:
        """Create and start a container."""
        container = self.create(pod, name, **options)
        self.call("StartContainer", container_id=container)
        return container

    def cpus(self, container: str) -> str:
        """Return the CPUs on which a process in the container sees that it may run."""
        # The process of an exec is in the container's cgroups; /proc/1 would be the sandbox's process.
        lines: dict[str, str] = dict(
            line.partition(":")[::2] for line in self.output(container, "cat", "/proc/self/status").splitlines()
        )
        return lines["Cpus_allowed_list"].strip()

    def output(self, container: str, *command: str) -> str:
        """Run a busybox command in the container; returns what it prints."""
        done = self.call("ExecSync", container_id=container, cmd=["/busybox", *command], timeout=PATIENCE)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout.decode())

    def stop(self, container: str) -> None:
        self.call("StopContainer", container_id=container, timeout=0)

    def remove(self, container: str) -> None:
        self.stop(container)
        self.call("RemoveContainer", container_id=container)

    def remove_everything(self) -> None:
        """Stop and remove every container and every sandbox."""
        with contextlib.suppress(grpc.RpcError):
            for each in self.call("ListContainers").containers:
                self.remove(each.id)
            for each in self.call("ListPodSandbox").items:
                # CRI-O 1.37 sometimes stops answering once the driver is gone.
                self.call("StopPodSandbox", patience=20, pod_sandbox_id=each.id)
                self.call("RemovePodSandbox", pod_sandbox_id=each.id)
        self.sandboxes.clear()
