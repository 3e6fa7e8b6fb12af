"""A node on disk and an API server in memory, healthy until a test breaks something."""

import errno
import json
import os
import socket
from collections.abc import Callable
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import yaml

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kube.client import APIRequest
from dranode.driver.kube.errors import ApiError
from dranode.driver.kubelet.listener import Registration
from dranode.driver.kubelet.sockets import bind
from dranode.driver.node.node import NodeClaims as Serving
from dranode.driver.plugins import load_plugins
from dranode.proto.pluginregistration_v1_pb2_grpc import add_RegistrationServicer_to_server
from dranode.sim.machines.confined import ConfinedRoot, FolderFiles, OverlayFiles
from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.synthetic import parse_description, synthetic_tree
from dranode.tools.diagnosis.cluster import with_class_problems
from dranode.tools.diagnosis.facts import Facts, Finding
from dranode.tools.diagnosis.rules import diagnose
from dranode.tools.diagnosis.runtime import TOLERANCE
from dranode.tools.readers.examine import NodeFiles, examine, judged_options
from dranode.tools.readers.host import NodeHost
from tests.fakes.drivers import allocated_claim
from tests.fakes.lifecycle import POD_GROUP

MACHINE = "sockets=1,cores=4,threads=2"
DRIVER = "dra.cpu"
POD_UID = "3f0ae3c1-0c1e-4c9b-a5f5-5f2c1c0d0001"
SOCKET = f"{DRIVER}-reg.sock"
KUBELET = "var/lib/kubelet"
NRI = "io.containerd.nri.v1.nri"
CRI = "io.containerd.cri.v1.runtime"

# The validator that lets no container start while the driver's own plug-in is missing.
VALIDATOR = {"enable": True, "required_plugins": [DRIVER], "tolerate_missing_plugins_annotation": TOLERANCE}

# The field that a feature gate permits -> the gate.
GATES = {
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "nodeAllocatableResources": "DRANodeAllocatableResources",
    "taints": "DRADeviceTaints",
}


def options(**changes: Any) -> dict[str, Any]:
    """The options of `serve`: the defaults with these changes."""
    defaults = {
        "reserved_cpus": "0",
        "kubelet_root": "/var/lib/kubelet",
        "cdi_dir": "/var/run/cdi",
        "nri_socket": "/var/run/nri/nri.sock",
    }
    return {**defaults, **changes}


@dataclass
class FakeServer:
    """An API server: which objects it has, which requests it allows, which fields it drops."""

    versions: list[str] = field(default_factory=lambda: ["v1", "v1beta2"])
    denied: set[str] = field(default_factory=set)
    gates_off: set[str] = field(default_factory=set)
    classes: dict[str, Any] = field(default_factory=lambda: {DRIVER: own_class()})
    configz: Any = None
    nodes: dict[str, dict[str, str]] = field(
        default_factory=lambda: {
            "worker": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.2.1"}
        }
    )
    allocatable: dict[str, str] = field(default_factory=lambda: {"cpu": "8", "pods": "110", "nvidia.com/gpu": "0"})
    slices: list[dict[str, Any]] = field(default_factory=lambda: [slice_of("worker")])
    objects: dict[str, Any] = field(default_factory=dict)
    asked: list[APIRequest] = field(default_factory=list)
    # The answer of a proxy or a broken server to a path; None is a page that says 404.
    damaged: dict[str, Any] = field(default_factory=dict)
    refusals: dict[str, ApiError] = field(default_factory=dict)

    def send(self, request: APIRequest, *, seconds: float = 0) -> Any:
        del seconds
        self.asked.append(request)
        if request.path in self.refusals:
            raise self.refusals[request.path]
        if request.path in self.damaged:
            if self.damaged[request.path] is None:
                raise ApiError(f"there is no {request.path}", 404)
            return self.damaged[request.path]
        for wanted, answer in self._routes().items():
            if request.path.startswith(wanted):
                return answer(request, request.path.removeprefix(wanted))
        raise ApiError(f"there is no {request.path}", 404)

    def _routes(self) -> dict[str, Callable[[APIRequest, str], Any]]:
        routes: dict[str, Callable[[APIRequest, str], Any]] = {
            "/apis/authorization.k8s.io/v1/": self._review,
            "/api/v1/nodes/": self._node,
        }
        for version in self.versions:
            root = f"/apis/resource.k8s.io/{version}"
            routes |= {
                f"{root}/deviceclasses/": self._class,
                f"{root}/deviceclasses": self._classes,
                f"{root}/resourceslices": self._slices,
            }
        if self.versions:
            routes["/apis/resource.k8s.io"] = self._group
        routes["/apis"] = self._groups
        return dict.fromkeys(self.objects, self._object) | routes

    def _object(self, request: APIRequest, rest: str) -> Any:
        if rest:
            raise ApiError(f"there is no {request.path}", 404)
        return self.objects[request.path]

    def _groups(self, request: APIRequest, rest: str) -> Any:
        if rest:
            raise ApiError(f"there is no {request.path}", 404)
        return {"groups": [{"name": "resource.k8s.io"}] if self.versions else []}

    def _group(self, request: APIRequest, rest: str) -> Any:
        if rest:
            raise ApiError(f"there is no {request.path}", 404)
        return {"versions": [{"version": version} for version in self.versions]}

    def _review(self, request: APIRequest, rest: str) -> Any:
        del rest
        asked = request.body["spec"]["resourceAttributes"]
        resource = "/".join(asked[key] for key in ("resource", "subresource") if key in asked)
        return {"status": {"allowed": f"{asked['verb']} {resource}" not in self.denied}}

    def _node(self, request: APIRequest, rest: str) -> Any:
        if rest.endswith("/proxy/configz") and self.configz is not None:
            return {"kubeletconfig": self.configz}
        if rest not in self.nodes:
            raise ApiError(f"there is no {request.path}", 404, of_object=True)
        return {"metadata": {"name": rest}, "status": {"nodeInfo": self.nodes[rest], "allocatable": self.allocatable}}

    def _class(self, request: APIRequest, rest: str) -> Any:
        if rest not in self.classes:
            raise ApiError(f"there is no {request.path}", 404, of_object=True)
        return {"metadata": {"name": rest}, "spec": self.classes[rest]}

    def _classes(self, request: APIRequest, rest: str) -> Any:
        assert not rest, request.path
        return {"items": [{"metadata": {"name": name}, "spec": spec} for name, spec in self.classes.items()]}

    def _slices(self, request: APIRequest, rest: str) -> Any:
        if request.method == "GET" and not rest:
            return {"items": self.slices}
        assert request.query == {"dryRun": "All"}
        stored = json.loads(json.dumps(request.body))
        for device in stored["spec"].get("devices", ()):
            for name, gate in GATES.items():
                if gate in self.gates_off:
                    device.pop(name, None)
        return stored


def own_class() -> dict[str, Any]:
    """The class of deploy/deviceclasses.yaml."""
    return {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}


def slice_of(pool: str, driver: str = DRIVER) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{pool}-{driver}"},
        "spec": {"driver": driver, "pool": {"name": pool}, "devices": [{"name": "d"}]},
    }


@dataclass
class FakeNode:
    """A node's file tree under `folder`, with sockets that accept connections."""

    folder: Path
    stack: ExitStack
    server: FakeServer | None = field(default_factory=FakeServer)
    options: dict[str, Any] = field(default_factory=options)
    node_name: str = "worker"
    drivers: tuple[str, ...] = ("cpu",)
    skew: int | None = 0
    variables: tuple[str, ...] = ()
    statvfs: Callable[[str], os.statvfs_result] = field(default_factory=lambda: volume)

    def __post_init__(self) -> None:
        for name in (f"{KUBELET}/plugins/{DRIVER}", f"{KUBELET}/plugins_registry", f"{KUBELET}/pod-resources"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "run" / "cdi").mkdir(parents=True)
        # As on a real node. The link is followed inside the tree, never on the machine that runs the test.
        (self.folder / "var" / "run").symlink_to("/run")
        self.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids")
        self.write("proc/2/status", "Name:\tkthreadd\nPPid:\t0\nCpus_allowed_list:\t0-7\n")
        self.kubelet(reservedSystemCPUs="0")
        self.write(f"{KUBELET}/cpu_manager_state", '{"policyName":"none","defaultCpuSet":"","checksum":0}')
        self.containerd({"default_validator": VALIDATOR}, {})
        # Another program that starts containers. It says nothing about kubelet's or the runtime's configuration.
        self.write("proc/99/comm", "dockerd\n")
        self.write("proc/99/cmdline", "/usr/bin/dockerd\0")
        self.allowed(99, "dockerd", "0-7")
        self.listen("run/nri/nri.sock")
        self.listen(f"{KUBELET}/pod-resources/kubelet.sock")
        self.register(SOCKET)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def kubelet(self, **config: Any) -> None:
        self.write(f"{KUBELET}/config.yaml", yaml.safe_dump({"kind": "KubeletConfiguration", **config}))

    def process(self, *arguments: str) -> None:
        """Run a kubelet with these flags."""
        self.write("proc/77/comm", "kubelet\n")
        self.write("proc/77/cmdline", "\0".join(["/usr/bin/kubelet", *arguments]) + "\0")
        self.allowed(77, "kubelet", "0-7")

    def runtime(self, name: str, *arguments: str) -> None:
        """Run a container runtime with these flags."""
        self.write("proc/88/comm", f"{name}\n")
        self.write("proc/88/cmdline", "\0".join([f"/usr/bin/{name}", *arguments]) + "\0")
        self.allowed(88, name, "0-7")

    def allowed(self, pid: int, name: str, cpus: str) -> None:
        """Let a process run on these CPUs, in a cgroup that has eight."""
        self.write(f"proc/{pid}/status", f"Name:\t{name}\nState:\tS\nPPid:\t1\nCpus_allowed_list:\t{cpus}\n")
        self.write(f"proc/{pid}/cgroup", f"0::/../../system.slice/{name}.service\n")
        self.write("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n")

    def containerd(self, nri: dict[str, Any], cri: dict[str, Any], version: int = 3, **more: Any) -> None:
        self.write("etc/containerd/config.toml", toml({"version": version, **more, "plugins": {NRI: nri, CRI: cri}}))

    def listen(self, path: str) -> socket.socket:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        listening = self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(str(place))
        listening.listen()
        return listening

    def dead(self, path: str) -> None:
        (self.folder / path).unlink(missing_ok=True)
        self.listen(path).close()

    def silence(self) -> None:
        """Remove the NRI socket: a runtime without NRI, or one that accepts no plug-ins, creates none."""
        (self.folder / "run/nri/nri.sock").unlink()

    def register(self, name: str, driver: str = DRIVER, endpoint: str = "") -> None:
        """Serve a driver's registration socket."""
        registry = self.folder / KUBELET / "plugins_registry"
        where = Path(endpoint or f"/{KUBELET}/plugins/{driver}/dra.sock")
        server = grpc.server(futures.ThreadPoolExecutor(1))
        add_RegistrationServicer_to_server(Registration(driver, where, (), pytest.fail), server)
        bind(server, registry / name)
        server.start()
        self.stack.callback(lambda: server.stop(None).wait())

    def unregister(self) -> None:
        (self.folder / KUBELET / "plugins_registry" / SOCKET).unlink()

    def prepare(self, name: str = "a", pod: str = "", *, grouped: bool = False) -> ResourceClaim:
        """Prepare a claim with the driver: it is on record and has its CDI spec.

        It is reserved for `pod-<name>`, for the pod of another claim, or for the PodGroup `crew`.
        """
        claim = allocated_claim(
            name, DRIVER, ["cpudevnuma000"], consumedCapacity={"dra.cpu/cpu": "2"}, shareID=f"share-{name}"
        )
        if pod or grouped:
            others = allocated_claim(pod, DRIVER, ["cpudevnuma000"]).status.reserved_for
            if grouped:
                others = (decode(ResourceClaimConsumerReference, POD_GROUP),)
            claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=others))
        (plugin,) = load_plugins(("cpu",), open_machine(MACHINE), self.options)
        serving = Serving(plugin, self.folder / KUBELET / "plugins" / DRIVER, self.folder / "run" / "cdi")
        serving.open()
        ref = ClaimRef("default", name, claim.metadata.uid)
        (answer,) = serving.prepare({ref: claim}).values()
        serving.close()
        assert isinstance(answer, Prepared), answer
        return claim

    def facts(self) -> Facts:
        # The machine's CPUs, and everything else in the node's files.
        cpus = OverlayFiles(synthetic_tree(parse_description(MACHINE)), FolderFiles(str(self.folder)))
        wanted, plugins = judged_options(self.drivers, ConfinedRoot(cpus), self.node_name, self.options)
        files = NodeFiles("", "", "/etc/crio")
        facts = examine(
            NodeHost.at(str(self.folder)),
            wanted,
            plugins,
            files,
            api=self.server,
            skew=self.skew,
            variables=self.variables,
            statvfs=self.statvfs,
        )
        return with_class_problems(facts, plugins)


def volume(path: str = "", *, free: int = 1 << 40, inodes: int = 1 << 20) -> os.statvfs_result:
    """A file system with this many bytes and inodes left."""
    del path
    blocks, files = 1 << 30, 1 << 21
    return os.statvfs_result((4096, 4096, blocks, free // 4096, free // 4096, files, inodes, inodes, 0, 255))


def toml(document: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """Write a document of tables and plain values as TOML."""
    head = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path else []
    plain = [f"{key} = {json.dumps(value)}" for key, value in document.items() if not isinstance(value, dict)]
    tables = [toml(value, (*path, key)) for key, value in document.items() if isinstance(value, dict)]
    return "\n".join([*head, *plain, *tables])


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Deny everybody access to a folder, with the kernel's error for users other than root; tests may run as root."""
    forbidden = str(folder)

    def guarded(call: Callable[..., Any], within: str) -> Callable[..., Any]:
        def guard(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and (os.fspath(path) + within).startswith(f"{forbidden}/"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return call(path, *arguments, **options)

        return guard

    for name in ("stat", "lstat", "access"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), ""))
    for name in ("listdir", "scandir", "open"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), "/"))


def server_of(node: FakeNode) -> FakeServer:
    """The API server that the node uses; the node must have one."""
    assert node.server is not None
    return node.server


def diagnosed(node: FakeNode) -> tuple[Finding, ...]:
    """Return doctor's findings about the node."""
    return diagnose(node.facts())
